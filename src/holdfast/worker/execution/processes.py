"""Handlers in processes of their own: whatever becomes of one, the worker and its other handlers go on."""

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.clock import Timer
from holdfast.model.errors import HoldfastError
from holdfast.runtime import LoopRuntime
from holdfast.worker.exceptions import HandlerDied
from holdfast.worker.execution.child import (
    ChildBroken,
    ChildDone,
    ChildJob,
    ChildReady,
    ChildReply,
    ChildRequest,
    child_main,
)
from holdfast.worker.execution.function_runners import InThread, Running, runner_on
from holdfast.worker.execution.threads import Threads
from holdfast.worker.handlers import Handler, check_importable, late_start
from holdfast.worker.outcome import FaultKind, HandlerFault, fault_of
from holdfast.worker.work import Work


class ProcessWay:
    """A process for each slot in use, kept for the next message. The first starts before a message is claimed."""

    def __init__(self, name: str, runtime: LoopRuntime) -> None:
        # A thread for each process at work: it waits for the answer, and carries out what the handler asks for.
        self._threads = Threads(name)
        self._name = name
        self._runtime = runtime
        self._idle: list[Child] = []
        self._starting: _Starting | None = None
        # Set when a process becomes idle, or could not start.
        self._changed = asyncio.Event()

    async def prepare(self, handler: Handler) -> None:
        """Wait until a process is idle, and start one if need be, so that no message is held while it starts.

        Raise `HandlerDied` if it cannot import the handler, or not within `startup_timeout`.
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
                # One that was at work may become idle first: then the next message need not wait for the other.
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

    def start(self, handler: Handler, work: Work, payload: Any) -> Running:
        return _InProcess(self, self._take(handler), work)

    def _take(self, handler: Handler) -> "Child":
        while self._idle:
            # One may have been killed while it had nothing to do.
            if (child := self._idle.pop()).is_alive:
                return child
        return self._new(handler)

    def _new(self, handler: Handler) -> "Child":
        return Child(check_importable(handler.function), self._name)

    def close(self) -> None:
        """End the idle processes. Those at work have been killed, or end when they are done."""
        for child in self._idle:
            child.end()
        self._idle.clear()
        if self._starting is not None:
            self._starting.child.kill()
        self._threads.close()

    def take_back(self, child: "Child") -> None:
        if child.is_alive:
            self._idle.append(child)
            self._changed.set()


class _Starting(InThread):
    """A process that starts before there is a message for it. Killed when it takes longer than it may."""

    def __init__(self, threads: Threads, child: "Child", handler: Handler, runtime: LoopRuntime) -> None:
        self.child = child
        self.failure: HandlerDied | None = None
        self._timer: Timer | None = None
        if (startup_ms := handler.options.startup_timeout_ms) is not None:
            late_at = runtime.clock.now_ms() + startup_ms
            self._timer = runtime.call_at(late_at, lambda: self._give_up(late_start(handler)))
        super().__init__(threads, child.start)

    def _give_up(self, why: HandlerDied) -> None:
        self.failure = why
        self.child.kill()

    def _end(self, fault: HandlerFault | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if fault is not None and self.failure is None:
            self.failure = HandlerDied(fault.text)
        super()._end(fault)


class _InProcess(InThread):
    has_cleanup = True

    def __init__(self, way: ProcessWay, child: "Child", work: Work) -> None:
        loop = asyncio.get_running_loop()
        run = runner_on(loop)
        begun: asyncio.Future[None] = loop.create_future()
        self.begun = begun
        self._way = way
        self._child = child

        def begin() -> None:
            with suppress(RuntimeError):  # the loop is closed: the worker stopped without this one
                loop.call_soon_threadsafe(begun.set_result, None)

        super().__init__(way._threads, lambda: child.handle(work, run, begin))

    def interrupt(self, reason: Exception) -> None:
        self._child.kill()

    def _end(self, fault: HandlerFault | None) -> None:
        self._way.take_back(self._child)
        super()._end(fault)


class Child:
    """A process that imports one handler and runs it, message after message. Used by one thread at a time."""

    def __init__(self, target: str, name: str) -> None:
        self._target = target
        self._name = name
        self._lock = threading.Lock()
        self._is_killed = False
        self._process: Any = None
        self._pipe: Any = None

    @property
    def is_alive(self) -> bool:
        return not self._is_killed and self._process is not None and self._process.is_alive()

    def kill(self) -> None:
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def start(self) -> HandlerFault | None:
        """Start the process unless it runs already. Blocking. Return why it could not start."""
        try:
            if self._process is None:
                self._start()
        except (EOFError, OSError) as error:
            died = HandlerDied(f"the handler's process died: {self.end()}")
            return HandlerFault(FaultKind.UNSTARTED, f"{fault_of(died).text} ({error!r})", None, died)
        except _CannotImport as error:
            self.end()
            return HandlerFault(FaultKind.UNSTARTED, str(error), None, error)
        return None

    def handle(self, work: Work, run: Any, begin: Callable[[], None]) -> HandlerFault | None:
        """Run the handler, and call `begin` once its process is ready for it. Blocking.

        However the process ends, there is an answer. One that never started is not the message's fault.
        """
        if (fault := self.start()) is not None:
            return fault
        begin()
        try:
            self._pipe.send(ChildJob(work.message._held))
            while not isinstance(said := self._pipe.recv(), ChildDone):
                self._pipe.send(_carry_out(said, work, run))
            return None if said.fault is None else said.fault.unpacked()
        except (EOFError, OSError):
            return fault_of(HandlerDied(f"the handler's process died: {self.end()}"))

    def _start(self) -> None:
        import multiprocessing  # here: most workers have no use for it

        # Spawned, not forked: this process has threads and a loop, whose locks a copy would find held for ever.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=child_main, args=(theirs, self._target), name=f"holdfast-{self._name}")
        with self._lock:
            if self._is_killed:
                raise EOFError("killed before it began")
            process.start()
            self._process = process
        theirs.close()
        match self._pipe.recv():
            case ChildReady():
                pass
            case ChildBroken(text=text):
                raise _CannotImport(f"the handler's process cannot import {self._target}: {text}")

    def end(self) -> str:
        """Make sure that it is gone; answers how it went."""
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


# By the exit code that multiprocessing makes of them.
_SIGNALS = {-each.value: each.name for each in signal.Signals}


class _CannotImport(Exception):
    pass


def _carry_out(request: ChildRequest, work: Work, run: Any) -> ChildReply:
    """What the handler asked of its message, done on the worker's loop."""
    held = work.message._held
    try:
        value = run(getattr(work.message, request.verb)(*request.args, **request.named))
    except HoldfastError as error:
        return ChildReply(None, (type(error), error.message, error.facts), held)
    return ChildReply(value, None, held)
