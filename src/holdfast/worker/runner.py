"""A worker at work: the order in which it starts, and in which it stops."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from holdfast.client.blocking import Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.clock import Alarm, Clock
from holdfast.dice import Dice
from holdfast.model.rules.retry import backoff_ms
from holdfast.runtime import LoopRuntime
from holdfast.signals import LoopSignals
from holdfast.worker.consuming.connection import ThreadWorkerConnection, WorkerConnection, link_of
from holdfast.worker.consuming.consumer import Consumer
from holdfast.worker.consuming.crew import ConsumerContext
from holdfast.worker.consuming.missing_queues import warn_of_missing
from holdfast.worker.consuming.verdict_sender import TROUBLE
from holdfast.worker.consuming.waiting import Reach, WorkerStop, first_of, log
from holdfast.worker.handlers import Handler
from holdfast.worker.hooks import Hooks

# After the grace: for handlers to clean up, and for what they held to be given back.
GIVE_BACK_MS = 10_000
HURRIED_GIVE_BACK_MS = 3_000
LEFT_BEHIND_S = 1.0

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Runner:
    """Made for one run, inside the loop it runs on."""

    def __init__(
        self,
        worker: Any,
        handlers: Sequence[Handler],
        where: str | AsyncHoldfast | Holdfast,
        open_url: Callable[[str], AsyncHoldfast],
        *,
        owner: str,
        grace_ms: int,
        hooks: Hooks,
        clock: Clock,
        dice: Dice,
    ) -> None:
        self._worker = worker
        self._handlers = handlers
        self._where = where
        self._open_url = open_url
        self._owner = owner
        self._grace_ms = grace_ms
        self._hooks = hooks
        self._clock = clock
        self._dice = dice
        self.stop = WorkerStop()
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.client: AsyncHoldfast | None = None
        self.consumers: list[Consumer] = []

    @property
    def in_hand(self) -> int:
        return sum(consumer.in_hand for consumer in self.consumers)

    async def serve(self) -> None:
        """Until `stop` is asked for, and what is in hand is finished or given back."""
        runtime = LoopRuntime(self._clock, self._clock if isinstance(self._clock, Alarm) else None)
        reach = Reach(self._clock, self._where if isinstance(self._where, str) else "the server")
        async with self._connected(runtime, reach) as link:
            if link is None:
                return  # stopped before there was anything to connect to
            self.client = link.client
            crew = ConsumerContext(self._owner, link, runtime, self._dice, self._hooks, reach, self.stop)
            self.consumers = [Consumer(handler, crew) for handler in self._handlers]
            await self._hooks.call("on_start", self._worker)
            try:
                await self._consume(link)
                await self._drain(runtime)
            finally:
                for consumer in self.consumers:
                    consumer.close()
                await self._hooks.tell("on_stop", self._worker)
                self.client = None
        if self.stop.error is not None:
            raise self.stop.error

    async def _consume(self, link: WorkerConnection) -> None:
        log.info("worker %s started: %s", self._owner, ", ".join(str(each.options.ref) for each in self._handlers))
        async with asyncio.TaskGroup() as loops:
            for consumer in self.consumers:
                loops.create_task(consumer.keep_running())
            # Beside the claims: a look that takes its time delays nothing.
            looking = loops.create_task(warn_of_missing(link, [each.options.ref for each in self._handlers]))
            self.started.set_result(None)
            await asyncio.wait({self.stop.asked})
            looking.cancel()
            for consumer in self.consumers:
                consumer.stop_claiming()

    async def _drain(self, runtime: LoopRuntime) -> None:
        idle = asyncio.ensure_future(self._until_idle())
        try:
            log.info("worker %s stops, with %d messages in hand", self._owner, self.in_hand)
            await first_of(runtime, [idle, self.stop.hurried], self._grace_ms)
            for consumer in self.consumers:
                consumer.interrupt_all()
            is_hurried = self.stop.hurried.done()
            await first_of(runtime, [idle], HURRIED_GIVE_BACK_MS if is_hurried else GIVE_BACK_MS)
            for consumer in self.consumers:
                consumer.give_up()
            await first_of(runtime, [idle], HURRIED_GIVE_BACK_MS)
            if idle.done():
                await runtime.aclose()
            else:
                log.error(
                    "worker %s leaves with %d messages in hand: their leases will run out", self._owner, self.in_hand
                )
        finally:
            idle.cancel()
        log.info("worker %s stopped", self._owner)

    async def _until_idle(self) -> None:
        for consumer in self.consumers:
            await consumer.until_idle()

    # --- Connecting --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _connected(self, runtime: LoopRuntime, reach: Reach) -> AsyncIterator[WorkerConnection | None]:
        """What was given open stays open; what the worker opens it closes."""
        if isinstance(self._where, Holdfast):
            # Each consumer's claim holds a thread while it waits; verdicts and heartbeats must not wait for one.
            link = ThreadWorkerConnection(self._where, threads=2 * len(self._handlers) + 8)
            try:
                yield link
            finally:
                link.close()
            return
        client = self._open_url(self._where) if isinstance(self._where, str) else self._where
        if client._transport is not None:
            yield link_of(client)
            return
        if not await self._connect(client, runtime, reach):
            yield None
            return
        try:
            yield link_of(client)
        finally:
            await client.close()

    async def _connect(self, client: AsyncHoldfast, runtime: LoopRuntime, reach: Reach) -> bool:
        """Whether it is connected. A server that is not up yet is waited for; a refusal goes to the caller."""
        failed = 0
        while not self.stop.is_asked:
            try:
                await client.__aenter__()
            except TROUBLE as error:
                reach.lose(error)
                delay_ms = 1 + backoff_ms(failed, Reach.BASE_MS, Reach.CAP_MS, self._dice.roll())
                failed += 1
                await first_of(runtime, [self.stop.asked], delay_ms)
            else:
                reach.regain()
                return True
        return False


def run_on_new_loop(work: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run`, but at its end a handler that swallows its cancellation is not waited for."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(work)
    finally:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=LEFT_BEHIND_S))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


@contextmanager
def stopping_on_signals(runner: Callable[[], Runner | None]) -> Iterator[None]:
    """The first signal stops the worker with grace, the second at once. Only a main thread gets signals."""
    signals = LoopSignals(asyncio.get_running_loop())

    def on_signal(which: signal.Signals) -> None:
        if (running := runner()) is None:
            return
        is_second = running.stop.is_asked and running.stop.error is None
        # A worker that stopped by itself was about to start again; a signal means that it is to end.
        running.stop.error = None
        log.info(
            "%s: %s",
            which.name,
            "giving everything back" if is_second else "finishing what is in hand; once more gives it back at once",
        )
        running.stop.ask(now=is_second)

    try:
        for which in SIGNALS:
            signals.handle(which, on_signal, which)
    except (NotImplementedError, RuntimeError, ValueError):
        pass  # not the main thread, or a platform without signals: the program has to call `stop()`
    try:
        yield
    finally:
        signals.restore()
