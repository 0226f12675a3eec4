"""A worker that crashes, whose store is away, and how it stops."""

import asyncio
import threading

import pytest

import holdfast
from holdfast.model.message import State
from holdfast.testing import ManualClock
from holdfast.worker.context import restart_delay_ms
from tests.worker.passing import PATIENCE_S, Outage, opened, passing, turns, until
from tests.worker.slow import Slow

# --- Crashes and outages ---------------------------------------------------------------------------------------


@pytest.mark.spec("10.3")
def test_three_crashes_start_again_at_once_and_then_ever_later_up_to_five_minutes() -> None:
    assert [restart_delay_ms(crashes) for crashes in range(1, 8)] == [0, 0, 0, 250, 500, 1_000, 2_000]
    assert restart_delay_ms(14) == 256_000
    assert restart_delay_ms(15) == restart_delay_ms(1_000) == 300_000


@pytest.mark.spec("10.3")
async def test_a_consumer_that_crashes_starts_again_later_and_later_and_then_works(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    outage, slow = Outage(), Slow()
    slow.let_go.set()
    async with opened(clock, outage) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q")(slow)
        crashes: list[tuple[str, str, int, float]] = []
        worker.on_crash(lambda crash: crashes.append((crash.queue, crash.error.code, crash.count, crash.delay_s)))
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
    assert crashes == [
        ("q", "forbidden", count, delay_s) for count, delay_s in enumerate([0, 0, 0, 0.25, 0.5, 1, 2], 1)
    ]
    assert caplog.text.count("restarts_in_s=0\n") == 3
    assert "restarts_in_s=0.25" in caplog.text


async def test_an_unavailable_store_is_logged_once_and_waited_for(
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
    assert caplog.text.count("server_unreachable") == 1
    assert caplog.text.count("server_reachable") == 1
    assert "crashed" not in caplog.text


async def test_a_limited_claim_waits_for_the_given_time(clock: ManualClock) -> None:
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
            with pytest.raises(holdfast.InvalidArgument, match="already running"):
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
        with pytest.raises(holdfast.InvalidArgument, match="on its own event loop"):
            worker.run()
