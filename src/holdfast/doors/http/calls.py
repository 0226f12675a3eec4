"""One HTTP call: its headers, its body, its caller, and its answer or its error.

Plain ASGI: the hot routes use it directly, the others through Starlette.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, MutableMapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from holdfast.doors.http.connections.asgi import AsgiScope, Receive, Send
from holdfast.doors.http.connections.exchange import Exchange
from holdfast.doors.sockets.steps import StepsDone, begin
from holdfast.model.answers import Delivery, Enqueued, Result
from holdfast.model.errors import HoldfastError, Internal, InvalidArgument, PayloadTooLarge
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import Verdict
from holdfast.service.queue_refs import QueueRefs
from holdfast.service.session import Session
from holdfast.telemetry.log import printable
from holdfast.telemetry.trace import Tracing
from holdfast.wire.errors import STATUS_BY_CODE, error_document, retry_after_ms
from holdfast.wire.http.bodies import encode

RawHeaders = list[tuple[bytes, bytes]]
T = TypeVar("T")

_log = logging.getLogger("holdfast")

# A body must go on arriving: a part at least this often, and on the whole at least at this rate after that time.
BODY_PATIENCE_S = 10.0
BODY_BYTES_PER_S = 4_096

JSON_TYPE = (b"content-type", b"application/json")


_NOTHING_YET = {"type": "http.response.body", "body": b"", "more_body": True}


class CallerLeft(Exception):
    """The caller is gone: there is nobody to answer."""


class BodyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a call may send: `max_bytes` in all, of which a payload is at most `max_payload`."""

    max_payload: int
    max_bytes: int


def limits_for(max_payload: int) -> BodyLimits:
    """Room for the largest payload in base64, or for a large batch of small ones."""
    return BodyLimits(max_payload=max_payload, max_bytes=max(16 << 20, max_payload * 4 // 3 + (1 << 20)))


def exchange_of(scope: AsgiScope) -> Exchange:
    """Return the exchange behind a scope that our own connection made."""
    exchange: Exchange = scope["extensions"]["holdfast"]
    return exchange


class HttpCall:
    """What a route handler is given."""

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
        # As which it is measured.
        self.operation = operation
        self.tracing = tracing
        self.session = session
        self.head = head = exchange.head
        self.headers = head.headers
        self.limits = limits
        self.given_correlation_id = head.correlation_id
        self._exchange = exchange
        # As its route was given it, with the names in its path.
        self._scope = scope
        self.is_body_read = not head.has_body
        self.has_begun = False
        # What it was about, once that is known.
        self.queue: QueueRef | None = None
        # The call's own: the answer's header, unless the answer is of one message that has another.
        self.correlation_id = head.correlation_id or mint()

    @property
    def scope(self) -> AsgiScope:
        return self._scope or self._exchange.events().scope

    @property
    def receive(self) -> Receive:
        return self._exchange.events().receive

    @property
    def send(self) -> Send:
        return self._exchange.events().send

    def leaving(self) -> "asyncio.Future[None]":
        """Return a future that is done once the caller is gone. The caller of this may cancel it."""
        return self._exchange.leaving()

    def ref(self, tenant: str | None, queue: str | None) -> QueueRef:
        """What is left out is the caller's own tenant, and `default`."""
        session = self.session
        self.queue = ref = self._names.ref(session.own_tenant if tenant is None else tenant, queue)
        if session.is_operator:  # anybody else's tenant is known by the credential
            self._exchange.connection.note_tenant(ref.tenant)
        return ref

    @property
    def is_caller_gone(self) -> bool:
        """Whether what is sent now would reach nobody."""
        return self._exchange.transport.is_closing()

    @property
    def is_traced(self) -> bool:
        """Return whether enqueued messages carry a trace: the server's own, or the caller's."""
        return self.tracing.is_on or self.head.is_traced

    async def enqueue_traced(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        with self.tracing.enqueue(self.headers, ref, drafts) as (carrying, tell):
            enqueued = await self.session.enqueue(ref, carrying)
            tell(enqueued)
            return enqueued

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        results = await self.session.settle(ref, verdicts)
        self.tracing.settle(self.headers, ref, verdicts, results)
        return results

    def note_deliveries(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        """They are on their way to the caller."""
        self.tracing.deliver(self.headers, ref, deliveries)

    @property
    def path(self) -> Mapping[str, str]:
        """The names in the path of its route."""
        params: Mapping[str, str] = self.scope["path_params"]
        return params

    def query(self, *known: str) -> dict[str, str]:
        """The query's fields. One that is unknown, or given twice, is refused by its name."""
        try:
            pairs = parse_qsl(
                self.scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100
            )
        except ValueError:
            raise InvalidArgument("the query is not URL-encoded text", field="query") from None
        fields: dict[str, str] = {}
        for name, value in pairs:
            if name not in known or name in fields:
                raise InvalidArgument(
                    f"{name[:80]!r} is not a field of this query, or comes twice; the fields are {', '.join(known)}",
                    field=name[:80],
                )
            fields[name] = value
        return fields

    def body_at_once(self) -> bytes | None:
        """Return the body if it came with the head, as most do; None if `body` has to be asked."""
        body = self._exchange.take_body()
        if body is not None:
            if self.head.is_encoded:
                check_encoding(self.headers)
            if len(body) > self.limits.max_bytes:
                raise too_large(self.limits.max_bytes)
            self.is_body_read = True
        return body

    async def body(self) -> bytes:
        body = self.body_at_once()
        if body is None:
            body = await read_body(self.receive, self.headers, self.limits.max_bytes)
            self.is_body_read = True
        return body

    def answer_at_once(self, document: bytes) -> bool:
        """Answer 200 with a JSON document; return False if `answer` has to."""
        self.has_begun = True
        return self._exchange.answer_json(self.correlation_id, document)

    async def answer(self, body: bytes, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """The whole answer: JSON, unless `headers` say otherwise."""
        if status == 200 and not headers and self.answer_at_once(body):
            return
        self.has_begun = True
        every = [(b"x-correlation-id", self.correlation_id.encode()), *(headers or (JSON_TYPE,))]
        if not self._exchange.answer(status, every, body):
            await send_body(self.send, status, body, every)

    def check_can_stream(self) -> None:
        """Before anything is done for an answer whose length is not known: HTTP/1.0 has no chunks."""
        if self.head.version == "1.0":
            raise InvalidArgument("an answer in parts needs HTTP/1.1: this request came as HTTP/1.0")

    async def start_stream(self, headers: Iterable[tuple[bytes, bytes]], status: int = 200) -> None:
        """An answer in parts, each of which is watched until it left our hands: see `stream`."""
        self.has_begun = True
        # TLS would take a limit of nothing for reached when there is nothing, and never write again.
        self._exchange.transport.set_write_buffer_limits(high=0 if self._exchange.connection.scheme == "http" else 1)
        every = [(b"x-correlation-id", self.correlation_id.encode()), *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": every})
        await self.send(_NOTHING_YET)  # the head waits for a first part, and the first message may be long in coming

    async def stream(self, part: bytes) -> None:
        """`CallerLeft` if the part was not taken off our hands: it cannot have reached the caller whole."""
        await self.send({"type": "http.response.body", "body": part, "more_body": True})
        # Returns once the connection has drained, or is lost.
        await self.send(_NOTHING_YET)
        if self.is_caller_gone:
            raise CallerLeft

    async def end_stream(self) -> None:
        await self.send({"type": "http.response.body", "body": b""})
        if not self.is_caller_gone:
            # The next call on this connection may coalesce its writes.
            self._exchange.transport.set_write_buffer_limits()


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], max_bytes: int) -> bytes:
    """The whole body, at most `max_bytes`: refused before it is read where its length is given."""
    check_encoding(headers)
    check_length(headers, max_bytes)
    message = await next_event(receive)
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > max_bytes:
            raise too_large(max_bytes)
        return body
    return b"".join([part async for part in body_parts(receive, max_bytes, first=message)])


async def next_event(receive: Receive) -> MutableMapping[str, Any]:
    """What the connection says next, within `BODY_PATIENCE_S`."""
    begun = begin(receive())
    if isinstance(begun, StepsDone):
        return begun.value
    try:
        async with asyncio.timeout(BODY_PATIENCE_S):
            return await begun
    except TimeoutError:
        raise too_slow() from None


async def body_parts(
    receive: Receive, max_bytes: int, *, first: MutableMapping[str, Any] | None = None
) -> AsyncIterator[bytes]:
    """The body as it arrives. One that stops arriving, or trickles, is given up."""
    loop = asyncio.get_running_loop()
    started, received, message = loop.time(), 0, first
    while True:
        if message is None:
            message = await next_event(receive)
        if message["type"] == "http.disconnect":
            raise CallerLeft
        part = message.get("body", b"")
        received += len(part)
        if received > max_bytes:
            raise too_large(max_bytes)
        overtime_s = loop.time() - started - BODY_PATIENCE_S
        if overtime_s > 0 and received < overtime_s * BODY_BYTES_PER_S:
            raise too_slow()
        yield part
        if not message.get("more_body"):
            return
        message = None


def check_encoding(headers: Mapping[bytes, bytes]) -> None:
    """A compressed body could be anything's size: none is taken."""
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding.strip().lower() != b"identity":
        raise InvalidArgument("send the body as it is: a Content-Encoding is not accepted", field="Content-Encoding")


def check_length(headers: Mapping[bytes, bytes], max_bytes: int) -> None:
    length = headers.get(b"content-length")
    if length is not None and length.isdigit() and int(length) > max_bytes:
        raise too_large(max_bytes)


def too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than {max_bytes} bytes, the most this server takes", limit=max_bytes)


def too_slow() -> InvalidArgument:
    return InvalidArgument(f"the body did not arrive: send at least {BODY_BYTES_PER_S} bytes a second")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The document a body holds; anything else is refused, by the name of the field where there is one."""
    try:
        # What is kept as raw JSON is only skimmed by the decoder, and must be text all the same.
        if not body.isascii():
            body.decode()
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        text, field = _shown(text), _shown(path.rstrip("`").lstrip("."))
        raise InvalidArgument(f"{field or 'the body'}: {text}", field=field or "body") from None
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"the body is not JSON: {_shown(str(error))}", field="body") from None
    except UnicodeDecodeError:
        raise InvalidArgument("the body is not UTF-8", field="body") from None
    except RecursionError:
        raise InvalidArgument("the body is nested too deeply", field="body") from None


def _shown(text: str) -> str:
    """What a caller wrote is shown to it short, and so that it can neither end a line nor colour one."""
    return printable(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "...")


_MAX_SHOWN = 200


async def send_body(send: Send, status: int, body: bytes, headers: RawHeaders) -> None:
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error_answer(error: Exception, correlation_id: str) -> tuple[int, bytes, RawHeaders]:
    """Status, body and headers. What is no error of ours is logged here and nowhere shown."""
    if not isinstance(error, HoldfastError):
        _log.error("a call failed", exc_info=error, extra={"correlation_id": correlation_id})
        error = Internal("the server failed to do this; its log says why", correlation_id=correlation_id)
    headers: RawHeaders = [JSON_TYPE, (b"x-correlation-id", correlation_id.encode()), *retry_after(error)]
    if error.code == "unauthenticated":
        headers.append((b"www-authenticate", b"Bearer"))
    return STATUS_BY_CODE[error.code], encode({"error": error_document(error)}), headers


def retry_after(error: HoldfastError) -> RawHeaders:
    """Return the Retry-After header in whole seconds, for an error after which asking again may help."""
    wait_ms = retry_after_ms(error)
    return [] if wait_ms is None else [(b"retry-after", str(max(1, -(-wait_ms // 1_000))).encode())]
