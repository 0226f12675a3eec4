"""Opening databases of the legacy layout for reading (SPEC 4.7). Nothing is written to the database or its directory.

`legacy_reads.py` has the reads.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from holdfast.forking import listen_for_forks
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.rocks.engine.forks import never_free
from holdfast.stores.rocks.legacy.field_order import parse_order
from holdfast.stores.rocks.legacy.files import LegacyFiles, is_legacy, lock_legacy
from holdfast.stores.rocks.legacy.legacy_reads import LegacyReads


class LegacyDatabase(LegacyReads):
    """A legacy database, open for reading and locked against programs that write to it.

    Pass `is_migrated` if the caller is going to rewrite the directory, and `lock` if the caller has locked the
    directory; the lock remains the caller's. The attribute `order` is the order of the fields of its values.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        is_migrated: bool = False,
        lock: DirectoryLock | None = None,
        order: str | None = None,
    ) -> None:
        """Open the database. `order` is the order of the fields; None: choose it."""
        super().__init__()
        self.path = Path(os.path.realpath(path))
        if not is_legacy(self.path):
            raise InvalidArgument(f"{self.path} is not a database of the legacy layout", field="path")
        self._own_lock = None if lock is not None else lock_legacy(self.path)
        try:
            self._files = LegacyFiles(self.path, is_migrated=is_migrated)
        except BaseException:
            self._release()
            raise
        try:
            self._open()
        except Exception as error:  # RocksDB's binding raises plain `Exception`
            self._files.close()
            self._release()
            raise StoreUnavailable(f"{self.path} cannot be read: {error}", path=str(self.path)) from None
        try:
            self.check_layout()
            self.order = self.choose_order() if order is None else parse_order(order)
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        view = str(self._files.view)
        self._names = sorted(Rdict.list_cf(view, _options()))
        self._db = Rdict(
            view,
            _options(),
            column_families={name: _options() for name in self._names if name != "default"},
            # False: also read the log, which a killed program may have left.
            access_type=AccessType.read_only(False),
        )
        self._families = {
            name: self._db if name == "default" else self._db.get_column_family(name) for name in self._names
        }
        self._is_inherited = False
        listen_for_forks(self)

    def forked(self) -> None:
        """Drop the references to RocksDB in the forked child without closing it, because its threads are only in the
        parent."""
        self._is_inherited = True
        for each in (self._db, *self._families.values()):
            never_free(each)

    def close(self) -> None:
        """Close the database, and release its own locks. Does nothing in a forked child."""
        if self._is_inherited:
            return
        for name, family in self._families.items():
            if name != "default":
                family.close()
        self._families.clear()
        self._db.close()
        self._files.close()
        self._release()

    def _release(self) -> None:
        if self._own_lock is not None:
            self._own_lock.release()


def _options() -> Options:
    return Options(raw_mode=True)


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[LegacyDatabase]:
    """Open a legacy database for reading during a `with` block."""
    database = LegacyDatabase(path)
    try:
        yield database
    finally:
        database.close()
