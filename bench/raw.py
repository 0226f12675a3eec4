"""The raw side of a pair: RocksDB doing the very writes that the engine did, with no queue around them."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocksdict import WriteBatch

import holdfast.stores.rocks.engine as engine_module
from holdfast.stores.rocks.database import Database

# put or delete, column family, key, value
Operation = tuple[bool, str, bytes, bytes]


class _RecordingBatch:
    """A write batch that remembers what was put into it."""

    def __init__(self, raw_mode: bool) -> None:
        self.inner = WriteBatch(raw_mode=raw_mode)
        self.operations: list[tuple[bool, Any, bytes, bytes]] = []

    def put(self, key: bytes, value: bytes, handle: Any) -> None:
        self.operations.append((True, handle, key, value))
        self.inner.put(key, value, handle)

    def delete(self, key: bytes, handle: Any) -> None:
        self.operations.append((False, handle, key, b""))
        self.inner.delete(key, handle)

    def delete_range(self, lower: bytes, upper: bytes, handle: Any) -> None:
        self.inner.delete_range(lower, upper, handle)

    def __len__(self) -> int:
        return len(self.inner)


@contextmanager
def recording(into: list[list[Operation]]) -> Iterator[None]:
    """Stores opened inside keep a copy of every batch they write."""
    write = Database.write

    def write_and_keep(self: Database, batch: Any) -> None:
        names = {id(handle): name for name, handle in self.handles.items()}
        into.append([(is_put, names[id(handle)], key, value) for is_put, handle, key, value in batch.operations])
        write(self, batch.inner)

    engine_module.WriteBatch = _RecordingBatch  # type: ignore[misc, assignment]
    Database.write = write_and_keep  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        engine_module.WriteBatch = WriteBatch  # type: ignore[misc]
        Database.write = write  # type: ignore[method-assign]


def replayer(database: Database, batches: list[list[Operation]]) -> Callable[[], None]:
    """Writes those batches, one `write` each, as fast as the binding allows."""
    handles = database.handles
    prepared = [[(is_put, key, value, handles[name]) for is_put, name, key, value in batch] for batch in batches]

    def replay() -> None:
        for operations in prepared:
            batch = WriteBatch(raw_mode=True)
            put, delete = batch.put, batch.delete
            for is_put, key, value, handle in operations:
                if is_put:
                    put(key, value, handle)
                else:
                    delete(key, handle)
            database.write(batch)

    return replay


@contextmanager
def scratch() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)
