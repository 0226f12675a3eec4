"""Run handlers: the protocol of all runners, and the runners on the event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from holdfast.client.blocking import BlockingDriver, BlockingMessage
from holdfast.model.errors import InvalidArgument
from holdfast.worker.execution.tracing import following
from holdfast.worker.handlers import Handler
from holdfast.worker.outcomes import HandlerFault, LeaseLost, fault_of
from holdfast.worker.work import Work


class RunningHandler(Protocol):
    """A running handler. The result of `ended` is None if it succeeded. `ended` is never cancelled and never raises."""

    @property
    def ended(self) -> "asyncio.Future[HandlerFault | None]": ...

    @property
    def begun(self) -> "asyncio.Future[None] | None":
        """Return a future that is done once the handler has started, or None if it starts at once."""

    @property
    def has_cleanup(self) -> bool:
        """Return whether the handler ends soon after it is told to stop, so that waiting for it is worthwhile."""

    def interrupt(self, reason: Exception) -> None:
        """Tell the handler to stop."""


class HandlerRunner(Protocol):
    """A way to run handlers."""

    @property
    def is_ready(self) -> bool:
        """Return whether a handler can start at once."""

    async def prepare(self, handler: Handler) -> None:
        """Prepare to start a handler, before its message is claimed. Raise `HandlerDied` if that fails."""

    def start(self, handler: Handler, work: Work, payload: Any) -> RunningHandler:
        """Start a handler for a message."""

    def close(self) -> None:
        """End idle threads and processes."""


class AlwaysReady:
    """A runner that needs no preparation."""

    is_ready = True

    async def prepare(self, handler: Handler) -> None:
        """Do nothing."""


class LoopRunner(AlwaysReady):
    """The runner of async functions on the worker's event loop."""

    def start(self, handler: Handler, work: Work, payload: Any) -> RunningHandler:
        return _OnLoop(handler, work, payload)

    def close(self) -> None:
        pass


class _OnLoop:
    has_cleanup = True
    begun: "asyncio.Future[None] | None" = None

    def __init__(self, handler: Handler, work: Work, payload: Any) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[HandlerFault | None] = loop.create_future()
        self._task = loop.create_task(self._run(handler, work, payload), name=f"holdfast {handler.name}")
        self._task.add_done_callback(self._done)

    def interrupt(self, reason: Exception) -> None:
        self._task.cancel(reason)

    async def _run(self, handler: Handler, work: Work, payload: Any) -> HandlerFault | None:
        # Catches every error, even SystemExit, because a handler must not end the worker's event loop.
        try:
            with following(work.message):
                await handler.signature.call(handler.function, payload, work.message)
        except BaseException as error:
            return fault_of(error)
        return None

    def _done(self, task: "asyncio.Task[HandlerFault | None]") -> None:
        # A task that is cancelled before its first step ends as cancelled, because `_run` could not catch it.
        self.ended.set_result(fault_of(asyncio.CancelledError()) if task.cancelled() else task.result())


class InlineRunner(AlwaysReady):
    """The runner of plain functions in tests: it calls them, and the methods of their messages, on the event loop."""

    def __init__(self, driver: BlockingDriver) -> None:
        self._driver = driver

    def start(self, handler: Handler, work: Work, payload: Any) -> RunningHandler:
        message = BlockingMessage(work.message, self._driver)

        async def call(payload: Any, _: Any) -> None:
            handler.signature.call(handler.function, payload, message)

        return _OnLoop(handler._replace(function=call, signature=_BOTH), work, payload)

    def close(self) -> None:
        pass


class _Both:
    """A signature that passes both the payload and the message."""

    def call(self, function: Callable[..., Any], payload: Any, message: Any) -> Any:
        """Call a function with both."""
        return function(payload, message)


_BOTH: Any = _Both()


def make_blocking_run(loop: asyncio.AbstractEventLoop) -> Any:
    """Return a function that runs a coroutine on `loop` and blocks the calling thread until it is done."""

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        if loop.is_closed():
            work.close()
            raise LeaseLost("the worker has stopped, and gave the message back")
        if asyncio._get_running_loop() is loop:
            work.close()
            raise InvalidArgument("a blocking call on the event loop would deadlock; use the async API there")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    return run
