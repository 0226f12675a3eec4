"""A worker at work: slots, threads, crashes, outages, and how it stops."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

import holdfast
from holdfast.model.message import State
from holdfast.testing import ManualClock
from holdfast.worker.link import carried, client_of
from holdfast.worker.waiting import restart_delay_ms
from tests.worker.passing import PATIENCE_S, Outage, opened, passing, turns, until


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class Slow:
    """An async handler that works until it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.at_work = 0
        self.most = 0
        self.done: list[Any] = []
        self.cancelled: list[Any] = []

    async def __call__(self, number: int) -> None:
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            await self.let_go.wait()
        except asyncio.CancelledError as error:
            self.cancelled.append(error.args[0])
            raise
        finally:
            self.at_work -= 1
        self.done.append(number)


# --- Slots -----------------------------------------------------------------------------------------------------


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

    async def carry(call: Coroutine[Any, Any, Any]) -> Any:
        calls.append(call.__name__)
        return await call

    async with opened(clock) as hf:
        await hf.queue("q").enqueue(list(range(10)))
        worker = holdfast.Worker(client_of(carried(hf._connected(), carry)), clock=clock)
        worker.handler("q")(slow)
        async with worker:
            await turns(1_000)
    assert slow.done == list(range(10))
    # The first claim, one for each message's verdict, and the one that waits.
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


# --- Crashes and outages ---------------------------------------------------------------------------------------


def test_three_crashes_start_again_at_once_and_then_ever_later_up_to_five_minutes() -> None:
    assert [restart_delay_ms(crashes) for crashes in range(1, 8)] == [0, 0, 0, 250, 500, 1_000, 2_000]
    assert restart_delay_ms(14) == 256_000
    assert restart_delay_ms(15) == restart_delay_ms(1_000) == 300_000


async def test_a_consumer_that_crashes_starts_again_later_and_later_and_then_works(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    outage, slow = Outage(), Slow()
    slow.let_go.set()
    async with opened(clock, outage) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q")(slow)
        await hf.queue("q").enqueue(7)
        outage.begin("claim", error=holdfast.Forbidden("not yours"))
        async with worker:
            await turns()
            assert outage.asked.count("claim") == 4
            for delay_ms, claims in ((249, 4), (1, 5), (499, 5), (1, 6), (999, 6), (1, 7)):
                await passing(clock, delay_ms)
                assert outage.asked.count("claim") == claims
            outage.end()
            await passing(clock, 2_000)
            assert slow.done == [7]
    assert caplog.text.count("crashed and starts again at once") == 3
    assert "starts again in 0.25 s" in caplog.text


async def test_a_store_that_is_away_is_told_of_once_and_waited_for(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    outage, slow = Outage(), Slow()
    slow.let_go.set()
    async with opened(clock, outage) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("a")(slow)
        worker.handler("b")(slow)
        outage.begin()
        async with worker:
            await passing(clock, 60_000)
            assert 20 < outage.asked.count("claim") < 200
            outage.end()
            await hf.queue("a").enqueue(1)
            await passing(clock, 10_000)
            assert slow.done == [1]
    assert caplog.text.count("cannot be reached") == 1
    assert caplog.text.count("is back after") == 1
    assert "crashed" not in caplog.text


async def test_a_limited_claim_waits_as_long_as_it_is_told(clock: ManualClock) -> None:
    outage, slow = Outage(), Slow()
    async with opened(clock, outage) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q")(slow)
        outage.begin("claim", error=holdfast.RateLimited("slower", retry_after_ms=60_000))
        async with worker:
            await passing(clock, 59_000)
            assert outage.asked.count("claim") == 1
            await passing(clock, 2_000)
            assert outage.asked.count("claim") == 2


# --- Stopping --------------------------------------------------------------------------------------------------


async def test_stopping_finishes_what_is_in_hand_and_claims_nothing_more(clock: ManualClock) -> None:
    slow = Slow()
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q", concurrency=2)(slow)
        await hf.queue("q").enqueue([1, 2, 3])
        serving = asyncio.ensure_future(worker.serve())
        await turns()
        worker.stop()
        await passing(clock, 20_000)
        assert not serving.done()
        slow.let_go.set()
        await turns()
        assert serving.done()
        assert slow.done == [1, 2]
        stats = await hf.queue("q").stats()
        assert (stats.ready, stats.in_flight) == (1, 0)
        assert not worker.is_running


async def test_what_is_not_finished_within_the_grace_is_released_uncounted(clock: ManualClock) -> None:
    slow = Slow()
    outcomes: list[str] = []
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock, grace="30s")
        worker.after(lambda message, outcome: outcomes.append(outcome.kind))
        worker.handler("q", concurrency=2, lease="10s")(slow)
        ids = await hf.queue("q").enqueue([1, 2])
        serving = asyncio.ensure_future(worker.serve())
        await turns()
        worker.stop()
        await passing(clock, 29_999)
        assert not slow.cancelled
        await passing(clock, 1)
        assert serving.done()
        assert len(slow.cancelled) == 2
        for id in ids:
            info = await hf.queue("q").get(id)
            assert (info.state, info.failures, info.expiries, info.releases) == (State.READY, 0, 0, 1)
    assert outcomes == ["released", "released"]


async def test_a_second_stop_releases_at_once(clock: ManualClock) -> None:
    slow = Slow()
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q")(slow)
        [id] = await hf.queue("q").enqueue(1)
        serving = asyncio.ensure_future(worker.serve())
        await turns()
        worker.stop()
        await turns()
        assert not serving.done()
        worker.stop(now=True)
        await turns()
        assert serving.done()
        assert (await hf.queue("q").get(id)).releases == 1


async def test_a_cancelled_serve_releases_at_once(clock: ManualClock) -> None:
    slow = Slow()
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q")(slow)
        [id] = await hf.queue("q").enqueue(1)
        serving = asyncio.ensure_future(worker.serve())
        await turns()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert (await hf.queue("q").get(id)).releases == 1


async def test_a_thread_that_does_not_end_in_time_is_left_behind_and_its_message_released(clock: ManualClock) -> None:
    let_go = threading.Event()
    begun: list[int] = []
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)

        @worker.handler("q")
        def handle() -> None:
            begun.append(1)
            let_go.wait(PATIENCE_S)

        [id] = await hf.queue("q").enqueue(1)
        serving = asyncio.ensure_future(worker.serve())
        await until(lambda: bool(begun))
        worker.stop(now=True)
        await turns()
        assert serving.done()
        info = await hf.queue("q").get(id)
        assert (info.state, info.releases, info.failures) == (State.READY, 1, 0)
        let_go.set()


async def test_a_stop_with_the_store_away_ends_all_the_same(clock: ManualClock) -> None:
    outage, slow = Outage(), Slow()
    async with opened(clock, outage) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q")(slow)
        await hf.queue("q").enqueue(1)
        serving = asyncio.ensure_future(worker.serve())
        await turns()
        outage.begin()
        worker.stop(now=True)
        await passing(clock, 10_000)
        assert serving.done()
        outage.end()


async def test_a_worker_can_be_served_again(clock: ManualClock) -> None:
    slow = Slow()
    slow.let_go.set()
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q")(slow)
        for number in (1, 2):
            async with worker:
                await hf.queue("q").enqueue(number)
                await turns()
        assert slow.done == [1, 2]


async def test_a_running_worker_takes_no_handler_and_is_not_run_twice(clock: ManualClock) -> None:
    slow = Slow()
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q")(slow)
        async with worker:
            with pytest.raises(holdfast.InvalidArgument, match="before it starts"):
                worker.handler("r")(slow)
            with pytest.raises(holdfast.InvalidArgument, match="running already"):
                await worker.serve()


async def test_what_on_start_raises_ends_the_worker() -> None:
    worker = holdfast.Worker("memory://")
    worker.handler("q")(Slow())

    @worker.on_start
    def start(worker: holdfast.Worker) -> None:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError, match="no database"):
        await worker.serve()
    assert not worker.is_running


async def test_stopping_what_does_not_run_does_nothing() -> None:
    worker = holdfast.Worker("memory://")
    worker.stop()
    with pytest.raises(holdfast.StoreUnavailable):
        _ = worker.client


async def test_a_client_of_this_loop_is_not_run_on_another(clock: ManualClock) -> None:
    async with opened(clock) as hf:
        worker = holdfast.Worker(hf)
        worker.handler("q")(Slow())
        with pytest.raises(holdfast.InvalidArgument, match="on a loop of its own"):
            worker.run()
