"""A call without an event loop: it runs in its caller's thread, waits for tickets there, and may be interrupted."""

import asyncio
import threading

import pytest

from holdfast.clock import SystemClock
from holdfast.runtime import ThreadRuntime, run_inline
from holdfast.runtime import threads as runtime_module
from tests.runtime.threads import PATIENCE_S, Boom, OtherThread, settle

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
    with pytest.raises(RuntimeError, match="must not suspend"):
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


def test_a_call_waits_for_its_ticket_and_continues_in_its_own_thread(runtime: ThreadRuntime) -> None:
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

    waiting = [OtherThread(lambda at=at: call(at)) for at in range(10)]
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
    with pytest.raises(RuntimeError, match="settled twice"):
        ticket.set_result(2)
    with pytest.raises(RuntimeError, match="settled twice"):
        ticket.set_exception(Boom())


def test_waiting_for_anything_but_a_ticket_is_refused_and_the_coroutine_is_closed(runtime: ThreadRuntime) -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append("closed")

    with pytest.raises(RuntimeError, match="no ticket of this runtime"):
        runtime.run(work())
    assert ended == ["closed"]


# --- ThreadRuntime: interruption ---------------------------------------------------------------------------------


class InterruptedGate:
    """A lock that a caller waits on; the first wait is interrupted, as by Ctrl-C, and later ones are not."""

    left = 1

    def __init__(self) -> None:
        self._gate = threading.Lock()

    def acquire(self) -> None:
        if self._gate.locked() and InterruptedGate.left:
            InterruptedGate.left -= 1
            raise KeyboardInterrupt
        self._gate.acquire()

    def release(self) -> None:
        self._gate.release()


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next wait for a ticket is interrupted."""
    monkeypatch.setattr(InterruptedGate, "left", 1)
    monkeypatch.setattr(runtime_module, "allocate_lock", InterruptedGate)


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
def test_work_that_an_interrupted_call_spawns_to_give_back_is_run_before_its_caller_is_answered(
    runtime: ThreadRuntime,
) -> None:
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
