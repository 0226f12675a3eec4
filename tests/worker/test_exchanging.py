"""A worker over a server: verdicts ride on the next claim, wait for nothing, and survive a lost answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.queue import AsyncQueue
from holdfast.model.message import State
from holdfast.testing import ManualClock
from holdfast.testing.proxy import Fault, FaultProxy, NetworkFaultKind
from holdfast.worker.outcomes import Outcome, OutcomeKind
from tests.doors.capnp_serving import serve_capnp
from tests.doors.framed.serving import serve_framed
from tests.doors.serving import Server, serve
from tests.worker.passing import PATIENCE_S, until
from tests.worker.slow import Slow

SERVERS = pytest.mark.parametrize("serving", [serve, serve_capnp, serve_framed])
# Requests of a worker beside those for its batches: its first and its last claim, and a look at the queue's numbers.
AROUND = 4


async def until_in_flight(q: AsyncQueue, number: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await q.stats()).in_flight != number:
            await asyncio.sleep(0.001)


async def until_waiting(q: AsyncQueue) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not (await q.stats()).waiters:
            await asyncio.sleep(0.001)


# --- Round trips -----------------------------------------------------------------------------------------------


@SERVERS
async def test_a_busy_worker_makes_one_request_for_each_batch(clock: ManualClock, serving: Any) -> None:
    batch, batches = 8, 20
    done: list[int] = []
    begun = 0
    is_whole = asyncio.Event()
    async with serving(clock) as server, holdfast.open_async(server.url) as hf:
        await hf.queue("q").enqueue(list(range(batch * batches)))
        worker = holdfast.Worker(server.url, clock=clock)

        @worker.handler("q", concurrency=batch)
        async def handle(number: int) -> None:
            nonlocal begun, is_whole
            begun += 1
            whole = is_whole
            if begun % batch == 0:
                is_whole = asyncio.Event()
                whole.set()
            async with asyncio.timeout(PATIENCE_S):
                await whole.wait()
            done.append(number)

        server.requests.seen.clear()
        async with worker:
            await until(lambda: len(done) == batch * batches)
            await until_in_flight(hf.queue("q"), 0)
            made = [operation for operation, _, _ in server.requests.seen if operation not in ("stats", "queue")]
        assert sorted(done) == list(range(batch * batches))
        assert batches <= len(made) <= batches + AROUND, made


@SERVERS
async def test_no_verdict_needs_a_request_of_its_own_while_messages_are_ready(serving: Any, clock: ManualClock) -> None:
    """Handlers in threads end in their own time, many of them while a claim is under way."""
    done: list[int] = []
    async with serving(clock) as server, holdfast.open_async(server.url) as hf:
        await hf.queue("q").enqueue(list(range(1_000)))
        worker = holdfast.Worker(server.url, clock=clock)
        seen: list[str] = []

        @worker.handler("q", concurrency=8)
        def handle(number: int) -> None:
            done.append(number)
            if len(done) == 500:
                seen.extend(operation for operation, _, _ in server.requests.seen)

        async with worker:
            await until(lambda: bool(seen))
        assert not {"ack", "settle"} & set(seen)


# --- No verdict waits ------------------------------------------------------------------------------------------


@SERVERS
async def test_a_verdict_is_sent_at_once_while_a_claim_waits(clock: ManualClock, serving: Any) -> None:
    slow = Slow()
    async with serving(clock) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        worker = holdfast.Worker(server.url, clock=clock)
        worker.handler("q", concurrency=2)(slow)
        async with worker:
            await q.enqueue(1)
            await until(lambda: slow.at_work == 1)
            await until_waiting(q)
            slow.let_go.set()
            await until_in_flight(q, 0)
            assert (await q.stats()).waiters == 1


@SERVERS
async def test_a_finished_handler_is_acked_while_the_others_of_its_batch_work(clock: ManualClock, serving: Any) -> None:
    first_may_end, others_may_end = asyncio.Event(), asyncio.Event()
    begun: list[int] = []
    async with serving(clock) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        await q.enqueue([0, 1, 2])
        worker = holdfast.Worker(server.url, clock=clock)

        @worker.handler("q", concurrency=3)
        async def handle(number: int) -> None:
            begun.append(number)
            await (others_may_end if number else first_may_end).wait()

        async with worker:
            await until(lambda: len(begun) == 3)
            first_may_end.set()
            await until_in_flight(q, 2)
            others_may_end.set()


@SERVERS
async def test_a_worker_that_stops_sends_every_verdict(clock: ManualClock, serving: Any) -> None:
    slow = Slow()
    async with serving(clock) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        await q.set_policy(keep_succeeded_ms=60_000)
        ids = await q.enqueue([1, 2, 3])
        worker = holdfast.Worker(server.url, clock=clock)
        worker.handler("q", concurrency=3)(slow)
        async with worker:
            await until(lambda: slow.at_work == 3)
            worker.stop()
            slow.let_go.set()
        assert [(await q.get(id)).state for id in ids] == [State.SUCCEEDED] * 3


# --- Answers that are lost -------------------------------------------------------------------------------------


@pytest.fixture
async def server(clock: ManualClock) -> AsyncIterator[Server]:
    async with serve(clock) as serving:
        yield serving


@pytest.fixture
async def hf(server: Server) -> AsyncIterator[AsyncHoldfast]:
    async with holdfast.open_async(server.url) as hf:
        yield hf


class Crossing:
    """A worker behind a proxy, whose first message's exchange meets a fault; the second message is handled after it."""

    def __init__(self, proxy: FaultProxy, clock: ManualClock, fault: Fault) -> None:
        self.handled: list[int] = []
        self.outcomes: dict[int, Outcome] = {}
        self.worker = worker = holdfast.Worker(proxy.url, clock=clock)

        @worker.handler("q", lease="30s")
        async def handle(number: int) -> None:
            self.handled.append(number)
            if self.handled == [1]:
                proxy.inject(fault)

        @worker.after
        def note(message: holdfast.Message, outcome: Outcome) -> None:
            self.outcomes[message.json()] = outcome


@pytest.mark.parametrize("keep_ms", [0, 600_000])
async def test_an_exchange_whose_answer_is_lost_acks_once_and_its_message_comes_after_the_lease(
    server: Server, hf: AsyncHoldfast, clock: ManualClock, keep_ms: int
) -> None:
    q = hf.queue("q")
    await q.set_policy(keep_succeeded_ms=keep_ms)
    async with FaultProxy(server.url) as proxy:
        crossing = Crossing(proxy, clock, Fault(NetworkFaultKind.CUT_BEFORE_REPLY))
        await q.enqueue([1, 2])
        async with crossing.worker:
            await until(lambda: 1 in crossing.outcomes)
            assert proxy.faults.total() == 1
            # The second message was claimed by the answer that was lost: nobody knows of it until its lease ends.
            assert (crossing.handled, (await q.stats()).in_flight) == ([1], 1)
            clock.advance(30_000)
            await until(lambda: 2 in crossing.outcomes)
    assert crossing.handled == [1, 2]
    assert {each.kind for each in crossing.outcomes.values()} == {OutcomeKind.SUCCEEDED}
    stats = await q.stats()
    assert (stats.ready, stats.in_flight, stats.failed) == (0, 0, 0)


@pytest.mark.parametrize("kind", [NetworkFaultKind.CUT_BEFORE_REQUEST, NetworkFaultKind.CUT_IN_REQUEST])
async def test_an_exchange_that_did_not_arrive_is_sent_again(
    server: Server, hf: AsyncHoldfast, clock: ManualClock, kind: NetworkFaultKind
) -> None:
    q = hf.queue("q")
    async with FaultProxy(server.url) as proxy:
        crossing = Crossing(proxy, clock, Fault(kind))
        await q.enqueue([1, 2])
        async with crossing.worker:
            await until(lambda: len(crossing.outcomes) == 2)
        assert proxy.faults.total() == 1
    assert crossing.handled == [1, 2]
    assert {each.kind for each in crossing.outcomes.values()} == {OutcomeKind.SUCCEEDED}
