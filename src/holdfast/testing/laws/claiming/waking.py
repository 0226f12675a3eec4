"""Waiting claims and the events that wake them (SPEC 3.3). The clock moves only where time is the cause of waking."""

import asyncio

import pytest

from holdfast.model.errors import Draining
from holdfast.testing.laws.waiting_tasks import assert_waits, finish, run_others, start_claim, until_waiting
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject


class WakingLaws:
    # --- Causes of waking ------------------------------------------------------------------------------------

    @proves("3.3")
    async def test_an_enqueue_wakes_a_waiting_claim(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy()
            waiting = await start_claim(q, limit=10)
            ids = await q.enqueue([b"a", b"b"])
            assert [each.id for each in await finish(waiting)] == ids
            assert (await q.stats()).waiters == 0

    @proves("3.3")
    async def test_a_claim_waits_for_a_queue_that_does_not_exist_yet(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("later", tenant="acme")
            waiting = asyncio.create_task(q.claim(wait=None))
            await run_others()
            assert not waiting.done()
            [id] = await q.enqueue(b"")
            assert [each.id for each in await finish(waiting)] == [id]

    @proves("3.3")
    async def test_a_delayed_message_wakes_a_waiting_claim_exactly_when_it_is_due(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"last", delay=30)
            waiting = await start_claim(q)
            # A message that is due sooner arrives while the claim waits.
            await q.enqueue(b"first", delay=5)
            subject.clock.advance(4_999)
            await assert_waits(q, waiting)
            subject.clock.advance(1)
            [first] = await finish(waiting)
            assert first.payload == b"first"
            await first.ack()
            waiting = await start_claim(q)
            subject.clock.advance(25_000)
            assert [each.payload for each in await finish(waiting)] == [b"last"]

    @proves("3.3")
    async def test_an_expiring_lease_wakes_a_waiting_claim(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue(b"")
            await q.claim(lease=10)
            waiting = await start_claim(q)
            subject.clock.advance(9_999)
            await assert_waits(q, waiting)
            subject.clock.advance(1)
            [message] = await finish(waiting)
            assert (message.id, message.attempt) == (id, 2)

    async def test_an_extended_lease_wakes_a_waiting_claim_at_its_new_end(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [held] = await q.claim(lease=10)
            waiting = await start_claim(q)
            await held.extend(60)
            subject.clock.advance(59_999)
            await assert_waits(q, waiting)
            # An extension may also shorten the lease.
            await held.extend(0.001)
            subject.clock.advance(1)
            assert len(await finish(waiting)) == 1

    @proves("3.3")
    async def test_a_nack_wakes_a_waiting_claim_at_its_retry(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [held] = await q.claim()
            waiting = await start_claim(q)
            await held.nack(delay=0)
            [held] = await finish(waiting)
            waiting = await start_claim(q)
            await held.nack(delay=3)
            subject.clock.advance(2_999)
            await assert_waits(q, waiting)
            subject.clock.advance(1)
            assert [each.attempt for each in await finish(waiting)] == [3]

    @proves("3.3")
    async def test_a_release_wakes_a_waiting_claim(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [held] = await q.claim()
            waiting = await start_claim(q)
            await held.release()
            assert len(await finish(waiting)) == 1

    @proves("3.3")
    async def test_a_redrive_wakes_a_waiting_claim(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [held] = await q.claim()
            await held.nack(final=True)
            waiting = await start_claim(q)
            await q.redrive()
            assert len(await finish(waiting)) == 1

    @proves("3.3")
    async def test_a_claim_that_waits_on_a_paused_queue_is_woken_only_by_the_resume(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"", delay=1)
            waiting = await start_claim(q)
            await q.pause()
            await q.enqueue(b"")
            subject.clock.advance(2_000)
            await assert_waits(q, waiting)
            await q.resume()
            assert len(await finish(waiting)) == 1

    async def test_a_claim_that_began_while_paused_is_woken_by_the_resume(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            await q.pause()
            waiting = await start_claim(q)
            await assert_waits(q, waiting)
            await q.resume()
            assert len(await finish(waiting)) == 1

    @proves("3.3")
    async def test_a_move_wakes_a_claim_that_waits_on_the_target_queue(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, target = hf.queue("q"), hf.queue("target", tenant="acme")
            await target.set_policy()
            await q.enqueue(b"")
            waiting = await start_claim(target)
            await q.move("target", tenant="acme")
            assert len(await finish(waiting)) == 1

    @proves("3.3")
    @pytest.mark.parametrize("verdict", ["ack", "nack final", "remove", "lease ends"])
    async def test_a_freed_group_wakes_a_waiting_claim(self, subject: Subject, verdict: str) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b"first", b"second"], group="g", max_retries=0)
            [held] = await q.claim(lease=10)
            waiting = await start_claim(q)
            match verdict:
                case "ack":
                    await held.ack()
                case "nack final":
                    await held.nack(final=True)
                case "remove":
                    await q.remove(held.id)
                case _:
                    subject.clock.advance(10_000)
            assert [each.payload for each in await finish(waiting)] == [b"second"]

    async def test_removing_a_delayed_first_message_of_a_group_wakes_a_waiting_claim(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [head] = await q.enqueue(b"head", group="g", delay=60)
            await q.enqueue(b"next", group="g")
            waiting = await start_claim(q)
            await assert_waits(q, waiting)
            await q.remove(head)
            assert [each.payload for each in await finish(waiting)] == [b"next"]

    # --- Length of a wait ------------------------------------------------------------------------------------

    @proves("3.3")
    async def test_a_claim_returns_an_empty_list_when_its_wait_ends(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy()
            waiting = await start_claim(q, wait=2)
            subject.clock.advance(1_999)
            await assert_waits(q, waiting)
            subject.clock.advance(1)
            assert await finish(waiting) == []
            assert (await q.stats()).waiters == 0

    @proves("3.3")
    async def test_a_wait_of_none_has_no_limit(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy()
            waiting = await start_claim(q, wait=None)
            subject.clock.advance(400 * 86_400_000)
            await assert_waits(q, waiting)
            await q.enqueue(b"")
            assert len(await finish(waiting)) == 1

    @proves("3.3")
    @pytest.mark.parametrize("limit", [1, 100, 10_000])
    async def test_a_claim_without_a_wait_returns_at_once_while_another_claim_waits(
        self, subject: Subject, limit: int
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy()
            waiting = await start_claim(q, limit=limit)
            assert await finish(asyncio.create_task(q.claim())) == []
            await q.enqueue(b"")
            assert len(await finish(waiting)) == 1

    # --- Order of service ------------------------------------------------------------------------------------

    async def test_waiting_claims_are_served_in_the_order_of_their_arrival(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy()
            waiting = [await start_claim(q) for _ in range(5)]
            for position in range(5):
                [id] = await q.enqueue(b"")
                assert [each.id for each in await finish(waiting[position])] == [id]
                await assert_waits(q, *waiting[position + 1 :])

    async def test_one_enqueue_serves_as_many_claims_as_it_can_each_with_its_own_lease(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy()
            waiting = [await start_claim(q, limit=2) for _ in range(3)]
            ids = await q.enqueue([b""] * 5)
            served = [await finish(each) for each in waiting]
            assert [[each.id for each in batch] for batch in served] == [ids[:2], ids[2:4], ids[4:]]
            assert len({each.receipt for batch in served for each in batch}) == 5

    async def test_many_waiting_claims_are_all_served(self, subject: Subject) -> None:
        async with subject.open(queue_max_consumers=1_000) as hf:
            q = hf.queue("q")
            await q.set_policy()
            waiting = [await start_claim(q) for _ in range(250)]
            ids = await q.enqueue([b""] * 250)
            assert [each.id for task in waiting for each in await finish(task)] == ids

    async def test_a_claim_is_not_woken_by_another_queue(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, other, foreign = hf.queue("q"), hf.queue("other"), hf.queue("q", tenant="acme")
            await q.set_policy()
            waiting = await start_claim(q)
            await other.enqueue(b"")
            await foreign.enqueue(b"")
            await assert_waits(q, waiting)
            [id] = await q.enqueue(b"")
            assert [each.id for each in await finish(waiting)] == [id]

    async def test_a_cancelled_waiting_claim_holds_no_message(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy()
            gone, waiting = await start_claim(q), await start_claim(q)
            gone.cancel()
            await asyncio.wait([gone])
            await until_waiting(q, 1)
            [id] = await q.enqueue(b"")
            assert [each.id for each in await finish(waiting)] == [id]
            assert (await q.stats()).waiters == 0

    async def test_a_message_of_a_claim_cancelled_on_delivery_is_returned_uncounted(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy()
            gone = await start_claim(q)
            [id] = await q.enqueue(b"")
            # The claim is cancelled after the enqueue and before its task runs: it may have been served or not.
            gone.cancel()
            await asyncio.wait([gone])
            waiting = asyncio.create_task(q.claim(wait=None))
            [message] = await finish(waiting)
            assert (message.id, message.attempt) == (id, 1)
            info = await q.get(id)
            assert (info.failures, info.expiries, info.releases) == (0, 0, 0)

    async def test_deleting_a_queue_ends_its_waiting_claims(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            await q.claim(lease=60)
            waiting = await start_claim(q)
            await q.delete()
            with pytest.raises(Draining):
                await finish(waiting)
