"""Waiting claims: claims served together share no lease, and a cancelled claim leaves none behind (SPEC 2.4, 2.5)."""

import asyncio

import pytest

from holdfast.model.events import Event
from holdfast.model.message import Receipt
from holdfast.testing.laws.lifecycle.states import message_events
from holdfast.testing.laws.waiting_tasks import cancel_claim, finish, run_others, until_started
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject


class WaitingLaws:
    # --- Served together ---------------------------------------------------------------------------------------

    @proves("2.4")
    async def test_twenty_waiting_claimers_get_each_message_exactly_once(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = [asyncio.create_task(q.claim(limit=2, wait=None)) for _ in range(20)]
            await until_started(hf, 20)
            ids = await q.enqueue(list(range(40)))
            shares = await finish(asyncio.gather(*waiting))
            assert sorted(m.id for share in shares for m in share) == ids

    @proves("2.5")
    async def test_waiters_served_together_do_not_share_a_lease(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = [asyncio.create_task(q.claim(wait=None)) for _ in range(2)]
            await until_started(hf, 2)
            await q.enqueue(["a", "b"])
            [first], [second] = await finish(asyncio.gather(*waiting))
            assert first.id != second.id
            assert first.receipt != second.receipt
            assert Receipt.parse(first.receipt).token != Receipt.parse(second.receipt).token

    async def test_one_message_is_not_leased_to_a_second_waiter(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = [asyncio.create_task(q.claim(wait=None, lease=3_600)) for _ in range(2)]
            await until_started(hf, 2)
            [first_id] = await q.enqueue("a")
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=10)
            await run_others(10)
            assert [m.id for task in done for m in task.result()] == [first_id]
            assert (await q.stats()).waiters == 1
            await q.enqueue("b")
            shares = await finish(asyncio.gather(*waiting))
            assert len({m.id for share in shares for m in share}) == 2

    # --- Cancelled claims --------------------------------------------------------------------------------------

    async def test_a_waiting_claim_that_is_cancelled_takes_nothing(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = asyncio.create_task(q.claim(wait=60))
            await until_started(hf)
            assert await cancel_claim(waiting) == []
            await q.enqueue("a")
            await run_others(10)
            assert (await q.stats()).waiters == 0
            [m] = await q.claim()
            assert (m.attempt, m.version) == (1, 1)

    # With the memory store, nothing has been claimed for the waiter after 0 iterations of the event loop. After 1
    # iteration messages have been claimed, but the waiter does not know it yet.
    @pytest.mark.parametrize("after_turns", range(6))
    async def test_a_claim_cancelled_at_any_moment_leaves_no_message_leased(
        self, subject: Subject, after_turns: int
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = asyncio.create_task(q.claim(limit=3, wait=60, lease=3_600))
            await until_started(hf)
            ids = await q.enqueue(["a", "b", "c"])
            await run_others(after_turns)
            if received := await cancel_claim(waiting):
                assert [m.id for m in received] == ids  # too late: the caller holds them
                return
            again = await finish(q.claim(limit=3, wait=None))
            assert [m.id for m in again] == ids
            for m in again:
                info = await q.get(m.id)
                assert (m.attempt, info.failures, info.expiries) == (1, 0, 0)
                assert m.version == (await message_events(hf, m.id)).count(Event.CLAIMED)

    @pytest.mark.parametrize("after_turns", range(4))
    async def test_a_cancelled_claim_without_a_wait_leaves_no_message_leased(
        self, subject: Subject, after_turns: int
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("a")
            claim = asyncio.create_task(q.claim(lease=3_600))
            await run_others(after_turns)
            if not await cancel_claim(claim):
                [m] = await finish(q.claim(wait=None))
                assert m.attempt == 1

    @proves("7.1")
    @pytest.mark.parametrize("after_turns", range(4))
    async def test_a_message_for_a_cancelled_waiter_goes_to_the_next_waiter(
        self, subject: Subject, after_turns: int
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            first = asyncio.create_task(q.claim(wait=None, lease=3_600))
            await until_started(hf, 1)
            second = asyncio.create_task(q.claim(wait=None))
            await until_started(hf, 2)
            [id] = await q.enqueue("a")
            await run_others(after_turns)
            if received := await cancel_claim(first):
                await received[0].release()
            [m] = await finish(second)
            assert m.id == id
