"""SPEC 2.4, 2.5 for claims that wait: served together they share nothing, and one whose caller left strands nothing."""

import asyncio

import pytest

from holdfast.model.events import Event
from holdfast.model.message import Receipt
from holdfast.testing.laws.lifecycle.states import events_of
from holdfast.testing.laws.waiting_tasks import leave, soon, started, turns
from holdfast.testing.subject import Subject


class WaitingLaws:
    # --- Served together ---------------------------------------------------------------------------------------

    async def test_twenty_waiting_claimers_get_each_message_exactly_once(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = [asyncio.create_task(q.claim(limit=2, wait=None)) for _ in range(20)]
            await started(hf, 20)
            ids = await q.enqueue(list(range(40)))
            shares = await soon(asyncio.gather(*waiting))
            assert sorted(m.id for share in shares for m in share) == ids

    async def test_waiters_served_together_do_not_share_a_lease(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = [asyncio.create_task(q.claim(wait=None)) for _ in range(2)]
            await started(hf, 2)
            await q.enqueue(["a", "b"])
            [first], [second] = await soon(asyncio.gather(*waiting))
            assert first.id != second.id
            assert first.receipt != second.receipt
            assert Receipt.parse(first.receipt).token != Receipt.parse(second.receipt).token

    async def test_one_message_wakes_no_second_waiter_into_its_lease(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = [asyncio.create_task(q.claim(wait=None, lease=3_600)) for _ in range(2)]
            await started(hf, 2)
            [first_id] = await q.enqueue("a")
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=10)
            await turns(10)
            assert [m.id for task in done for m in task.result()] == [first_id]
            assert (await q.stats()).waiters == 1
            await q.enqueue("b")
            shares = await soon(asyncio.gather(*waiting))
            assert len({m.id for share in shares for m in share}) == 2

    # --- A claim whose caller left -----------------------------------------------------------------------------

    async def test_a_waiting_claim_that_is_cancelled_takes_nothing(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = asyncio.create_task(q.claim(wait=60))
            await started(hf)
            assert await leave(waiting) == []
            await q.enqueue("a")
            await turns(10)
            assert (await q.stats()).waiters == 0
            [m] = await q.claim()
            assert (m.attempt, m.version) == (1, 1)

    # After 0 turns nothing has been claimed for it yet, after 1 it was and it does not know: so with the memory store.
    @pytest.mark.parametrize("after_turns", range(6))
    async def test_a_claim_cancelled_at_any_moment_leaves_its_messages_held_by_nobody(
        self, subject: Subject, after_turns: int
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = asyncio.create_task(q.claim(limit=3, wait=60, lease=3_600))
            await started(hf)
            ids = await q.enqueue(["a", "b", "c"])
            await turns(after_turns)
            if received := await leave(waiting):
                assert [m.id for m in received] == ids  # too late: they are its own
                return
            again = await soon(q.claim(limit=3, wait=None))
            assert [m.id for m in again] == ids
            for m in again:
                info = await q.get(m.id)
                assert (m.attempt, info.failures, info.expiries) == (1, 0, 0)
                assert m.version == (await events_of(hf, m.id)).count(Event.CLAIMED)

    @pytest.mark.parametrize("after_turns", range(4))
    async def test_a_claim_that_does_not_wait_strands_nothing_when_cancelled(
        self, subject: Subject, after_turns: int
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("a")
            claim = asyncio.create_task(q.claim(lease=3_600))
            await turns(after_turns)
            if not await leave(claim):
                [m] = await soon(q.claim(wait=None))
                assert m.attempt == 1

    @pytest.mark.parametrize("after_turns", range(4))
    async def test_what_a_cancelled_waiter_was_handed_goes_to_the_next_in_line(
        self, subject: Subject, after_turns: int
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            first = asyncio.create_task(q.claim(wait=None, lease=3_600))
            await started(hf, 1)
            second = asyncio.create_task(q.claim(wait=None))
            await started(hf, 2)
            [id] = await q.enqueue("a")
            await turns(after_turns)
            if received := await leave(first):
                await received[0].release()
            [m] = await soon(second)
            assert m.id == id
