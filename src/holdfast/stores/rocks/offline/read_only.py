"""Reading a store without changing its directory, even after a crash.

rocksdict writes `rocksdict-config.json` into every directory that it opens, even for reading. And after a power cut,
RocksDB's manifest may have to be truncated before it can be read. So RocksDB gets a temporary directory instead, with
links to the large files, which it only reads, and copies of the small ones.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

from holdfast.forking import forked_error, listen_for_forks
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.rocks.engine.forks import never_free
from holdfast.stores.rocks.engine.layers import Layer
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.engine.shard_links import resolve_links
from holdfast.stores.rocks.log.replay import Replay, ReplayResult
from holdfast.stores.rocks.log.segments import DIRECTORY as LOG
from holdfast.stores.rocks.recovery.layout import check_shards, read_layout, refuse_legacy
from holdfast.stores.rocks.recovery.marker import MARKER, WITH_LOG, Marker, check_directory, read_marker
from holdfast.stores.rocks.recovery.opening import (
    DATABASE,
    check_files,
    make_in_use_error,
    make_opening_error,
    open_rocksdb,
    read_covered_position,
)

# RocksDB does not need these files for reading.
_LEFT_OUT = ("LOCK", "LOG", "rocksdict-config")


class ReadOnlyStore(MergedReads):
    """A database opened for reading: one of a backup, or of a store that was closed or whose process was killed."""

    # The result of replaying the log.
    replayed: ReplayResult

    def __init__(self, path: str | os.PathLike[str], *, may_be_missing: bool = False) -> None:
        """Open the database in `path`. With `may_be_missing`, a missing directory or one without a marker is read as an
        empty store."""
        super().__init__()
        self.path = Path(os.path.realpath(path))
        self._closed_error = StoreUnavailable("this read-only store was closed: open it again")
        self._view: Path | None = None
        try:
            check_directory(self.path)
            if not may_be_missing and not (self.path / MARKER).exists():
                raise InvalidArgument(f"{self.path} holds no store: give the directory of a backup", field="url")
            self._open(read_marker(self.path))
        except BaseException:
            self.close()
            raise
        listen_for_forks(self)

    def _open(self, marker: Marker) -> None:
        self._marker = marker
        self.replayed = ReplayResult(0, 0)
        view = self._view = _make_view(self.path, copies_logs=not marker.is_of_this_boot)
        try:
            check_files(view, marker, has_lost_writes=False)
            # A crash may have interrupted the creation of the store. RocksDB then creates the missing files in the
            # view.
            is_unfinished = marker.was_never_opened and not any((view / DATABASE).glob("*.sst"))
            self._use(open_rocksdb(view, is_read_only=not is_unfinished))
        except StoreUnavailable as error:
            # Name the store's own files in the error instead of those in the temporary directory.
            raise StoreUnavailable(
                error.message.replace(str(view), str(self.path)),
                **{name: str(fact).replace(str(view), str(self.path)) for name, fact in error.facts.items()},
            ) from None
        except Exception as error:  # RocksDB's binding raises plain `Exception`
            raise make_opening_error(self.path, Exception(str(error).replace(str(view), str(self.path)))) from None
        if marker.format >= WITH_LOG:
            self._replay()

    def _replay(self, before: int | None = None) -> None:
        """Read the changes that only the log has into memory, up to but not including the frame `before`."""
        layer, marker = Layer(), self._marker
        replay = Replay(
            self.path,
            self.path / LOG,
            read_covered_position(self._opened()),
            was_closed=marker.pid is None,
            after_power_cut=not marker.is_of_this_boot,
            before=before,
        )
        self.replayed = replay.run(layer.replay)
        self._layers = (layer,)

    def replay_before(self, frame: int) -> None:
        """Read the log again, up to but not including this frame."""
        self._replay(before=frame)

    def forked(self) -> None:
        """Drop the references to RocksDB in the forked child without closing it. The parent closes it and removes the
        temporary directory."""
        self._closed_error = forked_error(f"the read-only store in {self.path}")
        for each in (self._db, *self._families):
            never_free(each)
        self._db, self._families, self._view = None, [], None

    def close(self) -> None:
        """Close RocksDB and remove the temporary directory. Idempotent."""
        families, self._families = self._families[1:], []
        database, self._db = self._db, None
        for family in families:
            family.close()
        if database is not None:
            database.close()
        view, self._view = self._view, None
        if view is not None:
            shutil.rmtree(view, ignore_errors=True)


class ReadOnlyShards:
    """All databases of a store, opened for reading: one for each shard, or the only one."""

    def __init__(
        self, path: str | os.PathLike[str], *, lock: DirectoryLock | None = None, may_have_legacy: bool = False
    ) -> None:
        """Open all databases of the store. The object takes over `lock`, a lock on the directory, and releases it when
        it is closed.

        A store whose messages are partly in a legacy database is refused, unless the caller reads that too.
        """
        self._lock = lock
        self.shards: list[ReadOnlyStore] = []
        try:
            store = Path(os.path.realpath(path))
            check_directory(store)
            layout = read_layout(store)
            self.has_legacy = layout.role.has_legacy
            if not may_have_legacy:
                refuse_legacy(layout, "read")
            check_shards(layout)
            # A crash may have interrupted the creation of the shards. Such a store has no messages.
            is_unfinished = layout.has_shards and not layout.role.is_made
            self.shards += [ReadOnlyStore(shard, may_be_missing=is_unfinished) for shard in layout.paths]
            resolve_links(dict(enumerate(self.shards)), str(store))
        except BaseException:
            self.close()
            raise

    @classmethod
    def alone(cls, path: Path, *, may_have_legacy: bool = False) -> Self:
        """Lock and open a store, so that no process can open it until it is closed here. Raise `StoreUnavailable` if it
        is in use."""
        check_directory(path)
        lock = DirectoryLock.take(path)
        if lock is None:
            raise make_in_use_error(path)
        return cls(path, lock=lock, may_have_legacy=may_have_legacy)

    def close(self) -> None:
        """Close all databases and release the lock. Idempotent."""
        for shard in self.shards:
            shard.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


def _make_view(store: Path, *, copies_logs: bool) -> Path:
    """Return a temporary directory with links to the store's files or copies of them.

    Stores of format 1 have logs of RocksDB's own. These are copied with `copies_logs`, because they may have to be
    truncated.
    """
    view = Path(tempfile.mkdtemp(prefix="holdfast-read-"))
    try:
        (view / DATABASE).mkdir()
        if (store / LOG).is_dir():
            (view / LOG).symlink_to(store / LOG)
        for entry in (store / DATABASE).iterdir() if (store / DATABASE).is_dir() else ():
            if not entry.is_file() or entry.name.startswith(_LEFT_OUT):
                continue
            if entry.suffix in (".sst", ".blob") or (entry.suffix == ".log" and not copies_logs):
                (view / DATABASE / entry.name).symlink_to(entry)
            else:
                shutil.copyfile(entry, view / DATABASE / entry.name)
    except OSError as error:
        shutil.rmtree(view, ignore_errors=True)
        raise StoreUnavailable(
            f"{store} is read through a temporary directory, which cannot be created: {error}", path=str(store)
        ) from None
    return view
