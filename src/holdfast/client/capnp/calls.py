"""Calls to a server: sent, repeated where that is safe, and their errors raised."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.client.capnp.link import Link
from holdfast.client.capnp.links import Links
from holdfast.client.http.connection import Lost
from holdfast.client.http.failures import lost_error
from holdfast.client.http.settings import HttpSettings
from holdfast.client.http.tries import Failure, Standing, Tries
from holdfast.client.repeating import Background, repeat, repeat_for_ever
from holdfast.dice import SystemDice
from holdfast.forking import listen_for_forks
from holdfast.model.errors import RateLimited, StoreUnavailable
from holdfast.wire.capnp import read_error

# For the server to let go of a poll that was left, and how long its caller waits for that.
_LEAVE_S = 5.0
_GONE_S = 1.0
# An upload that is lost on its way begins again at most so often.
_UPLOADS = 3

Heard = Callable[[Any], Awaitable[None]]


@dataclass(slots=True)
class Request:
    method: str
    fill: Callable[[Any], None]
    # Carried out twice it does no more than once.
    is_repeatable: bool = True
    # Answered when it is done, however long that takes.
    is_long: bool = False
    # On top of the timeout.
    wait_ms: int | None = 0
    # Several callers' messages in one: told to slow down, each asks for itself.
    is_shared: bool = False
    # Sent by a client that is closing, too.
    is_last: bool = False
    # Of a poll: given an answer that came after its caller had left.
    heard_late: Heard | None = None


@dataclass(slots=True)
class Told:
    """An answer. `is_unsure`: an earlier try of the same call went unanswered, and may have been carried out."""

    answer: Any
    is_unsure: bool


class Calls:
    def __init__(self, url: str, settings: HttpSettings) -> None:
        self.url = url
        self._settings = settings
        self._standing = Standing(url, settings.timeout_ms, settings.retries, SystemDice().roll)
        self._tickets = itertools.count(1)
        self._inherited: list[object] = []
        self.begin()
        listen_for_forks(self)

    def begin(self) -> None:
        """Use the running loop from now on, over connections that are still to be made."""
        self.links = Links(self.url, self._settings)
        self._background = Background()
        # The polls that wait, each with what ends it.
        self._waiting: dict[int, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._standing.is_inherited = False

    def forked(self) -> None:
        """Keep off the parent's connections, and keep them: the library would end their calls as it frees them."""
        self._standing.is_inherited = True
        self._inherited += [self.links, self._background, self._waiting]

    @property
    def is_closed(self) -> bool:
        return self._standing.is_closed

    async def tell(self, request: Request) -> Told:
        tries = Tries(self._standing, is_repeatable=request.is_repeatable)
        answer = await repeat(
            self._standing,
            tries,
            partial(self._try, request),
            partial(self._answered, tries, request),
            is_last=request.is_last,
        )
        return Told(answer, tries.is_unsure)

    async def ask(self, request: Request) -> Any:
        return (await self.tell(request)).answer

    async def ask_for_ever(self, request: Request) -> Any:
        """For those who wait for ever: a server that is gone may come back."""
        return await repeat_for_ever(self._standing, partial(self.ask, request))

    def _answered(self, tries: Tries, request: Request, answer: Any) -> Failure | None:
        """None: that is the answer. An error is raised, unless asking again may help."""
        self._standing.was_answered = True
        if not answer._has("error"):
            return None
        error = read_error(answer.error)
        if not isinstance(error, RateLimited | StoreUnavailable) or (
            request.is_shared and isinstance(error, RateLimited)
        ):
            if tries.is_unsure:
                error.add_note("an earlier try of this call went unanswered, and may have been carried out")
            raise error
        return tries.refused(error)

    # --- One try -----------------------------------------------------------------------------------------------

    async def _try(self, request: Request) -> Any:
        link = self.links.choose()
        link.under_way += 1
        try:
            return await self._try_over(link, request)
        finally:
            link.under_way -= 1

    async def _try_over(self, link: Link, request: Request) -> Any:
        queues = await link.queues()
        sent = getattr(queues, f"{request.method}_request")()
        ticket = 0
        if request.heard_late is not None:
            ticket = sent.ticket = next(self._tickets)
        request.fill(sent)
        promise = sent.send()
        limit_s = None if request.is_long or request.wait_ms is None else self.timeout_s + request.wait_ms / 1_000
        if not ticket:
            return await link.answer(promise, limit_s)
        answer = asyncio.ensure_future(link.answer(promise, limit_s))
        return await self._wait(link, queues, ticket, answer, request.heard_late)

    async def _wait(
        self, link: Link, queues: Any, ticket: int, answer: "asyncio.Future[Any]", heard: Heard | None
    ) -> Any:
        """A poll that may be left: then its answer is heard out, and what is in it given back."""
        is_left = False

        async def leave() -> None:
            nonlocal is_left
            is_left = True
            self._waiting.pop(ticket, None)
            try:
                await link.answer(queues.leave(ticket=ticket), _LEAVE_S)
                late = await asyncio.wait_for(answer, _LEAVE_S)
            except (Lost, TimeoutError, asyncio.CancelledError):
                return  # with its connection the server gives back by itself
            if heard is not None and not late._has("error"):
                await heard(late)

        self._waiting[ticket] = leave
        try:
            told = await asyncio.shield(answer)
            if is_left:  # by closing: what there is in the answer goes back
                raise Lost("this client is closed", was_sent=False)
            return told
        except asyncio.CancelledError:
            if self._waiting.pop(ticket, None) is not None:
                # A cancelled claim ends when the server has let go of it, as it would embedded; without that, soon.
                await asyncio.wait({self.spawn(leave())}, timeout=_GONE_S)
            raise
        finally:
            self._waiting.pop(ticket, None)

    @property
    def timeout_s(self) -> float:
        return self._settings.timeout_ms / 1_000

    # --- Calls that go out bit by bit --------------------------------------------------------------------------

    def check_open(self) -> None:
        self._standing.check_open()

    async def answer(self, link: Link, promise: Any) -> Any:
        """Of one try. `Lost`; the server's errors are raised."""
        answer = await link.answer(promise, self.timeout_s)
        self._standing.was_answered = True
        if answer._has("error"):
            raise read_error(answer.error)
        return answer

    @property
    def most_tries(self) -> int:
        return min(self._settings.retries, _UPLOADS)

    def lost(self, lost: Lost, *, is_whole: bool, is_repeatable: bool) -> StoreUnavailable:
        return lost_error(
            self.url,
            lost,
            is_repeatable=is_repeatable,
            was_answered=self._standing.was_answered,
            is_unsure=is_whole,
            is_cut=not is_whole,
        )

    # --- Work of its own ---------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Work that no caller's leaving ends; closing waits for it."""
        return self._background.spawn(work)

    def stop(self) -> None:
        """No more calls, but for those that give back."""
        self._standing.is_closed = True

    async def close(self) -> None:
        """What callers left behind is given back first; calls under way end without an answer."""
        self.stop()
        if self._standing.is_inherited:
            return  # the parent closes its own
        for leave in list(self._waiting.values()):
            self.spawn(leave())
        await self._background.idle()
        await self.links.close()
