"""The events of one message, found without reading the whole journal."""

from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli.inspection.tail import PAGE, halve
from holdfast.model.errors import HoldfastError
from holdfast.model.events import JournalEvent

if TYPE_CHECKING:
    import holdfast

# Several servers write into one journal, each by its own clock: begin this much before the message.
_SLACK_MS = 10_000


class Timeline(NamedTuple):
    events: list[JournalEvent]
    # Why events may be missing; None if the journal was read from the message's enqueue to the end.
    gap: str | None = None


def timeline_of(hf: "holdfast.Holdfast", tenant: str, snowflake: int, since_ms: int, look: int) -> Timeline:
    """Return the events of a message that was enqueued at `since_ms`.

    Read at most `look` events from there on. If the journal is longer, read as many at its end: a stuck message has
    its first events in the one part, and its latest events in the other.
    """
    try:
        first = _read(hf, tenant, snowflake, _position_at(hf, since_ms - _SLACK_MS), look)
        if first.is_end:
            return Timeline(first.events)
        more = "give --events to look further"
        # With several databases a position is not one number, and only reading everything would find the end.
        if not first.position.isdigit():
            return Timeline(first.events, f"only {look:,} events of the journal were looked through: {more}")
        position = int(first.position)
        near_end = halve(hf, None, bool, position) - look
        last = _read(hf, tenant, snowflake, str(max(position, near_end)), look)
        is_whole = near_end <= position and last.is_end
        gap = (
            f"the journal was looked through for {look:,} events after the message was enqueued, and at its end: {more}"
        )
        return Timeline(first.events + last.events, None if is_whole else gap)
    except HoldfastError as error:
        return Timeline([], f"the journal cannot be read: {error.message}")


class _Span(NamedTuple):
    events: list[JournalEvent]
    position: str
    is_end: bool


def _read(hf: "holdfast.Holdfast", tenant: str, snowflake: int, position: str | None, look: int) -> _Span:
    found: list[JournalEvent] = []
    while look > 0:
        page = hf.journal(position, min(look, PAGE), tenant=tenant)
        found += [each for each in page if each.snowflake == snowflake]
        position = page.next or position
        if not page:
            return _Span(found, position or "", True)
        look -= len(page)
    return _Span(found, position or "", False)


def _position_at(hf: "holdfast.Holdfast", at_ms: int) -> str | None:
    """Return a position before every event of that time and later, None for the oldest that is kept."""
    oldest = hf.journal(None, 1)
    if not oldest or oldest[0].at >= at_ms or not oldest.next.isdigit():
        return None
    return str(halve(hf, None, lambda page: bool(page) and page[0].at < at_ms, int(oldest.next)))
