"""Every key of the store, drawn beside the code that builds it.

`P` is the queue: tenant_id 4 | queue_id 4. Numbers are big-endian, so that keys sort as they count. All parts have a
fixed width but the last: nothing is ever parsed by a separator.

Spaces are column families (`m`, `vi`, `li`, `le`, `jr`), or one-byte prefixes in the families `ix` (indexes that few
messages need) and `default` (the directory).
"""

import struct
from hashlib import blake2b

from holdfast.model import ids

P_SIZE = 8
ID_SIZE = 16
HASH_SIZE = 16

_P = struct.Struct(">II")
_Q = struct.Struct(">Q")

# Column families. Their numbers stand in the frames of the log: a number is never given to another family.
DIRECTORY = 0
MESSAGES = 1  # m | P 8 | id 16                                 -> record.encode_message
VISIBLE = 2  # vi | P 8 | priority 1 | visible_at 8 | id 16     -> ""
EXPIRIES = 3  # li | P 8 | expires_at 8 | id 16                 -> ""
LEASES = 4  # le | P 8 | id 16                                  -> record.encode_life, with its lease
JOURNAL = 5  # jr | first seq 8                                 -> a block of events
INDEXES = 6  # ix

# RocksDB's names of the families, by their numbers.
FAMILY_NAMES = ("default", "m", "vi", "li", "le", "jr", "ix")

# Spaces of `ix`, each led by its byte.
LIVES = b"f"  # f | P 8 | id 16                      -> record.encode_life: retried, failed or kept, not in flight
DELAYED = b"v"  # v | P 8 | visible_at 8 | id 16     -> "": ready, and not yet counted as due
DEAD = b"d"  # d | P 8 | id 16                       -> "": failed
TTLS = b"t"  # t | expires_at 8 | P 8 | id 16        -> "": ready, and ends then
KEPT = b"k"  # k | until 8 | P 8 | id 16             -> "": succeeded, and forgotten then
STATES = b"s"  # s | P 8 | id 16                     -> state document
GROUPS = b"g"  # g | P 8 | hash of group 16 | id 16 | priority 1 | visible_at 8  -> "": ready, in order of id
BUSY = b"b"  # b | P 8 | hash of group 16            -> number in flight 4
GROUP_VISIBLE = b"w"  # w | P 8 | visible_at 8 | id 16  -> "": ready in some group
SEEN = b"i"  # i | P 8 | idempotency key             -> id 8 | until 8 | correlation id
SEEN_ENDS = b"e"  # e | until 8 | P 8 | key          -> ""
PIECES = b"c"  # c | place 8 | number 4              -> 256 KiB of a large payload, the last one what is left
STAGES = b"u"  # u | place 8                         -> "": a payload that no message has yet
LEDGER = b"l"  # l | P 8 | hash of consumer 16 | number 8  -> a numbered claim
CLOSED = b"o"  # o | P 8 | hash of consumer 16       -> number 8: closed up to here
SCHEDULES = b"h"  # h | P 8 | name                   -> Schedule

# Spaces of the directory.
TENANTS = b"t/"  # t/ | name                         -> TenantRow
QUEUES = b"q/"  # q/ | tenant_id 4 | name            -> QueueRow
QUEUE_NAMES = b"n/"  # n/ | P 8                      -> QueueRef; kept when the queue goes, for the journal's sake
COUNTERS = b"c/"  # c/ | P 8                         -> counters of the queue
DELETING = b"d/"  # d/ | P 8                         -> "": the queue is being deleted
LIMITED = b"l/"  # l/ | P 8                          -> "": the queue's policy has limits
META = b"m/"  # m/ | name                            -> facts of the store

# Spaces of `ix` that hold nothing but one queue's keys, behind P.
PER_QUEUE_SPACES = (LIVES, DELAYED, DEAD, STATES, GROUPS, BUSY, GROUP_VISIBLE, SEEN, LEDGER, CLOSED, SCHEDULES)

instant = _Q.pack
place = _Q.pack
id_bytes = ids.to_bytes


def prefix(tenant_id: int, queue_id: int) -> bytes:
    return _P.pack(tenant_id, queue_id)


def parse_prefix(p: bytes) -> tuple[int, int]:
    tenant_id, queue_id = _P.unpack(p)
    return tenant_id, queue_id


PRIORITIES = tuple(bytes([priority]) for priority in range(256))


def level(p: bytes, priority: int) -> bytes:
    return p + PRIORITIES[priority]


def hashed(text: str) -> bytes:
    """A name of any length to a fixed width. Two names of a queue would have to share 128 bits to be confused."""
    return blake2b(text.encode(), digest_size=HASH_SIZE).digest()


def shard_of(p: bytes, shards: int) -> int:
    """Which shard owns a queue: its numbers hashed to 64 bits, modulo the shards."""
    if shards == 1:
        return 0
    return int.from_bytes(blake2b(p, digest_size=8).digest(), "big") % shards


def after(key: bytes) -> bytes:
    """The first key behind every key that begins with this one."""
    stripped = key.rstrip(b"\xff")
    if not stripped:
        raise ValueError("nothing lies behind a key of 0xff alone")
    return stripped[:-1] + bytes([stripped[-1] + 1])


def parse_instant(raw: bytes) -> int:
    value: int = _Q.unpack_from(raw)[0]
    return value


def parse_id(id16: bytes) -> int:
    """The snowflake in a key that we wrote ourselves: not checked again."""
    high, low = _PAIR.unpack(id16)
    snowflake: int = ((high >> 16) - ids.EPOCH_MS) << 22 | (low >> 52 & 0x3FF) << 12 | high & 0xFFF
    return snowflake


def parse_places(keys: list[bytes]) -> list[tuple[int, int]]:
    """Return the instant and the snowflake in each of many keys, instant 8 | id 16, which `parse_id` would return."""
    epoch_ms = ids.EPOCH_MS
    return [
        (at, ((high >> 16) - epoch_ms) << 22 | (low >> 52 & 0x3FF) << 12 | high & 0xFFF)
        for at, high, low in _PLACE.iter_unpack(b"".join(keys))
    ]


_PAIR = struct.Struct(">QQ")
_PLACE = struct.Struct(">QQQ")
