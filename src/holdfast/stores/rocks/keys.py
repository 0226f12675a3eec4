"""Every key of the embedded store, with its layout beside the code that builds it.

A number behind a name is a size in bytes. `P` identifies a queue: tenant_id 4 | queue_id 4. Numbers are big-endian, so
that keys sort in numeric order. Every part of a key but the last has a fixed width, so parsing needs no separators.

A space is a column family of its own (`m`, `vi`, `li`, `le`, `jr`), or a prefix of the keys in a shared family: one
byte in `ix` (indexes that few messages need), two bytes in `default` (the directory). The arrow leads to the value.

How to change this format: give a new space a new number or prefix, and never reuse an old one, because replayed logs
and backups may still have it. Add the space to `PER_QUEUE_SPACES` if it applies, and to `offline/resharding.py` and
`verify/`, which must know every space. To change the layout of an existing key, or to add a space that an older version
would have to maintain, raise the format of the store as `recovery/marker.py` describes. Values that are a single number
(`BUSY`, `CLOSED`) or empty have a fixed size and no version: store a new form in a space of its own.
"""

import struct
from hashlib import blake2b

from holdfast.model import ids

P_SIZE = 8
ID_SIZE = 16
HASH_SIZE = 16

_P = struct.Struct(">II")
_Q = struct.Struct(">Q")

# Column families. The frames of the log refer to them by number, so a number is never reused for another family.
DIRECTORY = 0
MESSAGES = 1  # m | P 8 | id 16                                 -> message_record.encode_message
VISIBLE = 2  # vi | P 8 | priority 1 | visible_at 8 | id 16     -> ""
EXPIRIES = 3  # li | P 8 | expires_at 8 | id 16                 -> ""
LEASES = 4  # le | P 8 | id 16                                  -> message_record.encode_life, with its lease
JOURNAL = 5  # jr | number of the first event 8                 -> a block of events (event_blocks.py)
INDEXES = 6  # ix

# RocksDB's names of the families, in the order of their numbers.
FAMILY_NAMES = ("default", "m", "vi", "li", "le", "jr", "ix")

# Spaces of `ix`.
LIVES = b"f"  # f | P 8 | id 16                      -> message_record.encode_life: changed, and not in flight
DELAYED = b"v"  # v | P 8 | visible_at 8 | id 16     -> "": ready, and not yet counted as due
DEAD = b"d"  # d | P 8 | id 16                       -> "": failed
TTLS = b"t"  # t | expires_at 8 | P 8 | id 16        -> "": ready, with the end of its TTL
KEPT = b"k"  # k | until 8 | P 8 | id 16             -> "": succeeded, and its record is kept until then
STATES = b"s"  # s | P 8 | id 16                     -> StateDocument
GROUPS = b"g"  # g | P 8 | hash of group 16 | id 16 | priority 1 | visible_at 8  -> "": ready in a group
BUSY = b"b"  # b | P 8 | hash of group 16            -> number of the group's messages in flight 4
GROUP_VISIBLE = b"w"  # w | P 8 | visible_at 8 | id 16  -> "": ready in any group
SEEN = b"i"  # i | P 8 | idempotency key             -> id 8 | until 8 | correlation id
SEEN_ENDS = b"e"  # e | until 8 | P 8 | idempotency key  -> "": the key may be forgotten then
PIECES = b"c"  # c | blob id 8 | number 4            -> 256 KiB of a large payload; the last piece may be shorter
STAGES = b"u"  # u | blob id 8                       -> "": a payload that does not belong to a message yet
LEDGER = b"l"  # l | P 8 | hash of consumer 16 | number 8  -> an open claim (ledgers.py)
CLOSED = b"o"  # o | P 8 | hash of consumer 16       -> number 8: the highest that is closed
SCHEDULES = b"h"  # h | P 8 | name                   -> Schedule

# Spaces of the directory.
TENANTS = b"t/"  # t/ | name                         -> TenantRow
QUEUES = b"q/"  # q/ | tenant_id 4 | name            -> QueueRow
QUEUE_NAMES = b"n/"  # n/ | P 8                      -> QueueRef; kept after the queue is deleted, for the journal
COUNTERS = b"c/"  # c/ | P 8                         -> counters of the queue
DELETING = b"d/"  # d/ | P 8                         -> "": the queue is being deleted
LIMITED = b"l/"  # l/ | P 8                          -> "": the queue's policy has limits
META = b"m/"  # m/ | name                            -> facts of the store
TRANSFERS = b"x/"  # x/ | number 8                   -> Transfer: messages on their way to another shard (transfers.py)
ARRIVALS = b"a/"  # a/ | shard 4                     -> number 8: the last transfer that arrived from that shard
LEGACY_MOVED = b"o/"  # o/ | legacy id               -> how it was moved (legacy/online/move_records.py)

# Spaces of `ix` whose keys begin with P behind the prefix of the space.
PER_QUEUE_SPACES = (LIVES, DELAYED, DEAD, STATES, GROUPS, BUSY, GROUP_VISIBLE, SEEN, LEDGER, CLOSED, SCHEDULES)

# The parts of keys, packed: an instant or another number, a blob id, a message id.
instant = _Q.pack
pack_blob_id = _Q.pack
id_bytes = ids.to_bytes


def prefix(tenant_id: int, queue_id: int) -> bytes:
    """Return `P`, the prefix of a queue's keys."""
    return _P.pack(tenant_id, queue_id)


def parse_prefix(p: bytes) -> tuple[int, int]:
    """Return the tenant_id and the queue_id in `P`."""
    tenant_id, queue_id = _P.unpack(p)
    return tenant_id, queue_id


PRIORITIES = tuple(bytes([priority]) for priority in range(256))


def level(p: bytes, priority: int) -> bytes:
    """Return the prefix of the keys in `vi` of the queue's messages with this priority."""
    return p + PRIORITIES[priority]


def hashed(text: str) -> bytes:
    """Return a 16-byte hash of a name of any length.

    Two names in one queue are taken for the same only if all 128 bits of their hashes agree.
    """
    return blake2b(text.encode(), digest_size=HASH_SIZE).digest()


def shard_of(p: bytes, shards: int) -> int:
    """Return the shard that owns the queue with prefix `p`: a 64-bit hash of the prefix, modulo the number of
    shards."""
    if shards == 1:
        return 0
    return int.from_bytes(blake2b(p, digest_size=8).digest(), "big") % shards


def after(key: bytes) -> bytes:
    """Return the first key that follows all keys with the prefix `key`. Raise `ValueError` if there is none."""
    stripped = key.rstrip(b"\xff")
    if not stripped:
        raise ValueError("no key follows all keys with a prefix of 0xff bytes")
    return stripped[:-1] + bytes([stripped[-1] + 1])


def parse_instant(raw: bytes) -> int:
    """Return the number in the first 8 bytes: an instant, a blob id or another number."""
    value: int = _Q.unpack_from(raw)[0]
    return value


def parse_id(id16: bytes) -> int:
    """Return the snowflake of a binary id. It is not validated, because the store itself has written the key."""
    high, low = _PAIR.unpack(id16)
    snowflake: int = ((high >> 16) - ids.EPOCH_MS) << 22 | (low >> 52 & 0x3FF) << 12 | high & 0xFFF
    return snowflake


def parse_instants_and_ids(keys: list[bytes]) -> list[tuple[int, int]]:
    """Return the instant and the snowflake in each key, whose layout is instant 8 | id 16.

    One call for many keys is much faster than `parse_instant` and `parse_id` for each.
    """
    epoch_ms = ids.EPOCH_MS
    return [
        (at, ((high >> 16) - epoch_ms) << 22 | (low >> 52 & 0x3FF) << 12 | high & 0xFFF)
        for at, high, low in _INSTANT_AND_ID.iter_unpack(b"".join(keys))
    ]


_PAIR = struct.Struct(">QQ")
_INSTANT_AND_ID = struct.Struct(">QQQ")
