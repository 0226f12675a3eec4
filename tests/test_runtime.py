import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import runtime as runtime_module
from holdfast.clock import SystemClock
from holdfast.runtime import ThreadRuntime, Ticket, run_inline, sleep_until
from holdfast.testing import ManualClock

# Long enough for any machine; only a failure waits for it.
PATIENCE_S = 30.0


class Boom(Exception):
    pass


@pytest.fixture
def runtime() -> Iterator[ThreadRuntime]:
    runtime = ThreadRuntime(ManualClock(), ManualClock())
    yield runtime
    runtime.close()


async def settle(ticket: Ticket[Any], value: object) -> None:
    ticket.set_result(value)


class OtherThread:
    """A call on another thread, with its result or error."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def is_running(self) -> bool:
        """Still running after enough time for one that need not wait."""
        self._thread.join(0.02)
        return self._thread.is_alive()

    def join(self) -> Any:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the call did not return"
        if self.error is not None:
            raise self.error
        return self.result


# --- run_inline --------------------------------------------------------------------------------------------------


def test_a_coroutine_that_does_not_suspend_is_run_inline() -> None:
    async def work() -> int:
        return 7

    assert run_inline(work()) == 7


def test_run_inline_passes_errors_on_and_refuses_a_coroutine_that_suspends() -> None:
    ended = []

    async def fails() -> None:
        raise Boom

    async def suspends() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append("closed")

    with pytest.raises(Boom):
        run_inline(fails())
    with pytest.raises(RuntimeError, match="does not suspend"):
        run_inline(suspends())
    assert ended == ["closed"]


# --- ThreadRuntime: calls ----------------------------------------------------------------------------------------


def test_a_call_that_need_not_wait_runs_in_the_calling_thread_and_starts_none() -> None:
    runtime = ThreadRuntime(SystemClock())
    before = set(threading.enumerate())

    async def work() -> int:
        ticket = runtime.ticket()
        ticket.set_result(None)
        await ticket
        return threading.get_ident()

    assert runtime.run(work()) == threading.get_ident()
    assert set(threading.enumerate()) == before
    runtime.close()


def test_an_error_of_a_call_reaches_its_caller(runtime: ThreadRuntime) -> None:
    async def work() -> None:
        raise Boom

    with pytest.raises(Boom):
        runtime.run(work())


def test_a_call_waits_for_its_ticket_and_goes_on_in_its_own_thread(runtime: ThreadRuntime) -> None:
    ticket, is_waiting = runtime.ticket(), threading.Event()

    async def work() -> tuple[int, int, object]:
        before = threading.get_ident()
        is_waiting.set()
        value = await ticket
        return before, threading.get_ident(), value

    waiting = OtherThread(lambda: runtime.run(work()))
    assert is_waiting.wait(PATIENCE_S)
    runtime.run(settle(ticket, "here"))

    before, after, value = waiting.join()
    assert value == "here"
    assert before == after != threading.get_ident()


def test_a_call_that_waits_does_not_keep_others_from_running(runtime: ThreadRuntime) -> None:
    tickets = [runtime.ticket() for _ in range(10)]
    all_waiting = threading.Barrier(11)

    async def work(at: int) -> object:
        return await tickets[at]

    def call(at: int) -> object:
        all_waiting.wait(PATIENCE_S)
        return runtime.run(work(at))

    waiting = [OtherThread(lambda at=at: call(at)) for at in range(10)]  # type: ignore[misc]
    all_waiting.wait(PATIENCE_S)
    for at in reversed(range(10)):
        runtime.run(settle(tickets[at], at))
    assert [each.join() for each in waiting] == list(range(10))


def test_an_error_set_on_a_ticket_is_raised_where_it_is_awaited(runtime: ThreadRuntime) -> None:
    ticket, is_waiting = runtime.ticket(), threading.Event()

    async def work() -> str:
        is_waiting.set()
        try:
            await ticket
        except Boom:
            return "caught"
        return "missed"

    async def fail() -> None:
        ticket.set_exception(Boom())

    waiting = OtherThread(lambda: runtime.run(work()))
    assert is_waiting.wait(PATIENCE_S)
    runtime.run(fail())
    assert waiting.join() == "caught"
    assert isinstance(ticket.exception(), Boom)
    with pytest.raises(Boom):
        ticket.result()


def test_a_call_may_wait_again_and_again(runtime: ThreadRuntime) -> None:
    tickets = [runtime.ticket() for _ in range(5)]
    reached = [threading.Event() for _ in range(5)]

    async def work() -> list[object]:
        values = []
        for ticket, event in zip(tickets, reached, strict=True):
            event.set()
            values.append(await ticket)
        return values

    waiting = OtherThread(lambda: runtime.run(work()))
    for at, ticket in enumerate(tickets):
        assert reached[at].wait(PATIENCE_S)
        runtime.run(settle(ticket, at))
    assert waiting.join() == [0, 1, 2, 3, 4]


def test_a_ticket_is_settled_once(runtime: ThreadRuntime) -> None:
    ticket = runtime.ticket()
    assert not ticket.done()
    assert not ticket.cancelled()
    ticket.set_result(1)
    assert ticket.done()
    with pytest.raises(RuntimeError, match="once"):
        ticket.set_result(2)
    with pytest.raises(RuntimeError, match="once"):
        ticket.set_exception(Boom())


def test_waiting_for_anything_but_a_ticket_is_refused_and_the_coroutine_is_closed(runtime: ThreadRuntime) -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append("closed")

    with pytest.raises(RuntimeError, match="tickets alone"):
        runtime.run(work())
    assert ended == ["closed"]


# --- ThreadRuntime: interruption ---------------------------------------------------------------------------------


class InterruptedEvent(threading.Event):
    """Its first wait is interrupted, as by Ctrl-C; the next ones are not."""

    left = 1

    def wait(self, timeout: float | None = None) -> bool:
        if InterruptedEvent.left:
            InterruptedEvent.left -= 1
            raise KeyboardInterrupt
        return super().wait(timeout)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next wait for a ticket is interrupted. No thread may be started meanwhile: they have events too."""
    monkeypatch.setattr(InterruptedEvent, "left", 1)
    monkeypatch.setattr(runtime_module.threading, "Event", InterruptedEvent)


@pytest.mark.usefixtures("interrupted")
def test_an_interruption_is_raised_in_the_coroutine_that_waits_and_then_in_its_caller(runtime: ThreadRuntime) -> None:
    seen: list[str] = []
    ticket = runtime.ticket()

    async def work() -> None:
        try:
            await ticket
        except KeyboardInterrupt:
            seen.append("interrupted")
            raise
        finally:
            seen.append("given back")

    with pytest.raises(KeyboardInterrupt):
        runtime.run(work())
    assert seen == ["interrupted", "given back"]
    # Whoever settles the ticket later finds nobody waiting, and the runtime goes on.
    runtime.run(settle(ticket, "too late"))


@pytest.mark.usefixtures("interrupted")
def test_what_an_interrupted_call_spawns_to_give_back_is_run_before_its_caller_hears(runtime: ThreadRuntime) -> None:
    given_back: list[str] = []

    async def give_back() -> None:
        given_back.append("message")

    async def work() -> None:
        try:
            await runtime.ticket()
        except BaseException:
            runtime.spawn(give_back())
            raise

    with pytest.raises(KeyboardInterrupt):
        runtime.run(work())
    assert given_back == ["message"]


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_coroutine_may_still_wait_and_answer(runtime: ThreadRuntime) -> None:
    async def work() -> str:
        try:
            await runtime.ticket()
        except KeyboardInterrupt:
            done = runtime.ticket()
            done.set_result("answered")
            return str(await done)
        return "not interrupted"

    assert runtime.run(work()) == "answered"


# --- ThreadRuntime: background work ------------------------------------------------------------------------------


def test_spawned_work_has_run_before_the_call_that_spawned_it_returns(runtime: ThreadRuntime) -> None:
    ran: list[str] = []

    async def nested() -> None:
        ran.append("nested")

    async def background() -> None:
        ran.append("background")
        runtime.spawn(nested())

    async def work() -> None:
        runtime.spawn(background())
        ran.append("call")

    runtime.run(work())
    assert ran == ["call", "background", "nested"]


def test_spawned_work_is_run_even_if_the_call_fails(runtime: ThreadRuntime) -> None:
    ran: list[str] = []

    async def background() -> None:
        ran.append("background")

    async def work() -> None:
        runtime.spawn(background())
        raise Boom

    with pytest.raises(Boom):
        runtime.run(work())
    assert ran == ["background"]


def test_spawned_work_that_waits_goes_on_when_its_ticket_is_settled(runtime: ThreadRuntime) -> None:
    ticket = runtime.ticket()
    heard: list[object] = []

    async def background() -> None:
        heard.append(await ticket)
        heard.append(await ticket)

    async def work() -> None:
        runtime.spawn(background())

    runtime.run(work())
    assert heard == []
    runtime.run(settle(ticket, "news"))
    assert heard == ["news", "news"]


def test_an_error_in_the_background_is_logged_and_the_rest_goes_on(
    runtime: ThreadRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    async def fails() -> None:
        raise Boom("lost?")

    async def background() -> None:
        ran.append("ran")

    async def work() -> str:
        runtime.spawn(fails())
        runtime.spawn(background())
        return "answered"

    with caplog.at_level(logging.ERROR, "holdfast"):
        assert runtime.run(work()) == "answered"
    assert ran == ["ran"]
    [record] = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], Boom)


def test_close_waits_for_background_work() -> None:
    clock = ManualClock()
    runtime = ThreadRuntime(clock, clock)
    ticket, steps = runtime.ticket(), []

    async def background() -> None:
        steps.append("began")
        steps.append(await ticket)

    async def work() -> None:
        runtime.spawn(background())

    runtime.run(work())
    closing = OtherThread(runtime.close)
    assert closing.is_running()
    runtime.run(settle(ticket, "ended"))
    closing.join()
    assert steps == ["began", "ended"]


def test_work_spawned_outside_of_any_call_is_run_by_close_at_the_latest() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())
    ran: list[str] = []

    async def background() -> None:
        ran.append("ran")

    runtime.spawn(background())
    runtime.close()
    assert ran == ["ran"]


# --- ThreadRuntime: timers and other threads ---------------------------------------------------------------------


def test_a_timer_wakes_a_call_that_sleeps_until_its_time() -> None:
    clock = ManualClock()
    runtime = ThreadRuntime(clock, clock)
    is_waiting = threading.Event()

    async def work() -> int:
        is_waiting.set()
        await sleep_until(runtime, clock.now_ms() + 1_000)
        return clock.now_ms()

    start_ms = clock.now_ms()
    waiting = OtherThread(lambda: runtime.run(work()))
    assert is_waiting.wait(PATIENCE_S)
    # Under the lock: the call is then past setting its timer.
    runtime.run(settle(runtime.ticket(), None))
    clock.advance(999)
    assert waiting.is_running()
    clock.advance(1)
    assert waiting.join() == start_ms + 1_000
    runtime.close()


def test_without_an_alarm_of_its_own_a_runtime_keeps_real_time() -> None:
    clock = SystemClock()
    runtime = ThreadRuntime(clock)

    async def work() -> int:
        at_ms = clock.now_ms() + 10
        await sleep_until(runtime, at_ms)
        return clock.now_ms() - at_ms

    assert runtime.run(work()) >= 0
    runtime.close()
    assert not any(thread.name == "holdfast-timers" for thread in threading.enumerate())


def test_a_timer_s_callback_runs_background_work_as_a_step_of_its_own() -> None:
    clock = ManualClock()
    runtime = ThreadRuntime(clock, clock)
    ran: list[str] = []

    async def background() -> None:
        ran.append("background")

    runtime.call_at(clock.now_ms() + 5, lambda: runtime.spawn(background()))
    runtime.call_at(clock.now_ms() + 5, lambda: ran.append("cancelled")).cancel()
    clock.advance(5)
    assert ran == ["background"]
    runtime.close()


def test_offloaded_work_runs_on_another_thread_and_answers() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())

    async def work() -> tuple[int, int]:
        elsewhere = await runtime.offload(threading.get_ident)
        return elsewhere, threading.get_ident()

    elsewhere, here = runtime.run(work())
    assert here == threading.get_ident() != elsewhere
    runtime.close()
    assert not any(thread.name.startswith("holdfast-offload") for thread in threading.enumerate())


def test_an_error_of_offloaded_work_is_raised_where_it_is_awaited() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())

    def fails() -> None:
        raise Boom

    async def work() -> str:
        try:
            await runtime.offload(fails)
        except Boom:
            return "caught"
        return "missed"

    assert runtime.run(work()) == "caught"
    runtime.close()


def test_offloaded_calls_run_one_after_the_other() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())
    order: list[int] = []

    async def work() -> None:
        for ticket in [runtime.offload(lambda at=at: order.append(at)) for at in range(50)]:  # type: ignore[misc]
            await ticket

    runtime.run(work())
    assert order == list(range(50))
    runtime.close()


def test_background_work_may_offload_and_close_waits_for_it() -> None:
    runtime = ThreadRuntime(ManualClock(), ManualClock())
    may_end, done = threading.Event(), []

    async def background() -> None:
        done.append(await runtime.offload(lambda: may_end.wait(PATIENCE_S)))

    async def work() -> None:
        runtime.spawn(background())

    runtime.run(work())
    closing = OtherThread(runtime.close)
    assert closing.is_running()
    may_end.set()
    closing.join()
    assert done == [True]
