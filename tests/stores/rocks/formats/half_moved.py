"""Fill a directory of the legacy layout, open it, and end as a killed process before its messages are moved:
`python -m tests.stores.rocks.formats.half_moved DIR`. `format_7.tar.xz` has the result."""

import os
import sys
from pathlib import Path

from holdfast.dice import SeededDice
from holdfast.server.embedded import open_blocking
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.stores.rocks.legacy.online.moving_store import MovingStore
from holdfast.testing import ManualClock
from holdfast.testing.clock import START_MS
from tests.machinery.legacy.databases import LegacyWriter

# More than any disk has: nothing is moved but what claims need.
_NO_ROOM = 1 << 60


def fill(path: Path) -> None:
    """Write 300 messages, and claim the first three of them for an hour."""
    writer = LegacyWriter(path)
    for number in range(300):
        writer.add(b"job-%d" % number, b"old %d" % number, START_MS // 1_000 - 1_000 + number)
    writer.close()
    store = MovingStore(
        path, SeededDice(1), durability=Durability.OS, journal_retention_ms=604_800_000, low_disk_bytes=_NO_ROOM
    )
    hf = open_blocking("", {}, clock=ManualClock(), store=store)
    hf.queue().claim(limit=3, lease=3_600)


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
    os._exit(0)
