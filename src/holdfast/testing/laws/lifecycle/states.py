"""States, the transitions between them, and exclusive claims (SPEC 2.1-2.4, 2.10, 2.14)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.client.queue import AsyncQueue
from holdfast.model.errors import MessageNotFound
from holdfast.model.events import Event
from holdfast.model.message import State
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject

_DAY_MS = 86_400_000


async def message_events(hf: AsyncHoldfast, id: str) -> list[Event]:
    """Return the events of one message in the journal, in order."""
    return [each.event for each in await hf.journal(limit=10_000) if each.id == id]


async def _state_of(q: AsyncQueue, id: str) -> State:
    """Return the state of the only message in the queue. Assert that look-up, listings and counts agree on it."""
    state = (await q.get(id)).state
    listed = [each for each in State if id in [info.id for info in await q.list(state=each)]]
    assert listed == [state]
    stats = await q.stats()
    counted = {State.READY: stats.ready + stats.delayed, State.IN_FLIGHT: stats.in_flight, State.FAILED: stats.failed}
    assert counted == {each: int(each is state) for each in counted}
    return state


async def _ready(q: AsyncQueue) -> str:
    [id] = await q.enqueue("a")
    return id


async def _in_flight(q: AsyncQueue) -> str:
    id = await _ready(q)
    await q.claim(lease=60)
    return id


async def _failed(q: AsyncQueue) -> str:
    id = await _ready(q)
    await q.nack(await q.claim(), final=True)
    return id


async def _succeeded(q: AsyncQueue) -> str:
    await q.set_policy(keep_succeeded_ms=_DAY_MS)
    id = await _ready(q)
    await q.ack(await q.claim())
    return id


_IN_STATE: dict[State, Callable[[AsyncQueue], Awaitable[str]]] = {
    State.READY: _ready,
    State.IN_FLIGHT: _in_flight,
    State.FAILED: _failed,
    State.SUCCEEDED: _succeeded,
}


class StateLaws:
    # --- States and transitions --------------------------------------------------------------------------------

    @proves("2.1")
    async def test_a_message_is_always_in_exactly_one_state(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(keep_succeeded_ms=_DAY_MS)
            [id] = await q.enqueue("a", delay=1)
            assert await _state_of(q, id) is State.READY
            subject.clock.advance(1_000)
            assert await _state_of(q, id) is State.READY
            [m] = await q.claim()
            assert await _state_of(q, id) is State.IN_FLIGHT
            await m.extend(30)
            assert await _state_of(q, id) is State.IN_FLIGHT
            await m.nack("no", delay=0)
            assert await _state_of(q, id) is State.READY
            [m] = await q.claim()
            await m.nack("never", final=True)
            assert await _state_of(q, id) is State.FAILED
            await q.redrive()
            assert await _state_of(q, id) is State.READY
            [m] = await q.claim()
            await m.ack()
            assert await _state_of(q, id) is State.SUCCEEDED

    @proves("2.2")
    async def test_a_verdict_returns_the_resulting_state(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(["a", "b", "c"])
            kept, retried, failed = await q.claim(limit=3)
            [extended] = await q.extend([kept], 30)
            assert (extended.state, extended.lease_expires_at) == (State.IN_FLIGHT, subject.clock.now_ms() + 30_000)
            result = await retried.nack("no", delay=2)
            assert (result.state, result.retry_at) == (State.READY, subject.clock.now_ms() + 2_000)
            result = await failed.nack("never", final=True)
            assert (result.state, result.retry_at) == (State.FAILED, None)

    @proves("2.2")
    async def test_a_message_is_claimable_as_soon_as_its_lease_expires(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue("a")
            await q.claim()
            subject.clock.advance(4_999)
            assert await q.claim() == []
            subject.clock.advance(1)
            [again] = await q.claim()
            assert again.id == id

    @proves("4.5")
    async def test_a_sweep_returns_a_message_whose_lease_has_expired(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            id = await _ready(q)
            await q.claim()
            subject.clock.advance(5_000)
            await subject.sweep(hf)
            assert await _state_of(q, id) is State.READY

    @pytest.mark.parametrize("state", State)
    async def test_a_message_can_be_removed_in_any_state(self, subject: Subject, state: State) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            id = await _IN_STATE[state](q)
            await q.remove(id)
            with pytest.raises(MessageNotFound):
                await q.get(id)
            subject.clock.advance(_DAY_MS)
            assert await q.claim() == []
            assert (await message_events(hf, id))[-1] is Event.REMOVED

    @proves("2.2")
    @pytest.mark.parametrize("state", [State.READY, State.IN_FLIGHT, State.SUCCEEDED])
    async def test_redrive_does_not_change_messages_that_have_not_failed(self, subject: Subject, state: State) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            id = await _IN_STATE[state](q)
            assert (await q.redrive()).redriven == 0
            assert await _state_of(q, id) is state

    @proves("2.2")
    @pytest.mark.parametrize("state", [State.IN_FLIGHT, State.FAILED, State.SUCCEEDED])
    async def test_purge_and_cancel_do_not_change_messages_that_are_not_ready(
        self, subject: Subject, state: State
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            id = await _IN_STATE[state](q)
            assert (await q.purge()).changed == 0
            assert (await q.cancel()).changed == 0
            assert await _state_of(q, id) is state

    @proves("2.2")
    @pytest.mark.parametrize("state", [State.IN_FLIGHT, State.FAILED, State.SUCCEEDED])
    async def test_only_ready_messages_are_claimed(self, subject: Subject, state: State) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            id = await _IN_STATE[state](q)
            subject.clock.advance(59_999)
            assert await q.claim(limit=10) == []
            assert await _state_of(q, id) is state

    @proves("2.3")
    async def test_the_queue_assigns_ids_and_a_known_key_returns_the_first_message(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [first] = await q.enqueue("a", key="k")
            [second] = await q.enqueue("b", key="k")
            [other] = await q.enqueue("c")
            assert (first.duplicate, second.duplicate, second) == (False, True, first)
            assert other > first
            assert [m.json() for m in await q.claim(limit=10)] == ["a", "c"]

    # --- Exclusive claims --------------------------------------------------------------------------------------

    @proves("2.4")
    async def test_twenty_concurrent_claimers_get_each_message_exactly_once(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue(list(range(100)))

            async def drain() -> list[str]:
                got: list[str] = []
                while claimed := await q.claim(limit=3, lease=3_600):
                    got += [m.id for m in claimed]
                    await asyncio.sleep(0)
                return got

            shares = await asyncio.gather(*(drain() for _ in range(20)))
            assert sorted(id for share in shares for id in share) == ids

    @proves("2.4")
    @pytest.mark.parametrize("why", ["empty", "delayed", "in flight", "paused", "no such queue"])
    async def test_a_claim_that_finds_nothing_writes_nothing(self, subject: Subject, why: str) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy()
            if why in ("delayed", "in flight", "paused"):
                await q.enqueue("a", delay=60 if why == "delayed" else 0)
            if why == "in flight":
                await q.claim(lease=60)
            if why == "paused":
                await q.pause()
            asked = hf.queue("unknown") if why == "no such queue" else q
            before = await q.list(), await q.stats(), await hf.queues(), (await hf.journal()).next
            assert await asked.claim(limit=10) == []
            assert (await q.list(), await q.stats(), await hf.queues(), (await hf.journal()).next) == before

    # --- After success -----------------------------------------------------------------------------------------

    @proves("2.10")
    async def test_an_acked_message_is_never_delivered_again_and_the_journal_has_it(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            id = await _in_flight(q)
            [other] = await q.enqueue("b")
            [m] = await q.claim()
            await m.ack()
            subject.clock.advance(_DAY_MS)
            await subject.sweep(hf)
            assert [m.id for m in await q.claim(limit=10)] == [id]
            with pytest.raises(MessageNotFound):
                await q.get(other)
            assert await message_events(hf, other) == [Event.ENQUEUED, Event.CLAIMED, Event.SUCCEEDED]

    @proves("2.10")
    async def test_an_acked_message_is_kept_for_keep_succeeded_ms(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(keep_succeeded_ms=10_000)
            id = await _ready(q)
            await q.ack(await q.claim())
            subject.clock.advance(9_999)
            await subject.sweep(hf)
            assert (await q.get(id)).state is State.SUCCEEDED
            assert await q.claim() == []
            subject.clock.advance(1)
            await subject.sweep(hf)
            with pytest.raises(MessageNotFound):
                await q.get(id)

    # --- Time --------------------------------------------------------------------------------------------------

    @proves("2.14")
    async def test_every_instant_is_read_from_the_given_clock(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            start = subject.clock.now_ms()
            [id] = await q.enqueue("a", delay=1, ttl=60)
            subject.clock.advance(1_000)
            [m] = await q.claim(lease=2)
            assert (m.enqueued_at, m.lease_expires_at) == (start, start + 3_000)
            subject.clock.advance(500)
            await m.nack("never", final=True)
            info = await q.get(id)
            assert (info.visible_at, info.settled_at, info.expires_at) == (start + 1_000, start + 1_500, start + 60_000)
            assert [each.at for each in await hf.journal()] == [start, start + 1_000, start + 1_500]
