"""Syncs and simulated kills of a database in the test's own process."""

import os
from pathlib import Path

from holdfast.stores.rocks.engine.database import Database


def sync(opened: Database) -> None:
    pending = opened.log.begin_sync()
    opened.sync(pending)
    opened.log.end_sync(pending)


def mark_as_killed(store: Path) -> None:
    """Let the marker of a copied store name a process that has ended."""
    marker = store / "HOLDFAST"
    marker.write_text(marker.read_text().replace(f'"pid": {os.getpid()}', '"pid": 999999999'))
