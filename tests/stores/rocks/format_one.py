"""Make stores of format 1: each commit is a write batch in RocksDB's own log, and there is no commit log of ours.

Nothing writes this format any more. A store of the current format is filled first; then its frames are written to a new
RocksDB, one batch for each frame, as the engine of format 1 wrote them.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocksdict import Rdict, WriteBatch

from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.layers import Layer, LogLocation
from holdfast.stores.rocks.log.frames import LogPartKind, read_body, read_header
from holdfast.stores.rocks.log.segments import DIRECTORY as LOG
from holdfast.stores.rocks.log.segments import FIRST_FRAME_OFFSET, list_segments, segment_path
from holdfast.stores.rocks.recovery.marker import MARKER, read_boot_id
from holdfast.stores.rocks.recovery.opening import open_rocksdb
from holdfast.stores.rocks.recovery.wal_batch import SYNCED, SYNCED_KEY
from tests.crash.rocks import copy_store, open_store

# Higher than any process id of Linux.
NOT_RUNNING = 1 << 22


def kill_format_one(place: Path, payloads: Iterable[bytes], durability: str = "os") -> Path:
    """Make a store of format 1 as a kill leaves it, and return its directory, a new one below `place`.

    Each payload was enqueued to the queue "mail" by a call of its own. All of them are in RocksDB's log, and in no
    sorted file. With durability "fsync" the log was synced after each call, otherwise after the first batch only.
    """
    with _written(place, payloads, durability) as running:
        killed = copy_store(running, place / "killed")
    _write_marker(killed, NOT_RUNNING)
    return killed


def close_format_one(place: Path, payloads: Iterable[bytes], durability: str = "os") -> Path:
    """Make a store of format 1 whose marker names no owner: RocksDB has flushed everything to sorted files.

    The last record of an orderly closing is missing, which only marks the end of the session.
    """
    with _written(place, payloads, durability) as running:
        pass
    closed = copy_store(running, place / "closed")
    _write_marker(closed, None)
    return closed


@contextmanager
def _written(place: Path, payloads: Iterable[bytes], durability: str) -> Iterator[Path]:
    """Write the batches to a new RocksDB, which is closed at the end of the context."""
    commits = list(_frames_of(_fill(place / "frames", payloads, durability)))
    running = place / "running"
    running.mkdir(parents=True)
    database = open_rocksdb(running)
    handles: list[Any] = [None, *map(database.get_column_family_handle, keys.FAMILY_NAMES[1:])]
    _write(database, handles, commits)
    yield running
    handles.clear()
    for name in keys.FAMILY_NAMES[1:]:
        database.get_column_family(name).close()
    database.close()
    shutil.rmtree(place / "frames")


def _fill(place: Path, payloads: Iterable[bytes], durability: str) -> Path:
    with open_store(place / "running", durability=durability) as hf:
        queue = hf.queue("mail")
        for each in payloads:
            queue.enqueue(each)
        return copy_store(place / "running", place / "killed")


def _frames_of(store: Path) -> Iterator[tuple[int, int, Layer]]:
    """Yield the number of each frame that has changes, the number that it says was synced, and the changes."""
    directory = store / LOG
    for generation in list_segments(directory):
        raw, at = segment_path(directory, generation).read_bytes(), FIRST_FRAME_OFFSET
        while (header := read_header(raw, at, generation)) is not None:
            body = read_body(raw, header)
            assert body is not None
            if header.kind == LogPartKind.CHANGES:
                changes = Layer()
                changes.replay(body, generation, header.body_offset)
                _read_large_values(changes, raw)
                yield header.number, header.synced, changes
            at = header.end


def _read_large_values(changes: Layer, segment: bytes) -> None:
    """Put the large values into the changes of a frame, which have only their locations in the segment."""
    for family in changes.families:
        for key, value in family.overrides.items():
            if isinstance(value, LogLocation):
                family.overrides[key] = segment[value.offset : value.offset + value.size]


def _write(database: Rdict, handles: list[Any], commits: list[tuple[int, int, Layer]]) -> None:
    # The sequence of RocksDB's last operation after each frame.
    sequences = {0: 0}
    synced_in_log = 0
    for number, synced, changes in commits:
        batch = WriteBatch(raw_mode=True)
        for handle, family in zip(handles, changes.families, strict=True):
            for lower, upper in family.ranges:
                batch.delete_range(lower, upper, handle)
            for key, value in (*family.fresh.items(), *family.overrides.items()):
                if value is None:
                    batch.delete(key, handle)
                else:
                    batch.put(key, value, handle)
        known = sequences[max(each for each in sequences if each <= synced)]
        if known > synced_in_log:
            # The first batch after each sync says up to which sequence everything is on disk.
            synced_in_log = known
            batch.put(SYNCED_KEY, SYNCED.pack(known), None)
        database.write(batch)
        sequences[number] = database.latest_sequence_number()


def _write_marker(store: Path, pid: int | None) -> None:
    (store / MARKER).write_text(json.dumps({"format": 1, "pid": pid, "boot": read_boot_id()}))
