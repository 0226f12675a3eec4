"""Calls to a server over HTTP: one try each, over a connection of the pool."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from holdfast.client.http.connection import JOINED_BYTES, AnyConnection
from holdfast.client.http.failures import UNAVAILABLE, answer_error, has_results, is_closing, retry_after_ms
from holdfast.client.http.pool import HttpPool
from holdfast.client.http.response import HttpReply
from holdfast.client.http.socket_pool import SocketPool
from holdfast.client.http.sockets import HttpSocketConnection
from holdfast.client.remote.calls import GONE_S, LEAVE_S, Calls
from holdfast.client.remote.lost import Lost, Reused
from holdfast.client.remote.settings import RemoteSettings, check_token
from holdfast.client.remote.tasks import LoopTasks, ThreadTasks
from holdfast.client.remote.tries import Failure, Tries
from holdfast.model.errors import HoldfastError, OverQuota, RateLimited

JSON_TYPE = b"application/json"
# Heads of requests that are kept ready: there are few paths, but for those with a name or an id in them.
_MOST_HEADS = 64

Heard = Callable[[HttpReply], Awaitable[None]]


class HttpRequest(msgspec.Struct):
    method: str
    path: str
    body: list[bytes]
    content_type: bytes = JSON_TYPE
    # What the answer should be; empty: what the server gives by itself.
    accept: bytes = b""
    is_repeatable: bool = True
    # Answered when it is done, however long that takes.
    is_long: bool = False
    # On top of the timeout.
    wait_ms: int | None = 0
    is_stream: bool = False
    # Several callers' messages in one: told to slow down, each asks for itself.
    is_shared: bool = False
    is_last: bool = False
    # A 503 with results is an answer: some of the verdicts were carried out, and only the others may be sent again.
    has_results: bool = False
    # Given an answer that came after the caller had left.
    heard_late: Heard | None = None
    # The connection of a stream that has begun.
    connection: AnyConnection | None = None


class AnyPool(Protocol):
    async def take(self, *, is_long: bool, timeout_s: float, is_fresh: bool = False) -> Any:
        """Return a connection for one call: an idle one, unless it has to be a fresh one. Raise `Lost`.

        Calls that wait long do not count: however many of them there are, a verdict still finds its way.
        """

    def put_back(self, connection: Any, *, is_long: bool) -> None: ...

    def let_go(self, connection: Any, *, is_long: bool) -> None:
        """Forget a connection whose caller left: whoever hears out its answer closes it."""

    def close(self) -> None: ...


class HttpCalls(Calls[HttpRequest, HttpReply]):
    def __init__(self, settings: RemoteSettings, *, in_threads: bool = False) -> None:
        """`in_threads`: calls are made by the calling threads, and never suspend. Else they are the running loop's."""
        self._make_pool: Callable[..., AnyPool] = partial(SocketPool, HttpSocketConnection) if in_threads else HttpPool
        address, token = settings.address, settings.token
        self._prefix = address.prefix
        self._host = f"Host: {address.authority}\r\nUser-Agent: holdfast\r\n".encode()
        self._has_fixed_token = not callable(token)
        self._credential = b"" if token is None or callable(token) else _bearer(token)
        # By path: a POST of JSON up to its length.
        self._heads: dict[str, bytes] = {}
        super().__init__(address.url, settings, ThreadTasks if in_threads else LoopTasks)

    def begin(self) -> None:
        super().begin()
        self._pool = self._make_pool(self.settings.address, self.settings.tls, self.settings.pool)

    def forked(self) -> None:
        self._inherited.append(self._pool)
        super().forked()

    # --- A call ----------------------------------------------------------------------------------------------------

    def error_in(self, answer: HttpReply) -> HoldfastError | None:
        return None if answer.status < 300 else answer_error(self.url, answer)

    def failure_in(self, request: HttpRequest, answer: HttpReply, tries: Callable[[], Tries]) -> Failure | None:
        status = answer.status
        if status != 429 and status not in UNAVAILABLE:
            return None
        if request.has_results and status == 503 and has_results(answer):
            return None
        return self.refusal(answer, tries(), is_shared=request.is_shared)

    def refusal(
        self, answer: HttpReply, tries: Tries, *, is_shared: bool = False, repeats_undone: bool = True
    ) -> Failure | None:
        """Return None for a refusal that another try would not change."""
        if answer.status != 429 and answer.status not in UNAVAILABLE:
            return None
        self._standing.was_answered = True
        error = answer_error(self.url, answer)
        if isinstance(error, OverQuota) or (is_shared and isinstance(error, RateLimited)):
            return None  # waiting makes no room, or is each caller's own
        return tries.refused(
            error,
            at_least_ms=retry_after_ms(answer),
            is_undone=isinstance(error, RateLimited) or is_closing(answer),
            repeats_undone=repeats_undone,
        )

    async def attempt(self, request: HttpRequest) -> HttpReply:
        wait_ms, heard = request.wait_ms, request.heard_late
        is_long = wait_ms != 0 or request.is_long or request.is_stream
        parts = self._written(request)
        connection: AnyConnection = await self._pool.take(is_long=is_long, timeout_s=self.timeout_s)
        limit_s = None if request.is_long or wait_ms is None else self.timeout_s + wait_ms / 1_000
        is_kept = False
        if heard is not None:
            self.hold(connection, partial(self._hear_out, connection, heard))
        try:
            answer = await connection.call(parts, limit_s, is_stream=request.is_stream)
            if request.is_stream and answer.status == 200:
                is_kept = True
                request.connection = connection
            return answer
        except Lost as lost:
            if connection.is_reused and not connection.has_answer_begun and not lost.is_timeout:
                raise Reused(lost.reason, was_sent=lost.was_sent) from None
            raise
        except BaseException:  # cancelled, or interrupted
            is_kept = True
            self._pool.let_go(connection, is_long=is_long)
            if heard is None:
                connection.abandon()
            else:
                # A claim that is left ends when the server has let go of it, as it would embedded; without an answer,
                # soon.
                await self.tasks.see_off(self._hear_out(connection, heard), GONE_S)
            raise
        finally:
            if heard is not None:
                self.release(connection)
            if not is_kept:
                self._pool.put_back(connection, is_long=is_long)

    async def _hear_out(self, connection: AnyConnection, heard: Heard) -> None:
        answer = await connection.leave(LEAVE_S)
        if answer is not None and answer.status == 200:
            await heard(answer)

    # --- Streams ---------------------------------------------------------------------------------------------------

    def end_stream(self, connection: AnyConnection) -> None:
        """Leave it now, unless closing has seen to that."""
        self._pool.let_go(connection, is_long=True)
        leave = self.release(connection)
        if leave is not None and not self.is_closed:
            self.spawn(leave())

    # --- Calls that go out bit by bit ------------------------------------------------------------------------------

    async def connect(self) -> AnyConnection:
        """Return one that the server is not about to close as idle: what is sent may be impossible to send again."""
        connection: AnyConnection = await self._pool.take(is_long=True, timeout_s=self.timeout_s, is_fresh=True)
        return connection

    def put_back(self, connection: AnyConnection) -> None:
        self._pool.put_back(connection, is_long=True)

    async def disconnect(self) -> None:
        self._pool.close()

    # --- Requests --------------------------------------------------------------------------------------------------

    def _written(self, request: HttpRequest) -> list[bytes]:
        """Return the request's bytes, as one part if it is small."""
        body, path = request.body, request.path
        if len(body) != 1 or request.method != "POST" or request.accept or request.content_type is not JSON_TYPE:
            return [self.head(request.method, path, _framing(request)), *body]
        [part] = body
        head = self._heads.get(path)
        if head is None:
            head = self._json_head(path)
            if len(self._heads) < _MOST_HEADS and self._has_fixed_token:
                self._heads[path] = head
        if len(part) <= JOINED_BYTES:
            return [b"%b%d\r\n\r\n%b" % (head, len(part), part)]
        return [b"%b%d\r\n\r\n" % (head, len(part)), part]

    def _json_head(self, path: str) -> bytes:
        """Return the head of a POST of JSON up to its length, which follows."""
        return self.head("POST", path, b"Content-Type: application/json\r\nContent-Length: ")

    def head(self, method: str, path: str, rest: bytes) -> bytes:
        """Return a request's head. `rest` tells the body's type and length."""
        token = self.settings.token
        credential = _bearer(check_token(token())) if callable(token) else self._credential
        return f"{method} {self._prefix}{path} HTTP/1.1\r\n".encode() + self._host + credential + rest


def _framing(request: HttpRequest) -> bytes:
    accept = b"Accept: %b\r\n" % request.accept if request.accept else b""
    if not request.body:
        return accept + (b"\r\n" if request.method in ("GET", "DELETE") else b"Content-Length: 0\r\n\r\n")
    length = sum(map(len, request.body))
    return accept + b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n" % (request.content_type, length)


def _bearer(token: str) -> bytes:
    return f"Authorization: Bearer {token}\r\n".encode()
