"""Run handlers in separate processes, so that a crash of one affects neither the worker nor other handlers."""

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.clock import Timer
from holdfast.model.errors import HoldfastError
from holdfast.runtime import LoopRuntime
from holdfast.worker.execution.child import (
    ChildBroken,
    ChildDone,
    ChildJob,
    ChildReady,
    ChildReply,
    ChildRequest,
    child_main,
)
from holdfast.worker.execution.function_runners import RunningHandler, make_blocking_run
from holdfast.worker.execution.threads import InThread, Threads
from holdfast.worker.handlers import Handler, check_importable, startup_timeout_error
from holdfast.worker.outcomes import FaultKind, HandlerDied, HandlerFault, HandlerNotImportable, fault_of
from holdfast.worker.work import Work


class ProcessRunner:
    """The runner of plain functions in processes: one for each slot in use, kept for the next message.

    The first process starts before a message is claimed.
    """

    def __init__(self, name: str, runtime: LoopRuntime) -> None:
        # One thread for each running handler. It waits for the process, and carries out the methods of its message.
        self._threads = Threads(name)
        self._name = name
        self._runtime = runtime
        self._idle: list[Child] = []
        self._starting: _Starting | None = None
        # Set when a process becomes idle or fails to start.
        self._changed = asyncio.Event()

    async def prepare(self, handler: Handler) -> None:
        """Wait until a process is idle, and start one if needed, so that no message is held while it starts.

        Raise `HandlerDied` if the process does not start within `startup_timeout`, and `HandlerNotImportable` if it
        cannot import the handler.
        """
        while not self.is_ready:
            self._changed.clear()
            if self._starting is None:
                self._starting = _Starting(self._threads, self._new(handler), handler, self._runtime)
                self._starting.ended.add_done_callback(self._started)
            elif self._starting.ended.done() and self._starting.failure is not None:
                failure, self._starting = self._starting.failure, None
                raise failure
            else:
                # A running process may become idle first. Then the next message need not wait for the new one.
                await self._changed.wait()

    @property
    def is_ready(self) -> bool:
        self._idle = [child for child in self._idle if child.is_alive]
        return bool(self._idle)

    def _started(self, _: object) -> None:
        if self._starting is not None and self._starting.failure is None:
            self._idle.append(self._starting.child)
            self._starting = None
        self._changed.set()

    def start(self, handler: Handler, work: Work, payload: Any) -> RunningHandler:
        return _InProcess(self, self._take(handler), work)

    def _take(self, handler: Handler) -> "Child":
        while self._idle:
            # An idle process may have been killed.
            if (child := self._idle.pop()).is_alive:
                return child
        return self._new(handler)

    def _new(self, handler: Handler) -> "Child":
        return Child(check_importable(handler.function), self._name)

    def close(self) -> None:
        """End the idle processes. The others have been killed, or end once their handler has ended."""
        for child in self._idle:
            child.end()
        self._idle.clear()
        if self._starting is not None:
            self._starting.child.kill()
        self._threads.close()

    def take_back(self, child: "Child") -> None:
        """Keep a process for the next message if it is still alive."""
        if child.is_alive:
            self._idle.append(child)
            self._changed.set()


class _Starting(InThread):
    """The start of a process before there is a message for it. The process is killed after `startup_timeout`."""

    def __init__(self, threads: Threads, child: "Child", handler: Handler, runtime: LoopRuntime) -> None:
        self.child = child
        self.failure: HandlerDied | None = None
        self._timer: Timer | None = None
        if (startup_ms := handler.options.startup_timeout_ms) is not None:
            late_at = runtime.clock.now_ms() + startup_ms
            self._timer = runtime.call_at(late_at, lambda: self._give_up(startup_timeout_error(handler)))
        super().__init__(threads, child.start)

    def _give_up(self, why: HandlerDied) -> None:
        self.failure = why
        self.child.kill()

    def _end(self, fault: HandlerFault | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if fault is not None and self.failure is None:
            error = fault.exception
            self.failure = error if isinstance(error, HandlerNotImportable) else HandlerDied(fault.text)
        super()._end(fault)


class _InProcess(InThread):
    """A handler in a process, with the thread that waits for it."""

    has_cleanup = True

    def __init__(self, runner: ProcessRunner, child: "Child", work: Work) -> None:
        loop = asyncio.get_running_loop()
        run = make_blocking_run(loop)
        begun: asyncio.Future[None] = loop.create_future()
        self.begun = begun
        self._runner = runner
        self._child = child

        def begin() -> None:
            with suppress(RuntimeError):  # the loop is closed: the worker has stopped without waiting for this one
                loop.call_soon_threadsafe(begun.set_result, None)

        super().__init__(runner._threads, lambda: child.handle(work, run, begin))

    def interrupt(self, reason: Exception) -> None:
        self._child.kill()

    def _end(self, fault: HandlerFault | None) -> None:
        self._runner.take_back(self._child)
        super()._end(fault)


class Child:
    """A process that imports one handler and runs it for one message after another. One thread at a time uses it."""

    def __init__(self, target: str, name: str) -> None:
        self._target = target
        self._name = name
        self._lock = threading.Lock()
        self._is_killed = False
        self._process: Any = None
        self._pipe: Any = None

    @property
    def is_alive(self) -> bool:
        """Return whether the process is running and was not killed."""
        return not self._is_killed and self._process is not None and self._process.is_alive()

    def kill(self) -> None:
        """Kill the process, or prevent its start."""
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def start(self) -> HandlerFault | None:
        """Start the process unless it is running, and wait until it is ready. Return the fault if it cannot start."""
        try:
            if self._process is None:
                self._start()
        except (EOFError, OSError) as error:
            died = HandlerDied(f"the handler's process died: {self.end()}")
            return HandlerFault(FaultKind.UNSTARTED, f"{fault_of(died).text} ({error!r})", None, died)
        except HandlerNotImportable as error:
            self.end()
            return HandlerFault(FaultKind.UNSTARTED, str(error), None, error)
        return None

    def handle(self, work: Work, run: Any, begin: Callable[[], None]) -> HandlerFault | None:
        """Run the handler for a message and wait for it, and call `begin` once the process is ready.

        Return None if the handler succeeded, otherwise the fault, also if the process ends unexpectedly. The fault of a
        process that never started does not count against the message.
        """
        if (fault := self.start()) is not None:
            return fault
        begin()
        try:
            self._pipe.send(ChildJob(work.message._held))
            while not isinstance(message := self._pipe.recv(), ChildDone):
                self._pipe.send(_carry_out(message, work, run))
            return None if message.fault is None else message.fault.with_text_exception()
        except (EOFError, OSError):
            return fault_of(HandlerDied(f"the handler's process died: {self.end()}"))

    def _start(self) -> None:
        import multiprocessing  # imported only here, because most workers do not need it

        # Spawned, not forked: in a forked copy, locks that other threads of this process held would never be released.
        context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        process = context.Process(target=child_main, args=(child_pipe, self._target), name=f"holdfast-{self._name}")
        with self._lock:
            if self._is_killed:
                raise EOFError("killed before it started")
            process.start()
            self._process = process
        child_pipe.close()
        match self._pipe.recv():
            case ChildReady():
                pass
            case ChildBroken(text=text):
                raise HandlerNotImportable(f"the process of the handler cannot import {self._target}: {text}")

    def end(self) -> str:
        """Kill the process and wait for its end. Return a description of how it ended."""
        self.kill()
        if self._pipe is not None:
            self._pipe.close()
        if self._process is None:
            return "it was not started"
        self._process.join()
        code = self._process.exitcode
        if code in _SIGNALS:
            return f"killed by {_SIGNALS[code]}"
        return f"exit code {code}"


# Signal names by the exit code that multiprocessing reports for them.
_SIGNALS = {-each.value: each.name for each in signal.Signals}


def _carry_out(request: ChildRequest, work: Work, run: Any) -> ChildReply:
    """Carry out a method of the message, which a handler process called, on the worker's event loop."""
    held = work.message._held
    try:
        value = run(getattr(work.message, request.verb)(*request.args, **request.named))
    except HoldfastError as error:
        return ChildReply(None, (type(error), error.message, error.facts), held)
    return ChildReply(value, None, held)
