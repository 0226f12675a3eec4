"""The journal: one event for each transition of a message (SPEC 9.1)."""

from enum import StrEnum

from holdfast.model.errors import InvalidArgument
from holdfast.model.message import AboutMessage


class Event(StrEnum):
    # The text's own: Enum's is written in Python, and these are keys on the hot path.
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
    """What happened to one message; never its payload.

    enqueued_at and claimed_at stand in each event, so that wait and work time come from one row.
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
    """For whoever passes one on: a text, which is the store's alone to judge."""
    if after is not None and not isinstance(after, str):
        raise _no_position(after)


def parse_position(after: object) -> int:
    """The number behind the position of a journal with one sequence; 0 before the first event."""
    if after is None:
        return 0
    if not (isinstance(after, str) and after.isascii() and after.isdigit() and len(after) < 20):
        raise _no_position(after)
    return int(after)


def parse_positions(after: object, shards: int) -> list[int]:
    """The number of each shard in the position of a journal with a sequence for each, as `format_positions` wrote it;
    shards that came later begin with 0."""
    if after is None:
        return [0] * shards
    parts = after.split("-") if isinstance(after, str) else []
    if not 1 <= len(parts) <= shards or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise _no_position(after)
    return [*map(int, parts), *[0] * (shards - len(parts))]


def format_positions(position: list[int]) -> str:
    return "-".join(map(str, position))


def _no_position(after: object) -> InvalidArgument:
    return InvalidArgument(f"{str(after)[:80]!r} is not a journal position: give the `next` of an earlier answer")
