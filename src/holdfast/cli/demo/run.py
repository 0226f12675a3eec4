"""The course of the demo: begin, kill a worker, let the queues run empty, audit."""

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import holdfast
from holdfast.cli.demo.audit import Audit, audit
from holdfast.cli.demo.producers import LEASE_S, Producers, set_policies
from holdfast.cli.demo.view import View
from holdfast.cli.demo.workers import DemoHeldMessage, DemoWorkers, Seat, crew_of, is_delivered_again
from holdfast.model.extras import has_extra
from holdfast.signals import LoopSignals

# How long the queues may take to run empty once nothing comes in any more, over the time asked for.
_PATIENCE_S = 60.0
_TICK_S = 0.25


async def run(path: Path, view: View, *, seconds: float, seed: int, is_one_process: bool) -> Audit:
    if not is_one_process and not has_extra("server"):
        is_one_process = True
        view.say("without the server extra the workers are tasks of this process, and the death of one is simulated")
    with view.shown(), _no_log_of_failures(), _interrupts() as interrupted:
        async with holdfast.open_async(str(path)) as hf:
            await set_policies(hf)
            try:
                async with asyncio.TaskGroup() as tasks, crew_of(hf, tasks, is_one_process=is_one_process) as crew:
                    producers = Producers(hf, seed)
                    await producers.start(tasks)
                    view.begin(hf, crew, producers.accepted)
                    await _Course(hf, crew, producers, view).run(seconds, interrupted)
                    await producers.stop()
                    await crew.stop()
                    await view.refresh()
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
            return await audit(hf, producers.accepted, crew.seats, is_interrupted=interrupted.is_set())


class _Course:
    """What happens when: messages flow for two thirds of the time; the rest is for what is still under way."""

    def __init__(self, hf: holdfast.AsyncHoldfast, crew: DemoWorkers, producers: Producers, view: View) -> None:
        self._hf = hf
        self._crew = crew
        self._producers = producers
        self._view = view
        self._seat: Seat | None = None
        # What the killed worker held and nobody has claimed since.
        self._missing: list[DemoHeldMessage] = []
        self._is_stopped = False

    async def run(self, seconds: float, interrupted: asyncio.Event) -> None:
        while not interrupted.is_set():
            await asyncio.sleep(_TICK_S)
            await self._view.refresh()
            self._crew.check()
            elapsed = self._view.elapsed()
            if self._seat is None and elapsed >= 0.3 * seconds:
                await self._kill()
            await self._look_for_missing()
            if not self._is_stopped and elapsed >= 0.65 * seconds:
                self._is_stopped = True
                await self._producers.stop()
                self._view.say("no more is enqueued: the queues run empty")
            if self._is_stopped and (self._view.is_empty or elapsed >= seconds + _PATIENCE_S):
                return
        self._view.say("interrupted: the workers finish what they hold")

    async def _kill(self) -> None:
        self._seat = await self._crew.kill_one()
        self._missing = list(self._seat.held or ())
        how = "dies (played)" if self._crew.is_played else f"(process {self._seat.pid}) is killed with SIGKILL"
        self._view.say(
            f"{self._seat.name} {how} in the middle of {len(self._missing)} messages: "
            f"their leases run out within {LEASE_S:g} s"
        )

    async def _look_for_missing(self) -> None:
        if self._seat is None or not self._missing:
            return
        self._missing = [each for each in self._missing if not await is_delivered_again(self._hf, each)]
        if not self._missing:
            count = len(self._seat.held or ())
            self._view.say(f"all {count} messages of {self._seat.name} were delivered again, to the other workers")


@contextmanager
def _no_log_of_failures() -> Iterator[None]:
    """They are meant, and the view counts them."""
    log = logging.getLogger("holdfast")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _interrupts() -> Iterator[asyncio.Event]:
    """Ctrl-C ends the demo in order; a second one at once."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    signals = LoopSignals(loop)

    def ask() -> None:
        asked.set()
        # Back to Python's own handler, which raises KeyboardInterrupt.
        loop.remove_signal_handler(signal.SIGINT)

    signals.handle(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signals.restore()
