"""The object store of servers: a directory or a bucket. Only the servers are killed."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.stores.objects.buckets.disk import DiskBucket
from holdfast.stores.objects.verify.store import verify
from tests.crash.kills import hasty
from tests.machinery.kills import ServedCluster
from tests.machinery.kills.cluster import Fault, Footing
from tests.stores.objects.emulators import S3Emulator, emulated

SERVERS = 4


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
        return [str(each) for each in verify(self._url).violations]

    def verify_drained(self) -> list[str]:
        """Check that no message is left. Remains of acked messages may exist until their events are removed."""
        report = verify(self._url)
        broken = [str(each) for each in report.violations]
        if report.ready or report.in_flight:
            broken.append(f"drained, but {report.ready} are ready and {report.in_flight} in flight")
        return broken


@contextmanager
def _on_directory(directory: Path) -> Iterator[Footing]:
    yield ObjectFooting((directory / "bucket").as_uri())


@contextmanager
def _on_bucket(directory: Path) -> Iterator[Footing]:
    with emulated(S3Emulator) as s3:
        yield ObjectFooting(s3.new_url())


_PATIENCE_S = DiskBucket.step_timeout_ms // 1_000 + 1
TARGET = ServedCluster("object store on disk", SERVERS, _on_directory, patience_s=_PATIENCE_S)
# The emulator takes some milliseconds for each call.
BUCKET_TARGET = ServedCluster(
    "object store on S3", SERVERS, _on_bucket, max_backlog=60, module=hasty.MODULE, patience_s=hasty.PATIENCE_S + 1
)
