"""Run handlers in daemon threads, and track threads that run past their timeout."""

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from holdfast.client.blocking import BlockingDriver, BlockingMessage
from holdfast.worker.context import WorkerStop, log
from holdfast.worker.execution.function_runners import AlwaysReady, RunningHandler, make_blocking_run
from holdfast.worker.execution.tracing import following
from holdfast.worker.handlers import Handler
from holdfast.worker.outcomes import HandlerFault, WorkerStuck, fault_of
from holdfast.worker.work import Work


class Threads:
    """A pool of daemon threads, which do not keep the process alive if a handler never returns.

    It has as many threads as there were jobs at once. Its users limit that number.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job in an idle thread, or in a new one."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                name = f"holdfast-{self._name}-{self._threads}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        self._jobs.put(job)

    def close(self) -> None:
        """End the idle threads, and the others once their job is done."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            with self._lock:
                self._idle += 1


class ThreadRunner(AlwaysReady):
    """The runner of plain functions in threads."""

    def __init__(self, name: str) -> None:
        self._threads = Threads(name)

    def start(self, handler: Handler, work: Work, payload: Any) -> RunningHandler:
        loop = asyncio.get_running_loop()
        message = BlockingMessage(work.message, BlockingDriver(make_blocking_run(loop), lambda: None))

        def run() -> HandlerFault | None:
            with following(work.message):
                handler.signature.call(handler.function, payload, message)
            return None

        return InThread(self._threads, run)

    def close(self) -> None:
        self._threads.close()


class InThread:
    """A blocking call in a thread, which cannot be stopped. Its message raises `LeaseLost` when it is next used."""

    has_cleanup = False
    begun: "asyncio.Future[None] | None" = None

    def __init__(self, threads: Threads, call: Callable[[], HandlerFault | None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[HandlerFault | None] = self._loop.create_future()
        self._call = call
        # The thread's identity once it runs, for the stack trace in the log if it does not end.
        self.thread_id: int | None = None
        threads.submit(self._run)

    def interrupt(self, reason: Exception) -> None:
        pass

    def _run(self) -> None:
        self.thread_id = threading.get_ident()
        try:
            fault = self._call()
        except BaseException as error:
            fault = fault_of(error)
        with suppress(RuntimeError):  # the loop is closed: the worker has stopped without waiting for this thread
            self._loop.call_soon_threadsafe(self._end, fault)

    def _end(self, fault: HandlerFault | None) -> None:
        self.ended.set_result(fault)


class StuckThreads:
    """The threads of one handler that run past their timeout."""

    def __init__(self, handler: Handler, stop: WorkerStop) -> None:
        self._name = handler.name
        self._ref = handler.options.ref
        self._max_count = handler.options.max_stuck_threads
        self._stop = stop
        self.count = 0

    def add(self, work: Work, running: InThread) -> bool:
        """Count a thread until it ends. Return whether its slot may be used by another message meanwhile.

        Above `max_stuck_threads` return False and stop the worker, because further threads would only get stuck too.
        """
        self.count += 1
        running.ended.add_done_callback(lambda _: self._end(work))
        is_replaced = self.count <= self._max_count
        log.warning(
            "handler_still_running handler=%s interruption=%r stuck_threads=%d allowed=%d: %s\n%s",
            self._name,
            "" if work.interruption is None else work.interruption.text,
            self.count,
            self._max_count,
            "Check message.is_lost in a plain `def`, or use process=True",
            _stack_of(running),
            extra=work.facts(),
        )
        if not is_replaced:
            self._stop.fail(
                WorkerStuck(
                    f"the worker has stopped because {self.count} threads of {self._name} ({self._ref}) run past their "
                    f"timeout and max_stuck_threads is {self._max_count}; a thread cannot be killed, so start the "
                    "worker again in a new process",
                    handler=self._name,
                    queue=str(self._ref),
                    stuck_threads=self.count,
                )
            )
        return is_replaced

    def _end(self, work: Work) -> None:
        self.count -= 1
        log.info("stuck_thread_ended handler=%s remaining=%d", self._name, self.count, extra=work.facts())


def _stack_of(running: InThread) -> str:
    frame = sys._current_frames().get(running.thread_id or 0)
    return "" if frame is None else "".join(traceback.format_stack(frame))[-8_192:].rstrip()
