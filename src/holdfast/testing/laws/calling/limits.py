"""Rates and caps of tenants and queues (SPEC 8.7, 8.8). What is refused changes nothing and says when to ask again."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from holdfast.model.errors import OverQuota, RateLimited
from holdfast.model.policy import Limits
from holdfast.testing.laws.waiting_tasks import assert_waits, leave, soon, start_claim, turns, until_waiting
from holdfast.testing.subject import Subject

# How long a call may wait at a cap.
_AT_A_CAP_MS = 5_000


async def refusal(call: Awaitable[Any]) -> RateLimited:
    with pytest.raises(RateLimited) as refused:
        await soon(call)
    return refused.value


class LimitLaws:
    # --- Rates -----------------------------------------------------------------------------------------------

    async def test_a_tenant_enqueues_as_its_rate_allows_and_is_told_when_it_may_again(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(limits={"write_ops_per_s": 10})
            a, b = hf.queue("a", tenant="acme"), hf.queue("b", tenant="acme")
            await a.enqueue([b""] * 6)
            await b.enqueue([b""] * 4)
            error = await refusal(a.enqueue(b""))
            assert error.retry_after_ms == 100
            assert (error.facts["limit"], error.facts["of"], error.facts["tenant"]) == (
                "write_ops_per_s",
                "tenant",
                "acme",
            )
            subject.clock.advance(99)
            await refusal(b.enqueue(b""))
            subject.clock.advance(1)
            await a.enqueue(b"")
            await refusal(a.enqueue(b""))
            assert ((await a.stats()).ready, (await b.stats()).ready) == (7, 4)
            # Nobody else's calls count.
            await hf.queue("a").enqueue([b""] * 100)

    async def test_bytes_are_limited_as_operations_are(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(limits={"write_bytes_per_s": 1_000, "burst_s": 2})
            q = hf.queue("q", tenant="acme")
            await q.enqueue([b"x" * 490] * 4, headers={"abcde": "fghij"})
            error = await refusal(q.enqueue(b"x" * 300))
            assert (error.facts["limit"], error.retry_after_ms) == ("write_bytes_per_s", 300)
            subject.clock.advance(300)
            await q.enqueue(b"x" * 300)

    async def test_a_queue_s_limits_hold_beside_its_tenant_s_and_a_refusal_charges_neither(
        self, subject: Subject
    ) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(limits={"write_ops_per_s": 10})
            slow, other = hf.queue("slow", tenant="acme"), hf.queue("other", tenant="acme")
            await slow.set_policy(limits={"write_ops_per_s": 2})
            await slow.enqueue([b""] * 2)
            error = await refusal(slow.enqueue(b""))
            assert (error.facts["of"], error.facts["queue"], error.retry_after_ms) == ("queue", "slow", 500)
            await other.enqueue([b""] * 8)
            await refusal(other.enqueue(b""))

    async def test_a_call_larger_than_the_burst_is_let_in_when_nothing_was_used_and_is_paid_off(
        self, subject: Subject
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"write_ops_per_s": 10})
            await q.enqueue([b""] * 35)
            assert (await refusal(q.enqueue(b""))).retry_after_ms == 2_600
            assert (await refusal(q.enqueue([b""] * 35))).retry_after_ms == 3_500
            subject.clock.advance(3_499)
            await refusal(q.enqueue([b""] * 35))
            subject.clock.advance(1)
            await q.enqueue([b""] * 35)

    async def test_what_the_store_refuses_costs_nothing(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(limits={"write_ops_per_s": 2}, quotas={"max_messages": 2})
            q = hf.queue("q", tenant="acme")
            for _ in range(10):
                with pytest.raises(OverQuota):
                    await q.enqueue([b""] * 3)
            await q.enqueue([b""] * 2)

    async def test_reads_and_writes_are_limited_apart(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"write_ops_per_s": 1, "read_ops_per_s": 1})
            await q.enqueue(b"")
            await refusal(q.enqueue(b""))
            assert len(await q.claim()) == 1
            assert (await refusal(q.claim())).facts["limit"] == "read_ops_per_s"

    async def test_what_a_claim_was_given_is_paid_off_before_the_next(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"read_ops_per_s": 10, "read_bytes_per_s": 1_000})
            await q.enqueue([b"x" * 100] * 40)
            assert len(await q.claim(20)) == 20
            error = await refusal(q.claim())
            # 2,000 bytes out of 1,000, and one to be there; the operations are paid off a tenth of a second later.
            assert (error.facts["limit"], error.retry_after_ms) == ("read_ops_per_s", 1_100)
            subject.clock.advance(1_099)
            await refusal(q.claim(wait=60))
            subject.clock.advance(1)
            assert len(await q.claim()) == 1

    async def test_a_claim_that_finds_nothing_costs_one_operation(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"read_ops_per_s": 3})
            for _ in range(3):
                assert await q.claim() == []
            await refusal(q.claim())

    async def test_a_claim_that_waits_is_charged_what_it_is_given(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"read_ops_per_s": 1})
            waiting = await start_claim(q, limit=10)
            subject.clock.advance(10_000)
            await q.enqueue([b""] * 5)
            assert len(await soon(waiting)) == 5
            assert (await refusal(q.claim())).retry_after_ms == 4_000

    async def test_verdicts_are_never_refused_by_a_rate(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q", tenant="acme")
            await q.enqueue([b""] * 20)
            held = await q.claim(20, lease=60)
            closed = Limits(write_ops_per_s=0, write_bytes_per_s=0, read_ops_per_s=0, read_bytes_per_s=0)
            await hf.tenant("acme").set(limits=closed)
            await q.set_policy(limits=closed, max_claims=0, max_enqueues=0)
            await refusal(q.enqueue(b""))
            await refusal(q.claim())
            assert all(result.ok for result in await q.extend(held, 60))
            assert all(result.ok for result in await q.ack(held[:10]))
            assert all(result.ok for result in await q.nack(held[10:15], "why"))
            assert all(result.ok for result in await q.release(held[15:]))
            assert (await q.stats()).ready == 5

    async def test_look_ups_and_listings_count_as_reads(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id, *_] = await q.enqueue([b"x" * 10] * 5)
            await q.set_policy(limits={"read_ops_per_s": 5})
            await q.get(id)
            await q.get(id)
            assert len(await q.peek(3)) == 3
            assert (await refusal(q.get(id))).retry_after_ms == 200
            await refusal(q.list())
            await refusal(q.claim())
            subject.clock.advance(1_000)
            assert len(await q.list()) == 5
            await refusal(q.peek())

    async def test_a_limit_that_is_changed_holds_from_then_on_and_is_not_filled_by_it(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"write_ops_per_s": 5})
            await q.enqueue([b""] * 5)
            await q.set_policy(limits={"write_ops_per_s": 5})
            await refusal(q.enqueue(b""))
            await q.set_policy(limits={"write_ops_per_s": 10})
            assert (await refusal(q.enqueue(b""))).retry_after_ms == 100
            await q.set_policy(limits={"write_ops_per_s": None})
            await q.enqueue([b""] * 100)

    async def test_a_limit_of_0_lets_nothing_in(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"write_ops_per_s": 0})
            for _ in range(3):
                assert (await refusal(q.enqueue(b""))).retry_after_ms > 0
                subject.clock.advance(3_600_000)
            assert (await q.stats()).ready == 0

    async def test_a_clock_that_steps_back_gives_nobody_more(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"write_ops_per_s": 5})
            await q.enqueue([b""] * 5)
            start = subject.clock.now_ms()
            for back_ms in (1_000, 500, 1):
                subject.clock.step_to(start - back_ms)
                await refusal(q.enqueue(b""))
                subject.clock.step_to(start)
                await refusal(q.enqueue(b""))
            subject.clock.step_to(start + 200)
            await q.enqueue(b"")

    # --- Caps ------------------------------------------------------------------------------------------------

    async def test_claims_over_the_cap_wait_for_one_that_waits_to_end(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_claims=2)
            under_way = [await start_claim(q) for _ in range(2)]
            over = asyncio.create_task(q.claim(wait=60))
            await turns()
            await assert_waits(q, *under_way)
            assert not over.done()
            [id] = await q.enqueue(b"")
            assert [m.id for m in await soon(under_way[0])] == [id]
            await until_waiting(q, 2)
            await q.enqueue([b""] * 2)
            assert [len(await soon(task)) for task in (under_way[1], over)] == [1, 1]

    async def test_a_claim_over_the_cap_is_refused_in_a_bounded_time(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_claims=1)
            under_way = await start_claim(q)
            brief, long, endless, at_once = (asyncio.create_task(q.claim(wait=wait)) for wait in (2, 60, None, 0))
            await turns()
            subject.clock.advance(1_999)
            await turns()
            assert not any(task.done() for task in (brief, long, endless, at_once))
            subject.clock.advance(1)
            assert (await refusal(brief)).facts["limit"] == "max_claims"
            subject.clock.advance(_AT_A_CAP_MS - 2_001)
            await turns()
            assert not any(task.done() for task in (long, endless, at_once))
            subject.clock.advance(1)
            for task in (long, endless, at_once):
                await refusal(task)
            await assert_waits(q, under_way)
            await q.enqueue(b"")
            assert len(await soon(under_way)) == 1

    async def test_what_a_claim_waited_at_the_cap_is_part_of_its_wait(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_claims=1)
            first = await start_claim(q, wait=3)
            second = asyncio.create_task(q.claim(wait=4))
            await turns()
            subject.clock.advance(3_000)
            assert await soon(first) == []
            await until_waiting(q, 1)
            subject.clock.advance(999)
            await assert_waits(q, second)
            subject.clock.advance(1)
            assert await soon(second) == []

    async def test_a_claim_that_leaves_the_cap_s_line_leaves_no_trace(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_claims=1)
            under_way = await start_claim(q)
            gone, stays = (asyncio.create_task(q.claim(wait=60)) for _ in range(2))
            await turns()
            assert await leave(gone) == []
            await turns()
            assert await leave(under_way) == []
            await until_waiting(q, 1)
            await q.enqueue(b"")
            assert len(await soon(stays)) == 1
            await q.enqueue(b"")
            assert len(await soon(q.claim())) == 1

    async def test_enqueues_over_the_cap_are_all_carried_out_in_their_turn(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_enqueues=2)
            await soon(asyncio.gather(*(q.enqueue(b"%d" % n) for n in range(20))))
            assert (await q.stats()).ready == 20

    async def test_a_deleted_queue_takes_its_limits_along(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"write_ops_per_s": 0}, max_claims=0)
            await q.delete()
            await subject.sweep(hf)
            await q.enqueue([b""] * 10)
            assert len(await soon(q.claim(10))) == 10
