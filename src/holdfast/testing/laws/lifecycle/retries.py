"""Counters, the retry budget, and the time of a retry (SPEC 2.7, 2.8)."""

import asyncio

import pytest

from holdfast.client.queue import AsyncQueue
from holdfast.model.message import State
from holdfast.testing.laws.cases import note_case
from holdfast.testing.laws.lifecycle.backoff import check_uniform_backoff
from holdfast.testing.laws.operating.journal import events_of
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject
from holdfast.worker import Reject, Worker

# Enough random delays to see their whole range: the chance that all lie in one half of it is 2 ** -63.
_MANY = 64
# Messages of the statistical law, with nine retries each: few, because it runs over every store and protocol.
_SAMPLE = 200
_HOUR_MS = 3_600_000
# In real seconds. Only a failing law waits this long.
_PATIENCE_S = 30


async def _attempts(q: AsyncQueue) -> int:
    """Nack each delivery until none follows; return the number of deliveries."""
    for attempts in range(50):
        claimed = await q.claim()
        if not claimed:
            return attempts
        await claimed[0].nack("no", delay=0)
    raise AssertionError("the retry budget is never used up")


async def _counts(q: AsyncQueue, id: str) -> tuple[int, int, int, int]:
    info = await q.get(id)
    return info.attempt, info.failures, info.expiries, info.releases


async def _check_backoff(subject: Subject, q: AsyncQueue, bounds_ms: dict[int, int]) -> None:
    """Assert that the delays before each retry lie in [0, bound) and use both halves of that range.

    `bounds_ms` has the bound by the number of the retry, from 0.
    """
    await q.enqueue([b""] * _MANY, max_retries=100)
    for retry in range(max(bounds_ms) + 1):
        if retry not in bounds_ms:
            await q.nack(await q.claim(limit=_MANY), delay=0)
            continue
        with note_case(retry):
            results = await q.nack(await q.claim(limit=_MANY), "no")
            delays = [each.retry_at - subject.clock.now_ms() for each in results if each.retry_at is not None]
            bound_ms = bounds_ms[retry]
            assert len(delays) == _MANY
            assert min(delays) >= 0
            assert max(delays) < bound_ms
            assert min(delays) < bound_ms / 2 <= max(delays)
        subject.clock.advance(bound_ms)


class RetryLaws:
    # --- Counters ----------------------------------------------------------------------------------------------

    @proves("2.7")
    async def test_failures_expiries_and_releases_are_counted_separately(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a", max_retries=10)
            assert await _counts(q, id) == (0, 0, 0, 0)
            [m] = await q.claim()
            await m.nack("no", delay=0)
            assert await _counts(q, id) == (1, 1, 0, 0)
            for _ in range(2):
                await q.claim()
                subject.clock.advance(5_000)
            await subject.sweep(hf)
            assert await _counts(q, id) == (3, 1, 2, 0)
            for _ in range(3):
                [m] = await q.claim()
                await m.release()
            assert await _counts(q, id) == (6, 1, 2, 3)
            [m] = await q.claim()
            await m.nack(delay=0, defer=True)
            assert await _counts(q, id) == (7, 1, 2, 3)

    @proves("2.7")
    async def test_attempt_counts_every_claim_from_one(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("a")
            attempts = []
            for give_back in ("nack", "release", "defer", "expire"):
                [m] = await q.claim()
                attempts.append(m.attempt)
                if give_back == "nack":
                    await m.nack("no", delay=0)
                elif give_back == "release":
                    await m.release()
                elif give_back == "defer":
                    await m.nack(delay=0, defer=True)
                else:
                    subject.clock.advance(5_000)
            [m] = await q.claim()
            assert [*attempts, m.attempt] == [1, 2, 3, 4, 5]

    @proves("2.7")
    async def test_an_expiry_is_counted_once_by_claims_and_sweeps_together(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a")
            await q.claim()
            subject.clock.advance(5_000)
            await q.claim(lease=60)  # finds the expiry
            await subject.sweep(hf)  # the expiry is already counted
            assert await _counts(q, id) == (2, 0, 1, 0)

    # --- Retry budget ------------------------------------------------------------------------------------------

    @proves("2.8")
    async def test_a_message_has_four_attempts_by_default(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a")
            assert await _attempts(q) == 4
            info = await q.get(id)
            assert (info.state, info.failures) == (State.FAILED, 4)

    @pytest.mark.parametrize("max_retries", [0, 1, 7])
    async def test_the_policy_of_the_queue_sets_the_number_of_retries(self, subject: Subject, max_retries: int) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_retries=max_retries)
            await q.enqueue("a")
            assert await _attempts(q) == max_retries + 1

    @proves("2.8")
    @pytest.mark.parametrize("max_retries", [0, 1, 7])
    async def test_a_message_can_set_its_own_retry_budget(self, subject: Subject, max_retries: int) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_retries=2)
            await q.enqueue("a", max_retries=max_retries)
            assert await _attempts(q) == max_retries + 1

    @proves("2.7")
    @pytest.mark.parametrize("max_retries", [0, 3])
    async def test_expired_leases_use_the_retry_budget(self, subject: Subject, max_retries: int) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a", max_retries=max_retries)
            for _ in range(max_retries + 1):
                assert len(await q.claim()) == 1
                subject.clock.advance(5_000)
            assert await q.claim() == []
            info = await q.get(id)
            assert (info.state, info.expiries) == (State.FAILED, max_retries + 1)

    async def test_a_sweep_fails_a_message_whose_last_lease_has_expired(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a", max_retries=0)
            await q.claim()
            subject.clock.advance(5_000)
            await subject.sweep(hf)
            assert (await q.get(id)).state is State.FAILED

    @proves("2.7")
    async def test_failures_and_expiries_share_one_retry_budget(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a")
            for _ in range(2):
                [m] = await q.claim()
                await m.nack("no", delay=0)
                await q.claim()
                subject.clock.advance(5_000)
            assert await q.claim() == []
            info = await q.get(id)
            assert (info.state, info.failures, info.expiries) == (State.FAILED, 2, 2)

    @proves("2.7")
    async def test_releases_and_defers_do_not_use_the_retry_budget(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("a")
            for _ in range(10):
                [m] = await q.claim()
                await m.release()
                [m] = await q.claim()
                await m.nack("not yet", delay=0, defer=True)
            assert await _attempts(q) == 4

    @proves("3.4")
    async def test_a_final_nack_fails_a_message_with_retries_left(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a", max_retries=100)
            [m] = await q.claim()
            await m.nack("never", final=True)
            info = await q.get(id)
            assert (info.state, info.failures) == (State.FAILED, 1)
            subject.clock.advance(_HOUR_MS)
            assert await q.claim() == []

    # --- Time of a retry ---------------------------------------------------------------------------------------

    @proves("2.8")
    async def test_a_retry_waits_up_to_half_a_second_doubled_each_time_up_to_thirty_seconds(
        self, subject: Subject
    ) -> None:
        async with subject.open() as hf:
            # The cap of 30 s applies from the seventh retry: 500 ms * 2 ** 6 is 32 s.
            await _check_backoff(subject, hf.queue("q"), {retry: min(500 * 2**retry, 30_000) for retry in range(9)})

    @proves("2.8")
    async def test_the_delays_of_retries_are_uniform(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await check_uniform_backoff(hf.queue("q"), subject.clock, _SAMPLE)

    @proves("2.8")
    async def test_the_policy_of_the_queue_sets_the_base_and_cap_of_the_backoff(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(backoff_base_ms=4_000, backoff_cap_ms=10_000)
            await _check_backoff(subject, q, {0: 4_000, 1: 8_000, 2: 10_000, 70: 10_000})

    @proves("2.8")
    async def test_a_retry_is_due_at_the_time_that_the_nack_returned(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(backoff_base_ms=_HOUR_MS, backoff_cap_ms=_HOUR_MS)
            [id] = await q.enqueue("a")
            [m] = await q.claim()
            retry_at = (await m.nack("no")).retry_at
            assert retry_at is not None
            assert (await q.get(id)).visible_at == retry_at
            subject.clock.advance(retry_at - subject.clock.now_ms() - 1)
            assert await q.claim() == []
            subject.clock.advance(1)
            assert [again.id for again in await q.claim()] == [id]

    @proves("2.8")
    @pytest.mark.parametrize("defer", [False, True], ids=["nack", "defer"])
    async def test_a_nack_can_set_its_own_delay(self, subject: Subject, defer: bool) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("a")
            [m] = await q.claim()
            result = await m.nack("later", delay=45, defer=defer)  # above the cap of the backoff
            assert result.retry_at == subject.clock.now_ms() + 45_000
            subject.clock.advance(44_999)
            assert await q.claim() == []
            subject.clock.advance(1)
            assert len(await q.claim()) == 1

    async def test_the_last_error_is_kept_with_the_message(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a")
            for error in ("first", "second"):
                [m] = await q.claim()
                await m.nack(error, delay=0)
                assert (await q.get(id)).last_error == error

    async def test_the_reason_of_a_dead_letter_shows_whether_its_worker_used_up_the_retries(
        self, subject: Subject
    ) -> None:
        async with subject.open() as hf:
            for retries, error, reason in ((0, ValueError("no"), "retries"), (0, Reject("never"), "final")):
                with note_case((retries, error)):
                    worker = Worker(hf, clock=subject.clock)
                    q = hf.queue(reason)

                    @worker.handler(reason, retries=retries)
                    async def handle(payload: bytes, error: Exception = error) -> None:
                        raise error

                    settled = asyncio.Event()
                    worker.after(lambda message, outcome, settled=settled: settled.set())
                    [id] = await q.enqueue(b"work")
                    async with worker, asyncio.timeout(_PATIENCE_S):
                        await settled.wait()
                    info = await q.get(id)
                    assert (info.state, info.reason, info.failures) == (State.FAILED, reason, 1)
                    [failed] = [each for each in await events_of(hf) if each.event == "failed" and each.id == id]
                    assert failed.reason == reason
