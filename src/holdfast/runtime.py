"""How coroutines of the core are run: on an asyncio loop, or stepped in the calling thread.

The core (stores, dispatcher, service) is one set of coroutines. They wait for nothing but `Ticket`s that their
`Runtime` made, so whoever drives them decides what waiting means:

    LoopRuntime    a ticket is an asyncio future; background work is a task.
    ThreadRuntime  the calling thread steps the coroutine under one lock and sleeps on a ticket only when there is
                   something to wait for: a call that need not wait pays no hand-over to another thread.
"""

import asyncio
import logging
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from holdfast.clock import Alarm, Clock, ThreadAlarm, Timer, seconds_until

T = TypeVar("T")
Work = Coroutine[Any, Any, T]

_log = logging.getLogger("holdfast")


class Ticket(Protocol[T]):
    """A result to come; awaited by one coroutine, settled once."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def result(self) -> T: ...
    def exception(self) -> BaseException | None: ...
    def set_result(self, value: T, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...
    def __await__(self) -> Generator[Any, None, T]: ...


class Runtime(Protocol):
    """What the core is given instead of an event loop."""

    clock: Clock
    # Several callers' steps come in turns: what one step puts off to the turn's end, the others' can share.
    has_turns: bool
    # A function that blocks for a moment may run at the end of a turn. Only where there are turns.
    may_block_at_turn_end: bool
    # Each caller steps its own work, on a thread of its own.
    callers_have_threads: bool
    # The step under way is of such a caller, and not of the background.
    may_step_aside: bool

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Call once the steps that can go on now have gone on. Only where there are turns."""

    def ticket(self) -> Ticket[Any]:
        """Return a new ticket."""

    def spawn(self, work: Work[None]) -> None:
        """Run in the background. The runtime owns it: no caller's cancellation reaches it, close waits for it."""

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        """Call at that time; if it has passed, soon, but never before this call returns."""

    def offload(self, function: Callable[[], T], *, lane: int = 0) -> Ticket[T]:
        """Run a blocking function on another thread. Each lane has a thread of its own, on which its functions run one
        after the other."""

    def step_aside(self, function: Callable[[], T]) -> T:
        """Run a blocking function in the middle of a step, on the calling thread. Steps of others go on meanwhile, as
        if this one waited for a ticket. Only where `may_step_aside`."""

    def offload_long(self, function: Callable[[], T], *, lane: int = 0) -> Ticket[T]:
        """Run a function that may block for long on another thread of the lane, beside those of `offload`."""

    def enter(self, callback: Callable[[], None]) -> None:
        """Call from any thread: the callback runs as a step of its own, soon."""


async def sleep_until(runtime: Runtime, at_ms: int) -> None:
    ticket = runtime.ticket()
    timer = runtime.call_at(at_ms, lambda: ticket.set_result(None))
    try:
        await ticket
    finally:
        timer.cancel()


async def let_others_go_on(runtime: Runtime) -> None:
    """In the middle of something long: every other caller that can go on has a turn."""
    ticket = runtime.ticket()

    def go_on() -> None:
        if not ticket.done():
            ticket.set_result(None)

    timer = runtime.call_at(runtime.clock.now_ms(), go_on)
    try:
        await ticket
    finally:
        timer.cancel()


async def see_through(runtime: Runtime, work: Work[T]) -> T:
    """The result of work that goes on though its caller leaves: what follows a change must not be left out."""
    ticket: Ticket[T] = runtime.ticket()

    async def run() -> None:
        try:
            value = await work
        except Exception as error:
            if ticket.done():
                raise  # there is nobody else to hear of it
            ticket.set_exception(error)
        else:
            if not ticket.done():
                ticket.set_result(value)

    runtime.spawn(run())
    return await ticket


def run_inline(work: Work[T]) -> T:
    """The result of a coroutine that does not suspend."""
    try:
        work.send(None)
    except StopIteration as finished:
        value: T = finished.value
        return value
    work.close()
    raise RuntimeError("a coroutine that said it does not suspend did")


class _Lanes:
    """Threads for blocking functions, one for each lane, made when it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._executors: dict[int, ThreadPoolExecutor] = {}

    def __getitem__(self, lane: int) -> ThreadPoolExecutor:
        executor = self._executors.get(lane)
        if executor is None:
            name = self._name if lane == 0 else f"{self._name}-{lane}"
            executor = self._executors[lane] = ThreadPoolExecutor(1, thread_name_prefix=name)
        return executor

    def shutdown(self) -> None:
        for executor in self._executors.values():
            executor.shutdown()


class _LoopTimer:
    """Looks at the clock when the loop calls: the loop's own waits are bounded, and it may count time otherwise."""

    __slots__ = ("_at_ms", "_callback", "_clock", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, at_ms: int, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._at_ms = at_ms
        self._callback = callback
        self._handle = loop.call_later(seconds_until(at_ms, clock), self._ring)

    def cancel(self) -> None:
        self._handle.cancel()

    def _ring(self) -> None:
        if self._clock.now_ms() < self._at_ms:
            self._handle = self._loop.call_later(seconds_until(self._at_ms, self._clock), self._ring)
        else:
            self._callback()


class LoopRuntime:
    """Made inside a running loop, which it uses from then on."""

    has_turns = may_block_at_turn_end = True
    callers_have_threads = may_step_aside = False

    def __init__(self, clock: Clock, alarm: Alarm | None = None) -> None:
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._alarm = alarm
        self._tasks: set[asyncio.Task[None]] = set()
        self._lanes, self._long_lanes = _Lanes("holdfast-offload"), _Lanes("holdfast-offload-long")

    def ticket(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def spawn(self, work: Work[None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        if self._alarm is not None and at_ms > self.clock.now_ms():
            return self._alarm.call_at(at_ms, callback)
        return _LoopTimer(self._loop, self.clock, at_ms, callback)

    def offload(self, function: Callable[[], T], *, lane: int = 0) -> Ticket[T]:
        return self._loop.run_in_executor(self._lanes[lane], function)

    def step_aside(self, function: Callable[[], T]) -> T:
        raise RuntimeError("a step on a loop has no thread of its own")

    def offload_long(self, function: Callable[[], T], *, lane: int = 0) -> Ticket[T]:
        return self._loop.run_in_executor(self._long_lanes[lane], function)

    def enter(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    async def idle(self) -> None:
        """Until no background work is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        await self.idle()
        self._lanes.shutdown()
        self._long_lanes.shutdown()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background work failed", exc_info=error)


class _ThreadTicket(Generic[T]):
    """Settled and awaited under the runtime's lock."""

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
        return self._value  # type: ignore[return-value]  # set by set_result

    def set_result(self, value: T, /) -> None:
        self._value = value
        self._settle()

    def set_exception(self, error: BaseException, /) -> None:
        self._error = error
        self._settle()

    def _settle(self) -> None:
        if self._is_done:
            raise RuntimeError("a ticket is settled once")
        self._is_done = True
        if self.on_done is not None:
            self.on_done()

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_done:
            yield self
        return self.result()


class _Offloaded(Generic[T]):
    """A blocking function, and the ticket for its result."""

    __slots__ = ("_function", "ticket")

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self.ticket: _ThreadTicket[T] = _ThreadTicket()

    def run(self) -> Callable[[], None]:
        """Run the function, and return the step that settles the ticket."""
        try:
            value = self._function()
        except Exception as error:  # the ticket's owner raises it
            return partial(self.ticket.set_exception, error)
        return partial(self.ticket.set_result, value)


class _DueCall:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    async def run(self) -> None:
        if self._callback is not None:
            self._callback()


def _check_ticket(work: Work[Any], waits_for: object) -> _ThreadTicket[Any]:
    """Return what a coroutine waits for. If that is no ticket of a `ThreadRuntime`, close it and raise an error."""
    if not isinstance(waits_for, _ThreadTicket):
        work.close()
        raise RuntimeError(f"the core waits for tickets alone, not for {waits_for!r}")
    return waits_for


class ThreadRuntime:
    """Any number of calling threads, one lock: whoever holds it steps the core."""

    has_turns = may_block_at_turn_end = False
    callers_have_threads = True

    def __init__(self, clock: Clock, alarm: Alarm | None = None) -> None:
        self.clock = clock
        self._own_alarm = ThreadAlarm(clock) if alarm is None else None
        self._alarm: Alarm = alarm or self._own_alarm  # type: ignore[assignment]  # one of the two is set
        self._lock = threading.RLock()
        # Background coroutines that can go on. Drained before the lock is given up, never from within a step:
        # a step that settles a ticket must not find itself re-entered.
        self._runnable: deque[Work[None]] = deque()
        # Set while a caller, and not the background, steps its work.
        self.may_step_aside = False
        self._background = 0
        self._all_finished = threading.Condition(self._lock)
        self._lanes, self._long_lanes = _Lanes("holdfast-offload"), _Lanes("holdfast-offload-long")
        self._refusal: Exception | None = None

    def refuse(self, error: Exception) -> None:
        """Raise this error for every call from now on, without waiting for the lock: its holder may not exist."""
        self._refusal = error

    @property
    def is_refusing(self) -> bool:
        return self._refusal is not None

    def ticket(self) -> _ThreadTicket[Any]:
        return _ThreadTicket()

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        raise RuntimeError("a caller that steps its own work has no turns to share")

    def spawn(self, work: Work[None]) -> None:
        with self._lock:
            self._background += 1
            self._runnable.append(work)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        if at_ms <= self.clock.now_ms():
            due = _DueCall(callback)
            self.spawn(due.run())  # after this step, never within it
            return due
        return self._alarm.call_at(at_ms, lambda: self.enter(callback))

    def offload(self, function: Callable[[], T], *, lane: int = 0) -> Ticket[T]:
        return self._submit(function, self._lanes[lane])

    def offload_long(self, function: Callable[[], T], *, lane: int = 0) -> Ticket[T]:
        return self._submit(function, self._long_lanes[lane])

    def _submit(self, function: Callable[[], T], executor: ThreadPoolExecutor) -> Ticket[T]:
        offloaded = _Offloaded(function)
        executor.submit(lambda: self.enter(offloaded.run()))
        return offloaded.ticket

    def run(self, work: Work[T]) -> T:
        """Drive a coroutine to its end in this thread."""
        if self._refusal is not None:
            work.close()
            # One error for every call: its traceback must not grow with them.
            raise self._refusal.with_traceback(None)
        interruption: BaseException | None = None
        while True:
            with self._lock:
                self.may_step_aside = True
                try:
                    waits_for = work.send(None) if interruption is None else work.throw(interruption)
                except StopIteration as finished:
                    value: T = finished.value
                    return value
                else:
                    # A bare lock: an Event costs several times as much, and every call that waits needs one.
                    gate = allocate_lock()
                    gate.acquire()
                    _check_ticket(work, waits_for).on_done = gate.release
                finally:
                    # `_end_step`, spelled out: every call ends here. The gate is set up before, for the background may
                    # settle the ticket.
                    self.may_step_aside = False
                    if self._runnable:
                        self._drain()
            try:
                gate.acquire()
                interruption = None
            except BaseException as error:  # Ctrl-C: the coroutine gives back what it may hold, then raises it
                interruption = error

    def step_aside(self, function: Callable[[], T]) -> T:
        self._end_step()
        self._lock.release()
        try:
            return function()
        finally:
            self._lock.acquire()
            self.may_step_aside = True

    def close(self) -> None:
        """Wait for background work to end. Nothing may be running on this runtime any more."""
        with self._lock:
            self._end_step()
            while self._background:
                self._all_finished.wait()
        if self._own_alarm is not None:
            self._own_alarm.close()
        self._lanes.shutdown()
        self._long_lanes.shutdown()

    def _end_step(self) -> None:
        """Let the background go on before the lock is given up."""
        self.may_step_aside = False
        if self._runnable:
            self._drain()

    def enter(self, callback: Callable[[], None]) -> None:
        """Run a callback from outside (a timer, the executor) as a step of its own."""
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
                _log.exception("background work failed")
                self._finish_one()
            except BaseException:  # Ctrl-C fell into it: it is over all the same, or close would wait for ever
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
