"""Message ids: one number with two spellings (SPEC 1.4).

    snowflake, 64 bits:  0 | milliseconds since EPOCH_MS: 41 | node: 10 | sequence: 12
    UUIDv7,   128 bits:  unix milliseconds: 48 | 7: 4 | sequence: 12 | 10: 2 | node: 10 | 0: 52

Inside Holdfast an id is the snowflake, an `int`. Callers see the UUID.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache

from holdfast.model.errors import InvalidArgument

EPOCH_MS = 1_704_067_200_000
NODES = 1 << 10
SEQUENCES = 1 << 12
MAX_ID = (1 << 63) - 1

# The largest time and sequence that are taken from a clock: the end of 2093, less three days that ids may borrow.
_LATEST = (1 << 53) - (1 << 40)

_HALVES = struct.Struct(">QQ")
_VARIANT = 0b10 << 62
_NODE_SHIFT = 52
_NODE_BITS = 0x3FF << _NODE_SHIFT
_HEX_LENGTH = 36


class MessageId(str):
    """The id of an enqueued message as text (UUIDv7), with the other results of its enqueue.

    Attributes:
        snowflake: The same id as an integer of 63 bits.
        duplicate: True if the idempotency key was used before: the id is then that of the first message.
        correlation_id: The correlation id that was given, or else the id.
    """

    __slots__ = ("_given", "duplicate", "snowflake")

    snowflake: int
    duplicate: bool
    _given: str | None

    def __new__(cls, snowflake: int, given_correlation_id: str | None = None, duplicate: bool = False) -> "MessageId":
        self = str.__new__(cls, to_uuid(snowflake))
        self.snowflake = snowflake
        self.duplicate = duplicate
        self._given = given_correlation_id
        return self

    @property
    def correlation_id(self) -> str:
        """Return the correlation id that was given, or else the id itself."""
        return self._given or str(self)

    def __getnewargs__(self) -> tuple[int, str | None, bool]:  # type: ignore[override]  # typeshed: tuple[str]
        return self.snowflake, self._given, self.duplicate


def node_of(snowflake: int) -> int:
    """Return the number of the node that made this id."""
    return snowflake >> 12 & (NODES - 1)


def to_bytes(snowflake: int) -> bytes:
    """Return the 16 bytes of the UUID. They sort by time, then sequence, then node."""
    ms = (snowflake >> 22) + EPOCH_MS
    return _HALVES.pack(ms << 16 | 0x7000 | snowflake & 0xFFF, _VARIANT | (snowflake >> 12 & 0x3FF) << _NODE_SHIFT)


def from_bytes(raw: bytes) -> int:
    """Return the snowflake of a UUID given as 16 bytes, or raise `InvalidArgument` if Holdfast did not make it."""
    high, low = _HALVES.unpack(raw)
    ms = (high >> 16) - EPOCH_MS
    snowflake: int = ms << 22 | (low >> _NODE_SHIFT & 0x3FF) << 12 | high & 0xFFF
    # Check the bits that are the same in every id. It is faster than `to_bytes` and a comparison.
    if not 0 <= snowflake <= MAX_ID or high & 0xF000 != 0x7000 or low & ~_NODE_BITS != _VARIANT:
        raise InvalidArgument(f"{raw.hex()} is not an id of this queue: give the id that enqueue returned")
    return snowflake


def to_uuid(snowflake: int) -> str:
    """Return the UUID of an id as text."""
    # Every enqueue returns ids. Those of a batch mostly have the same time, so its text is cached.
    return "%s%03x%s" % (  # noqa: UP031  (f-strings are slower here)
        _time_text(snowflake >> 22),
        snowflake & 0xFFF,
        _node_text(snowflake >> 12 & 0x3FF),
    )


def message_ids(
    snowflakes: Iterable[int], correlation_ids: Iterable[str | None], duplicates: Iterable[bool]
) -> "list[MessageId]":
    """Return one `MessageId` for each of the three values. It takes half the time of single constructor calls."""
    made: list[MessageId] = []
    new, cls = str.__new__, MessageId
    last, head, tail = -1, "", ""
    for snowflake, correlation_id, is_duplicate in zip(snowflakes, correlation_ids, duplicates, strict=True):
        if snowflake >> 12 != last:
            last = snowflake >> 12
            head, tail = _time_text(snowflake >> 22), _node_text(last & 0x3FF)
        self = new(cls, "%s%03x%s" % (head, snowflake & 0xFFF, tail))  # noqa: UP031  (f-strings are slower here)
        self.snowflake = snowflake
        self._given = correlation_id
        self.duplicate = is_duplicate
        made.append(self)
    return made


@lru_cache(256)
def _time_text(time: int) -> str:
    """Return the text of a UUID up to its sequence. `time` is in milliseconds since `EPOCH_MS`."""
    ms = time + EPOCH_MS
    return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7"


@lru_cache(256)
def _node_text(node: int) -> str:
    """Return the text of a UUID after its sequence."""
    return f"-{0x8000 | node << 4:04x}-000000000000"


def consecutive_to_bytes(snowflakes: Sequence[int]) -> list[bytes]:
    """Return the UUID bytes of each id, as `to_bytes` does. It is faster for consecutive ids."""
    first, count = snowflakes[0], len(snowflakes)
    if (first & 0xFFF) + count > SEQUENCES or list(snowflakes) != list(range(first, first + count)):
        return [to_bytes(snowflake) for snowflake in snowflakes]
    # The ids have one node and one millisecond, so only the sequence counts up, in both spellings.
    high, low = _HALVES.unpack(to_bytes(first))
    pack = _HALVES.pack
    return [pack(each, low) for each in range(high, high + count)]


def parse_id(value: object) -> int:
    """Return the snowflake of an id in either spelling: UUID text, or the number as int or decimal text.

    Raise `InvalidArgument` for anything else.
    """
    if isinstance(value, MessageId):
        return value.snowflake
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_ID:
        return value
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and len(value) <= 19 and int(value) <= MAX_ID:
            return int(value)
        if len(value) == _HEX_LENGTH:
            try:
                raw = bytes.fromhex(value.replace("-", ""))
            except ValueError:
                raw = b""
            if len(raw) == 16:
                return from_bytes(raw)
    raise InvalidArgument(f"{str(value)[:80]!r} is not a message id: give the id that enqueue returned")


class IdMaker:
    """A generator of strictly increasing ids of one node, even if the clock steps back.

    When the sequence of a millisecond is used up, or the clock stepped back, the next id uses a later time instead of
    waiting. A time beyond the range of an id is ignored, because `parse_id` would refuse the resulting id.
    """

    __slots__ = ("_last", "node")

    def __init__(self, node: int, highest: int = 0) -> None:
        if not 0 <= node < NODES:
            raise InvalidArgument(f"node {node} is outside 0-{NODES - 1}")
        self.node = node
        # Time and sequence without the node: "one higher" is then an addition.
        self._last = (highest >> 22) << 12 | highest & 0xFFF

    def take(self, number: int, now_ms: int) -> list[int]:
        """Return the next `number` ids."""
        at = (now_ms - EPOCH_MS) << 12
        first = max(self._last + 1, at) if at <= _LATEST else self._last + 1
        self._last = first + number - 1
        node = self.node << 12
        return [(at >> 12) << 22 | node | at & 0xFFF for at in range(first, first + number)]

    @property
    def highest(self) -> int:
        """Return the highest id made so far, to be passed to the next `IdMaker` of this node."""
        return (self._last >> 12) << 22 | self.node << 12 | self._last & 0xFFF
