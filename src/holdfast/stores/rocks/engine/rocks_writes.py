"""Writes to RocksDB without its own log: layers of changes in small slices, flushes, and the loading of a new store."""

import shutil
from collections.abc import Iterable, Iterator
from typing import Any

from rocksdict import Checkpoint, Rdict, WriteBatch, WriteOptions

from holdfast.clock import sleep
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.layers import Layer
from holdfast.stores.rocks.engine.log_position import POSITION_KEY, encode_position
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.log.commit_log import LogPosition
from holdfast.telemetry.figures import FamilyFigures

# A temporary directory of links to RocksDB's files. Its creation proves that everything was flushed.
FLUSH_PROOF = "flushed.tmp"
# Keys written to RocksDB at once. That takes about 0.2 ms, in which no other code runs.
_SLICE_KEYS = 100
# Messages whose keys are made at once before that. It takes about as long.
_SLICE_MESSAGES = 50
_SLICE_BYTES = 128 << 10
# Keys written to RocksDB at once while no callers wait.
_LOADED_KEYS = 2_000
# Bytes of values written to RocksDB between two flushes. Pieces of large payloads must not pile up in its memory
# instead of ours.
_UNFLUSHED_BYTES = 16 << 20
# Pause between two checks whether RocksDB has finished a flush.
_FLUSH_PAUSE_S = 0.001


class RocksWrites(MergedReads):
    """An open RocksDB that can be written to. Its own log is not used."""

    def __init__(self) -> None:
        super().__init__()
        # RocksDB's handle of each family, by number.
        self.handles: list[Any] = []
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # a property; the stub says method

    def write_slices(self, layer: Layer, position: LogPosition) -> Iterator[bool]:
        """Write a layer to RocksDB, and yield after each small slice. The last slice contains the log position.

        Yield True if RocksDB has so much in memory that its families should be flushed before the next slice.
        """
        while layer.keyless:
            # Make all of these keys first. From then on the layer does not change.
            layer.make_some_keys(_SLICE_MESSAGES)
            yield False
        batch, count, size, unflushed = WriteBatch(raw_mode=True), 0, 0, 0
        for number, family in enumerate(layer.families):
            handle = self.handles[number]
            for lower, upper in family.ranges:
                batch.delete_range(lower, upper, handle)
            for changed in (family.fresh, family.overrides):
                for key, value in changed.items():
                    if value is None:
                        batch.delete(key, handle)
                    else:
                        value = self._load(value)
                        batch.put(key, value, handle)
                        size += len(value)
                    count += 1
                    if count == _SLICE_KEYS or size > _SLICE_BYTES:
                        self._opened().write(batch, self._unlogged)
                        unflushed += size
                        is_full = unflushed > _UNFLUSHED_BYTES
                        if is_full:
                            unflushed = 0
                        yield is_full
                        batch, count, size = WriteBatch(raw_mode=True), 0, 0
                        handle = self.handles[number]
        batch.put(POSITION_KEY, encode_position(position), None)
        self._opened().write(batch, self._unlogged)
        yield False

    def load(self, items: Iterable[tuple[int, bytes, bytes]]) -> None:
        """Write keys and values straight to RocksDB, to make a new store. They are durable only after `Database.close`
        has returned."""
        batch, size = WriteBatch(raw_mode=True), 0
        for family, key, value in items:
            batch.put(key, value, self.handles[family])
            size += len(value)
            if len(batch) >= _LOADED_KEYS or size > _UNFLUSHED_BYTES:
                self._opened().write(batch, self._unlogged)
                batch, size = WriteBatch(raw_mode=True), 0
        self._opened().write(batch, self._unlogged)

    # --- Flushing ----------------------------------------------------------------------------------------------

    def flush_families(self) -> None:
        """Flush RocksDB's families one after the other, without holding the interpreter lock. May run on another
        thread.

        The directory comes last: it contains the log position, which must not be on disk before the data that it
        covers.
        """
        for family in (*self._families[1:], self._families[0]):
            family.flush(True)

    def flush(self) -> None:
        """Return once everything in RocksDB is on disk. May run on another thread.

        `Rdict.flush` waits for one family only. Creating a RocksDB checkpoint flushes all families first. However, if
        its buffers are so full that another flush would stall writes, RocksDB creates the checkpoint without waiting
        for the flush in progress. So everything is on disk once a checkpoint was created and no buffer contains
        anything afterwards. This holds the interpreter lock for as long as there is much to flush.
        """
        proof = self.path / FLUSH_PROOF
        while True:
            try:
                Checkpoint(self._opened()).create_checkpoint(str(proof))
            finally:
                shutil.rmtree(proof, ignore_errors=True)
            if not any(map(_has_unflushed, self._families)):
                return
            sleep(_FLUSH_PAUSE_S)

    def figures(self) -> dict[str, FamilyFigures]:
        """Return estimates that RocksDB has at hand. For all families together this takes a fraction of a
        millisecond."""
        return {name: _read_figures(each) for name, each in zip(keys.FAMILY_NAMES, self._families, strict=False)}


def _read_figures(family: Rdict) -> FamilyFigures:
    def read_number(name: str) -> int:
        return int(family.property_value(f"rocksdb.{name}") or 0)

    return FamilyFigures(
        keys=read_number("estimate-num-keys"),
        live_bytes=read_number("estimate-live-data-size"),
        files_bytes=read_number("total-sst-files-size"),
        memtable_bytes=read_number("cur-size-all-mem-tables"),
        pending_compaction_bytes=read_number("estimate-pending-compaction-bytes"),
        level0_files=read_number("num-files-at-level0"),
        block_cache_bytes=read_number("block-cache-usage"),
    )


def _has_unflushed(family: Rdict) -> bool:
    """Return whether RocksDB has any data of a family only in memory."""
    names = ("num-entries-active-mem-table", "num-immutable-mem-table")
    return any(int(family.property_value(f"rocksdb.{name}") or 0) for name in names)
