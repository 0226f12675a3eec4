"""Leases while handlers work: kept and lost, and the notice that a handler gets."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.model.message import State
from holdfast.testing import HandlerTest, ManualClock
from tests.worker.passing import Outage, opened, passing, turns


@pytest.fixture
def worker() -> holdfast.Worker:
    return holdfast.Worker("memory://")


class Gate:
    """A handler that works until it is released, and keeps how it ended."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.begun = 0
        self.ended: list[BaseException | None] = []

    async def __call__(self, message: holdfast.Message) -> None:
        self.begun += 1
        try:
            await self.opened.wait()
        except BaseException as error:
            self.ended.append(error)
            raise
        self.ended.append(None)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def events(events: list[Any], kind: str) -> list[Any]:
    return [each for each in events if each.event == kind]


@pytest.mark.spec("2.9", "10.3")
async def test_a_handler_longer_than_its_lease_finishes_once(worker: holdfast.Worker, gate: Gate) -> None:
    worker.handler("q", lease="30s", timeout=None)(gate)
    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.start()
        await t.advance("1h")
        assert await t.start() == 0
        gate.opened.set()
        await t.run()
        t.assert_acked(id)
        journal = await worker.client.journal()
    assert gate.begun == 1
    assert len(events(journal, "extended")) == 3_600 // 10
    assert not events(journal, "expired")


async def test_heartbeats_end_with_the_handler(worker: holdfast.Worker, gate: Gate) -> None:
    worker.handler("q")(gate)
    async with HandlerTest(worker) as t:
        await t.enqueue("q", 1)
        await t.start()
        gate.opened.set()
        await t.run()
        await t.advance("1h")
        assert not events(await worker.client.journal(), "extended")


async def test_a_lost_lease_cancels_the_handler_and_no_verdict_is_sent(worker: holdfast.Worker, gate: Gate) -> None:
    worker.handler("q", lease="30s")(gate)
    lost: list[holdfast.Outcome] = []
    worker.on_lost(lambda message, outcome: lost.append(outcome))
    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.start()
        await worker.client.queue("q").remove(id)
        await t.advance("10s")
        t.assert_lost(id)
        [error] = gate.ended
        assert isinstance(error, asyncio.CancelledError)
        assert isinstance(error.args[0], holdfast.LeaseLost)
        assert [each.event for each in await worker.client.journal()] == ["enqueued", "claimed", "removed"]
    assert len(lost) == 1


async def test_a_lost_lease_frees_the_slot(worker: holdfast.Worker, gate: Gate) -> None:
    worker.handler("q", lease="30s")(gate)
    async with HandlerTest(worker) as t:
        [first, second] = await t.enqueue("q", [1, 2])
        await t.start()
        await worker.client.queue("q").remove(first)
        await t.advance("10s")
        gate.opened.set()
        await t.run()
        t.assert_acked(second)


async def test_a_message_that_is_lost_says_so_and_its_verbs_raise(worker: holdfast.Worker) -> None:
    seen: list[Any] = []

    @worker.handler("q", lease="30s")
    async def handle(message: holdfast.Message) -> None:
        seen.append(message.is_lost)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(message.is_lost)
            with pytest.raises(holdfast.LeaseLost):
                await message.progress(50)
            with pytest.raises(holdfast.LeaseLost):
                await message.ack()
            raise

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.start()
        await worker.client.queue("q").remove(id)
        await t.advance("10s")
        t.assert_lost(id)
    assert seen == [False, True]


async def test_a_late_ack_is_refused_and_reported_as_lost(worker: holdfast.Worker, gate: Gate) -> None:
    worker.handler("q", lease="30s")(gate)
    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.start()
        t.clock.step_to(t.clock.now_ms() + 31_000)  # as if the process had been stopped: no heartbeat was due
        gate.opened.set()
        await t.run()
        assert t.outcomes(id)[0].kind == "lost"
        assert "stale_lease" in (t.outcomes(id)[0].error or "")


async def test_a_loop_that_was_held_up_is_warned_of(
    worker: holdfast.Worker, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    worker.handler("q", lease="30s")(gate)
    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.start()
        t.clock.advance(40_000)  # all at once: nothing ran in between
        await t.advance(0)
        assert "late_s=30.0" in caplog.text
        t.assert_lost(id)


async def test_a_handler_near_the_longest_lease_is_warned_of_once_and_then_lost(
    worker: holdfast.Worker, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    worker.handler("q", lease="3s")(gate)
    async with HandlerTest(worker) as t:
        await worker.client.queue("q").set_policy(max_lease_ms=60_000)
        [id] = await t.enqueue("q", 1)
        await t.start()
        await t.advance("47s")
        assert "max_lease" not in caplog.text
        await t.advance("5s")
        assert caplog.text.count("max_lease_s=60") == 1
        await t.advance("10s")
        t.assert_lost(id)


@pytest.mark.spec("2.9", "10.3")
async def test_a_timeout_cancels_the_handler_and_nacks(worker: holdfast.Worker, gate: Gate) -> None:
    worker.handler("q", lease="30s", timeout="5m")(gate)
    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.start()
        await t.advance("299s")
        t.assert_not_handled(id)
        await t.advance("1s")
        t.assert_retried(id, "timeout: still running after 300 s")
        info = t.get("q", id)
        assert (info.state, info.failures) == (State.READY, 1)
        [error] = gate.ended
        assert isinstance(error, asyncio.CancelledError)
        assert isinstance(error.args[0], TimeoutError)


@pytest.mark.spec("2.9")
async def test_a_handler_has_five_minutes_unless_it_says_otherwise(worker: holdfast.Worker, gate: Gate) -> None:
    worker.handler("q")(gate)
    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.start()
        await t.advance("5m")
        t.assert_retried(id, "timeout")


async def test_a_handler_that_will_not_stop_is_nacked_and_keeps_its_slot(
    worker: holdfast.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = asyncio.Event()

    @worker.handler("q", timeout="10s")
    async def handle(message: holdfast.Message) -> None:
        while message.attempt == 1 and not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    async with HandlerTest(worker) as t:
        [id] = await t.enqueue("q", 1)
        await t.start()
        await t.advance("16s")
        t.assert_retried(id, "timeout")
        assert "its slot stays in use" in caplog.text
        await t.advance("1m")
        assert await t.start() == 0
        let_go.set()
        await t.advance(0)
        await t.run()
        t.assert_acked(id)


# --- Over a store that is away for a while ---------------------------------------------------------------------


async def test_one_call_extends_all_that_a_handler_holds(clock: ManualClock, gate: Gate) -> None:
    outage = Outage()
    async with opened(clock, outage) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q", concurrency=8, lease="30s")(gate)
        async with worker:
            await hf.queue("q").enqueue(list(range(8)))
            await turns()
            assert gate.begun == 8
            outage.asked.clear()
            await passing(clock, 10_000)
            assert outage.asked.count("settle") == 1
            assert len(events(await hf.journal(), "extended")) == 8
            gate.opened.set()
            await turns()


async def test_heartbeats_that_fail_are_tried_again_until_they_pass(
    clock: ManualClock, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage()
    caplog.set_level("INFO")
    async with opened(clock, outage) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.handler("q", lease="30s")(gate)
        async with worker:
            [id] = await hf.queue("q").enqueue(1)
            await turns()
            outage.begin("settle")
            await passing(clock, 25_000)
            outage.end()
            await passing(clock, 60_000)
            assert not gate.ended
            gate.opened.set()
            await turns()
        with pytest.raises(holdfast.MessageNotFound):
            await hf.queue("q").get(id)
    assert caplog.text.count("heartbeat_failed") == 1
    assert caplog.text.count("server_unreachable") == 1
    assert caplog.text.count("server_reachable") == 1


async def test_without_heartbeats_until_the_leases_end_the_message_is_lost(clock: ManualClock, gate: Gate) -> None:
    outage = Outage()
    outcomes: list[holdfast.Outcome] = []
    async with opened(clock, outage) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.after(lambda message, outcome: outcomes.append(outcome))
        worker.handler("q", lease="30s")(gate)
        async with worker:
            await hf.queue("q").enqueue(1)
            await turns()
            outage.begin()
            await passing(clock, 29_000)
            assert not gate.ended
            await passing(clock, 2_000)
            assert isinstance(gate.ended[0], asyncio.CancelledError)
            assert [each.kind for each in outcomes] == ["lost"]
            gate.opened.set()
            outage.end()
            await passing(clock, 20_000)
            assert [each.kind for each in outcomes] == ["lost", "succeeded"]


async def test_a_verdict_that_cannot_be_sent_is_sent_when_it_can(clock: ManualClock, gate: Gate) -> None:
    outage = Outage()
    outcomes: list[holdfast.Outcome] = []
    async with opened(clock, outage) as hf:
        worker = holdfast.Worker(hf, clock=clock)
        worker.after(lambda message, outcome: outcomes.append(outcome))
        worker.handler("q", lease="30s")(gate)
        async with worker:
            await hf.queue("q").enqueue(1)
            await turns()
            outage.begin("settle")
            gate.opened.set()
            await passing(clock, 15_000)
            assert not outcomes
            outage.end()
            await passing(clock, 5_000)
            assert [each.kind for each in outcomes] == ["succeeded"]
    assert gate.begun == 1
