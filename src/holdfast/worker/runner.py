"""Run a worker: start its consumers, and stop them in order."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from holdfast.client.blocking import Holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.missing import describe_missing
from holdfast.clock import Alarm, Clock
from holdfast.dice import Dice
from holdfast.model.rules.retry import backoff_ms
from holdfast.runtime import LoopRuntime
from holdfast.signals import LoopSignals
from holdfast.worker.connection import ThreadWorkerConnection, WorkerConnection, connect_to
from holdfast.worker.consumer import Consumer
from holdfast.worker.context import ConsumerContext, Hooks, Reachability, WorkerStop, first_of, log
from holdfast.worker.handlers import Handler
from holdfast.worker.queue_numbers import QueueFields
from holdfast.worker.verdict_sender import TROUBLE

# The time after the grace in which handlers can clean up and their messages are given back.
GIVE_BACK_MS = 10_000
HURRIED_GIVE_BACK_MS = 3_000
# The time that cancelled tasks have to end when the worker's own event loop is closed.
LEFT_BEHIND_S = 1.0

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Runner:
    """One run of a worker. Create it in the event loop in which the worker runs."""

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
        """Return the number of messages that are being handled."""
        return sum(consumer.in_hand for consumer in self.consumers)

    async def serve(self) -> None:
        """Handle messages until `stop` is requested and all messages in hand are finished or given back."""
        runtime = LoopRuntime(self._clock, self._clock if isinstance(self._clock, Alarm) else None)
        reachability = Reachability(self._clock, self._where if isinstance(self._where, str) else "the server")
        async with self._connected(runtime, reachability) as connection:
            if connection is None:
                return  # told to stop before it could connect
            self.client = connection.client
            context = ConsumerContext(
                self._owner, connection, runtime, self._dice, self._hooks, reachability, self.stop
            )
            self.consumers = [Consumer(handler, context) for handler in self._handlers]
            await self._check_imports()
            await self._hooks.call("on_start", self._worker)
            try:
                await self._consume(connection)
                await self._drain(runtime)
            finally:
                for consumer in self.consumers:
                    consumer.close()
                await self._hooks.notify("on_stop", self._worker)
                self.client = None
        if self.stop.error is not None:
            raise self.stop.error

    async def _check_imports(self) -> None:
        """Raise `InvalidArgument` if a handler with `process="auto"` cannot be imported by its process."""
        checks = await asyncio.gather(*(each.check_import() for each in self.consumers), return_exceptions=True)
        for error in checks:
            if error is not None:
                for consumer in self.consumers:
                    consumer.close()
                raise error

    async def _consume(self, connection: WorkerConnection) -> None:
        log.info(
            "worker_started owner=%s queues=%s",
            self._owner,
            ", ".join(str(each.options.ref) for each in self._handlers),
        )
        async with asyncio.TaskGroup() as loops:
            for consumer in self.consumers:
                loops.create_task(consumer.keep_running())
            # Concurrent with the claims, so that a slow check does not delay them.
            check = loops.create_task(
                warn_of_missing_queues(connection, [each.queue_fields for each in self.consumers])
            )
            self.started.set_result(None)
            await asyncio.wait({self.stop.requested})
            check.cancel()
            for consumer in self.consumers:
                consumer.stop_claiming()

    async def _drain(self, runtime: LoopRuntime) -> None:
        idle = asyncio.ensure_future(self._until_idle())
        try:
            log.info("worker_stopping owner=%s messages=%d", self._owner, self.in_hand)
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
                    "worker_ended_early owner=%s messages=%d: their leases will expire", self._owner, self.in_hand
                )
        finally:
            idle.cancel()
        log.info("worker_stopped owner=%s", self._owner)

    async def _until_idle(self) -> None:
        for consumer in self.consumers:
            await consumer.until_idle()

    # --- Connecting --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _connected(
        self, runtime: LoopRuntime, reachability: Reachability
    ) -> AsyncIterator[WorkerConnection | None]:
        """Connect for the duration of this context. A client that was given open is not closed.

        Yield None if the worker was told to stop before it could connect.
        """
        if isinstance(self._where, Holdfast):
            # Each consumer's claim occupies a thread while it waits, and verdicts and heartbeats must not wait for one.
            connection = ThreadWorkerConnection(self._where, threads=2 * len(self._handlers) + 8)
            try:
                yield connection
            finally:
                connection.close()
            return
        client = self._open_url(self._where) if isinstance(self._where, str) else self._where
        if client._transport is not None:
            yield connect_to(client)
            return
        if not await self._connect(client, runtime, reachability):
            yield None
            return
        try:
            yield connect_to(client)
        finally:
            await client.close()

    async def _connect(self, client: AsyncHoldfast, runtime: LoopRuntime, reachability: Reachability) -> bool:
        """Connect, and retry while the server is unreachable. Return False if the worker is told to stop first.

        Raise the error if the server refuses.
        """
        failed = 0
        while not self.stop.is_requested:
            try:
                await client.__aenter__()
            except TROUBLE as error:
                reachability.lose(error)
                delay_ms = 1 + backoff_ms(failed, Reachability.BASE_MS, Reachability.CAP_MS, self._dice.roll())
                failed += 1
                await first_of(runtime, [self.stop.requested], delay_ms)
            else:
                reachability.regain()
                return True
        return False


def run_on_new_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine like `asyncio.run`, but wait at most `LEFT_BEHIND_S` for tasks that ignore their cancellation."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(work)
    finally:
        try:
            remaining = asyncio.all_tasks(loop)
            for task in remaining:
                task.cancel()
            if remaining:
                loop.run_until_complete(asyncio.wait(remaining, timeout=LEFT_BEHIND_S))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


@contextmanager
def stopping_on_signals(runner: Callable[[], Runner | None]) -> Iterator[None]:
    """Stop the worker on SIGTERM or SIGINT: with grace on the first signal, at once on the second.

    Do nothing outside the main thread, which alone receives signals.
    """
    signals = LoopSignals(asyncio.get_running_loop())

    def on_signal(which: signal.Signals) -> None:
        if (running := runner()) is None:
            return
        is_second = running.stop.is_requested and running.stop.error is None
        # After `error`, `holdfast worker` would start the worker again. A signal means that it must end for good.
        running.stop.error = None
        log.info(
            "signal_received signal=%s: %s",
            which.name,
            "giving back all messages in hand"
            if is_second
            else "finishing the messages in hand; a second signal gives them back at once",
        )
        running.stop.request(now=is_second)

    try:
        for which in SIGNALS:
            signals.handle(which, on_signal, which)
    except (NotImplementedError, RuntimeError, ValueError):
        pass  # not the main thread, or a platform without signals: the program has to call `stop()` itself
    try:
        yield
    finally:
        signals.restore()


async def warn_of_missing_queues(connection: WorkerConnection, queues: Iterable[QueueFields]) -> None:
    """Read the numbers of the queues, and log a warning for each queue that does not exist.

    Errors are only logged: they must not end the worker.
    """
    try:
        for queue in queues:
            if await queue.read():
                continue
            text = await describe_missing(connection.client._connected(), queue.ref, is_waiting=True)
            if text is not None:
                log.warning("queue_missing: %s", text, extra=queue.ref._asdict())
    except Exception:
        log.warning("queues_not_checked", exc_info=True)
