"""The order of claims: by priority, then by visible time, then by id (SPEC 2.6, 2.12)."""

import asyncio
import random

import pytest

from holdfast.client.queue import AsyncQueue
from holdfast.model.message import NewMessage
from holdfast.testing.laws.waiting_tasks import finish, until_started
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject


async def _claim_names(q: AsyncQueue, limit: int = 100) -> list[str]:
    """Claim messages and return their payloads in the order of delivery."""
    return [m.json() for m in await q.claim(limit=limit)]


class OrderLaws:
    @proves("2.12")
    async def test_messages_are_claimed_in_the_order_of_their_enqueue(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue(["a"] * 20)
            for _ in range(20):
                ids += await q.enqueue("b")  # in the same millisecond
            subject.clock.advance(1)
            ids += await q.enqueue(["c"] * 20)
            assert [m.id for m in await q.claim(limit=100)] == ids

    async def test_ids_increase_in_the_order_of_enqueue(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue(["a"] * 20)
            subject.clock.advance(1)
            ids += await q.enqueue(["b"] * 20)
            assert sorted(set(ids)) == ids
            assert sorted(id.snowflake for id in ids) == [id.snowflake for id in ids]

    @pytest.mark.parametrize("limit", [1, 3, 7])
    async def test_successive_claims_continue_in_one_order(self, subject: Subject, limit: int) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue(["a"] * 15)
            claimed: list[str] = []
            while more := await q.claim(limit=limit):
                assert len(more) <= limit
                claimed += [m.id for m in more]
            assert claimed == ids

    @proves("2.12")
    async def test_a_lower_priority_number_comes_first_and_a_hundred_is_the_default(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            for priority in (255, 101, 0, 99, 1):
                await q.enqueue(priority, priority=priority)
            await q.enqueue("default")
            await q.enqueue(100, priority=100)
            claimed = await q.claim(limit=10)
            assert [m.json() for m in claimed] == [0, 1, 99, "default", 100, 101, 255]
            assert [m.priority for m in claimed] == [0, 1, 99, 100, 100, 101, 255]

    @proves("2.12")
    async def test_within_a_priority_the_first_to_be_visible_comes_first(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("third", delay=3)
            await q.enqueue("second", delay=2)
            await q.enqueue("first")
            subject.clock.advance(2_500)
            await q.enqueue("between")
            subject.clock.advance(500)
            assert await _claim_names(q) == ["first", "second", "between", "third"]

    @proves("2.12")
    async def test_messages_that_become_visible_together_are_claimed_by_id(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            due_at = subject.clock.now_ms() + 5_000
            await q.enqueue("a", deliver_at=due_at)
            subject.clock.advance(1_000)
            await q.enqueue("b", delay=4)
            subject.clock.advance(4_000)
            await q.enqueue("c")
            assert await _claim_names(q) == ["a", "b", "c"]

    async def test_priority_comes_before_visible_time(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("old", priority=50)
            subject.clock.advance(3_600_000)
            await q.enqueue("new", priority=49)
            assert await _claim_names(q) == ["new", "old"]

    @proves("2.12")
    async def test_any_mix_is_claimed_by_priority_visible_time_and_id(self, subject: Subject) -> None:
        dice = random.Random(7)
        async with subject.open() as hf:
            q = hf.queue("q")
            expected = []
            for _ in range(300):
                priority, delay_ms = dice.choice([0, 7, 100, 255]), dice.choice([0, 0, 1, 500, 2_000])
                [id] = await q.enqueue("a", priority=priority, delay=delay_ms / 1_000)
                expected.append((priority, subject.clock.now_ms() + delay_ms, id))
                subject.clock.advance(dice.choice([0, 0, 1, 300]))
            subject.clock.advance(2_000)
            assert [m.id for m in await q.claim(limit=300)] == [id for _, _, id in sorted(expected)]

    # --- Delays ------------------------------------------------------------------------------------------------

    @proves("4.2")
    async def test_a_message_is_claimable_exactly_when_it_is_due(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a", delay=2.5)
            subject.clock.advance(2_499)
            assert await q.claim() == []
            assert ((await q.stats()).ready, (await q.stats()).delayed) == (0, 1)
            subject.clock.advance(1)
            assert ((await q.stats()).ready, (await q.stats()).delayed) == (1, 0)
            assert [m.id for m in await q.claim()] == [id]

    async def test_a_delayed_message_of_high_priority_blocks_no_other(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([NewMessage("urgent", priority=0, delay=60)] * 50)
            await q.enqueue("plain")
            assert await _claim_names(q) == ["plain"]
            subject.clock.advance(60_000)
            assert await _claim_names(q, 50) == ["urgent"] * 50

    # --- Positions of returned messages ------------------------------------------------------------------------

    @proves("2.6")
    async def test_a_released_message_keeps_its_position(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            for name in ("a", "b", "c"):
                await q.enqueue(name)
                subject.clock.advance(1_000)
            a, b = await q.claim(limit=2, lease=60)
            subject.clock.advance(10_000)
            await b.release()
            await a.release()
            assert await _claim_names(q) == ["a", "b", "c"]

    @proves("2.6")
    async def test_an_expired_message_is_ordered_by_the_time_of_its_expiry(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("expired")
            await q.claim(lease=5)
            subject.clock.advance(4_000)
            await q.enqueue("before")
            subject.clock.advance(2_000)
            await q.enqueue("after")
            subject.clock.advance(60_000)  # however late the expiry is found
            await subject.sweep(hf)
            assert await _claim_names(q) == ["before", "expired", "after"]

    @pytest.mark.parametrize("defer", [False, True], ids=["nack", "defer"])
    async def test_a_nacked_message_is_ordered_by_the_time_of_its_retry(self, subject: Subject, defer: bool) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("again")
            [m] = await q.claim()
            await m.nack(delay=5, defer=defer)
            subject.clock.advance(4_000)
            await q.enqueue("before")
            subject.clock.advance(2_000)
            await q.enqueue("after")
            assert await _claim_names(q) == ["before", "again", "after"]

    async def test_a_returned_message_keeps_its_priority(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("plain")
            await q.enqueue("urgent", priority=1)
            [m] = await q.claim()
            await m.nack("no", delay=1)
            subject.clock.advance(1_000)
            assert await _claim_names(q) == ["urgent", "plain"]

    # --- Queues and waiters ------------------------------------------------------------------------------------

    @proves("2.12")
    async def test_a_queue_does_not_affect_the_order_of_another(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, other, theirs = hf.queue("q"), hf.queue("other"), hf.queue("q", tenant="acme")
            for queue, priority in ((other, 0), (q, 200), (theirs, 0), (q, 201)):
                await queue.enqueue(str(queue.ref), priority=priority)
            assert await _claim_names(q) == [str(q.ref)] * 2
            assert await _claim_names(other) == [str(other.ref)]
            assert await _claim_names(theirs) == [str(theirs.ref)]

    @proves("7.1")
    async def test_waiters_are_served_first_come_first_served(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = []
            for number in range(5):
                waiting.append(asyncio.create_task(q.claim(wait=None, lease=3_600)))
                await until_started(hf, number + 1)
            await q.enqueue(list(range(3)))
            assert [[m.json() for m in await finish(claim)] for claim in waiting[:3]] == [[0], [1], [2]]
            await q.enqueue([3, 4])
            assert [[m.json() for m in await finish(claim)] for claim in waiting[3:]] == [[3], [4]]

    async def test_a_waiter_receives_the_first_message_in_order(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = asyncio.create_task(q.claim(limit=2, wait=None))
            await until_started(hf)
            await q.enqueue([NewMessage("later", delay=1), NewMessage("plain"), NewMessage("urgent", priority=1)])
            assert [m.json() for m in await finish(waiting)] == ["urgent", "plain"]
