"""A small store for the scripts: on the manual clock, with buffers and segments so small that it writes checkpoints,
goes from segment to segment, flushes and compacts."""

from pathlib import Path
from typing import Any, cast

from holdfast.client.blocking import Holdfast
from holdfast.dice import SeededDice
from holdfast.server.compose import Core
from holdfast.server.embedded import Embedded, open_blocking
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.stores.rocks.log import commit_log
from holdfast.stores.rocks.recovery import opening
from holdfast.testing.clock import ManualClock

_WEEK_MS = 7 * 86_400_000
# RocksDB's smallest.
SMALL_BUFFER = 64 << 10
# Changes of a few commits.
_CHECKPOINT_BYTES = 32 << 10
_SEGMENT_BYTES = 32 << 10
_ZEROS_BYTES = 6 << 10
# A piece of a large payload fills several of them at once.
_BUFFERS = 40
_MAX_PAYLOAD = 4 << 20
# The numbers of shards that every fault is tried with.
SHARDS = (1, 4)


def open_small(
    path: Path,
    clock: ManualClock,
    *,
    durability: str,
    seed: int = 0,
    buffer_bytes: int = SMALL_BUFFER,
    **options: Any,
) -> Holdfast:
    """Run in a child process, whose buffers stay small as long as it lives."""
    commit_log.SEGMENT_BYTES, commit_log.ZEROS_BYTES = _SEGMENT_BYTES, _ZEROS_BYTES
    opening._WRITE_BUFFER, opening._WRITE_BUFFERS = buffer_bytes, _BUFFERS
    options.setdefault("low_disk_bytes", 0)
    options.setdefault("checkpoint_bytes", _CHECKPOINT_BYTES)
    store = RocksStore(
        path, SeededDice(seed), durability=Durability(durability), journal_retention_ms=_WEEK_MS, **options
    )
    return open_blocking("", {"max_payload": _MAX_PAYLOAD}, clock=clock, store=store)


def core_of(hf: Holdfast) -> Core:
    return cast(Embedded, hf._inner._transport).core


def run(hf: Holdfast, work: Any) -> Any:
    return hf._driver.run(work)


def sweep(hf: Holdfast) -> None:
    """Until nothing is left to do now."""
    while run(hf, core_of(hf).sweeper.sweep_once()):
        pass
