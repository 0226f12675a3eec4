"""Run calls as tasks: all except those of hot routes that never need a task."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any

from holdfast.doors.http.connections.asgi import Asgi
from holdfast.doors.http.connections.exchange import Exchange
from holdfast.doors.sockets.steps import RemainingSteps

_log = logging.getLogger("holdfast")


class CallTasks:
    """The owner of the call tasks of all connections of a server."""

    def __init__(self, app: Asgi, loop: asyncio.AbstractEventLoop) -> None:
        self._app = app
        self._loop = loop
        self.running: set[asyncio.Task[None]] = set()

    def start(self, exchange: Exchange) -> None:
        """Run the application for a request."""
        scope, receive, send = exchange.events()
        self._own(self._run_app(exchange, self._app(scope, receive, send)))

    def go_on(self, exchange: Exchange, rest: RemainingSteps[None]) -> None:
        """Continue, as a task, a call that began without one and turned out to need it."""
        self._own(self._run_rest(exchange, rest))

    def _own(self, call: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(call)
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def _run_app(self, exchange: Exchange, work: Awaitable[None]) -> None:
        connection = exchange.connection
        try:
            await _finish(exchange, work)
        except Exception as error:
            if exchange.has_begun:
                connection.break_off(exchange, error)
            else:
                _log.error("call_failed", exc_info=error)
                exchange.keep_alive = False
                if not exchange.answer(500, [(b"content-type", b"text/plain")], b"Internal Server Error"):
                    connection.close_after_response()

    async def _run_rest(self, exchange: Exchange, rest: RemainingSteps[None]) -> None:
        try:
            await _finish(exchange, rest)
        except Exception as error:
            exchange.connection.break_off(exchange, error)


async def _finish(exchange: Exchange, work: Awaitable[None]) -> None:
    try:
        await work
        exchange.check_answered()
    except asyncio.CancelledError:
        exchange.transport.abort()
        raise
    finally:
        exchange.forget_events()
