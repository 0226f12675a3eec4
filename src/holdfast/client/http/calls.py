"""Calls to a server over HTTP. Each try uses one connection of the pool."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from holdfast.client.http.connection import JOINED_BYTES, AnyConnection
from holdfast.client.http.failures import UNAVAILABLE, error_of_response, has_results, is_closing, retry_after_ms
from holdfast.client.http.pool import HttpPool
from holdfast.client.http.response import HttpReply
from holdfast.client.http.socket_pool import SocketPool
from holdfast.client.http.sockets import HttpSocketConnection
from holdfast.client.remote.calls import CANCEL_S, CANCEL_WAIT_S, Calls
from holdfast.client.remote.lost import Lost, LostOnReuse
from holdfast.client.remote.settings import RemoteSettings, check_token
from holdfast.client.remote.tasks import LoopTasks, ThreadTasks
from holdfast.client.remote.tries import Failure, Tries
from holdfast.model.errors import HoldfastError, OverQuota, RateLimited

JSON_TYPE = b"application/json"
# Request heads that are cached. There are few paths, except those with a name or an id in them.
_MAX_HEADS = 64

OnLate = Callable[[HttpReply], Awaitable[None]]


class HttpRequest(msgspec.Struct):
    """A request, and how its call is made."""

    method: str
    path: str
    body: list[bytes]
    content_type: bytes = JSON_TYPE
    # The wanted content type; empty for the server's default.
    accept: bytes = b""
    is_repeatable: bool = True
    # The server responds when the operation is done, however long that takes.
    is_long: bool = False
    # Added to the timeout; None waits for ever.
    wait_ms: int | None = 0
    is_stream: bool = False
    # The messages of several callers. If it is rate limited, each caller sends its own request.
    is_shared: bool = False
    is_last: bool = False
    # A 503 with results is a response: some verdicts were carried out, and only the others may be sent again.
    has_results: bool = False
    # Called with a response that came after the caller was cancelled.
    on_late: OnLate | None = None
    # The connection of an open stream.
    connection: AnyConnection | None = None


class AnyPool(Protocol):
    """The connections of a client."""

    async def take(self, *, is_long: bool, timeout_s: float, is_fresh: bool = False) -> Any:
        """Return a connection for one call: an idle one, or a new one with `is_fresh`. Raise `Lost`.

        Long calls do not count against the size of the pool, so that a verdict always gets a connection.
        """

    def put_back(self, connection: Any, *, is_long: bool) -> None:
        """Take back a connection after its call. Close it unless it can be used again."""

    def detach(self, connection: Any, *, is_long: bool) -> None:
        """Forget a connection whose caller was cancelled. The reader of its late response closes it."""

    def close(self) -> None:
        """Close every connection."""


class HttpCalls(Calls[HttpRequest, HttpReply]):
    """The calls of one client over HTTP."""

    def __init__(self, settings: RemoteSettings, *, in_threads: bool = False) -> None:
        """`in_threads`: calls run in the calling threads and never suspend. Otherwise they run on the running loop."""
        self._make_pool: Callable[..., AnyPool] = partial(SocketPool, HttpSocketConnection) if in_threads else HttpPool
        address, token = settings.address, settings.token
        self._prefix = address.prefix
        self._host = f"Host: {address.authority}\r\nUser-Agent: holdfast\r\n".encode()
        self._has_fixed_token = not callable(token)
        self._credential = b"" if token is None or callable(token) else _bearer(token)
        # By path: the head of a POST of JSON, up to the length.
        self._heads: dict[str, bytes] = {}
        super().__init__(address.url, settings, ThreadTasks if in_threads else LoopTasks)

    def begin(self) -> None:
        super().begin()
        self._pool = self._make_pool(self.settings.address, self.settings.tls, self.settings.pool)

    def forked(self) -> None:
        self._inherited.append(self._pool)
        super().forked()

    # --- A call ----------------------------------------------------------------------------------------------------

    def error_in(self, response: HttpReply) -> HoldfastError | None:
        return None if response.status < 300 else error_of_response(self.url, response)

    def failure_in(self, request: HttpRequest, response: HttpReply, tries: Callable[[], Tries]) -> Failure | None:
        status = response.status
        if status != 429 and status not in UNAVAILABLE:
            return None
        if request.has_results and status == 503 and has_results(response):
            return None
        return self.refusal(response, tries(), is_shared=request.is_shared)

    def refusal(
        self, response: HttpReply, tries: Tries, *, is_shared: bool = False, repeats_undone: bool = True
    ) -> Failure | None:
        """Return the failure of a refused try, or None if another try would have the same response."""
        if response.status != 429 and response.status not in UNAVAILABLE:
            return None
        self._retry_state.has_responded = True
        error = error_of_response(self.url, response)
        if isinstance(error, OverQuota) or (is_shared and isinstance(error, RateLimited)):
            return None  # waiting does not free quota, and each caller of a shared request waits by itself
        return tries.record_refusal(
            error,
            at_least_ms=retry_after_ms(response),
            is_undone=isinstance(error, RateLimited) or is_closing(response),
            repeats_undone=repeats_undone,
        )

    async def try_once(self, request: HttpRequest) -> HttpReply:
        wait_ms, on_late = request.wait_ms, request.on_late
        is_long = wait_ms != 0 or request.is_long or request.is_stream
        parts = self._encode(request)
        connection: AnyConnection = await self._pool.take(is_long=is_long, timeout_s=self.timeout_s)
        limit_s = None if request.is_long or wait_ms is None else self.timeout_s + wait_ms / 1_000
        is_kept = False
        if on_late is not None:
            self.track(connection, partial(self._read_late, connection, on_late))
        try:
            response = await connection.call(parts, limit_s, is_stream=request.is_stream)
            if request.is_stream and response.status == 200:
                is_kept = True
                request.connection = connection
            return response
        except Lost as lost:
            if connection.is_reused and not connection.has_response_begun and not lost.is_timeout:
                raise LostOnReuse(lost.reason, was_sent=lost.was_sent) from None
            raise
        except BaseException:  # cancelled, or interrupted
            is_kept = True
            self._pool.detach(connection, is_long=is_long)
            if on_late is None:
                connection.abandon()
            else:
                # A cancelled claim ends once the server has released it, as an embedded claim does. Without a response
                # it ends after CANCEL_WAIT_S.
                await self.tasks.spawn_and_wait(self._read_late(connection, on_late), CANCEL_WAIT_S)
            raise
        finally:
            if on_late is not None:
                self.untrack(connection)
            if not is_kept:
                self._pool.put_back(connection, is_long=is_long)

    async def _read_late(self, connection: AnyConnection, on_late: OnLate) -> None:
        response = await connection.cancel(CANCEL_S)
        if response is not None and response.status == 200:
            await on_late(response)

    # --- Streams ---------------------------------------------------------------------------------------------------

    def end_stream(self, connection: AnyConnection) -> None:
        """Cancel a stream now, unless `close` does."""
        self._pool.detach(connection, is_long=True)
        cancel = self.untrack(connection)
        if cancel is not None and not self.is_closed:
            self.spawn(cancel())

    # --- Uploads -----------------------------------------------------------------------------------------------------

    async def connect(self) -> AnyConnection:
        """Return a fresh connection, which the server will not close as idle: some uploads cannot be sent again."""
        connection: AnyConnection = await self._pool.take(is_long=True, timeout_s=self.timeout_s, is_fresh=True)
        return connection

    def put_back(self, connection: AnyConnection) -> None:
        self._pool.put_back(connection, is_long=True)

    async def disconnect(self) -> None:
        self._pool.close()

    # --- Requests --------------------------------------------------------------------------------------------------

    def _encode(self, request: HttpRequest) -> list[bytes]:
        """Return the bytes of a request, as a single part if it is small."""
        body, path = request.body, request.path
        if len(body) != 1 or request.method != "POST" or request.accept or request.content_type is not JSON_TYPE:
            return [self.head(request.method, path, _framing(request)), *body]
        [part] = body
        head = self._heads.get(path)
        if head is None:
            head = self._json_head(path)
            if len(self._heads) < _MAX_HEADS and self._has_fixed_token:
                self._heads[path] = head
        if len(part) <= JOINED_BYTES:
            return [b"%b%d\r\n\r\n%b" % (head, len(part), part)]
        return [b"%b%d\r\n\r\n" % (head, len(part)), part]

    def _json_head(self, path: str) -> bytes:
        """Return the head of a POST of JSON, up to the length."""
        return self.head("POST", path, b"Content-Type: application/json\r\nContent-Length: ")

    def head(self, method: str, path: str, rest: bytes) -> bytes:
        """Return the head of a request. `rest` has the type and length of the body."""
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
