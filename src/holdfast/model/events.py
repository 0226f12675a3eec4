"""The journal: one event for each transition of a message (SPEC 9.1)."""

from enum import StrEnum

from holdfast.model.errors import InvalidArgument
from holdfast.model.message import AboutMessage


class Event(StrEnum):
    """The kinds of journal events, one for each kind of transition."""

    # `Enum.__hash__` is written in Python. The members are dictionary keys on the hot path, where `str`'s is faster.
    __hash__ = str.__hash__

    ENQUEUED = "enqueued"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    FAILED = "failed"
    EXPIRED = "expired"
    RELEASED = "released"
    EXTENDED = "extended"
    REDRIVEN = "redriven"
    REMOVED = "removed"
    MOVED = "moved"


class JournalEvent(AboutMessage, frozen=True, kw_only=True, gc=False):
    """One transition of one message, without its payload.

    Every event has `enqueued_at` and `claimed_at`, so that the waiting time and the working time of a message can be
    computed from one event.
    """

    seq: int
    shard: int
    at: int
    event: Event
    tenant: str
    queue: str
    attempt: int
    version: int
    priority: int
    enqueued_at: int
    claimed_at: int | None
    bytes: int
    error: str | None
    reason: str | None


def check_position(after: object) -> None:
    """Raise `InvalidArgument` unless `after` is text or None. Only the store knows the form of the text."""
    if after is not None and not isinstance(after, str):
        raise _invalid_position(after)


def parse_position(after: object) -> int:
    """Return the sequence number in the position of a journal with one sequence.

    None gives 0, the position before the first event. Raise `InvalidArgument` for anything but decimal text.
    """
    if after is None:
        return 0
    if not (isinstance(after, str) and after.isascii() and after.isdigit() and len(after) < 20):
        raise _invalid_position(after)
    return int(after)


def parse_positions(after: object, shards: int) -> list[int]:
    """Return the sequence number of each shard, from a position that `format_positions` wrote.

    Shards that were added after the position was written begin with 0. Raise `InvalidArgument` for any other text.
    """
    if after is None:
        return [0] * shards
    parts = after.split("-") if isinstance(after, str) else []
    if not 1 <= len(parts) <= shards or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise _invalid_position(after)
    return [*map(int, parts), *[0] * (shards - len(parts))]


def format_positions(position: list[int]) -> str:
    """Return the position of a journal that has a sequence number for each shard, as text."""
    return "-".join(map(str, position))


def _invalid_position(after: object) -> InvalidArgument:
    return InvalidArgument(f"{str(after)[:80]!r} is not a journal position: give the `next` of an earlier response")
