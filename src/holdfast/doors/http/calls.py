"""One HTTP call: its headers, body and session, and its response or error.

It works on plain ASGI. Hot routes use it directly, the others through Starlette.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import parse_qsl

from holdfast.doors.http.connections.asgi import AsgiScope, Receive, Send
from holdfast.doors.http.connections.exchange import Exchange
from holdfast.doors.http.request_bodies import BodyLimits, CallerLeft, check_encoding, read_body, too_large
from holdfast.model.answers import Delivery, Enqueued, Result
from holdfast.model.errors import HoldfastError, Internal, InvalidArgument
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import Verdict
from holdfast.service.queue_refs import QueueRefs
from holdfast.service.session import Session
from holdfast.telemetry.trace import Tracing
from holdfast.wire.errors import STATUS_BY_CODE, error_document, retry_after_ms
from holdfast.wire.http.bodies import encode

RawHeaders = list[tuple[bytes, bytes]]

_log = logging.getLogger("holdfast")

JSON_TYPE = (b"content-type", b"application/json")

_EMPTY_PART = {"type": "http.response.body", "body": b"", "more_body": True}


def exchange_of(scope: AsgiScope) -> Exchange:
    """Return the exchange behind a scope that `HttpConnection` made."""
    exchange: Exchange = scope["extensions"]["holdfast"]
    return exchange


class HttpCall:
    """One call, as a route handler gets it."""

    __slots__ = (
        "_exchange",
        "_names",
        "_scope",
        "correlation_id",
        "given_correlation_id",
        "has_begun",
        "head",
        "headers",
        "is_body_read",
        "limits",
        "operation",
        "queue",
        "session",
        "tracing",
    )

    def __init__(
        self,
        session: Session,
        exchange: Exchange,
        scope: AsgiScope | None,
        limits: BodyLimits,
        mint: Callable[[], str],
        *,
        operation: str,
        names: QueueRefs,
        tracing: Tracing,
    ) -> None:
        self._names = names
        # The operation's name in metrics.
        self.operation = operation
        self.tracing = tracing
        self.session = session
        self.head = head = exchange.head
        self.headers = head.headers
        self.limits = limits
        self.given_correlation_id = head.correlation_id
        self._exchange = exchange
        # The scope that Starlette passed to the route, with the path's parameters; None for a hot call.
        self._scope = scope
        self.is_body_read = not head.has_body
        # Whether the response has begun.
        self.has_begun = False
        # The queue of the call, once it is known.
        self.queue: QueueRef | None = None
        # Sent in the response header. A handler replaces it if the response is about one message, which has its own.
        self.correlation_id = head.correlation_id or mint()

    @property
    def scope(self) -> AsgiScope:
        """Return the ASGI scope."""
        return self._scope or self._exchange.events().scope

    @property
    def receive(self) -> Receive:
        """Return the ASGI receive function."""
        return self._exchange.events().receive

    @property
    def send(self) -> Send:
        """Return the ASGI send function."""
        return self._exchange.events().send

    def leaving(self) -> "asyncio.Future[None]":
        """Return a future that is done once the caller has left. It may be cancelled."""
        return self._exchange.leaving()

    def ref(self, tenant: str | None, queue: str | None) -> QueueRef:
        """Return the queue of the call. The default tenant is the caller's own, and the default queue is `default`.

        Raise `InvalidName` for an invalid name.
        """
        session = self.session
        self.queue = ref = self._names.ref(session.own_tenant if tenant is None else tenant, queue)
        if session.is_operator:  # the tenant of any other caller is known from its credential
            self._exchange.connection.note_tenant(ref.tenant)
        return ref

    @property
    def is_caller_gone(self) -> bool:
        """Return whether the connection is closing, so that a response would not reach the caller."""
        return self._exchange.transport.is_closing()

    @property
    def is_traced(self) -> bool:
        """Return whether enqueued messages carry a trace, the server's or the caller's."""
        return self.tracing.is_on or self.head.is_traced

    def take_correlation_id(self, correlation_id: str | None) -> None:
        """Give the response the correlation id of the one message that it is about, if that is known."""
        if correlation_id is not None:
            self.correlation_id = correlation_id

    async def enqueue_traced(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        """Enqueue messages that carry the call's trace."""
        with self.tracing.enqueue(self.headers, ref, drafts) as (carrying, note):
            enqueued = await self.session.enqueue(ref, carrying)
            note(enqueued)
            return enqueued

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        """Carry out verdicts, and trace them."""
        results = await self.session.settle(ref, verdicts)
        self.tracing.settle(self.headers, ref, verdicts, results)
        return results

    def note_deliveries(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        """Trace deliveries that are about to be sent."""
        self.tracing.deliver(self.headers, ref, deliveries)

    @property
    def path(self) -> Mapping[str, str]:
        """Return the parameters in the path of the route."""
        params: Mapping[str, str] = self.scope["path_params"]
        return params

    def query(self, *known: str) -> dict[str, str]:
        """Return the query's fields. Raise `InvalidArgument` for a field that is not in `known` or is given twice."""
        try:
            pairs = parse_qsl(
                self.scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100
            )
        except ValueError:
            raise InvalidArgument("the query is not URL-encoded text", field="query") from None
        fields: dict[str, str] = {}
        for name, value in pairs:
            if name not in known or name in fields:
                problem = "is given twice" if name in fields else "is not a query parameter"
                raise InvalidArgument(
                    f"{name[:80]!r} {problem}; this path supports {', '.join(known) or 'none'}", field=name[:80]
                )
            fields[name] = value
        return fields

    def body_at_once(self) -> bytes | None:
        """Return the body if it arrived with the head, as most do, otherwise None: then use `body`.

        Raise `InvalidArgument` for an encoded body and `PayloadTooLarge` for one that is too large.
        """
        body = self._exchange.take_body()
        if body is not None:
            if self.head.is_encoded:
                check_encoding(self.headers)
            if len(body) > self.limits.max_bytes:
                raise too_large(self.limits.max_bytes)
            self.is_body_read = True
        return body

    async def body(self) -> bytes:
        """Return the whole body.

        Raise `CallerLeft`, `InvalidArgument` for an encoded or a slow body, or `PayloadTooLarge`.
        """
        body = self.body_at_once()
        if body is None:
            body = await read_body(self.receive, self.headers, self.limits.max_bytes)
            self.is_body_read = True
        return body

    def answer_at_once(self, document: bytes) -> bool:
        """Write a 200 with a JSON document without waiting; return False if that is not possible: then use `answer`."""
        self.has_begun = True
        return self._exchange.answer_json(self.correlation_id, document)

    async def answer(self, body: bytes, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send the whole response. It is JSON, unless `headers` give another type."""
        if status == 200 and not headers and self.answer_at_once(body):
            return
        self.has_begun = True
        every = [(b"x-correlation-id", self.correlation_id.encode()), *(headers or (JSON_TYPE,))]
        if not self._exchange.answer(status, every, body):
            await send_body(self.send, status, body, every)

    def check_can_stream(self) -> None:
        """Raise `InvalidArgument` if the request is HTTP/1.0, which has no chunked responses.

        Call this before the call changes anything.
        """
        if self.head.version == "1.0":
            raise InvalidArgument("a streamed response requires HTTP/1.1; the request is HTTP/1.0")

    async def start_stream(self, headers: Iterable[tuple[bytes, bytes]], status: int = 200) -> None:
        """Send the head of a response whose parts `stream` sends."""
        self.has_begun = True
        # With a limit of 0 each part is known to have left the transport's buffer. With TLS a limit of 0 would count as
        # reached while the buffer is empty, and writing would never resume.
        self._exchange.transport.set_write_buffer_limits(high=0 if self._exchange.connection.scheme == "http" else 1)
        every = [(b"x-correlation-id", self.correlation_id.encode()), *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": every})
        # The head waits for the first part, which may take long. An empty part sends it now.
        await self.send(_EMPTY_PART)

    async def stream(self, part: bytes) -> None:
        """Send a part, and wait until it has left the transport's buffer.

        Raise `CallerLeft` if the connection is lost before: the caller cannot have received the whole part.
        """
        await self.send({"type": "http.response.body", "body": part, "more_body": True})
        # This returns once the connection has drained, or is lost.
        await self.send(_EMPTY_PART)
        if self.is_caller_gone:
            raise CallerLeft

    async def end_stream(self) -> None:
        """End a response that `start_stream` began."""
        await self.send({"type": "http.response.body", "body": b""})
        if not self.is_caller_gone:
            # Let the next call on this connection coalesce its writes again.
            self._exchange.transport.set_write_buffer_limits()


async def send_body(send: Send, status: int, body: bytes, headers: RawHeaders) -> None:
    """Send a whole response as ASGI events."""
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error_answer(error: Exception, correlation_id: str, queue: QueueRef | None = None) -> tuple[int, bytes, RawHeaders]:
    """Return the status, body and headers of an error response. `queue` is the queue of the call, if it is known.

    An unexpected error is logged here. The caller gets only `Internal`, because its text may show internal details.
    """
    if not isinstance(error, HoldfastError):
        names = {} if queue is None else queue._asdict()
        _log.error("call_failed", exc_info=error, extra={**names, "correlation_id": correlation_id})
        error = Internal("the server failed; its log shows the cause", correlation_id=correlation_id)
    headers: RawHeaders = [JSON_TYPE, (b"x-correlation-id", correlation_id.encode()), *retry_after(error)]
    if error.code == "unauthenticated":
        headers.append((b"www-authenticate", b"Bearer"))
    return STATUS_BY_CODE[error.code], encode({"error": error_document(error)}), headers


def retry_after(error: HoldfastError) -> RawHeaders:
    """Return the Retry-After header in whole seconds for an error after which a retry may help, otherwise none."""
    wait_ms = retry_after_ms(error)
    return [] if wait_ms is None else [(b"retry-after", str(max(1, -(-wait_ms // 1_000))).encode())]
