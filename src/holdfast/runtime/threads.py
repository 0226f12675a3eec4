"""The runtime in calling threads, for the blocking API of an embedded queue."""

import logging
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic

from holdfast.clock import Alarm, Clock, ThreadAlarm, Timer
from holdfast.runtime.contract import T, Ticket, Work
from holdfast.runtime.executors import ThreadExecutors

_log = logging.getLogger("holdfast")


class ThreadRuntime:
    """Runs the core in any number of calling threads. The thread that holds the one lock steps a coroutine."""

    has_turns = may_block_at_turn_end = False
    callers_have_threads = True

    def __init__(self, clock: Clock, alarm: Alarm | None = None) -> None:
        self.clock = clock
        self._own_alarm = ThreadAlarm(clock) if alarm is None else None
        self._alarm: Alarm = alarm or self._own_alarm  # type: ignore[assignment]  # one of the two is set
        self._lock = threading.RLock()
        # Background coroutines that can continue. They run before the lock is released, and never from within a step,
        # because a step that settles a ticket must not be entered again.
        self._runnable: deque[Work[None]] = deque()
        # True while a caller steps its coroutine, and false while background work runs.
        self.may_run_unlocked = False
        self._background = 0
        self._all_finished = threading.Condition(self._lock)
        self._executors, self._long_executors = (
            ThreadExecutors("holdfast-offload"),
            ThreadExecutors("holdfast-offload-long"),
        )
        self._refusal: Exception | None = None

    def refuse(self, error: Exception) -> None:
        """Raise this error for every later call, without waiting for the lock.

        In a forked child, the thread that held the lock may not exist.
        """
        self._refusal = error

    @property
    def is_refusing(self) -> bool:
        """Return whether every call is refused."""
        return self._refusal is not None

    def ticket(self) -> "_ThreadTicket[Any]":
        return _ThreadTicket()

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        raise RuntimeError("callers that step their own coroutines have no turns")

    def spawn(self, work: Work[None]) -> None:
        with self._lock:
            self._background += 1
            self._runnable.append(work)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        if at_ms <= self.clock.now_ms():
            due = _DueCall(callback)
            self.spawn(due.run())  # it runs after this step and never within it
            return due
        return self._alarm.call_at(at_ms, lambda: self.call_from_thread(callback))

    def offload(self, function: Callable[[], T], *, thread: int = 0) -> Ticket[T]:
        return self._submit(function, self._executors[thread])

    def offload_long(self, function: Callable[[], T], *, thread: int = 0) -> Ticket[T]:
        return self._submit(function, self._long_executors[thread])

    def _submit(self, function: Callable[[], T], executor: ThreadPoolExecutor) -> Ticket[T]:
        offloaded = _Offloaded(function)
        executor.submit(lambda: self.call_from_thread(offloaded.run()))
        return offloaded.ticket

    def run(self, work: Work[T]) -> T:
        """Run a coroutine to its end in this thread, and return its result."""
        if self._refusal is not None:
            work.close()
            # Every call raises the same error, so its traceback must not grow with each.
            raise self._refusal.with_traceback(None)
        interruption: BaseException | None = None
        while True:
            with self._lock:
                self.may_run_unlocked = True
                try:
                    waits_for = work.send(None) if interruption is None else work.throw(interruption)
                except StopIteration as finished:
                    value: T = finished.value
                    return value
                else:
                    # A bare lock, because an Event costs several times as much and every call that waits needs one.
                    gate = allocate_lock()
                    gate.acquire()
                    _check_ticket(work, waits_for).on_done = gate.release
                finally:
                    # This is `_end_step`, inlined because every call ends here. It comes after the gate was set up,
                    # because background work may settle the ticket.
                    self.may_run_unlocked = False
                    if self._runnable:
                        self._drain()
            try:
                gate.acquire()
                interruption = None
            except BaseException as error:  # after Ctrl-C, the coroutine gives back what it holds and then raises it
                interruption = error

    def run_unlocked(self, function: Callable[[], T]) -> T:
        self._end_step()
        self._lock.release()
        try:
            return function()
        finally:
            self._lock.acquire()
            self.may_run_unlocked = True

    def close(self) -> None:
        """Wait for background work to end. No call may be running on this runtime any more."""
        with self._lock:
            self._end_step()
            while self._background:
                self._all_finished.wait()
        if self._own_alarm is not None:
            self._own_alarm.close()
        self._executors.shutdown()
        self._long_executors.shutdown()

    def _end_step(self) -> None:
        """Run the background work that can continue, before the lock is released."""
        self.may_run_unlocked = False
        if self._runnable:
            self._drain()

    def call_from_thread(self, callback: Callable[[], None]) -> None:
        """Run a callback of a timer or an executor as a step of its own."""
        with self._lock:
            try:
                callback()
            finally:
                self._end_step()

    def _drain(self) -> None:
        while self._runnable:
            work = self._runnable.popleft()
            try:
                waits_for = _check_ticket(work, work.send(None))
            except StopIteration:
                self._finish_one()
            except Exception:
                _log.exception("background_work_failed")
                self._finish_one()
            except BaseException:  # after Ctrl-C this work has ended too; otherwise `close` would wait for ever
                self._finish_one()
                raise
            else:
                if waits_for.done():
                    self._runnable.append(work)
                else:
                    waits_for.on_done = lambda work=work: self._runnable.append(work)

    def _finish_one(self) -> None:
        self._background -= 1
        if not self._background:
            self._all_finished.notify_all()


class _ThreadTicket(Generic[T]):
    """A ticket that is settled and awaited while its thread holds the runtime's lock."""

    __slots__ = ("_error", "_is_done", "_value", "on_done")

    def __init__(self) -> None:
        self._is_done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self.on_done: Callable[[], None] | None = None

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return False

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it was set by set_result

    def set_result(self, value: T, /) -> None:
        self._value = value
        self._settle()

    def set_exception(self, error: BaseException, /) -> None:
        self._error = error
        self._settle()

    def _settle(self) -> None:
        if self._is_done:
            raise RuntimeError("a ticket was settled twice")
        self._is_done = True
        if self.on_done is not None:
            self.on_done()

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_done:
            yield self
        return self.result()


class _Offloaded(Generic[T]):
    """A blocking function on another thread, and the ticket for its result."""

    __slots__ = ("_function", "ticket")

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self.ticket: _ThreadTicket[T] = _ThreadTicket()

    def run(self) -> Callable[[], None]:
        """Run the function, and return the step that settles the ticket."""
        try:
            value = self._function()
        except Exception as error:  # the coroutine that awaits the ticket raises it
            return partial(self.ticket.set_exception, error)
        return partial(self.ticket.set_result, value)


class _DueCall:
    """A timer whose time had passed when it was made."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    async def run(self) -> None:
        if self._callback is not None:
            self._callback()


def _check_ticket(work: Work[Any], waits_for: object) -> _ThreadTicket[Any]:
    """Return the ticket that a coroutine waits for. For anything else, close the coroutine and raise `RuntimeError`."""
    if not isinstance(waits_for, _ThreadTicket):
        work.close()
        raise RuntimeError(f"a coroutine of the core waits for {waits_for!r}, which is no ticket of this runtime")
    return waits_for
