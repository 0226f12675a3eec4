"""Rates and caps of tenants and queues (SPEC 8.7, 8.8). A refusal changes nothing and says when to retry."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from holdfast.model.errors import OverQuota, RateLimited
from holdfast.model.policy import Limits
from holdfast.testing.laws.waiting_tasks import (
    assert_waits,
    cancel_claim,
    finish,
    run_others,
    start_claim,
    until_waiting,
)
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject

# The longest time that a call waits at a cap.
_AT_A_CAP_MS = 5_000


async def expect_rate_limited(call: Awaitable[Any]) -> RateLimited:
    with pytest.raises(RateLimited) as refused:
        await finish(call)
    return refused.value


class LimitLaws:
    # --- Rates -----------------------------------------------------------------------------------------------

    @proves("8.7")
    async def test_a_tenant_enqueues_at_its_rate_and_a_refusal_says_when_to_retry(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(limits={"write_ops_per_s": 10})
            a, b = hf.queue("a", tenant="acme"), hf.queue("b", tenant="acme")
            await a.enqueue([b""] * 6)
            await b.enqueue([b""] * 4)
            error = await expect_rate_limited(a.enqueue(b""))
            assert error.retry_after_ms == 100
            assert (error.facts["limit"], error.facts["of"], error.facts["tenant"]) == (
                "write_ops_per_s",
                "tenant",
                "acme",
            )
            subject.clock.advance(99)
            await expect_rate_limited(b.enqueue(b""))
            subject.clock.advance(1)
            await a.enqueue(b"")
            await expect_rate_limited(a.enqueue(b""))
            assert ((await a.stats()).ready, (await b.stats()).ready) == (7, 4)
            # Calls of another tenant do not count.
            await hf.queue("a").enqueue([b""] * 100)

    @proves("8.7")
    async def test_bytes_are_limited_like_operations(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(limits={"write_bytes_per_s": 1_000, "burst_s": 2})
            q = hf.queue("q", tenant="acme")
            await q.enqueue([b"x" * 490] * 4, headers={"abcde": "fghij"})
            error = await expect_rate_limited(q.enqueue(b"x" * 300))
            assert (error.facts["limit"], error.retry_after_ms) == ("write_bytes_per_s", 300)
            subject.clock.advance(300)
            await q.enqueue(b"x" * 300)

    @proves("8.7")
    async def test_queue_and_tenant_limits_both_apply_and_a_refusal_charges_neither(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(limits={"write_ops_per_s": 10})
            slow, other = hf.queue("slow", tenant="acme"), hf.queue("other", tenant="acme")
            await slow.set_policy(limits={"write_ops_per_s": 2})
            await slow.enqueue([b""] * 2)
            error = await expect_rate_limited(slow.enqueue(b""))
            assert (error.facts["of"], error.facts["queue"], error.retry_after_ms) == ("queue", "slow", 500)
            await other.enqueue([b""] * 8)
            await expect_rate_limited(other.enqueue(b""))

    async def test_a_call_larger_than_the_burst_needs_an_unused_limit_and_delays_later_calls(
        self, subject: Subject
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"write_ops_per_s": 10})
            await q.enqueue([b""] * 35)
            assert (await expect_rate_limited(q.enqueue(b""))).retry_after_ms == 2_600
            assert (await expect_rate_limited(q.enqueue([b""] * 35))).retry_after_ms == 3_500
            subject.clock.advance(3_499)
            await expect_rate_limited(q.enqueue([b""] * 35))
            subject.clock.advance(1)
            await q.enqueue([b""] * 35)

    async def test_a_call_that_the_store_refuses_is_not_charged(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(limits={"write_ops_per_s": 2}, quotas={"max_messages": 2})
            q = hf.queue("q", tenant="acme")
            for _ in range(10):
                with pytest.raises(OverQuota):
                    await q.enqueue([b""] * 3)
            await q.enqueue([b""] * 2)

    @proves("8.7")
    async def test_reads_and_writes_are_limited_separately(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"write_ops_per_s": 1, "read_ops_per_s": 1})
            await q.enqueue(b"")
            await expect_rate_limited(q.enqueue(b""))
            assert len(await q.claim()) == 1
            assert (await expect_rate_limited(q.claim())).facts["limit"] == "read_ops_per_s"

    async def test_the_messages_of_a_claim_are_charged_before_the_next_claim_is_allowed(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"read_ops_per_s": 10, "read_bytes_per_s": 1_000})
            await q.enqueue([b"x" * 100] * 40)
            assert len(await q.claim(20)) == 20
            error = await expect_rate_limited(q.claim())
            # With 2,000 bytes used at 1,000 per second, a byte is available after 1,001 ms. With 20 operations used at
            # 10 per second, an operation is available only after 1,100 ms.
            assert (error.facts["limit"], error.retry_after_ms) == ("read_ops_per_s", 1_100)
            subject.clock.advance(1_099)
            await expect_rate_limited(q.claim(wait=60))
            subject.clock.advance(1)
            assert len(await q.claim()) == 1

    async def test_a_claim_that_finds_nothing_costs_one_operation(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"read_ops_per_s": 3})
            for _ in range(3):
                assert await q.claim() == []
            await expect_rate_limited(q.claim())

    async def test_a_waiting_claim_is_charged_for_the_messages_it_receives(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"read_ops_per_s": 1})
            waiting = await start_claim(q, limit=10)
            subject.clock.advance(10_000)
            await q.enqueue([b""] * 5)
            assert len(await finish(waiting)) == 5
            assert (await expect_rate_limited(q.claim())).retry_after_ms == 4_000

    async def test_verdicts_are_never_refused_by_a_rate(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q", tenant="acme")
            await q.enqueue([b""] * 20)
            held = await q.claim(20, lease=60)
            closed = Limits(write_ops_per_s=0, write_bytes_per_s=0, read_ops_per_s=0, read_bytes_per_s=0)
            await hf.tenant("acme").set(limits=closed)
            await q.set_policy(limits=closed, max_claims=0, max_enqueues=0)
            await expect_rate_limited(q.enqueue(b""))
            await expect_rate_limited(q.claim())
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
            assert (await expect_rate_limited(q.get(id))).retry_after_ms == 200
            await expect_rate_limited(q.list())
            await expect_rate_limited(q.claim())
            subject.clock.advance(1_000)
            assert len(await q.list()) == 5
            await expect_rate_limited(q.peek())

    async def test_a_changed_limit_applies_at_once_and_does_not_reset_what_was_used(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"write_ops_per_s": 5})
            await q.enqueue([b""] * 5)
            await q.set_policy(limits={"write_ops_per_s": 5})
            await expect_rate_limited(q.enqueue(b""))
            await q.set_policy(limits={"write_ops_per_s": 10})
            assert (await expect_rate_limited(q.enqueue(b""))).retry_after_ms == 100
            await q.set_policy(limits={"write_ops_per_s": None})
            await q.enqueue([b""] * 100)

    async def test_a_limit_of_0_refuses_everything(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"write_ops_per_s": 0})
            for _ in range(3):
                assert (await expect_rate_limited(q.enqueue(b""))).retry_after_ms > 0
                subject.clock.advance(3_600_000)
            assert (await q.stats()).ready == 0

    async def test_a_clock_that_steps_back_does_not_raise_a_limit(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"write_ops_per_s": 5})
            await q.enqueue([b""] * 5)
            start = subject.clock.now_ms()
            for back_ms in (1_000, 500, 1):
                subject.clock.step_to(start - back_ms)
                await expect_rate_limited(q.enqueue(b""))
                subject.clock.step_to(start)
                await expect_rate_limited(q.enqueue(b""))
            subject.clock.step_to(start + 200)
            await q.enqueue(b"")

    # --- Caps ------------------------------------------------------------------------------------------------

    @proves("8.8")
    async def test_claims_over_the_cap_wait_until_a_waiting_claim_ends(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_claims=2)
            under_way = [await start_claim(q) for _ in range(2)]
            over = asyncio.create_task(q.claim(wait=60))
            await run_others()
            await assert_waits(q, *under_way)
            assert not over.done()
            [id] = await q.enqueue(b"")
            assert [m.id for m in await finish(under_way[0])] == [id]
            await until_waiting(q, 2)
            await q.enqueue([b""] * 2)
            assert [len(await finish(task)) for task in (under_way[1], over)] == [1, 1]

    @proves("8.8")
    async def test_a_claim_over_the_cap_is_refused_in_a_bounded_time(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_claims=1)
            under_way = await start_claim(q)
            brief, long, endless, at_once = (asyncio.create_task(q.claim(wait=wait)) for wait in (2, 60, None, 0))
            await run_others()
            subject.clock.advance(1_999)
            await run_others()
            assert not any(task.done() for task in (brief, long, endless, at_once))
            subject.clock.advance(1)
            assert (await expect_rate_limited(brief)).facts["limit"] == "max_claims"
            subject.clock.advance(_AT_A_CAP_MS - 2_001)
            await run_others()
            assert not any(task.done() for task in (long, endless, at_once))
            subject.clock.advance(1)
            for task in (long, endless, at_once):
                await expect_rate_limited(task)
            await assert_waits(q, under_way)
            await q.enqueue(b"")
            assert len(await finish(under_way)) == 1

    async def test_time_spent_at_the_cap_counts_towards_the_wait_of_a_claim(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_claims=1)
            first = await start_claim(q, wait=3)
            second = asyncio.create_task(q.claim(wait=4))
            await run_others()
            subject.clock.advance(3_000)
            assert await finish(first) == []
            await until_waiting(q, 1)
            subject.clock.advance(999)
            await assert_waits(q, second)
            subject.clock.advance(1)
            assert await finish(second) == []

    async def test_a_claim_cancelled_at_the_cap_leaves_no_trace(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_claims=1)
            under_way = await start_claim(q)
            gone, stays = (asyncio.create_task(q.claim(wait=60)) for _ in range(2))
            await run_others()
            assert await cancel_claim(gone) == []
            await run_others()
            assert await cancel_claim(under_way) == []
            await until_waiting(q, 1)
            await q.enqueue(b"")
            assert len(await finish(stays)) == 1
            await q.enqueue(b"")
            assert len(await finish(q.claim())) == 1

    @proves("8.8")
    async def test_enqueues_over_the_cap_all_succeed_in_turn(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_enqueues=2)
            await finish(asyncio.gather(*(q.enqueue(b"%d" % n) for n in range(20))))
            assert (await q.stats()).ready == 20

    async def test_deleting_a_queue_deletes_its_limits(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(limits={"write_ops_per_s": 0}, max_claims=0)
            await q.delete()
            await subject.sweep(hf)
            await q.enqueue([b""] * 10)
            assert len(await finish(q.claim(10))) == 10
