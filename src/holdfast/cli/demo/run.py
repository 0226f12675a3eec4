"""The sequence of the demo: start, kill a worker, let the queues become empty, audit."""

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
from holdfast.cli.demo.workers import DemoHeldMessage, DemoWorker, DemoWorkers, is_delivered_again, start_workers
from holdfast.clock import SystemClock
from holdfast.model.extras import has_extra
from holdfast.runtime import LoopRuntime, Runtime, sleep_until
from holdfast.signals import LoopSignals

# How long the queues may take to become empty, beyond the requested duration.
_MAX_EXTRA_S = 60.0
_TICK_MS = 250


async def run(path: Path, view: View, *, seconds: float, seed: int, is_one_process: bool) -> Audit:
    """Run the demo in a new store at `path`, and return its audit. Ctrl-C ends it early."""
    if not is_one_process and not has_extra("server"):
        is_one_process = True
        view.say("without the server extra, the workers are tasks of this process, and the death of one is simulated")
    with view.show(), _no_log_of_failures(), _interrupts() as interrupted:
        runtime = LoopRuntime(SystemClock())
        async with holdfast.open_async(str(path)) as hf:
            await set_policies(hf)
            try:
                async with (
                    asyncio.TaskGroup() as tasks,
                    start_workers(hf, tasks, runtime, is_one_process=is_one_process) as workers,
                ):
                    producers = Producers(hf, seed, runtime)
                    await producers.start(tasks)
                    view.begin(hf, workers, producers.accepted)
                    await _Scenario(hf, workers, producers, view, runtime).run(seconds, interrupted)
                    await producers.stop()
                    await workers.stop()
                    await view.refresh()
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
            return await audit(hf, producers.accepted, workers.all, is_interrupted=interrupted.is_set())


class _Scenario:
    """The timetable: produce for two thirds of the time, kill a worker, and wait until the queues are empty."""

    def __init__(
        self, hf: holdfast.AsyncHoldfast, workers: DemoWorkers, producers: Producers, view: View, runtime: Runtime
    ) -> None:
        self._hf = hf
        self._workers = workers
        self._runtime = runtime
        self._producers = producers
        self._view = view
        self._killed: DemoWorker | None = None
        # Messages that the killed worker held, and that have not been claimed since.
        self._missing: list[DemoHeldMessage] = []
        self._is_stopped = False

    async def run(self, seconds: float, interrupted: asyncio.Event) -> None:
        while not interrupted.is_set():
            await sleep_until(self._runtime, self._runtime.clock.now_ms() + _TICK_MS)
            await self._view.refresh()
            self._workers.check()
            elapsed = self._view.elapsed()
            if self._killed is None and elapsed >= 0.3 * seconds:
                await self._kill()
            await self._look_for_missing()
            if not self._is_stopped and elapsed >= 0.65 * seconds:
                self._is_stopped = True
                await self._producers.stop()
                self._view.say("the producers have stopped: the queues become empty")
            if self._is_stopped and (self._view.is_empty or elapsed >= seconds + _MAX_EXTRA_S):
                return
        self._view.say("interrupted: the workers finish the messages that they hold")

    async def _kill(self) -> None:
        self._killed = await self._workers.kill_one()
        self._missing = list(self._killed.held_at_death or ())
        how = (
            "dies (simulated)" if self._workers.is_simulated else f"(process {self._killed.pid}) is killed with SIGKILL"
        )
        self._view.say(
            f"{self._killed.name} {how} in the middle of {len(self._missing)} messages: "
            f"their leases expire within {LEASE_S:g} s"
        )

    async def _look_for_missing(self) -> None:
        if self._killed is None or not self._missing:
            return
        self._missing = [each for each in self._missing if not await is_delivered_again(self._hf, each)]
        if not self._missing:
            count = len(self._killed.held_at_death or ())
            self._view.say(f"all {count} messages of {self._killed.name} were delivered again, to the other workers")


@contextmanager
def _no_log_of_failures() -> Iterator[None]:
    """Log only errors: failures of handlers are intended, and the view counts them."""
    log = logging.getLogger("holdfast")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _interrupts() -> Iterator[asyncio.Event]:
    """Yield an event that the first Ctrl-C sets. A second Ctrl-C raises KeyboardInterrupt."""
    loop, interrupted = asyncio.get_running_loop(), asyncio.Event()
    signals = LoopSignals(loop)

    def interrupt() -> None:
        interrupted.set()
        # Restores Python's own handler, which raises KeyboardInterrupt.
        loop.remove_signal_handler(signal.SIGINT)

    signals.handle(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        signals.restore()
