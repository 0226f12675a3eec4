"""Reading the keys and values of the legacy layout (SPEC 4.7) from an open RocksDB database.

`keys.py` has the layout of the keys, which may be in one column family or in several. Every key is reported: as a
message, or as an `Oddity` if it is not one.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from rocksdict import Rdict, RdictIter, ReadOptions

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.rocks.legacy.entries import LegacyMessage, LegacyPosition, Oddity, OddityKind
from holdfast.stores.rocks.legacy.field_order import FieldOrder, Fields, choose_order
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


class LegacyReads:
    """The reads of an open legacy database. A subclass opens it."""

    path: Path
    # The order of the fields of its values.
    order: FieldOrder

    def __init__(self) -> None:
        # The column families, and their names in order.
        self._names: Sequence[str] = ()
        self._families: dict[str, Rdict] = {}
        self._leases: dict[bytes, int] | None = None

    # --- The layout --------------------------------------------------------------------------------------------

    def check_layout(self) -> None:
        """Raise `InvalidArgument` if the database has keys, but none of the layout."""
        if not self._has_the_layout():
            raise InvalidArgument(
                f"{self.path} is a RocksDB database, but not of the legacy layout: it has keys, but none begins with "
                f"{AVAILABLE.decode()} or {IN_PROGRESS.decode()}",
                field="path",
            )

    def choose_order(self) -> FieldOrder:
        """Return the order of the fields of the values. Raise `InvalidArgument` if it cannot be told."""
        order, compared, fitting = choose_order(self._fields())
        if order is None:
            raise InvalidArgument(
                f"{self.path} cannot be read: several orders of fields fit its {compared:,} values equally well, "
                f"but give them different payloads. Nothing was changed",
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
        """Yield the id and the fields of every stored_item that can be decoded."""
        spaces = [(name, prefix) for prefix in (AVAILABLE, IN_PROGRESS) for name in self._names]
        for key, value in chain.from_iterable(self._items(name, prefix, prefix) for name, prefix in spaces):
            try:
                yield key.partition(b"/")[2], decode_fields(value)
            except Unreadable:
                continue  # `read` reports it

    def _has_the_layout(self) -> bool:
        """Return whether the database is empty or has keys of the layout. Other databases must not be taken for a
        damaged queue."""
        prefixes = (AVAILABLE, IN_PROGRESS, VISIBILITY, LEASES, LEASE_EXPIRY)
        if any(True for name in self._names for prefix in prefixes for _ in self._items(name, prefix, prefix)):
            return True
        return not any(True for name in self._names for _ in self._items(name, b""))

    # --- Reading -----------------------------------------------------------------------------------------------

    def read(
        self, after: LegacyPosition | None = None
    ) -> Iterator[tuple[LegacyPosition, LegacyMessage | Oddity | None]]:
        """Yield every key after a position, in a fixed order, with its position.

        A valid key of an index or a lease is None, because it adds nothing to the messages.
        """
        for name in self._names:
            if after is not None and name < after.family:
                continue
            first = after.key + b"\0" if after is not None and name == after.family else b""
            for key, value in self._items(name, first):
                yield LegacyPosition(name, key), self._judge(key, value)

    def estimate(self) -> int:
        """Return the approximate number of keys."""
        return sum(int(each.property_value("rocksdb.estimate-num-keys") or 0) for each in self._families.values())

    def find(self, id: bytes) -> LegacyMessage | None:
        """Return the message with this id in either state, or None."""
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
        return Oddity(OddityKind.UNKNOWN, key, value, "its key has no known prefix")

    def _available(self, key: bytes, value: bytes) -> LegacyMessage | Oddity:
        id = key.removeprefix(AVAILABLE)
        try:
            item = self._decode(value, id)
        except Unreadable as error:
            return Oddity(OddityKind.UNREADABLE, key, value, str(error))
        if self.leases().get(id) and self._is_readable(IN_PROGRESS, id):
            return Oddity(OddityKind.TWIN, key, value, "it is also in progress, under a lease")
        return LegacyMessage(id, item.contents, instant_in(VISIBILITY, item.index_key) or 0, None)

    def _in_progress(self, key: bytes, value: bytes) -> LegacyMessage | Oddity:
        """Return the message of a key `in_progress/`. It is ready if it has no lease, because no one can settle it
        then."""
        id = key.removeprefix(IN_PROGRESS)
        try:
            item = self._decode(value, id)
        except Unreadable as error:
            return Oddity(OddityKind.UNREADABLE, key, value, str(error))
        expires_at = self.leases().get(id)
        if expires_at is None and self._is_readable(AVAILABLE, id):
            return Oddity(OddityKind.TWIN, key, value, "it is also ready, and not under a lease")
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
            return Oddity(OddityKind.STALE_LEASE, key, value, "none of its messages is in progress")
        return None

    def leases(self) -> dict[bytes, int]:
        """Return the end of the lease of each message under a lease, in milliseconds.

        If a message has several leases, the last end counts. The result is kept in memory, because far fewer messages
        are in flight than ready.
        """
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
                    continue  # `read` reports it
                # An extended lease may have left older expiries in the index, so its own expiry is used if it has one.
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
        del cursor  # a traceback that refers to it would keep the database open
        if error is not None:
            raise StoreUnavailable(f"{self.path} cannot be read: {error}; restore it first", path=str(self.path))

    def _get(self, key: bytes) -> bytes | None:
        for family in self._families.values():
            value: bytes | None = family.get(key)
            if value is not None:
                return value
        return None


def _ids_of(lease: LeaseEntry) -> list[bytes]:
    """Return the ids of a lease's messages. A lease has ids, or keys that end with the ids."""
    return [each.removeprefix(IN_PROGRESS) for each in lease.keys]


def _status_of(cursor: RdictIter) -> str | None:
    try:
        cursor.status()
    except Exception as error:
        return str(error)
    return None
