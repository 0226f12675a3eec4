"""Databases of the legacy layout (SPEC 4.7), read as the queue default/default.

The keys are in legacy_keys.py; they stand in one column family or in several. Nothing is written to the database or its
directory, and nothing is left out: a key that is not a message is reported as an `Oddity`.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from rocksdict import AccessType, Options, Rdict, ReadOptions

from holdfast.forking import listen_for_forks
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.rocks.engine.forks import never_free
from holdfast.stores.rocks.legacy.field_order import FieldOrder, Fields, choose_order
from holdfast.stores.rocks.legacy.files import LegacyFiles, is_legacy, lock_legacy
from holdfast.stores.rocks.legacy.keys import (
    AVAILABLE,
    IN_PROGRESS,
    LATEST_S,
    LEASE_EXPIRY,
    LEASES,
    VISIBILITY,
    after_instant,
    instant_in,
)
from holdfast.stores.rocks.legacy.values import (
    LeaseEntry,
    StoredItem,
    Unreadable,
    decode_fields,
    decode_item,
    decode_lease,
)

_log = logging.getLogger("holdfast")


class OddityKind(StrEnum):
    """Why something in the database is not a message of its own."""

    UNREADABLE = "unreadable"  # kept as it is, in a file
    UNKNOWN = "unknown key"  # likewise
    TWIN = "in both states"  # its message is the other one
    STALE_INDEX = "index without a message"
    STALE_LEASE = "lease without a message"


class LegacyMessage(NamedTuple):
    """A message. `lease_expires_at` is the end of its lease; None: no lease holds it."""

    id: bytes
    payload: bytes
    visible_at: int
    lease_expires_at: int | None

    def is_held(self, now_ms: int) -> bool:
        """Return whether it is in flight. A lease that has ended holds nothing."""
        return self.lease_expires_at is not None and self.lease_expires_at > now_ms

    def ready_at(self) -> int:
        """Return when it is due once no lease holds it: a lease brings its message back as of its end."""
        return max(self.visible_at, self.lease_expires_at or 0)


class Oddity(NamedTuple):
    """A key that is not a message, and why."""

    kind: OddityKind
    key: bytes
    value: bytes
    why: str

    @property
    def is_unreadable(self) -> bool:
        """Return whether it may be a message all the same: one that is damaged, or of a layout that is not this one."""
        return self.kind in (OddityKind.UNREADABLE, OddityKind.UNKNOWN)


class LegacyPosition(NamedTuple):
    """Where a reading stands: behind this key of this family. The order of families is that of their names."""

    family: str
    key: bytes


class LegacyDatabase:
    """A legacy database open for reading; programs that write to it are locked out.

    `is_migrated`: the caller is going to rewrite the directory. `lock`: the caller's hold on the directory, which stays
    the caller's. `order` is the order of its values' fields.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, is_migrated: bool = False, lock: DirectoryLock | None = None
    ) -> None:
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
        except Exception as error:  # the binding raises nothing more precise
            self._files.close()
            self._release()
            raise StoreUnavailable(f"{self.path} cannot be read: {error}", path=str(self.path)) from None
        self._leases: dict[bytes, int] | None = None
        try:
            self._check_layout()
            self.order = self._choose_order()
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
            # The log of a program that was killed is read too.
            access_type=AccessType.read_only(False),
        )
        self._families = {
            name: self._db if name == "default" else self._db.get_column_family(name) for name in self._names
        }
        self._is_inherited = False
        listen_for_forks(self)

    def _check_layout(self) -> None:
        if not self._has_the_layout():
            raise InvalidArgument(
                f"{self.path} is a RocksDB database, but not of the legacy layout: no key in it begins with "
                f"{AVAILABLE.decode()} or {IN_PROGRESS.decode()}, and others are there",
                field="path",
            )

    def _choose_order(self) -> FieldOrder:
        order, compared, fitting = choose_order(self._fields())
        if order is None:
            raise InvalidArgument(
                f"{self.path} cannot be read: several orders of a stored_item's fields fit its {compared:,} values "
                f"equally well, and give them different payloads. Nothing was changed",
                field="path",
            )
        _log.info(
            "legacy_field_order_chosen path=%s order=%r compared=%d fitting=%d",
            self.path,
            str(order),
            compared,
            fitting,
        )
        return order

    def _fields(self) -> Iterator[tuple[bytes, Fields]]:
        """Yield the id and the fields of every value that is a Cap'n Proto message at all."""
        spaces = [(name, prefix) for prefix in (AVAILABLE, IN_PROGRESS) for name in self._names]
        for key, value in chain.from_iterable(self._items(name, prefix, prefix) for name, prefix in spaces):
            try:
                yield key.partition(b"/")[2], decode_fields(value)
            except Unreadable:
                continue  # reported where it is read

    def _has_the_layout(self) -> bool:
        """Whether it is a queue's, or empty. Somebody else's data must not be taken for a queue that is damaged."""
        prefixes = (AVAILABLE, IN_PROGRESS, VISIBILITY, LEASES, LEASE_EXPIRY)
        if any(True for name in self._names for prefix in prefixes for _ in self._items(name, prefix, prefix)):
            return True
        return not any(True for name in self._names for _ in self._items(name, b""))

    def forked(self) -> None:
        """Leave the database to the parent; RocksDB is not closed here, for its threads stayed behind."""
        self._is_inherited = True
        for each in (self._db, *self._families.values()):
            never_free(each)

    def close(self) -> None:
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

    # --- Reading -----------------------------------------------------------------------------------------------

    def read(
        self, after: LegacyPosition | None = None
    ) -> Iterator[tuple[LegacyPosition, LegacyMessage | Oddity | None]]:
        """Everything there is, in a fixed order, from behind a place. None: a key that says no more than others do."""
        for name in self._names:
            if after is not None and name < after.family:
                continue
            first = after.key + b"\0" if after is not None and name == after.family else b""
            for key, value in self._items(name, first):
                yield LegacyPosition(name, key), self._judge(key, value)

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
        return Oddity(OddityKind.UNKNOWN, key, value, "its key begins like no other")

    def _available(self, key: bytes, value: bytes) -> LegacyMessage | Oddity:
        id = key.removeprefix(AVAILABLE)
        try:
            item = self._decode(value, id)
        except Unreadable as error:
            return Oddity(OddityKind.UNREADABLE, key, value, str(error))
        if self.leases().get(id) and self._is_readable(IN_PROGRESS, id):
            return Oddity(OddityKind.TWIN, key, value, "it is claimed, too, under a lease")
        return LegacyMessage(id, item.contents, instant_in(VISIBILITY, item.index_key) or 0, None)

    def _in_progress(self, key: bytes, value: bytes) -> LegacyMessage | Oddity:
        """Without a lease it is ready: nobody is left who could settle it."""
        id = key.removeprefix(IN_PROGRESS)
        try:
            item = self._decode(value, id)
        except Unreadable as error:
            return Oddity(OddityKind.UNREADABLE, key, value, str(error))
        expires_at = self.leases().get(id)
        if expires_at is None and self._is_readable(AVAILABLE, id):
            return Oddity(OddityKind.TWIN, key, value, "it is ready, too, and no lease holds it")
        return LegacyMessage(id, item.contents, instant_in(VISIBILITY, item.index_key) or 0, expires_at)

    def _decode(self, value: bytes, id: bytes) -> StoredItem:
        return decode_item(value, id, self.order)

    def _is_readable(self, prefix: bytes, id: bytes) -> bool:
        value = self._get(prefix + id)
        try:
            return value is not None and self._decode(value, id) is not None
        except Unreadable:
            return False

    def _index(self, key: bytes, value: bytes) -> Oddity | None:
        if instant_in(VISIBILITY, key) is None:
            return Oddity(OddityKind.UNKNOWN, key, value, "there is no time in its key")
        if self._get(AVAILABLE + after_instant(VISIBILITY, key)) is None:
            return Oddity(OddityKind.STALE_INDEX, key, value, "there is no such message")
        return None

    def _expiry(self, key: bytes, value: bytes) -> Oddity | None:
        if instant_in(LEASE_EXPIRY, key) is None:
            return Oddity(OddityKind.UNKNOWN, key, value, "there is no time in its key")
        if self._get(LEASES + after_instant(LEASE_EXPIRY, key)) is None:
            return Oddity(OddityKind.STALE_INDEX, key, value, "there is no such lease")
        return None

    def _lease(self, key: bytes, value: bytes) -> Oddity | None:
        try:
            lease = decode_lease(value)
        except Unreadable as error:
            return Oddity(OddityKind.UNREADABLE, key, value, str(error))
        if not any(self._get(IN_PROGRESS + id) is not None for id in _ids_of(lease)):
            return Oddity(OddityKind.STALE_LEASE, key, value, "nothing that it names is in progress")
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
                at = instant_in(LEASE_EXPIRY, key)
                if at is not None:
                    lease = after_instant(LEASE_EXPIRY, key)
                    ends[lease] = max(at, ends.get(lease, 0))
        for name in self._names:
            for key, value in self._items(name, LEASES, LEASES):
                try:
                    entry = decode_lease(value)
                except Unreadable:
                    continue  # told of where it is read
                # An extended lease may have left its older expiries behind: what it says itself counts.
                at = entry.expires_s * 1_000 if 0 < entry.expires_s < LATEST_S else ends.get(key[len(LEASES) :])
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
    """Open a legacy database for reading, for the length of a `with` block."""
    database = LegacyDatabase(path)
    try:
        yield database
    finally:
        database.close()
