"""The ways to run a handler: on the event loop, in a thread, in a process."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from holdfast.client.blocking import BlockingDriver, BlockingMessage
from holdfast.model.errors import InvalidArgument
from holdfast.worker.exceptions import LeaseLost
from holdfast.worker.execution.threads import Threads
from holdfast.worker.execution.tracing import following
from holdfast.worker.handlers import Handler
from holdfast.worker.outcome import HandlerFault, fault_of
from holdfast.worker.work import Work


class Running(Protocol):
    """A handler at work. `ended` is None when it succeeded; it is never cancelled, and never raises."""

    @property
    def ended(self) -> "asyncio.Future[HandlerFault | None]": ...

    @property
    def begun(self) -> "asyncio.Future[None] | None":
        """Done when the handler has begun, or ended without beginning; None: it begins at once."""

    @property
    def has_cleanup(self) -> bool:
        """Told to stop, it does so soon: worth waiting for."""

    def interrupt(self, reason: Exception) -> None: ...


class Way(Protocol):
    @property
    def is_ready(self) -> bool:
        """A handler could begin at once."""

    async def prepare(self, handler: Handler) -> None:
        """Get ready for the next message before it is claimed; raise if that fails."""

    def start(self, handler: Handler, work: Work, payload: Any) -> Running: ...

    def close(self) -> None: ...


class _AlwaysReady:
    is_ready = True

    async def prepare(self, handler: Handler) -> None:
        pass


class LoopWay(_AlwaysReady):
    def start(self, handler: Handler, work: Work, payload: Any) -> Running:
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
        # Everything, sys.exit() too: a handler must not take the loop down with it.
        try:
            with following(work.message):
                await handler.signature.call(handler.function, payload, work.message)
        except BaseException as error:
            return fault_of(error)
        return None

    def _done(self, task: "asyncio.Task[HandlerFault | None]") -> None:
        # Cancelled before its first step it has not even begun to catch anything.
        self.ended.set_result(fault_of(asyncio.CancelledError()) if task.cancelled() else task.result())


class ThreadWay(_AlwaysReady):
    def __init__(self, name: str) -> None:
        self._threads = Threads(name)

    def start(self, handler: Handler, work: Work, payload: Any) -> Running:
        loop = asyncio.get_running_loop()
        message = BlockingMessage(work.message, BlockingDriver(runner_on(loop), lambda: None))

        def run() -> HandlerFault | None:
            with following(work.message):
                handler.signature.call(handler.function, payload, message)
            return None

        return InThread(self._threads, run)

    def close(self) -> None:
        self._threads.close()


class InThread:
    """A blocking call in a thread. Nothing can stop it but itself: its message raises `LeaseLost` at the next touch."""

    has_cleanup = False
    begun: "asyncio.Future[None] | None" = None

    def __init__(self, threads: Threads, call: Callable[[], HandlerFault | None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[HandlerFault | None] = self._loop.create_future()
        self._call = call
        # The thread's identity once it runs, for the log if it never ends.
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
        with suppress(RuntimeError):  # the loop is closed: the worker stopped without this one
            self._loop.call_soon_threadsafe(self._end, fault)

    def _end(self, fault: HandlerFault | None) -> None:
        self.ended.set_result(fault)


class InlineWay(_AlwaysReady):
    """For tests: a plain function is called right here, on the loop, and its message's verbs are carried out inline."""

    def __init__(self, driver: BlockingDriver) -> None:
        self._driver = driver

    def start(self, handler: Handler, work: Work, payload: Any) -> Running:
        message = BlockingMessage(work.message, self._driver)

        async def call(payload: Any, _: Any) -> None:
            handler.signature.call(handler.function, payload, message)

        return _OnLoop(handler._replace(function=call, signature=_BOTH), work, payload)

    def close(self) -> None:
        pass


class _Both:
    """A signature that passes on everything."""

    def call(self, function: Callable[..., Any], payload: Any, message: Any) -> Any:
        return function(payload, message)


_BOTH: Any = _Both()


def runner_on(loop: asyncio.AbstractEventLoop) -> Any:
    """What runs a coroutine on the loop for a thread that waits."""

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        if loop.is_closed():
            work.close()
            raise LeaseLost("the worker has stopped, and gave the message back")
        if asyncio._get_running_loop() is loop:
            work.close()
            raise InvalidArgument("this would wait for the event loop on the event loop: use the async API there")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    return run
