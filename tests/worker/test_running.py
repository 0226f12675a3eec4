"""A worker at work: its slots and its threads."""

import asyncio
import threading
from typing import Any

import pytest

import holdfast
from holdfast.model.message import State
from holdfast.testing import ManualClock
from holdfast.worker.connection import client_of
from tests.worker.passing import PATIENCE_S, opened, passing, turns, until
from tests.worker.slow import Slow
from tests.worker.watched import watched

# --- Slots -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("10.3")
async def test_no_more_is_claimed_than_there_are_free_slots(clock: ManualClock) -> None:
    slow = Slow()
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q", concurrency=3)(slow)
        async with worker:
            await hf.queue("q").enqueue(list(range(20)))
            await turns()
            stats = await hf.queue("q").stats()
            assert (stats.in_flight, stats.ready) == (3, 17)
            slow.let_go.set()
            await turns(1_000)
            assert slow.done == list(range(20))
            stats = await hf.queue("q").stats()
            assert (stats.in_flight, stats.ready) == (0, 0)
    assert slow.most == 3


async def test_each_queue_has_slots_of_its_own(clock: ManualClock) -> None:
    slow, quick = Slow(), Slow()
    quick.let_go.set()
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("slow")(slow)
        worker.handler("quick", tenant="other")(quick)
        async with worker:
            await hf.queue("slow").enqueue([1, 2])
            await hf.queue("quick", tenant="other").enqueue([1, 2, 3])
            await turns(300)
            assert quick.done == [1, 2, 3]
            assert slow.at_work == 1
            slow.let_go.set()


async def test_a_verdict_does_not_wait_for_the_next_message(clock: ManualClock) -> None:
    slow = Slow()
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q", concurrency=2)(slow)
        async with worker:
            await hf.queue("q").enqueue(1)
            await turns()
            slow.let_go.set()  # while a claim of the other slot waits for messages that do not come
            await turns()
            assert (await hf.queue("q").stats()).in_flight == 0


async def test_a_verdict_rides_on_the_next_claim(clock: ManualClock) -> None:
    slow = Slow()
    slow.let_go.set()
    calls: list[str] = []

    async def note(name: str) -> None:
        calls.append(name)

    async with opened(clock) as hf:
        await hf.queue("q").enqueue(list(range(10)))
        worker = holdfast.Worker(client_of(watched(hf._connected(), note)), clock=clock)
        worker.handler("q")(slow)
        async with worker:
            await turns(1_000)
    assert slow.done == list(range(10))
    # The first claim, one for each message's verdict, and the one that waits; and one look whether the queue exists.
    assert calls.count("names") == 1
    calls.remove("names")
    assert calls == ["claim", *["exchange"] * 10, "claim"]


async def test_look_ups_show_the_workers_name(clock: ManualClock) -> None:
    slow = Slow()
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock, owner="billing-1")
        worker.handler("q")(slow)
        async with worker:
            [id] = await hf.queue("q").enqueue(1)
            await turns()
            assert (await hf.queue("q").get(id)).owner == "billing-1"
            slow.let_go.set()


# --- Threads ---------------------------------------------------------------------------------------------------


async def test_a_plain_function_runs_in_a_thread_with_a_blocking_message() -> None:
    seen: list[Any] = []
    async with holdfast.open_async("memory://") as hf:
        worker = holdfast.Worker(hf)

        @worker.handler("q", concurrency=2, state=True)
        def handle(number: int, message: holdfast.Message) -> None:
            message.progress(50, "half")
            message.extend("1m")
            message.save_state({"seen": number})
            worker.blocking_client.queue("next").enqueue({"after": number})
            seen.append((number, message.state, threading.current_thread() is not threading.main_thread()))

        async with worker:
            await hf.queue("q").enqueue([1, 2, 3])
            await until(lambda: len(seen) == 3)
        assert sorted(seen) == [(number, {"seen": number}, True) for number in (1, 2, 3)]
        assert (await hf.queue("next").stats()).ready == 3
        assert (await hf.queue("q").stats()).in_flight == 0


async def test_threads_work_side_by_side_up_to_the_concurrency() -> None:
    meeting = threading.Barrier(4)
    async with holdfast.open_async("memory://") as hf:
        worker = holdfast.Worker(hf)

        @worker.handler("q", concurrency=4, retries=0)
        def handle() -> None:
            meeting.wait(PATIENCE_S)

        async with worker:
            await hf.queue("q").enqueue([1, 2, 3, 4])
            async with asyncio.timeout(PATIENCE_S):
                while (await hf.queue("q").stats()).in_flight or (await hf.queue("q").stats()).ready:
                    await asyncio.sleep(0.001)
        assert (await hf.queue("q").stats()).failed == 0


async def test_a_thread_past_its_time_is_nacked_and_its_message_raises(clock: ManualClock) -> None:
    let_go = threading.Event()
    seen: list[Any] = []
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)

        @worker.handler("q", timeout="1m", retries=0)
        def handle(message: holdfast.Message) -> None:
            seen.append("begun")
            let_go.wait(PATIENCE_S)
            seen.append(message.is_lost)
            try:
                message.progress(50)
            except holdfast.LeaseLost:
                seen.append("raised")

        async with worker:
            [id] = await hf.queue("q").enqueue(1)
            await until(lambda: bool(seen))
            await passing(clock, 60_000)
            info = await hf.queue("q").get(id)
            assert (info.state, info.last_error) == (State.FAILED, "timeout: still running after 60 s")
            let_go.set()
            await until(lambda: len(seen) == 3)
    assert seen == ["begun", True, "raised"]


async def test_the_blocking_client_is_refused_on_the_loop_that_it_would_wait_for(clock: ManualClock) -> None:
    refused: list[str] = []
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)

        @worker.handler("q")
        async def handle() -> None:
            with pytest.raises(holdfast.InvalidArgument) as error:
                _ = worker.blocking_client
            refused.append(error.value.message)

        async with worker:
            await hf.queue("q").enqueue(1)
            await turns()
    assert "use the async API" in refused[0]


def test_a_worker_runs_over_a_blocking_client() -> None:
    done: list[int] = []
    with holdfast.open("memory://") as hf:
        worker = holdfast.Worker(hf)

        @worker.handler("a", concurrency=3)
        def handle(number: int) -> None:
            hf.queue("b").enqueue(number)

        @worker.handler("b")
        async def handle_next(number: int, message: holdfast.Message) -> None:
            await message.progress(10)
            done.append(number)
            if len(done) == 20:
                worker.stop()

        hf.queue("a").enqueue(list(range(20)))
        worker.run()
        assert sorted(done) == list(range(20))
        assert [hf.queue(name).stats().in_flight for name in "ab"] == [0, 0]


def test_a_worker_runs_over_a_directory(tmp_path: Any) -> None:
    done: list[int] = []
    with holdfast.open(str(tmp_path / "data")) as hf:
        hf.queue("q").enqueue([1, 2, 3])
    worker = holdfast.Worker(str(tmp_path / "data"), durability="os")

    @worker.handler("q")
    async def handle(number: int) -> None:
        done.append(number)
        if number == 3:
            worker.stop()

    worker.run()
    assert done == [1, 2, 3]
    with holdfast.open(str(tmp_path / "data")) as hf:
        stats = hf.queue("q").stats()
    assert (stats.ready, stats.in_flight) == (0, 0)


def test_a_large_payload_reaches_its_handler_whole(tmp_path: Any) -> None:
    url, large = str(tmp_path / "data"), b"0123456789abcdef" * (3 << 16)
    with holdfast.open(url, max_payload="8MiB") as hf:
        hf.queue("q").enqueue(large)
    worker = holdfast.Worker(url, max_payload="8MiB")
    seen: list[bytes] = []

    @worker.handler("q", retries=0)
    def handle(payload: bytes) -> None:
        seen.append(payload)
        worker.stop()

    worker.run()
    assert seen == [large]
