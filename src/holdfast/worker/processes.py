"""Handlers in processes of their own: whatever becomes of one, the worker and its other handlers go on."""

import asyncio
import signal
import threading
from typing import Any

from holdfast.model.errors import HoldfastError
from holdfast.worker.child import Answer, Broken, Done, Job, Ready, Request, child_main
from holdfast.worker.control import HandlerDied
from holdfast.worker.handlers import Handler, check_importable
from holdfast.worker.outcome import Fault, FaultKind, fault_of
from holdfast.worker.threads import Threads
from holdfast.worker.ways import InThread, Running, runner_on
from holdfast.worker.work import Work


class ProcessWay:
    """A process for each slot in use, kept for the next message; started with the first that needs it."""

    def __init__(self, name: str) -> None:
        # A thread for each process at work: it waits for the answer, and carries out what the handler asks for.
        self._threads = Threads(name)
        self._name = name
        self._idle: list[Child] = []

    def start(self, handler: Handler, work: Work, payload: Any) -> Running:
        return _InProcess(self, self._take(handler), work)

    def _take(self, handler: Handler) -> "Child":
        while self._idle:
            # One may have been killed while it had nothing to do.
            if (child := self._idle.pop()).is_alive:
                return child
        return Child(check_importable(handler.function), self._name)

    def close(self) -> None:
        """Those at work have been killed, or are let go when they end."""
        for child in self._idle:
            child.end()
        self._idle.clear()
        self._threads.close()

    def take_back(self, child: "Child") -> None:
        if child.is_alive:
            self._idle.append(child)


class _InProcess(InThread):
    has_cleanup = True

    def __init__(self, way: ProcessWay, child: "Child", work: Work) -> None:
        run = runner_on(asyncio.get_running_loop())
        self._way = way
        self._child = child
        super().__init__(way._threads, lambda: child.handle(work, run))

    def interrupt(self, reason: Exception) -> None:
        self._child.kill()

    def _end(self, fault: Fault | None) -> None:
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

    def handle(self, work: Work, run: Any) -> Fault | None:
        """Blocking. However the process ends, there is an answer."""
        is_started = False
        try:
            if self._process is None:
                self._start()
            is_started = True
            self._pipe.send(Job(work.message._held))
            while not isinstance(said := self._pipe.recv(), Done):
                self._pipe.send(_carry_out(said, work, run))
            return None if said.fault is None else said.fault.unpacked()
        except (EOFError, OSError) as error:
            # Which of the two it is: gone while at work, or never there. The latter is not the message's fault.
            died = HandlerDied(f"the handler's process died: {self.end()}")
            fault = fault_of(died)
            return fault if is_started else Fault(FaultKind.UNSTARTED, f"{fault.text} ({error!r})", None, died)
        except _CannotImport as error:
            self.end()
            return Fault(FaultKind.UNSTARTED, str(error), None, error)

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
            case Ready():
                pass
            case Broken(text=text):
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


def _carry_out(request: Request, work: Work, run: Any) -> Answer:
    """What the handler asked of its message, done on the worker's loop."""
    held = work.message._held
    try:
        value = run(getattr(work.message, request.verb)(*request.args, **request.named))
    except HoldfastError as error:
        return Answer(None, (type(error), error.message, error.facts), held)
    return Answer(value, None, held)
