"""Calls to a server over Cap'n Proto: one try each, over a connection that carries many."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.client.capnp.link import CapnpClientConnection
from holdfast.client.capnp.links import CapnpClientConnections
from holdfast.client.remote.calls import GONE_S, LEAVE_S, Calls
from holdfast.client.remote.lost import Lost, lost_error
from holdfast.client.remote.settings import RemoteSettings
from holdfast.client.remote.tasks import LoopTasks
from holdfast.client.remote.tries import Failure, Tries
from holdfast.model.errors import HoldfastError, RateLimited, StoreUnavailable
from holdfast.wire.capnp.schema import read_error

# An upload that is lost on its way begins again at most so often.
_UPLOADS = 3

Heard = Callable[[Any], Awaitable[None]]


class CapnpRequest(msgspec.Struct):
    method: str
    fill: Callable[[Any], None]
    is_repeatable: bool = True
    # Answered when it is done, however long that takes.
    is_long: bool = False
    # On top of the timeout.
    wait_ms: int | None = 0
    # Several callers' messages in one: told to slow down, each asks for itself.
    is_shared: bool = False
    is_last: bool = False
    # Of a poll: given an answer that came after its caller had left.
    heard_late: Heard | None = None


class CapnpCalls(Calls[CapnpRequest, Any]):
    def __init__(self, url: str, settings: RemoteSettings) -> None:
        self._tickets = itertools.count(1)
        super().__init__(url, settings, LoopTasks)

    def begin(self) -> None:
        super().begin()
        self.links = CapnpClientConnections(self.url, self.settings)

    def forked(self) -> None:
        """The library would end the parent's calls as it frees its connections: they are kept."""
        self._inherited.append(self.links)
        super().forked()

    def error_in(self, answer: Any) -> HoldfastError | None:
        return read_error(answer.error) if answer._has("error") else None

    def failure_in(self, request: CapnpRequest, answer: Any, tries: Callable[[], Tries]) -> Failure | None:
        error = self.error_in(answer)
        if not isinstance(error, RateLimited | StoreUnavailable):
            return None
        if request.is_shared and isinstance(error, RateLimited):
            return None  # waiting is each caller's own
        self._standing.was_answered = True
        wait_ms = error.facts.get("retry_after_ms")
        return tries().refused(
            error,
            at_least_ms=wait_ms if isinstance(wait_ms, int) else None,
            is_undone=isinstance(error, RateLimited) or error.facts.get("closing") is True,
        )

    # --- One try ---------------------------------------------------------------------------------------------------

    async def attempt(self, request: CapnpRequest) -> Any:
        link = self.links.choose()
        link.under_way += 1
        try:
            return await self._attempt_over(link, request)
        finally:
            link.under_way -= 1

    async def _attempt_over(self, link: CapnpClientConnection, request: CapnpRequest) -> Any:
        queues = await link.queues()
        sent = getattr(queues, f"{request.method}_request")()
        ticket = 0
        if request.heard_late is not None:
            ticket = sent.ticket = next(self._tickets)
        request.fill(sent)
        promise = sent.send()
        limit_s = None if request.is_long or request.wait_ms is None else self.timeout_s + request.wait_ms / 1_000
        if request.heard_late is None:
            return await link.answer(promise, limit_s)
        answer = asyncio.ensure_future(link.answer(promise, limit_s))
        return await _Poll(self, link, queues, ticket, answer, request.heard_late).wait()

    # --- Calls that go out bit by bit ------------------------------------------------------------------------------

    async def answer(self, link: CapnpClientConnection, promise: Any) -> Any:
        """Return the answer of one try. Raise `Lost`, or the server's error."""
        answer = await link.answer(promise, self.timeout_s)
        self._standing.was_answered = True
        if (error := self.error_in(answer)) is not None:
            raise error
        return answer

    @property
    def most_tries(self) -> int:
        return min(self.settings.retries, _UPLOADS)

    def lost(self, lost: Lost, *, is_whole: bool, is_repeatable: bool) -> StoreUnavailable:
        return lost_error(
            self.url,
            lost,
            is_repeatable=is_repeatable,
            was_answered=self._standing.was_answered,
            is_unsure=is_whole,
            is_cut=not is_whole,
        )

    async def disconnect(self) -> None:
        await self.links.close()


class _Poll:
    """A poll that may be left: then its answer is heard out, and what is in it given back."""

    def __init__(
        self,
        calls: CapnpCalls,
        link: CapnpClientConnection,
        queues: Any,
        ticket: int,
        answer: "asyncio.Future[Any]",
        heard: Heard,
    ) -> None:
        self._calls = calls
        self._link = link
        self._queues = queues
        self._ticket = ticket
        self._answer = answer
        self._heard = heard
        self._is_left = False

    async def wait(self) -> Any:
        calls = self._calls
        calls.hold(self._ticket, self._leave)
        try:
            told = await asyncio.shield(self._answer)
            if self._is_left:  # by closing: what there is in the answer goes back
                raise Lost("this client is closed", was_sent=False)
            return told
        except asyncio.CancelledError:
            if calls.release(self._ticket) is not None:
                # A cancelled claim ends when the server has let go of it, as it would embedded; without that, soon.
                await calls.tasks.see_off(self._leave(), GONE_S)
            raise
        finally:
            calls.release(self._ticket)

    async def _leave(self) -> None:
        self._is_left = True
        self._calls.release(self._ticket)
        try:
            await self._link.answer(self._queues.leave(ticket=self._ticket), LEAVE_S)
            late = await asyncio.wait_for(self._answer, LEAVE_S)
        except (Lost, TimeoutError, asyncio.CancelledError):
            return  # with its connection the server gives back by itself
        if not late._has("error"):
            await self._heard(late)
