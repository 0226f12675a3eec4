"""What servers on an object store stand on: a directory, or a bucket. Nothing else can be struck but the servers."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.testing.kills import ServedCluster
from holdfast.testing.kills.cluster import Fault, Footing
from tests.objects.emulators import S3Emulator, emulated

SERVERS = 4
# The time is for steps of servers that died to be thought dead: till then their documents are busy.
_PATIENCE_S = {"file": 6.0, "s3": 21.0}


class ObjectFooting:
    def __init__(self, url: str) -> None:
        self._url = url

    def settings(self, server: int, dice: random.Random) -> Mapping[str, object]:
        return {
            "store": self._url,
            "durability": dice.choice(["fsync", "os"]),
            "queue_poll_interval": "200ms",
            "disk_queue_watch": dice.choice(["true", "false"]),
        }

    def faults(self) -> Sequence[Fault]:
        return []

    def verify(self) -> list[str]:
        time.sleep(_PATIENCE_S[self._url.partition(":")[0]])
        return []

    def verify_drained(self) -> list[str]:
        return []


@contextmanager
def _on_directory(directory: Path) -> Iterator[Footing]:
    yield ObjectFooting((directory / "bucket").as_uri())


@contextmanager
def _on_bucket(directory: Path) -> Iterator[Footing]:
    with emulated(S3Emulator) as s3:
        yield ObjectFooting(s3.new_url())


TARGET = ServedCluster("object store on disk", SERVERS, _on_directory)
# The emulator takes some milliseconds for each call.
BUCKET_TARGET = ServedCluster("object store on S3", SERVERS, _on_bucket, max_backlog=60)
