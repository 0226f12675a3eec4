"""The audit of the demo: count the outcomes of all messages in the journal, and compare them with the expected ones."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import holdfast
from holdfast.cli.demo.producers import DEMO_QUEUES, Accepted, ExpectedOutcome
from holdfast.cli.demo.workers import DemoHeldMessage, DemoWorker
from holdfast.model.answers import Info
from holdfast.model.events import Event, JournalEvent


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The counts and faults that the audit found."""

    enqueued: int
    succeeded: int
    failed: int
    # Dead letters by their expected outcome.
    failed_as: dict[str, int]
    waiting: int
    retried: int
    # Leases that expired. Their messages were delivered again, or became dead letters.
    expired: int
    # Messages whose enqueue was confirmed, and that neither ended nor are in the store.
    lost: int
    succeeded_twice: int
    # Messages that the killed worker held, and those of them that were delivered again under a higher version.
    died_holding: int
    redelivered: int
    is_interrupted: bool
    faults: list[str] = field(default_factory=list)


@dataclass
class _History:
    """The events of one message."""

    last: JournalEvent | None = None
    times_succeeded: int = 0
    claimed_versions: set[int] = field(default_factory=set)
    expired_versions: set[int] = field(default_factory=set)


async def audit(
    hf: holdfast.AsyncHoldfast, accepted: Accepted, workers: Sequence[DemoWorker], *, is_interrupted: bool
) -> Audit:
    """Read the whole journal. The last event of each message determines its outcome."""
    events: Counter[Event] = Counter()
    expired = 0
    histories: defaultdict[int, _History] = defaultdict(_History)
    async for event in _journal(hf):
        events[event.event] += 1
        expired += _is_expiry(event)
        _add_event(histories[event.snowflake], event)

    kept = {info.snowflake async for info in _stored(hf)}
    ends = {id: _end_of(histories[id], is_kept=id in kept) if id in histories else None for id in accepted.expected}
    held = [each for worker in workers for each in worker.held_at_death or ()]
    unexpected = [
        id for id, outcome in accepted.expected.items() if not _is_as_expected(ends[id], histories[id], outcome)
    ]
    waiting = [id for id, end in ends.items() if end == "waiting"]
    result = Audit(
        enqueued=events[Event.ENQUEUED],
        succeeded=sum(end == "acked" for end in ends.values()),
        failed=sum(end == "failed" for end in ends.values()),
        failed_as=dict(Counter(str(accepted.expected[id]) for id, end in ends.items() if end == "failed")),
        waiting=len(waiting),
        retried=events[Event.RETRIED],
        expired=expired,
        lost=sum(end is None for end in ends.values()),
        succeeded_twice=sum(history.times_succeeded > 1 for history in histories.values()),
        died_holding=len(held),
        redelivered=sum(_is_redelivered(histories[each.id.snowflake], each) for each in held),
        is_interrupted=is_interrupted,
    )
    result.faults.extend(_faults(result, len(accepted.expected), len(unexpected) - len(waiting)))
    return result


def _faults(result: Audit, accepted: int, unexpected: int) -> list[str]:
    faults = {
        "messages were lost": result.lost,
        "were acked twice": result.succeeded_twice,
        "did not end as expected": unexpected - result.lost,
    }
    if not result.is_interrupted:
        faults["were still waiting at the end"] = result.waiting
        faults["of the killed worker were not delivered again"] = result.died_holding - result.redelivered
    found = [f"{count:,} {fault}" for fault, count in faults.items() if count]
    if result.enqueued != accepted:
        found.append(f"{accepted:,} enqueues were confirmed, but the journal has {result.enqueued:,}")
    if not (result.died_holding or result.is_interrupted):
        found.append("no worker was killed while it held a message")
    return found


def _add_event(history: _History, event: JournalEvent) -> None:
    history.last = event
    history.times_succeeded += event.event is Event.SUCCEEDED
    if event.event is Event.CLAIMED:
        history.claimed_versions.add(event.version)
    if _is_expiry(event):
        history.expired_versions.add(event.version)


def _is_expiry(event: JournalEvent) -> bool:
    # When a message loses its last permitted lease, the event is FAILED with this reason.
    return event.event is Event.EXPIRED or event.reason == "lease_expired"


def _end_of(history: _History, *, is_kept: bool) -> str | None:
    """Return where a message is: `acked`, `failed` or `waiting`; None if it is lost."""
    assert history.last is not None
    if history.last.event is Event.SUCCEEDED:
        return "acked"
    if not is_kept:
        return None
    return "failed" if history.last.event is Event.FAILED else "waiting"


def _is_as_expected(end: str | None, history: _History, expected: ExpectedOutcome) -> bool:
    if expected is ExpectedOutcome.ACKED:
        return end == "acked"
    if end != "failed" or history.last is None:
        return False
    return (history.last.error or "").startswith("bad payload") == (expected is ExpectedOutcome.BAD_PAYLOAD)


def _is_redelivered(history: _History, held: DemoHeldMessage) -> bool:
    """Return True if the lease expired without a verdict, and the message was claimed again under a higher version."""
    return held.version in history.expired_versions and max(history.claimed_versions) > held.version


async def _journal(hf: holdfast.AsyncHoldfast) -> AsyncIterator[JournalEvent]:
    position: str | None = None
    while page := await hf.journal(position):
        for event in page:
            yield event
        position = page.next


async def _stored(hf: holdfast.AsyncHoldfast) -> AsyncIterator[Info]:
    for each in DEMO_QUEUES:
        cursor: str | None = None
        while True:
            page = await hf.queue(each.queue, tenant=each.tenant).list(limit=1_000, cursor=cursor)
            for info in page:
                yield info
            cursor = page.cursor
            if cursor is None:
                break
