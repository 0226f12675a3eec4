"""Dead letters, TTLs and redrive (SPEC 2.11, 3.8). A dead letter is kept, with its error, until an operator acts."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.client.message import AsyncMessage
from holdfast.client.queue import AsyncQueue
from holdfast.model.errors import MessageNotFound
from holdfast.model.events import Event
from holdfast.model.message import State
from holdfast.testing.laws.lifecycle.states import message_events
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject

_MONTH_MS = 30 * 86_400_000


async def _fail(q: AsyncQueue, payload: object = "a", error: str = "broken", **options: Any) -> str:
    """Enqueue a message, fail it, and return its id."""
    [id] = await q.enqueue(payload, **options)
    [m] = await q.claim()
    await m.nack(error, final=True)
    return id


async def _failed_by_ttl(q: AsyncQueue, id: str) -> bool:
    info = await q.get(id)
    return (info.state, info.reason) == (State.FAILED, "ttl")


async def _nack(subject: Subject, m: AsyncMessage) -> None:
    await m.nack("no", delay=0)


async def _defer(subject: Subject, m: AsyncMessage) -> None:
    await m.nack(delay=0, defer=True)


async def _release(subject: Subject, m: AsyncMessage) -> None:
    await m.release()


async def _let_the_lease_run_out(subject: Subject, m: AsyncMessage) -> None:
    subject.clock.advance(m.lease_expires_at - subject.clock.now_ms())


_every_end_of_a_lease = pytest.mark.parametrize(
    "end_lease", [_nack, _defer, _release, _let_the_lease_run_out], ids=lambda end: end.__name__.strip("_")
)
_EndLease = Callable[[Subject, AsyncMessage], Awaitable[None]]


class DeadLetterLaws:
    # --- Contents ----------------------------------------------------------------------------------------------

    @proves("2.11")
    async def test_a_dead_letter_holds_its_reason_error_attempts_and_times(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            start = subject.clock.now_ms()
            [id] = await q.enqueue({"n": 1}, max_retries=1, headers={"h": "v"}, correlation_id="c-1")
            for _ in range(2):
                subject.clock.advance(1_000)
                [m] = await q.claim()
                await m.nack("ValueError: broken", delay=0)
            assert [each.id for each in await q.list(state="failed")] == [id]
            letter = await q.get(id, payload=True)
            assert letter.reason
            assert letter.last_error == "ValueError: broken"
            assert (letter.attempt, letter.failures) == (2, 2)
            assert (letter.enqueued_at, letter.settled_at) == (start, start + 2_000)
            assert (letter.payload, letter.headers, letter.correlation_id) == (b'{"n":1}', {"h": "v"}, "c-1")
            assert letter.lease_expires_at is None

    @proves("2.11")
    async def test_each_way_to_fail_has_its_own_reason(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            out_of_retries, final, expired, overdue = await q.enqueue(["a", "b", "c", "d"], max_retries=0, ttl=60)
            a, b, *_ = await q.claim(limit=3)
            await a.nack("no")
            await b.nack("no", final=True)
            subject.clock.advance(5_000)
            await subject.sweep(hf)
            subject.clock.advance(55_000)
            await subject.sweep(hf)
            reasons = [(await q.get(id)).reason for id in (out_of_retries, final, expired, overdue)]
            assert reasons[3] == "ttl"
            assert None not in reasons
            assert len(set(reasons)) == 4

    @proves("2.11")
    async def test_a_dead_letter_is_kept_until_it_is_removed_or_redriven(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(ttl_ms=60_000)
            id = await _fail(q)
            before = await q.get(id)
            subject.clock.advance(_MONTH_MS)
            await subject.sweep(hf)
            assert await q.claim(limit=10) == []
            assert await q.get(id) == before

    @proves("2.11")
    async def test_dead_letters_can_be_removed_and_purged(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            first = await _fail(q)
            await _fail(q)
            [ready] = await q.enqueue("b")
            await q.remove(first)
            assert (await q.stats()).failed == 1
            assert (await q.purge("failed")).changed == 1
            assert [each.id for each in await q.list()] == [ready]

    @proves("2.11")
    async def test_dead_letters_can_be_moved_to_another_queue(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, other = hf.queue("q"), hf.queue("other")
            id = await _fail(q)
            assert (await q.move("other", state="failed")).changed == 1
            letter = await other.get(id)
            assert (letter.state, letter.last_error) == (State.FAILED, "broken")
            with pytest.raises(MessageNotFound):
                await q.get(id)
            await other.redrive()
            assert [m.id for m in await other.claim()] == [id]

    # --- TTL ---------------------------------------------------------------------------------------------------

    async def test_a_ready_message_is_claimable_until_its_ttl_ends(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            first, second = await q.enqueue(["a", "b"], ttl=10)
            subject.clock.advance(9_999)
            assert [m.id for m in await q.claim()] == [first]
            subject.clock.advance(1)
            assert await q.claim() == []  # this needs no sweep
            await subject.sweep(hf)
            assert await _failed_by_ttl(q, second)

    @proves("2.11")
    async def test_a_sweep_fails_messages_past_their_ttl(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [overdue] = await q.enqueue("a", ttl=10)
            [fresh] = await q.enqueue("b", ttl=11)
            subject.clock.advance(10_000)
            await subject.sweep(hf)
            assert await _failed_by_ttl(q, overdue)
            assert (await q.get(overdue)).settled_at == subject.clock.now_ms()
            assert (await q.get(fresh)).state is State.READY
            assert await message_events(hf, overdue) == [Event.ENQUEUED, Event.FAILED]

    async def test_a_delayed_message_fails_if_its_ttl_ends_before_it_is_due(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a", delay=60, ttl=10)
            subject.clock.advance(10_000)
            await subject.sweep(hf)
            assert await _failed_by_ttl(q, id)
            subject.clock.advance(50_000)
            assert await q.claim() == []

    async def test_a_message_in_flight_can_be_acked_after_its_ttl(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a", ttl=10)
            [m] = await q.claim(lease=60)
            subject.clock.advance(59_999)
            await subject.sweep(hf)
            assert (await q.get(id)).state is State.IN_FLIGHT
            await m.ack()
            assert (await message_events(hf, id))[-1] is Event.SUCCEEDED

    @_every_end_of_a_lease
    async def test_a_message_in_flight_fails_by_its_ttl_when_the_lease_ends(
        self, subject: Subject, end_lease: _EndLease
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a", ttl=10)
            [m] = await q.claim(lease=60)
            subject.clock.advance(10_000)
            await end_lease(subject, m)
            if end_lease is not _let_the_lease_run_out:  # a verdict fails the message without a sweep
                assert await _failed_by_ttl(q, id)
            assert await q.claim() == []
            await subject.sweep(hf)
            assert await _failed_by_ttl(q, id)

    @proves("2.11")
    @_every_end_of_a_lease
    async def test_a_message_dropped_by_its_ttl_is_in_the_journal(self, subject: Subject, end_lease: _EndLease) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(on_ttl="drop")
            in_flight, ready = await q.enqueue(["a", "b"], ttl=10)
            [m] = await q.claim(lease=60)
            subject.clock.advance(10_000)
            await end_lease(subject, m)
            await subject.sweep(hf)
            assert (await q.list(), (await q.stats()).failed) == ([], 0)
            last = {each.id: (each.event, each.reason) for each in await hf.journal()}
            assert last == {in_flight: (Event.REMOVED, "ttl"), ready: (Event.REMOVED, "ttl")}

    @proves("8.9")
    async def test_the_ttl_comes_from_the_message_or_else_the_queue_or_else_the_tenant(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, now = hf.queue("q", tenant="acme"), subject.clock.now_ms()
            [endless] = await q.enqueue("a")
            await hf.tenant("acme").set(quotas={"default_ttl_ms": 30_000})
            [by_tenant] = await q.enqueue("b")
            await q.set_policy(ttl_ms=20_000)
            [by_queue] = await q.enqueue("c")
            [by_itself] = await q.enqueue("d", ttl=10)
            ends = [(await q.get(id)).expires_at for id in (endless, by_tenant, by_queue, by_itself)]
            assert ends == [None, now + 30_000, now + 20_000, now + 10_000]
            subject.clock.advance(20_000)
            assert [m.id for m in await q.claim(limit=10)] == [endless, by_tenant]

    # --- Redrive -----------------------------------------------------------------------------------------------

    @proves("1.5", "3.8")
    async def test_a_redriven_message_keeps_its_identity_and_increases_its_version(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            id = await _fail(q, {"n": 1}, correlation_id="c-1", headers={"h": "v"}, priority=7)
            assert (await q.redrive()).redriven == 1
            [m] = await q.claim()
            assert (m.id, m.correlation_id, m.json()) == (id, "c-1", {"n": 1})
            assert (m.headers, m.priority) == ({"h": "v"}, 7)
            assert (m.version, m.attempt) == (2, 2)
            assert await message_events(hf, id) == [
                Event.ENQUEUED,
                Event.CLAIMED,
                Event.FAILED,
                Event.REDRIVEN,
                Event.CLAIMED,
            ]

    async def test_a_redriven_message_has_a_full_retry_budget(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a", max_retries=2)
            for _ in range(2):
                for _ in range(3):
                    [m] = await q.claim()
                    await m.nack("no", delay=0)
                assert (await q.get(id)).state is State.FAILED
                await q.redrive()
            [m] = await q.claim()
            assert m.attempt == 7

    async def test_a_redriven_message_has_a_full_ttl(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a", ttl=10)
            subject.clock.advance(25_000)
            await subject.sweep(hf)
            assert await _failed_by_ttl(q, id)
            await q.redrive()
            subject.clock.advance(9_999)
            [m] = await q.claim()
            await m.release()
            subject.clock.advance(1)
            assert await q.claim() == []
            await subject.sweep(hf)
            assert await _failed_by_ttl(q, id)

    async def test_a_redriven_message_is_ready_at_once(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a", delay=60, ttl=10)
            subject.clock.advance(10_000)
            await subject.sweep(hf)
            await q.redrive()
            info = await q.get(id)
            assert (info.state, info.reason, info.settled_at) == (State.READY, None, None)
            assert (await q.stats()).failed == 0
            assert [m.id for m in await q.claim()] == [id]
