"""Calls to a server: sent, repeated where that is safe, and their errors raised."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.client.http.connection import Answer, Connection, Lost
from holdfast.client.http.failures import answer_error, has_results
from holdfast.client.http.pool import Pool
from holdfast.client.http.settings import HttpSettings, check_token
from holdfast.client.http.tries import Failure, Reused, Standing, Tries
from holdfast.client.repeating import Background, repeat, repeat_for_ever
from holdfast.dice import SystemDice
from holdfast.forking import listen_for_forks

JSON_TYPE = b"application/json"
# For the server to see that a caller left, and how long that caller waits for it.
_LEAVE_S = 5.0
_GONE_S = 1.0

Heard = Callable[[Answer], Awaitable[None]]
Leave = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Request:
    method: str
    path: str
    body: list[bytes]
    content_type: bytes = JSON_TYPE
    # What the answer should be; empty: what the server gives by itself.
    accept: bytes = b""
    # Carried out twice it does no more than once.
    is_repeatable: bool = True
    # Answered when it is done, however long that takes.
    is_long: bool = False
    # On top of the timeout.
    wait_ms: int | None = 0
    is_stream: bool = False
    # Several callers' messages in one: told to slow down, each asks for itself.
    is_shared: bool = False
    # Sent by a client that is closing, too.
    is_last: bool = False
    # A 503 with results is an answer: some of the verdicts were carried out, and only the others may be sent again.
    has_results: bool = False
    # Given an answer that came after the caller had left.
    heard_late: Heard | None = None


@dataclass(slots=True)
class Told:
    """An answer. `is_unsure`: an earlier try of the same call went unanswered, and may have been carried out."""

    answer: Answer
    is_unsure: bool = False
    # Of a stream that has begun.
    connection: Connection | None = None


class Calls:
    def __init__(self, settings: HttpSettings) -> None:
        self.url = settings.address.url
        self._settings = settings
        self._standing = Standing(self.url, settings.timeout_ms, settings.retries, SystemDice().roll)
        self._inherited: list[object] = []
        self.begin()
        listen_for_forks(self)
        self._host = f"Host: {settings.address.authority}\r\nUser-Agent: holdfast\r\n".encode()
        self._prefix = settings.address.prefix
        token = settings.token
        self._credential = b"" if token is None or callable(token) else _bearer(token)

    def begin(self) -> None:
        """Use the running loop from now on, over connections that are still to be made."""
        self._pool = Pool(self._settings.address, self._settings.tls, self._settings.pool)
        self._background = Background()
        # How each call that waits, and each stream, is left.
        self._leaving: dict[Connection, Leave] = {}
        self._standing.is_inherited = False

    def forked(self) -> None:
        """Keep off the parent's connections, and keep them: freed, each would warn that it is open."""
        self._standing.is_inherited = True
        self._inherited += [self._pool, self._background, self._leaving]

    @property
    def is_closed(self) -> bool:
        return self._standing.is_closed

    # --- A call ----------------------------------------------------------------------------------------------------

    async def tell(self, request: Request) -> Told:
        """Its answer, be it a refusal (other than one to ask again)."""
        tries = Tries(self._standing, is_repeatable=request.is_repeatable, is_shared=request.is_shared)
        told = await repeat(
            self._standing,
            tries,
            partial(self._try, request),
            lambda told: self._failure(tries, request, told.answer),
            is_last=request.is_last,
        )
        told.is_unsure = tries.is_unsure
        return told

    def _failure(self, tries: Tries, request: Request, answer: Answer) -> Failure | None:
        if request.has_results and answer.status == 503 and has_results(answer):
            self._standing.was_answered = True
            return None
        return tries.answered(answer)

    async def ask(self, request: Request) -> Answer:
        """Its answer, if that is a success."""
        told = await self.tell(request)
        if told.answer.status >= 300:
            raise answer_error(self.url, told.answer)
        return told.answer

    async def ask_for_ever(self, request: Request) -> Told:
        """For those who wait for ever: a server that is gone may come back."""
        return await repeat_for_ever(self._standing, partial(self.tell, request))

    async def pause(self, retries: int, at_least_ms: int | None) -> None:
        await asyncio.sleep(self._standing.pause_ms(retries, at_least_ms) / 1_000)

    async def _try(self, request: Request) -> Told:
        is_long = request.is_long or request.is_stream or request.wait_ms != 0
        timeout_s = self.timeout_s
        parts = [self.head(request.method, request.path, _framing(request)), *request.body]
        connection = await self._pool.take(is_long=is_long, timeout_s=timeout_s)
        limit_s = None if request.is_long or request.wait_ms is None else timeout_s + request.wait_ms / 1_000
        is_kept = False
        heard = request.heard_late
        if heard is not None:
            self._leaving[connection] = partial(self._hear_out, connection, heard)
        try:
            answer = await connection.call(parts, limit_s, is_stream=request.is_stream)
            if request.is_stream and answer.status == 200:
                is_kept = True
                return Told(answer, connection=connection)
            return Told(answer)
        except Lost as lost:
            if connection.is_reused and not connection.has_answer_begun and not lost.is_timeout:
                raise Reused(lost.reason, was_sent=lost.was_sent) from None
            raise
        except asyncio.CancelledError:
            if heard is not None:
                is_kept = True
                self._pool.let_go(connection, is_long=is_long)
                await self._leave(connection, heard)
            else:
                connection.close()
            raise
        finally:
            self._leaving.pop(connection, None)
            if not is_kept:
                self._pool.put_back(connection, is_long=is_long)

    async def _leave(self, connection: Connection, heard: Heard) -> None:
        """A cancelled claim ends when the server has let go of it, as it would embedded; without an answer, soon."""
        await asyncio.wait({self.spawn(self._hear_out(connection, heard))}, timeout=_GONE_S)

    async def _hear_out(self, connection: Connection, heard: Heard) -> None:
        answer = await connection.leave(_LEAVE_S)
        if answer is not None and answer.status == 200:
            await heard(answer)

    def hold_stream(self, connection: Connection, leave: Leave) -> None:
        self._leaving[connection] = leave

    def end_stream(self, connection: Connection) -> None:
        """It is left now, unless closing has seen to that."""
        self._pool.let_go(connection, is_long=True)
        leave = self._leaving.pop(connection, None)
        if leave is not None and not self.is_closed:
            self.spawn(leave())

    def head(self, method: str, path: str, rest: bytes) -> bytes:
        """`rest` is what says of the body what it is."""
        token = self._settings.token
        credential = _bearer(check_token(token())) if callable(token) else self._credential
        return f"{method} {self._prefix}{path} HTTP/1.1\r\n".encode() + self._host + credential + rest

    # --- Calls that go out bit by bit ------------------------------------------------------------------------------

    @property
    def timeout_s(self) -> float:
        return self._settings.timeout_ms / 1_000

    def check_open(self) -> None:
        self._standing.check_open()

    def tries(self, *, is_repeatable: bool) -> Tries:
        return Tries(self._standing, is_repeatable=is_repeatable)

    async def connect(self) -> Connection:
        """One that the server is not about to close as idle: what is sent may be impossible to send again."""
        return await self._pool.take(is_long=True, timeout_s=self.timeout_s, is_fresh=True)

    def put_back(self, connection: Connection) -> None:
        self._pool.put_back(connection, is_long=True)

    # --- Work of its own -------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Work that no caller's leaving ends; closing waits for it."""
        return self._background.spawn(work)

    async def close(self) -> None:
        """What callers left behind is given back first; calls under way end without an answer."""
        self._standing.is_closed = True
        if self._standing.is_inherited:
            return  # the parent closes its own
        for end in list(self._leaving.values()):
            self.spawn(end())
        await self._background.idle()
        self._pool.close()


def _framing(request: Request) -> bytes:
    accept = b"Accept: %b\r\n" % request.accept if request.accept else b""
    if not request.body:
        return accept + (b"\r\n" if request.method in ("GET", "DELETE") else b"Content-Length: 0\r\n\r\n")
    length = sum(map(len, request.body))
    return accept + b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n" % (request.content_type, length)


def _bearer(token: str) -> bytes:
    return f"Authorization: Bearer {token}\r\n".encode()
