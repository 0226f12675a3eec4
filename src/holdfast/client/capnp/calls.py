"""Calls to a server over Cap'n Proto. Each try uses one of the connections, each of which carries many calls."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.client.capnp.connection import CapnpClientConnection
from holdfast.client.capnp.connections import CapnpClientConnections
from holdfast.client.remote.calls import CANCEL_S, CANCEL_WAIT_S, Calls
from holdfast.client.remote.lost import Lost, lost_error
from holdfast.client.remote.settings import RemoteSettings
from holdfast.client.remote.tasks import LoopTasks
from holdfast.client.remote.tries import Failure, Tries
from holdfast.model.errors import HoldfastError, RateLimited, StoreUnavailable
from holdfast.wire.capnp.schema import read_error

# How often an upload that was lost on its way begins again.
_UPLOADS = 3

OnLate = Callable[[Any], Awaitable[None]]


class CapnpRequest(msgspec.Struct):
    """A request, and how its call is made. `fill` writes its parameters."""

    method: str
    fill: Callable[[Any], None]
    is_repeatable: bool = True
    # The server responds when the operation is done, however long that takes.
    is_long: bool = False
    # Added to the timeout; None waits for ever.
    wait_ms: int | None = 0
    # The messages of several callers. If it is rate limited, each caller sends its own request.
    is_shared: bool = False
    is_last: bool = False
    # For a claim: called with a response that came after the caller was cancelled.
    on_late: OnLate | None = None


class CapnpCalls(Calls[CapnpRequest, Any]):
    """The calls of one client over Cap'n Proto."""

    def __init__(self, url: str, settings: RemoteSettings) -> None:
        self._tickets = itertools.count(1)
        super().__init__(url, settings, LoopTasks)

    def begin(self) -> None:
        super().begin()
        self.connections = CapnpClientConnections(self.url, self.settings)

    def forked(self) -> None:
        """Keep references to the parent's connections, because the library would end their calls when it frees them."""
        self._inherited.append(self.connections)
        super().forked()

    def error_in(self, response: Any) -> HoldfastError | None:
        return read_error(response.error) if response._has("error") else None

    def failure_in(self, request: CapnpRequest, response: Any, tries: Callable[[], Tries]) -> Failure | None:
        error = self.error_in(response)
        if not isinstance(error, RateLimited | StoreUnavailable):
            return None
        if request.is_shared and isinstance(error, RateLimited):
            return None  # each caller of a shared request waits by itself
        self._retry_state.has_responded = True
        wait_ms = error.facts.get("retry_after_ms")
        return tries().record_refusal(
            error,
            at_least_ms=wait_ms if isinstance(wait_ms, int) else None,
            is_undone=isinstance(error, RateLimited) or error.facts.get("closing") is True,
        )

    # --- One try ---------------------------------------------------------------------------------------------------

    async def try_once(self, request: CapnpRequest) -> Any:
        connection = self.connections.take()
        try:
            return await self._attempt_over(connection, request)
        finally:
            self.connections.give_back(connection)

    async def _attempt_over(self, connection: CapnpClientConnection, request: CapnpRequest) -> Any:
        queues = await connection.queues()
        sent = getattr(queues, f"{request.method}_request")()
        ticket = 0
        if request.on_late is not None:
            ticket = sent.ticket = next(self._tickets)
        request.fill(sent)
        promise = sent.send()
        limit_s = None if request.is_long or request.wait_ms is None else self.timeout_s + request.wait_ms / 1_000
        if request.on_late is None:
            return await connection.await_response(promise, limit_s)
        response = asyncio.ensure_future(connection.await_response(promise, limit_s))
        return await _CancellableClaim(self, connection, queues, ticket, response, request.on_late).wait()

    # --- Uploads -----------------------------------------------------------------------------------------------------

    async def await_response(self, connection: CapnpClientConnection, promise: Any) -> Any:
        """Return the response to one try. Raise `Lost`, or the error of the server."""
        response = await connection.await_response(promise, self.timeout_s)
        self._retry_state.has_responded = True
        if (error := self.error_in(response)) is not None:
            raise error
        return response

    @property
    def max_tries(self) -> int:
        """The largest number of times that an upload begins again."""
        return min(self.settings.retries, _UPLOADS)

    def lost(self, lost: Lost, *, is_whole: bool, is_repeatable: bool) -> StoreUnavailable:
        """Return the error for a lost upload. `is_whole`: all of it was sent."""
        return lost_error(
            self.url,
            lost,
            is_repeatable=is_repeatable,
            has_responded=self._retry_state.has_responded,
            is_unsure=is_whole,
            is_cut=not is_whole,
        )

    async def disconnect(self) -> None:
        await self.connections.close()


class _CancellableClaim:
    """A claim that may be cancelled. Its late response is then read, and its messages are given back."""

    def __init__(
        self,
        calls: CapnpCalls,
        connection: CapnpClientConnection,
        queues: Any,
        ticket: int,
        response: "asyncio.Future[Any]",
        on_late: OnLate,
    ) -> None:
        self._calls = calls
        self._connection = connection
        self._queues = queues
        self._ticket = ticket
        self._response = response
        self._on_late = on_late
        self._is_cancelled = False

    async def wait(self) -> Any:
        calls = self._calls
        calls.track(self._ticket, self._cancel)
        try:
            reply = await asyncio.shield(self._response)
            if self._is_cancelled:  # by `close`, which gives back the messages in the response
                raise Lost("this client is closed", was_sent=False)
            return reply
        except asyncio.CancelledError:
            if calls.untrack(self._ticket) is not None:
                # A cancelled claim ends once the server has released it, as an embedded claim does. Without a response
                # it ends after CANCEL_WAIT_S.
                await calls.tasks.spawn_and_wait(self._cancel(), CANCEL_WAIT_S)
            raise
        finally:
            calls.untrack(self._ticket)

    async def _cancel(self) -> None:
        self._is_cancelled = True
        self._calls.untrack(self._ticket)
        try:
            await self._connection.await_response(self._queues.leave(ticket=self._ticket), CANCEL_S)
            late = await asyncio.wait_for(self._response, CANCEL_S)
        except (Lost, TimeoutError, asyncio.CancelledError):
            return  # the server gives the messages back when the connection ends
        if not late._has("error"):
            await self._on_late(late)
