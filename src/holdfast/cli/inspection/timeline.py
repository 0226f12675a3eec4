"""The events of one message, found without reading the whole journal."""

from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli.inspection.tail import PAGE, bisect_journal
from holdfast.model.errors import HoldfastError
from holdfast.model.events import JournalEvent

if TYPE_CHECKING:
    import holdfast

# Several servers with different clocks write one journal, so the search begins this long before the enqueue.
_SLACK_MS = 10_000


class Timeline(NamedTuple):
    """The events of one message."""

    events: list[JournalEvent]
    # Why events may be missing. None if the journal was read from the enqueue of the message to the end.
    gap: str | None = None


def timeline_of(hf: "holdfast.Holdfast", tenant: str, snowflake: int, since_ms: int, limit: int) -> Timeline:
    """Return the events of a message that was enqueued at `since_ms`.

    Read at most `limit` events from that time. If the journal is longer, read as many again at its end: the first
    events of a stuck message are in the first part, and its latest events in the second.
    """
    try:
        first = _read(hf, tenant, snowflake, _position_at(hf, since_ms - _SLACK_MS), limit)
        if first.is_end:
            return Timeline(first.events)
        more = "search more with --events"
        # With several databases a position is not one number, and the end is found only by reading everything.
        if not first.position.isdigit():
            return Timeline(first.events, f"only {limit:,} events of the journal were searched; {more}")
        position = int(first.position)
        near_end = bisect_journal(hf, None, bool, position) - limit
        last = _read(hf, tenant, snowflake, str(max(position, near_end)), limit)
        is_whole = near_end <= position and last.is_end
        gap = f"only {limit:,} events after the enqueue and {limit:,} at the end of the journal were searched; {more}"
        return Timeline(first.events + last.events, None if is_whole else gap)
    except HoldfastError as error:
        return Timeline([], f"the journal cannot be read: {error.message}")


class _Span(NamedTuple):
    events: list[JournalEvent]
    position: str
    is_end: bool


def _read(hf: "holdfast.Holdfast", tenant: str, snowflake: int, position: str | None, limit: int) -> _Span:
    found: list[JournalEvent] = []
    while limit > 0:
        page = hf.journal(position, min(limit, PAGE), tenant=tenant)
        found += [each for each in page if each.snowflake == snowflake]
        position = page.next or position
        if not page:
            return _Span(found, position or "", True)
        limit -= len(page)
    return _Span(found, position or "", False)


def _position_at(hf: "holdfast.Holdfast", at_ms: int) -> str | None:
    """Return a position before all events from that time on, or None for the beginning of the journal."""
    oldest = hf.journal(None, 1)
    if not oldest or oldest[0].at >= at_ms or not oldest.next.isdigit():
        return None
    return str(bisect_journal(hf, None, lambda page: bool(page) and page[0].at < at_ms, int(oldest.next)))
