"""Databases of the legacy layout, made up: whole ones, and what crashes and bugs have left of some.

Written with RocksDB and pycapnp alone: nothing here knows how they are read.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import capnp
from rocksdict import Options, Rdict, WriteBatch

from holdfast.model import ids

_BATCH = 1_000


SCHEMA_FILE = str(Path(__file__).with_name("legacy.capnp"))
_SCHEMA: Any = capnp.load(SCHEMA_FILE)

# The orders of a stored item's fields, by the struct that has each; the first is the one that most databases have.
ITEM_ORDERS = (
    *("ItemContentsKeyId", "ItemContentsIdKey", "ItemIdContentsKey"),
    *("ItemIdKeyContents", "ItemKeyContentsId", "ItemKeyIdContents"),
)


@dataclass(slots=True)
class Expected:
    """The messages that must be found again, as a number and a hash that does not depend on the order."""

    count: int = 0
    digest: int = 0
    # Payloads by id, with until when a lease holds them (None: ready). Of a large database they are left out.
    messages: dict[bytes, tuple[bytes, int | None]] | None = field(default_factory=dict)
    # What is to be told of, by the kind it is told as.
    oddities: "Counter[str]" = field(default_factory=Counter)

    @property
    def unreadable(self) -> int:
        """The number that a migration wants to have accepted."""
        return self.oddities["unreadable"] + self.oddities["unknown key"]

    def note(self, id: bytes, contents: bytes, lease_expires_at: int | None) -> None:
        self.count += 1
        self.digest = add_to_digest(self.digest, id, contents)
        if self.messages is not None:
            self.messages[id] = contents, lease_expires_at


def add_to_digest(digest: int, id: bytes, contents: bytes) -> int:
    whole = sha256(len(id).to_bytes(2, "big") + id + contents).digest()
    return (digest + int.from_bytes(whole, "big")) % (1 << 256)


class LegacyWriter:
    """A database as its own programs write it. `families`: with a column family for each kind of key; `order`: of the
    fields of a stored item, one of `ITEM_ORDERS`."""

    def __init__(self, path: Path, *, families: bool = False, packs: bool = False, order: str = ITEM_ORDERS[0]) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        kinds = ("available", "visibility_index", "in_progress", "leases", "lease_expiry") if families else ()
        self._db = Rdict(str(path), options, column_families={kind: Options(raw_mode=True) for kind in kinds})
        self._handles = {kind: self._db.get_column_family_handle(kind) for kind in kinds}
        self._packs = packs
        self._item = getattr(_SCHEMA, order)
        self._batch = WriteBatch(raw_mode=True)

    def put(self, key: bytes, value: bytes) -> None:
        self._batch.put(key, value, self._handles.get(key.partition(b"/")[0].decode("latin-1")))
        if len(self._batch) >= _BATCH:
            self.flush()

    def item(self, id: bytes, contents: bytes, index_key: bytes) -> bytes:
        item = self._item.new_message()
        item.contents, item.visibilityTsIndexKey, item.id = contents, index_key, id
        return self._bytes_of(item)

    def lease(self, keys: list[bytes], expires_s: int = 0) -> bytes:
        lease = _SCHEMA.LeaseEntry.new_message()
        lease.keys, lease.expiryTsSecs = keys, expires_s
        return self._bytes_of(lease)

    def _bytes_of(self, message: Any) -> bytes:
        return bytes(message.to_bytes_packed() if self._packs else message.to_bytes())

    def add(self, id: bytes, contents: bytes, visible_s: int) -> None:
        index = index_key(visible_s, id)
        self.put(b"available/" + id, self.item(id, contents, index))
        self.put(index, b"available/" + id)

    def claim(self, lease: bytes, held: dict[bytes, bytes], expires_s: int) -> None:
        """One lease for all of them."""
        for id, contents in held.items():
            self.put(b"in_progress/" + id, self.item(id, contents, index_key(1, id)))
        self.put(b"leases/" + lease, self.lease(list(held)))
        self.put(b"lease_expiry/" + expires_s.to_bytes(8, "big") + b"/" + lease, b"leases/" + lease)

    def flush(self) -> None:
        if len(self._batch):
            self._db.write(self._batch)
            self._batch = WriteBatch(raw_mode=True)

    def close(self) -> None:
        self.flush()
        self._handles.clear()
        self._db.close()


def index_key(visible_s: int, id: bytes) -> bytes:
    return b"visibility_index/" + visible_s.to_bytes(8, "big") + b"/" + id


def make_legacy(
    path: Path,
    total: int,
    *,
    seed: int,
    now_s: int,
    families: bool = False,
    packs: bool = False,
    order: str = ITEM_ORDERS[0],
    is_damaged: bool = True,
    damaged_share: float = 0.02,
    keeps_messages: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Expected:
    """Make a database of this number of messages: most ready, some delayed, some in flight under leases of several;
    with ids of ours, UUIDs of other makers, and any bytes. With `is_damaged`, a `damaged_share` was left half done."""
    dice = random.Random(seed)
    writer = LegacyWriter(path, families=families, packs=packs, order=order)
    expected = Expected(messages={} if keeps_messages else None)
    held: dict[bytes, bytes] = {}
    own = ids.IdMaker(7)
    for n in range(total):
        if progress is not None and n % 10_000 == 0:
            progress(n)
        id = _make_id(dice, own, n, now_s)
        contents = dice.randbytes(dice.choice((0, 16, 40, 200))) + n.to_bytes(4, "big")
        roll = dice.random()
        if is_damaged and roll < damaged_share:
            _leave_half_done(writer, expected, dice, id, contents, now_s)
        elif roll < damaged_share + 0.13:
            held[id] = contents
            if len(held) == 7:
                _claim(writer, expected, dice, held, now_s)
                held = {}
        else:
            writer.add(id, contents, now_s + dice.choice((-100, -5, -5, 0, 3_600)))
            expected.note(id, contents, None)
    if held:
        _claim(writer, expected, dice, held, now_s)
    writer.close()
    return expected


def _make_id(dice: random.Random, own: ids.IdMaker, n: int, now_s: int) -> bytes:
    kind = dice.randrange(10)
    if kind < 3:
        return ids.to_bytes(own.take(1, now_s * 1_000)[0])
    if kind < 9:  # a UUIDv7 of another maker: its last bits are random
        return (now_s * 1_000 + n).to_bytes(6, "big") + b"\x70" + dice.randbytes(1) + b"\x80" + dice.randbytes(7)
    return b"job/%d\xff" % n


def _claim(writer: LegacyWriter, expected: Expected, dice: random.Random, held: dict[bytes, bytes], now_s: int) -> None:
    expires_s = now_s + dice.choice((-60, 600, 900))
    writer.claim(dice.randbytes(16), held, expires_s)
    for id, contents in held.items():
        expected.note(id, contents, expires_s * 1_000)


def _leave_half_done(
    writer: LegacyWriter, expected: Expected, dice: random.Random, id: bytes, contents: bytes, now_s: int
) -> None:
    oddities = expected.oddities
    match dice.randrange(9):
        case 0:  # an index entry that outlived its message
            writer.put(index_key(now_s, id), b"available/" + id)
            oddities["index without a message"] += 1
        case 1:  # a message that lost its index entry
            writer.put(b"available/" + id, writer.item(id, contents, index_key(now_s, id)))
            expected.note(id, contents, None)
        case 2:  # claimed, and the lease never written
            writer.put(b"in_progress/" + id, writer.item(id, contents, index_key(now_s, id)))
            expected.note(id, contents, None)
        case 3:  # claimed, and not taken from the ready ones
            writer.add(id, contents, now_s)
            writer.claim(b"half" + id, {id: contents}, now_s + 600)
            expected.note(id, contents, (now_s + 600) * 1_000)
            oddities["in both states"] += 1
        case 4:  # given back, and not taken from the claimed ones
            writer.add(id, contents, now_s)
            writer.put(b"in_progress/" + id, writer.item(id, contents, index_key(now_s, id)))
            expected.note(id, contents, None)
            oddities["in both states"] += 1
        case 5:  # a lease that outlived its messages
            writer.put(b"leases/old" + id, writer.lease([id]))
            writer.put(b"lease_expiry/" + (now_s - 5).to_bytes(8, "big") + b"/old" + id, b"leases/old" + id)
            oddities["lease without a message"] += 1
        case 6:  # an expiry that outlived its lease
            writer.put(b"lease_expiry/" + (now_s - 5).to_bytes(8, "big") + b"/gone" + id, b"leases/gone" + id)
            oddities["index without a message"] += 1
        case 7:  # a value that is cut short
            writer.put(b"available/" + id, writer.item(id, contents, index_key(now_s, id))[:-9])
            oddities["unreadable"] += 1
        case _:  # something that is of no kind
            writer.put(b"metrics/" + id, contents)
            oddities["unknown key"] += 1
