"""Claimed messages: the properties that both APIs share, and the message of the async API."""

import asyncio
from collections.abc import AsyncIterator
from io import BytesIO
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import msgspec
from msgspec.structs import replace

from holdfast.client.payloads.encoding import decode_json, encode_json
from holdfast.client.payloads.part_reader import PART, PayloadCursor, Target, opened, write_all
from holdfast.client.tracebacks import trim_class_tracebacks
from holdfast.client.transport import Transport
from holdfast.model.answers import Delivery, Result
from holdfast.model.errors import HoldfastError, InvalidArgument, StaleLease
from holdfast.model.ids import MessageId
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.parsing.checks import plain
from holdfast.model.parsing.durations import Duration, parse_duration_ms
from holdfast.model.requests import Settle, StateDocument, Verdict, check_progress
from holdfast.wire.operations import SAVE_STATE
from holdfast.wire.requests import StateRequest

T = TypeVar("T")

LOST = "the lease expired, or the message was settled, claimed again or removed"


class MessageFacts(msgspec.Struct, gc=False):
    """The known facts of a delivery, shared by the async message and its blocking form."""

    delivery: Delivery
    ref: QueueRef
    lease_expires_at: int
    state: StateDocument | None
    on_close_delay_ms: int | None = None
    is_settled: bool = False
    # The reason why the lease is lost, or why the worker gave it up; None while the lease is held as far as is known.
    lost: str | None = None


class Message:
    """A claimed message. In the async API, await its methods.

    As a context manager, a message is acked at the end of the block. If the block raises an error, the message is
    nacked with the error's text, and the error propagates.

        for message in q.claim(wait=20):
            with message:
                handle(message.json())
    """

    __slots__ = ("_held",)

    def __init__(self, held: MessageFacts) -> None:
        self._held = held

    @property
    def id(self) -> MessageId:
        """The id: text (a UUIDv7), with the same id as an integer in `.snowflake`."""
        return MessageId(self._held.delivery.snowflake, self._held.delivery.given_correlation_id)

    @property
    def tenant(self) -> str:
        """The tenant that owns the queue."""
        return self._held.ref.tenant

    @property
    def queue(self) -> str:
        """The name of the queue that the message was claimed from."""
        return self._held.ref.queue

    @property
    def receipt(self) -> str:
        """The proof of the lease, as text. With `queue.ack([receipt])` any process can settle the message."""
        return str(self._held.delivery.receipt)

    @property
    def payload(self) -> bytes:
        """The payload as bytes. Raise `InvalidArgument` if `stream=True` left it in the store and it was not loaded."""
        delivery = self._held.delivery
        if delivery.pieces is not None:
            raise InvalidArgument(
                f"the payload of {delivery.bytes} bytes is still in the store, because of stream=True: call `await "
                "message.load()` first, or read it with chunks() or write_to()",
                field="payload",
            )
        return delivery.payload

    @property
    def size(self) -> int:
        """The length of the payload in bytes, whether or not it is in memory."""
        return self._held.delivery.bytes

    @property
    def content_type(self) -> str:
        """The content type, by default `application/json` or `application/octet-stream`."""
        return self._held.delivery.content_type

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the message was enqueued with."""
        return self._held.delivery.headers

    @property
    def priority(self) -> int:
        """The priority, from 0 (first) to 255 (last)."""
        return self._held.delivery.priority

    @property
    def attempt(self) -> int:
        """The number of this claim of the message, from 1."""
        return self._held.delivery.attempt

    @property
    def version(self) -> int:
        """The lease version, which grows with each claim. Pass it to side effects as a fencing token."""
        return self._held.delivery.receipt.version

    @property
    def group(self) -> str | None:
        """The group, whose messages are delivered in order; None for a message without a group."""
        return self._held.delivery.group

    @property
    def correlation_id(self) -> str:
        """The correlation id, which stays the same through retries, dead letters and redrives."""
        return self._held.delivery.correlation_id

    @property
    def enqueued_at(self) -> int:
        """The time of the enqueue, in milliseconds since 1970."""
        return self._held.delivery.enqueued_at

    @property
    def lease_expires_at(self) -> int:
        """The time when the lease expires, in milliseconds since 1970. `extend` changes it."""
        return self._held.lease_expires_at

    @property
    def is_lost(self) -> bool:
        """True if the lease is known to be lost. Another worker may then be handling the same message."""
        return self._held.lost is not None

    @property
    def state(self) -> Any:
        """The state document as last read or saved; None before the first save.

        Raise `InvalidArgument` unless the message was claimed with `state=True`.
        """
        document = self._known_state().document
        return None if document is None else decode_json(document, None)

    @property
    def etag(self) -> str | None:
        """The ETag of the state document; None before the first save. The errors are those of `state`."""
        return self._known_state().etag

    @overload
    def json(self, type: None = None) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    def json(self, type: type[T] | None = None) -> T | Any:
        """Return the payload decoded from JSON, by default as dicts, lists, text and numbers.

        `type` is a msgspec struct, a dataclass, a TypedDict, a pydantic model or a builtin type, into which the payload
        is decoded. Raise `InvalidArgument` if the payload is not JSON of that type.

            order = message.json(Order)
        """
        return decode_json(self.payload, type)

    # Each API implements the following methods. They return `Any`, because the async API returns awaitables.
    def load(self) -> Any:
        """Return the whole payload, and keep it in memory for `payload` and `json()`.

        Raise `StaleLease` if the lease is lost before the payload was read.
        """

    def chunks(self) -> Any:
        """Iterate over the payload in parts of at most 1 MiB, with one part in memory at a time.

        Raise `StaleLease` if the lease is lost before the payload was read.

            for part in message.chunks():
                digest.update(part)
        """

    def write_to(self, file: Target) -> Any:
        """Write the payload to an open binary file or to a path, and return its length in bytes.

        A file given by its path appears under that name once it is complete. Raise `StaleLease` if the lease is lost
        before the payload was read.
        """

    def ack(self) -> Any:
        """Finish the message: it is never delivered again. Raise `StaleLease` if the lease is lost."""

    def nack(
        self, error: str | None = None, *, delay: Duration | None = None, defer: bool = False, final: bool = False
    ) -> Any:
        """Give the message back as failed, with the text of the error.

        The message is retried after `delay`, by default after the policy's backoff, and goes to the dead letters once
        its retries are used up. `defer=True` uses no retry. `final=True` sends it to the dead letters at once. Return
        the result, with `.state` and `.retry_at`. Raise `StaleLease` if the lease is lost.

            message.nack("the mail server is down", delay="5m")
        """

    def extend(self, lease: Duration | None = None) -> Any:
        """Set the lease to end `lease` from now, by default the queue's lease.

        Return the new end in milliseconds since 1970. A shorter lease ends earlier than before. Raise `StaleLease` if
        the lease is lost.
        """

    def release(self) -> Any:
        """Give the message back at once: it is ready again in its previous order, and no retry is used.

        Raise `StaleLease` if the lease is lost.
        """

    def save_state(self, document: Any, etag: str | None = None) -> Any:
        """Save the state document, which survives retries, and return its new ETag.

        `document` is any value that JSON can hold. `etag` is by default that of the document which this message last
        read or saved. Raise `Conflict` if another document has been saved since, and `StaleLease` if the lease is lost.
        """

    def progress(self, percent: float, text: str = "") -> Any:
        """Record the progress of the work, from 0 to 100 percent with a text; look-ups of the message show it.

        Raise `StaleLease` if the lease is lost.
        """

    def close(self) -> Any:
        """Nack the message with the `on_close_delay` of its claim, unless it has a verdict already."""

    def _known_state(self) -> StateDocument:
        if self._held.state is None:
            raise InvalidArgument("the state document was not read: claim with state=True", field="state")
        return self._held.state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self._held.ref}, attempt {self.attempt}>"


@trim_class_tracebacks
class AsyncMessage(Message):
    """A claimed message of the async API. See `Message`; await each method.

    for message in await q.claim(limit=10, wait=20):
        async with message:
            await handle(message.json())
    """

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport, held: MessageFacts) -> None:
        self._held = held
        self._transport = transport

    async def read_part(self, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes, starting at `offset`, of a payload that is still in the store.

        Raise `StaleLease` if the lease is lost. `chunks` and `load` are easier to use.
        """
        held = self._held
        try:
            return (await self._transport.messages.read_part(held.ref, held.delivery.receipt, offset, limit)).data
        except StaleLease:
            held.lost = held.lost or LOST
            raise

    async def load(self) -> bytes:
        delivery = self._held.delivery
        if delivery.pieces is not None:
            whole = BytesIO()
            async for part in self.chunks():
                whole.write(part)
            self._held.delivery = delivery = replace(delivery, payload=whole.getvalue(), pieces=None)
        return delivery.payload

    async def chunks(self) -> AsyncIterator[bytes]:
        delivery = self._held.delivery
        if delivery.pieces is None:
            if delivery.payload:
                yield delivery.payload
            return
        reading = PayloadCursor(delivery)
        while not reading.is_over:
            yield reading.take(await self.read_part(reading.offset, PART))

    async def write_to(self, file: Target) -> int:
        with opened(file) as target:
            if self._held.delivery.pieces is None:
                return write_all(target, self._held.delivery.payload)
            length = 0
            async for part in self.chunks():
                # In a thread, because a slow disk must not hold up the event loop.
                length += await asyncio.to_thread(write_all, target, part)
            return length

    async def ack(self) -> None:
        await self._settle(Verdict(settle=Settle.ACK, receipt=self._held.delivery.receipt))

    async def nack(
        self, error: str | None = None, *, delay: Duration | None = None, defer: bool = False, final: bool = False
    ) -> Result:
        return await self._settle(make_nack(self._held.delivery.receipt, error, delay=delay, defer=defer, final=final))

    async def release(self) -> None:
        await self._settle(Verdict(settle=Settle.RELEASE, receipt=self._held.delivery.receipt))

    async def extend(self, lease: Duration | None = None) -> int:
        lease_ms = None if lease is None else parse_duration_ms("lease", lease)
        receipt = self._held.delivery.receipt
        result = await self._settle(Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms))
        assert result.lease_expires_at is not None
        return result.lease_expires_at

    async def save_state(self, document: Any, etag: str | None = None) -> str | None:
        known = self._held.state or StateDocument()
        body = encode_json(document)
        request = StateRequest(
            receipt=self._held.delivery.receipt,
            document=msgspec.Raw(body),
            etag=known.etag if etag is None else etag,
        )
        saved = await self._transport.call(SAVE_STATE, self._held.ref, request)
        self._held.state = StateDocument(document=body, etag=saved.etag, progress=known.progress)
        return saved.etag

    async def progress(self, percent: float, text: str = "") -> None:
        request = StateRequest(receipt=self._held.delivery.receipt, progress=check_progress(percent, text))
        await self._transport.call(SAVE_STATE, self._held.ref, request)

    async def close(self) -> None:
        if not self._held.is_settled:
            receipt, delay_ms = self._held.delivery.receipt, self._held.on_close_delay_ms
            error = "closed without a verdict"
            await self._settle(Verdict(settle=Settle.NACK, receipt=receipt, error=error, delay_ms=delay_ms))

    async def _settle(self, verdict: Verdict) -> Result:
        [result] = await self._transport.messages.settle(self._held.ref, [verdict])
        record_result(self._held, verdict, result)
        if not result.ok:
            raise result.failure(correlation_id=self.correlation_id)
        return result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._held.is_settled:
            return
        if error is None:
            await self.ack()
            return
        try:
            await self.nack(describe(error))
        except HoldfastError as refused:
            # The error of the block propagates, with a note that the nack failed.
            error.add_note(f"holdfast: message {self.id} could not be nacked: {refused.message}")


def describe(error: BaseException) -> str:
    """Return the text of a nack for an exception, with characters that cannot be stored escaped."""
    return f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()


def make_nack(receipt: Receipt, error: str | None, *, delay: Duration | None, defer: bool, final: bool) -> Verdict:
    """Return the verdict that `nack` sends. Raise `InvalidArgument` for a malformed delay."""
    delay_ms = None if delay is None else parse_duration_ms("delay", delay)
    return Verdict(settle=Settle.NACK, receipt=receipt, error=plain(error), delay_ms=delay_ms, defer=defer, final=final)


def record_result(held: MessageFacts, verdict: Verdict, result: Result) -> None:
    """Record the effect of a verdict on a claimed message."""
    if not result.ok and not result.is_stale:
        return  # the verdict was not written: the lease is still held, and the message can be settled later
    if not result.ok:
        held.lost = held.lost or LOST
    if verdict.settle is not Settle.EXTEND:
        # A message with a stale lease cannot be settled, so the end of its block must not try it again.
        held.is_settled = True
    elif result.ok and result.lease_expires_at is not None:
        held.lease_expires_at = result.lease_expires_at
