"""What came of the demo's messages: counted from the journal, and held against what was to come of them."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import holdfast
from holdfast.cli.demo.producers import KINDS, Accepted, Fate
from holdfast.cli.demo.workers import DemoHeldMessage, Seat
from holdfast.model.answers import Info
from holdfast.model.events import Event, JournalEvent


@dataclass(frozen=True, kw_only=True)
class Audit:
    enqueued: int
    succeeded: int
    # In the dead letters, by what was expected of them.
    failed: int
    failed_as: dict[str, int]
    waiting: int
    retried: int
    # Leases that ran out: their messages were delivered again, or failed for good.
    expired: int
    # Answered, and then neither ended nor there any more.
    lost: int
    succeeded_twice: int
    # What the killed worker held, and how much of it was delivered again under a higher version.
    died_holding: int
    redelivered: int
    is_interrupted: bool
    faults: list[str] = field(default_factory=list)


@dataclass
class _Story:
    """One message's events."""

    last: JournalEvent | None = None
    times_succeeded: int = 0
    claimed_versions: set[int] = field(default_factory=set)
    expired_versions: set[int] = field(default_factory=set)


async def audit(
    hf: holdfast.AsyncHoldfast, accepted: Accepted, seats: Sequence[Seat], *, is_interrupted: bool
) -> Audit:
    """Read the whole journal: the last event of each message says where it is."""
    events: Counter[Event] = Counter()
    expired = 0
    stories: defaultdict[int, _Story] = defaultdict(_Story)
    async for event in _journal(hf):
        events[event.event] += 1
        expired += _is_expiry(event)
        _note(stories[event.snowflake], event)

    kept = {info.snowflake async for info in _stored(hf)}
    ends = {id: _end_of(stories[id], is_kept=id in kept) if id in stories else None for id in accepted.fates}
    held = [each for seat in seats for each in seat.held or ()]
    unexpected = [id for id, fate in accepted.fates.items() if not _is_as_expected(ends[id], stories[id], fate)]
    waiting = [id for id, end in ends.items() if end == "waiting"]
    result = Audit(
        enqueued=events[Event.ENQUEUED],
        succeeded=sum(end == "acked" for end in ends.values()),
        failed=sum(end == "failed" for end in ends.values()),
        failed_as=dict(Counter(str(accepted.fates[id]) for id, end in ends.items() if end == "failed")),
        waiting=len(waiting),
        retried=events[Event.RETRIED],
        expired=expired,
        lost=sum(end is None for end in ends.values()),
        succeeded_twice=sum(story.times_succeeded > 1 for story in stories.values()),
        died_holding=len(held),
        redelivered=sum(_is_redelivered(stories[each.id.snowflake], each) for each in held),
        is_interrupted=is_interrupted,
    )
    result.faults.extend(_faults(result, len(accepted.fates), len(unexpected) - len(waiting)))
    return result


def _faults(result: Audit, accepted: int, unexpected: int) -> list[str]:
    faults = {
        "messages were lost": result.lost,
        "were acked twice": result.succeeded_twice,
        "ended otherwise than they should": unexpected - result.lost,
    }
    if not result.is_interrupted:
        faults["were still waiting at the end"] = result.waiting
        faults["of the killed worker were not delivered again"] = result.died_holding - result.redelivered
    found = [f"{count:,} {what}" for what, count in faults.items() if count]
    if result.enqueued != accepted:
        found.append(f"{accepted:,} enqueues were answered, and the journal has {result.enqueued:,}")
    if not (result.died_holding or result.is_interrupted):
        found.append("no worker was killed in the middle of a message")
    return found


def _note(story: _Story, event: JournalEvent) -> None:
    story.last = event
    story.times_succeeded += event.event is Event.SUCCEEDED
    if event.event is Event.CLAIMED:
        story.claimed_versions.add(event.version)
    if _is_expiry(event):
        story.expired_versions.add(event.version)


def _is_expiry(event: JournalEvent) -> bool:
    # The last lease that a message may lose ends it.
    return event.event is Event.EXPIRED or event.reason == "lease_expired"


def _end_of(story: _Story, *, is_kept: bool) -> str | None:
    """None: it is nowhere."""
    assert story.last is not None
    if story.last.event is Event.SUCCEEDED:
        return "acked"
    if not is_kept:
        return None
    return "failed" if story.last.event is Event.FAILED else "waiting"


def _is_as_expected(end: str | None, story: _Story, fate: Fate) -> bool:
    if fate is Fate.ACKED:
        return end == "acked"
    if end != "failed" or story.last is None:
        return False
    return (story.last.error or "").startswith("bad payload") == (fate is Fate.BAD_PAYLOAD)


def _is_redelivered(story: _Story, held: DemoHeldMessage) -> bool:
    """Its lease ran out, no sooner verdict came, and it was claimed again under a higher version."""
    return held.version in story.expired_versions and max(story.claimed_versions) > held.version


async def _journal(hf: holdfast.AsyncHoldfast) -> AsyncIterator[JournalEvent]:
    position: str | None = None
    while page := await hf.journal(position):
        for event in page:
            yield event
        position = page.next


async def _stored(hf: holdfast.AsyncHoldfast) -> AsyncIterator[Info]:
    for kind in KINDS:
        cursor: str | None = None
        while True:
            page = await hf.queue(kind.queue, tenant=kind.tenant).list(limit=1_000, cursor=cursor)
            for info in page:
                yield info
            cursor = page.cursor
            if cursor is None:
                break
