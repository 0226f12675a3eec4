"""Events are collected once, though several processes collect and each relies on what it wrote last."""

import asyncio
from collections import Counter

import pytest

from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.operations.follow_up import FollowUp
from holdfast.testing import EmbeddedSubject

WEEK_MS = 7 * 86_400_000


@pytest.fixture(autouse=True)
def collected_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: FollowUp) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FollowUp, "run", never)


def _processes(bucket: MemoryBucket) -> list[EmbeddedSubject]:
    subjects = [EmbeddedSubject(lambda d: ObjectStore(bucket, d, journal_retention_ms=WEEK_MS), seed=n) for n in (1, 2)]
    subjects[1].clock = subjects[0].clock
    return subjects


async def test_events_that_another_process_has_collected_are_not_collected_again() -> None:
    one, other = _processes(MemoryBucket())
    async with one.open() as mine, other.open() as others:
        waiting, ended = await mine.queue("q").enqueue(["waiting", "ended"])
        [message] = await mine.queue("q").claim(lease=60)
        await message.ack()
        assert len(await others.journal()) == 4  # collects, and deletes the message that ended
        one.clock.advance(10_000)
        await one.sweep(mine)
        [message] = await mine.queue("q").claim(lease=60)
        await message.ack()
        await one.sweep(mine)
        events = Counter((event.id, str(event.event)) for event in await others.journal())
    assert events == Counter(
        {(id, event): 1 for id in (waiting, ended) for event in ("enqueued", "claimed", "succeeded")}
    )


async def test_events_of_a_message_that_another_process_has_moved_are_collected_once() -> None:
    one, other = _processes(MemoryBucket())
    async with one.open() as mine, other.open() as others:
        [id] = await mine.queue("q").enqueue("x")
        [message] = await mine.queue("q").claim(lease=60)
        await message.nack("no", final=True)
        await other.sweep(others)  # moves it to dlq/, with its events
        one.clock.advance(10_000)
        await one.sweep(mine)
        await other.sweep(others)
        events = [str(event.event) for event in await mine.journal() if event.id == id]
        assert events == ["enqueued", "claimed", "failed"]


async def test_a_process_collects_again_what_changed_after_it_was_collected_by_another_one() -> None:
    one, other = _processes(MemoryBucket())
    async with one.open() as mine, other.open() as others:
        [id] = await mine.queue("q").enqueue("x")
        await others.journal()
        [message] = await others.queue("q").claim(lease=60)
        await message.nack("no", delay=0)
        one.clock.advance(10_000)
        await one.sweep(mine)
        await other.sweep(others)
        assert [str(event.event) for event in await mine.journal() if event.id == id] == [
            "enqueued",
            "claimed",
            "retried",
        ]
