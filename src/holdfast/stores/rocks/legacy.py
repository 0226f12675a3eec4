"""Databases of the legacy layout (SPEC 4.7), read as the queue default/default.

    available/ID                     stored_item: ready, or ready later
    visibility_index/SECONDS 8/ID    available/ID
    in_progress/ID                   stored_item: claimed
    leases/LEASE                     lease_entry: the ids it holds
    lease_expiry/SECONDS 8/LEASE     leases/LEASE

Numbers are big-endian. An id is any bytes. The keys stand in one column family or in several. Nothing is written here,
and nothing passed over: what is not a message is told of as what it is.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from rocksdict import AccessType, Options, Rdict, ReadOptions

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.rocks.legacy_values import LeaseEntry, Unreadable, decode_item, decode_lease

AVAILABLE = b"available/"
VISIBILITY = b"visibility_index/"
IN_PROGRESS = b"in_progress/"
LEASES = b"leases/"
LEASE_EXPIRY = b"lease_expiry/"

_INSTANT = 8
# Beyond this many seconds a key's time is nobody's: it would not fit into milliseconds.
_LATEST_S = 1 << 43


class Kind(StrEnum):
    """Why something in the database is not a message of its own."""

    UNREADABLE = "unreadable"  # kept as it is, in a file
    UNKNOWN = "unknown key"  # likewise
    TWIN = "in both states"  # its message is the other one
    STALE_INDEX = "index without a message"
    STALE_LEASE = "lease without a message"


class LegacyMessage(NamedTuple):
    """A message. `lease_expires_at`: it is in flight until then; None: ready."""

    id: bytes
    payload: bytes
    visible_at: int
    lease_expires_at: int | None


class Oddity(NamedTuple):
    kind: Kind
    key: bytes
    value: bytes
    why: str


class Place(NamedTuple):
    """Where a reading stands: behind this key of this family. The order of families is that of their names."""

    family: str
    key: bytes


def _lock_alone(file: int) -> None:
    """`OSError` if anybody else has it locked, RocksDB included.

    The lock is the open file's. One of the process would let in a second reader of the same process, and be gone when
    that one closed its file.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    # struct flock: its kind, from where, start and length (0: all of it), and no process.
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


def is_legacy(path: Path) -> bool:
    """Whether a directory is a RocksDB database by itself, as no store of ours is."""
    return (path / "CURRENT").is_file() and not (path / "HOLDFAST").exists()


class LegacyDatabase:
    """Open for reading. Whoever may write to it is kept out meanwhile."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not is_legacy(self.path):
            raise InvalidArgument(f"{self.path} is not a database of the legacy layout", field="path")
        self._lock = os.open(self.path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock_alone(self._lock)
            self._names = sorted(Rdict.list_cf(str(self.path), _options()))
            self._db = Rdict(
                str(self.path),
                _options(),
                column_families={name: _options() for name in self._names if name != "default"},
                access_type=AccessType.read_only(),
            )
        except OSError:
            os.close(self._lock)
            raise StoreUnavailable(
                f"{self.path} is in use by another program: stop that one first", path=str(self.path)
            ) from None
        except Exception as error:  # the binding raises nothing more precise
            os.close(self._lock)
            raise StoreUnavailable(f"{self.path} cannot be read: {error}", path=str(self.path)) from None
        self._families = {
            name: self._db if name == "default" else self._db.get_column_family(name) for name in self._names
        }
        self._leases: dict[bytes, int] | None = None
        if not self._has_the_layout():
            self.close()
            raise InvalidArgument(
                f"{self.path} is a RocksDB database, but not of the legacy layout: no key in it begins with "
                f"{AVAILABLE.decode()} or {IN_PROGRESS.decode()}, and others are there",
                field="path",
            )

    def _has_the_layout(self) -> bool:
        """Whether it is a queue's, or empty. Somebody else's data must not be taken for a queue that is damaged."""
        prefixes = (AVAILABLE, IN_PROGRESS, VISIBILITY, LEASES, LEASE_EXPIRY)
        if any(True for name in self._names for prefix in prefixes for _ in self._items(name, prefix, prefix)):
            return True
        return not any(True for name in self._names for _ in self._items(name, b""))

    def close(self) -> None:
        for name, family in self._families.items():
            if name != "default":
                family.close()
        self._families.clear()
        self._db.close()
        os.close(self._lock)

    # --- Reading -----------------------------------------------------------------------------------------------

    def read(self, after: Place | None = None) -> Iterator[tuple[Place, LegacyMessage | Oddity | None]]:
        """Everything there is, in a fixed order, from behind a place. None: a key that says no more than others do."""
        for name in self._names:
            if after is not None and name < after.family:
                continue
            first = after.key + b"\0" if after is not None and name == after.family else b""
            for key, value in self._items(name, first):
                yield Place(name, key), self._judge(key, value)

    def estimate(self) -> int:
        """About how many keys there are."""
        return sum(int(each.property_value("rocksdb.estimate-num-keys") or 0) for each in self._families.values())

    def find(self, id: bytes) -> LegacyMessage | None:
        """The message of an id, wherever it is."""
        for prefix in (IN_PROGRESS, AVAILABLE):
            value = self._get(prefix + id)
            found = None if value is None else self._judge(prefix + id, value)
            if isinstance(found, LegacyMessage):
                return found
        return None

    def _judge(self, key: bytes, value: bytes) -> LegacyMessage | Oddity | None:
        if key.startswith(AVAILABLE):
            return self._available(key, value)
        if key.startswith(IN_PROGRESS):
            return self._in_progress(key, value)
        if key.startswith(VISIBILITY):
            return self._index(key, value)
        if key.startswith(LEASES):
            return self._lease(key, value)
        if key.startswith(LEASE_EXPIRY):
            return self._expiry(key, value)
        return Oddity(Kind.UNKNOWN, key, value, "its key begins like no other")

    def _available(self, key: bytes, value: bytes) -> LegacyMessage | Oddity:
        id = key.removeprefix(AVAILABLE)
        try:
            item = decode_item(value, id)
        except Unreadable as error:
            return Oddity(Kind.UNREADABLE, key, value, str(error))
        if self.leases().get(id) and self._is_readable(IN_PROGRESS, id):
            return Oddity(Kind.TWIN, key, value, "it is claimed, too, under a lease")
        return LegacyMessage(id, item.contents, _seconds_in(VISIBILITY, item.index_key) or 0, None)

    def _in_progress(self, key: bytes, value: bytes) -> LegacyMessage | Oddity:
        """Without a lease it is ready: nobody is left who could settle it."""
        id = key.removeprefix(IN_PROGRESS)
        try:
            item = decode_item(value, id)
        except Unreadable as error:
            return Oddity(Kind.UNREADABLE, key, value, str(error))
        expires_at = self.leases().get(id)
        if expires_at is None and self._is_readable(AVAILABLE, id):
            return Oddity(Kind.TWIN, key, value, "it is ready, too, and no lease holds it")
        return LegacyMessage(id, item.contents, _seconds_in(VISIBILITY, item.index_key) or 0, expires_at)

    def _is_readable(self, prefix: bytes, id: bytes) -> bool:
        value = self._get(prefix + id)
        try:
            return value is not None and decode_item(value, id) is not None
        except Unreadable:
            return False

    def _index(self, key: bytes, value: bytes) -> Oddity | None:
        if _seconds_in(VISIBILITY, key) is None:
            return Oddity(Kind.UNKNOWN, key, value, "there is no time in its key")
        if self._get(AVAILABLE + key[len(VISIBILITY) + _INSTANT + 1 :]) is None:
            return Oddity(Kind.STALE_INDEX, key, value, "there is no such message")
        return None

    def _expiry(self, key: bytes, value: bytes) -> Oddity | None:
        if _seconds_in(LEASE_EXPIRY, key) is None:
            return Oddity(Kind.UNKNOWN, key, value, "there is no time in its key")
        if self._get(LEASES + key[len(LEASE_EXPIRY) + _INSTANT + 1 :]) is None:
            return Oddity(Kind.STALE_INDEX, key, value, "there is no such lease")
        return None

    def _lease(self, key: bytes, value: bytes) -> Oddity | None:
        try:
            lease = decode_lease(value)
        except Unreadable as error:
            return Oddity(Kind.UNREADABLE, key, value, str(error))
        if not any(self._get(IN_PROGRESS + id) is not None for id in _ids_of(lease)):
            return Oddity(Kind.STALE_LEASE, key, value, "nothing that it names is in progress")
        return None

    def leases(self) -> dict[bytes, int]:
        """Until when each id is held, in milliseconds; of several leases the last to end. The one thing that is held in
        memory: what is in flight is little beside what waits."""
        if self._leases is not None:
            return self._leases
        ends: dict[bytes, int] = {}
        held: dict[bytes, int] = {}
        for name in self._names:
            for key, _ in self._items(name, LEASE_EXPIRY, LEASE_EXPIRY):
                at = _seconds_in(LEASE_EXPIRY, key)
                if at is not None:
                    lease = key[len(LEASE_EXPIRY) + _INSTANT + 1 :]
                    ends[lease] = max(at, ends.get(lease, 0))
        for name in self._names:
            for key, value in self._items(name, LEASES, LEASES):
                try:
                    entry = decode_lease(value)
                except Unreadable:
                    continue  # told of where it is read
                # An extended lease may have left its older expiries behind: what it says itself counts.
                at = entry.expires_s * 1_000 if 0 < entry.expires_s < _LATEST_S else ends.get(key[len(LEASES) :])
                if at is not None:
                    for id in _ids_of(entry):
                        held[id] = max(at, held.get(id, 0))
        self._leases = held
        return held

    # --- RocksDB -----------------------------------------------------------------------------------------------

    def _items(self, name: str, first: bytes, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        cursor = self._families[name].iter(ReadOptions())
        cursor.seek(first)
        while cursor.valid() and cursor.key().startswith(prefix):
            yield cursor.key(), cursor.value()
            cursor.next()
        error = _status_of(cursor)
        del cursor  # held by a traceback it would keep the database open
        if error is not None:
            raise StoreUnavailable(f"{self.path} cannot be read: {error}; restore it first", path=str(self.path))

    def _get(self, key: bytes) -> bytes | None:
        for family in self._families.values():
            value: bytes | None = family.get(key)
            if value is not None:
                return value
        return None


def _ids_of(lease: LeaseEntry) -> list[bytes]:
    """A lease names ids, or the keys that they stand in."""
    return [each.removeprefix(IN_PROGRESS) for each in lease.keys]


def _seconds_in(prefix: bytes, key: bytes) -> int | None:
    """The instant in an index's key, in milliseconds; None: there is none."""
    end = len(prefix) + _INSTANT
    if not key.startswith(prefix) or key[end : end + 1] != b"/":
        return None
    seconds = int.from_bytes(key[len(prefix) : end], "big")
    return seconds * 1_000 if seconds < _LATEST_S else None


def _status_of(cursor: object) -> str | None:
    try:
        cursor.status()  # type: ignore[attr-defined]
    except Exception as error:
        return str(error)
    return None


def _options() -> Options:
    return Options(raw_mode=True)


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[LegacyDatabase]:
    database = LegacyDatabase(path)
    try:
        yield database
    finally:
        database.close()
