"""The raw side of a pair: RocksDB doing the key changes of the engine, with its own log and no queue around them."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocksdict import Options, Rdict, WriteBatch

from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.open_commit import OpenCommit
from holdfast.stores.rocks.queues import plain_messages
from holdfast.stores.rocks.recovery.opening import open_rocksdb

# The family, the key, and its value; None for a deleted key.
Change = tuple[int, bytes, bytes | None]


@contextmanager
def recording(into: list[list[Change]]) -> Iterator[None]:
    """Keep the keys of every commit that a store writes meanwhile."""
    take = OpenCommit.take

    def take_and_keep(self: OpenCommit) -> Any:
        parts = iter(self._parts)
        into.append([change for part in zip(parts, parts, parts, strict=True) for change in _keys_of(*part)])
        return take(self)

    OpenCommit.take = take_and_keep
    try:
        yield
    finally:
        OpenCommit.take = take


def _keys_of(number: Any, key: Any, value: Any) -> Iterator[Change]:
    """Yield the keys that a part of a commit stands for: one, or those of many plain messages."""
    if number < plain_messages.ADDED:
        yield number, key, value
        return
    for family, names, values in plain_messages.decode_part(number, key, value):
        for at, name in enumerate(names):
            yield family, name, values[at] if isinstance(values, list) else values


def open_plain(path: Path) -> Rdict:
    """Open a RocksDB of one family."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    return Rdict(str(path), options)


@contextmanager
def raw_database(path: Path) -> Iterator[Rdict]:
    """A RocksDB of the store's shape, with its own log on."""
    path.mkdir()
    database = open_rocksdb(path)
    try:
        yield database
    finally:
        database.close()


def replayer(database: Rdict, commits: list[list[Change]]) -> Callable[[], None]:
    """Write those commits, one `write` each, as fast as the binding allows."""
    handles = [None, *map(database.get_column_family_handle, keys.FAMILY_NAMES[1:])]
    prepared = [[(key, value, handles[family]) for family, key, value in commit] for commit in commits]

    def replay() -> None:
        for changes in prepared:
            batch = WriteBatch(raw_mode=True)
            put, delete = batch.put, batch.delete
            for key, value, handle in changes:
                if value is None:
                    delete(key, handle)
                else:
                    put(key, value, handle)
            database.write(batch)

    return replay


@contextmanager
def scratch() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)
