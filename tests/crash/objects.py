"""What servers on an object store stand on: one directory. Nothing else can be struck but the servers themselves."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.testing.kills import ServedCluster
from holdfast.testing.kills.cluster import Fault, Footing

SERVERS = 4
_PATIENCE_S = 6.0


class DirectoryFooting:
    def __init__(self, directory: Path) -> None:
        self._directory = directory / "bucket"

    def settings(self, server: int, dice: random.Random) -> Mapping[str, object]:
        return {
            "store": self._directory.as_uri(),
            "durability": dice.choice(["fsync", "os"]),
            "queue_poll_interval": "200ms",
            "disk_queue_watch": dice.choice(["true", "false"]),
        }

    def faults(self) -> Sequence[Fault]:
        return []

    def verify(self) -> list[str]:
        """Nothing beside the history: `holdfast verify` does not read object stores yet. The time is for steps of
        servers that died to be thought dead: till then their documents are busy."""
        time.sleep(_PATIENCE_S)
        return []

    def verify_drained(self) -> list[str]:
        return []


@contextmanager
def _stand(directory: Path) -> Iterator[Footing]:
    yield DirectoryFooting(directory)


TARGET = ServedCluster("object store on disk", SERVERS, _stand)
