"""Handler threads that outlive their timeout: counted, logged with their stacks, and bounded in number."""

import sys
import traceback

import msgspec

from holdfast.model.names import QueueRef
from holdfast.worker.consuming.waiting import WorkerStop, log
from holdfast.worker.exceptions import WorkerStuck
from holdfast.worker.execution.function_runners import InThread
from holdfast.worker.handlers import Handler
from holdfast.worker.work import Work


class HandlerStats(msgspec.Struct, frozen=True, kw_only=True):
    """The current figures of one handler of a running worker."""

    ref: QueueRef
    # Messages that its handler is working on, and how many more could be claimed now.
    in_hand: int
    free: int
    # Threads that run on past their timeout, and how many there may be before the worker stops.
    stuck_threads: int
    max_stuck_threads: int


class StuckThreads:
    """The threads of one handler that were told to stop and did not."""

    def __init__(self, handler: Handler, stop: WorkerStop) -> None:
        self._name = handler.name
        self._ref = handler.options.ref
        self._most = handler.options.max_stuck_threads
        self._stop = stop
        self.count = 0

    def add(self, work: Work, running: InThread) -> bool:
        """Count a thread until it ends. Return whether another may take its slot meanwhile.

        Beyond the bound no slot is replaced and the worker is told to stop: more threads would only get stuck too.
        """
        self.count += 1
        running.ended.add_done_callback(lambda _: self._end(work))
        is_replaced = self.count <= self._most
        log.warning(
            "%s goes on although it was told to stop (%s); %d of its threads are stuck, %d are allowed. %s\n%s",
            self._name,
            "" if work.interruption is None else work.interruption.text,
            self.count,
            self._most,
            "Look at message.is_lost in a plain `def`, or use process=True",
            _stack_of(running),
            extra=work.facts(),
        )
        if not is_replaced:
            self._stop.fail(
                WorkerStuck(
                    f"{self.count} threads of {self._name} ({self._ref}) run on past their timeout, and "
                    f"max_stuck_threads allows {self._most}: the worker has stopped. A thread cannot be killed, so "
                    "start the worker again in a new process",
                    handler=self._name,
                    queue=str(self._ref),
                    stuck_threads=self.count,
                )
            )
        return is_replaced

    def _end(self, work: Work) -> None:
        self.count -= 1
        log.info("%s: a stuck thread has ended; %d remain", self._name, self.count, extra=work.facts())


def _stack_of(running: InThread) -> str:
    frame = sys._current_frames().get(running.thread_id or 0)
    return "" if frame is None else "".join(traceback.format_stack(frame))[-8_192:].rstrip()
