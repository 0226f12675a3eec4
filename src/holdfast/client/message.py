"""A claimed message in the caller's hands."""

import asyncio
from collections.abc import AsyncIterator
from io import BytesIO
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import msgspec
from msgspec.structs import replace

from holdfast.client.payloads import decode_json, encode_json
from holdfast.client.reading import PART, Reading, Target, opened, write_all
from holdfast.client.tracebacks import raises_plainly
from holdfast.client.transport import Transport
from holdfast.model.answers import Delivery, Result
from holdfast.model.checks import plain
from holdfast.model.durations import Duration, parse_duration_ms
from holdfast.model.errors import HoldfastError, InvalidArgument, StaleLease
from holdfast.model.ids import MessageId
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, StateDocument, Verdict, check_progress
from holdfast.wire.operations import SAVE_STATE
from holdfast.wire.requests import StateRequest

T = TypeVar("T")

LOST = "the lease ran out, or the message was settled, claimed again or removed"


class Held(msgspec.Struct, gc=False):
    """What is known of a delivery, shared by the async message and its blocking shell."""

    delivery: Delivery
    ref: QueueRef
    lease_expires_at: int
    state: StateDocument | None
    on_close_delay_ms: int | None = None
    is_settled: bool = False
    # Why the lease is known to be gone, or given up by whoever runs the handler; None: as far as is known it is held.
    lost: str | None = None


class Message:
    """What every claimed message has. Its verbs answer at once in the blocking API, and are awaited in the async one.

    Used as a context manager it is acked when the block ends, and nacked with the error when the block raises.
    """

    __slots__ = ("_held",)

    def __init__(self, held: Held) -> None:
        self._held = held

    @property
    def id(self) -> MessageId:
        return MessageId(self._held.delivery.snowflake, self._held.delivery.given_correlation_id)

    @property
    def tenant(self) -> str:
        return self._held.ref.tenant

    @property
    def queue(self) -> str:
        return self._held.ref.queue

    @property
    def receipt(self) -> str:
        """Proves the lease: keep it, and `queue.ack([receipt])` settles the message from anywhere."""
        return str(self._held.delivery.receipt)

    @property
    def payload(self) -> bytes:
        delivery = self._held.delivery
        if delivery.pieces is not None:
            raise InvalidArgument(
                f"the payload of {delivery.bytes} bytes was left where it is, as stream=True asked: `await "
                "message.load()` first, or read it with chunks() or write_to()",
                field="payload",
            )
        return delivery.payload

    @property
    def size(self) -> int:
        """The payload's length in bytes, whether or not it is in memory."""
        return self._held.delivery.bytes

    @property
    def content_type(self) -> str:
        return self._held.delivery.content_type

    @property
    def headers(self) -> dict[str, str]:
        return self._held.delivery.headers

    @property
    def priority(self) -> int:
        return self._held.delivery.priority

    @property
    def attempt(self) -> int:
        """Which claim of this message it is, from 1."""
        return self._held.delivery.attempt

    @property
    def version(self) -> int:
        """Rises with each claim: pass it to side effects as a fencing token."""
        return self._held.delivery.receipt.version

    @property
    def group(self) -> str | None:
        return self._held.delivery.group

    @property
    def correlation_id(self) -> str:
        return self._held.delivery.correlation_id

    @property
    def enqueued_at(self) -> int:
        return self._held.delivery.enqueued_at

    @property
    def lease_expires_at(self) -> int:
        return self._held.lease_expires_at

    @property
    def is_lost(self) -> bool:
        """The lease is known to be gone: whatever is still done for this message may be done by another too."""
        return self._held.lost is not None

    @property
    def state(self) -> Any:
        """The state document as last read or saved; None before the first save."""
        document = self._known_state().document
        return None if document is None else decode_json(document, None)

    @property
    def etag(self) -> str | None:
        return self._known_state().etag

    @overload
    def json(self, type: None = None) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    def json(self, type: type[T] | None = None) -> T | Any:
        """The payload decoded, into a type where one is given."""
        return decode_json(self.payload, type)

    # The verbs, for the two APIs to fill in. Typed `Any`: they are awaited in one and not in the other.
    def load(self) -> Any: ...

    def chunks(self) -> Any: ...

    def write_to(self, file: Target) -> Any: ...

    def ack(self) -> Any: ...

    def nack(
        self, error: str | None = None, *, delay: Duration | None = None, defer: bool = False, final: bool = False
    ) -> Any: ...

    def extend(self, lease: Duration | None = None) -> Any: ...

    def release(self) -> Any: ...

    def save_state(self, document: Any, etag: str | None = None) -> Any: ...

    def progress(self, percent: float, text: str = "") -> Any: ...

    def close(self) -> Any: ...

    def _known_state(self) -> StateDocument:
        if self._held.state is None:
            raise InvalidArgument("the state was not read: claim with state=True", field="state")
        return self._held.state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self._held.ref}, attempt {self.attempt}>"


@raises_plainly
class AsyncMessage(Message):
    __slots__ = ("_transport",)

    def __init__(self, transport: Transport, held: Held) -> None:
        self._held = held
        self._transport = transport

    async def read_part(self, offset: int, limit: int) -> bytes:
        """Of a payload that was left where it is."""
        held = self._held
        try:
            return (await self._transport.messages.read_part(held.ref, held.delivery.receipt, offset, limit)).data
        except StaleLease:
            held.lost = held.lost or LOST
            raise

    async def load(self) -> bytes:
        """The whole payload, in memory from then on: what `payload` and `json()` give."""
        delivery = self._held.delivery
        if delivery.pieces is not None:
            whole = BytesIO()
            async for part in self.chunks():
                whole.write(part)
            self._held.delivery = delivery = replace(delivery, payload=whole.getvalue(), pieces=None)
        return delivery.payload

    async def chunks(self) -> AsyncIterator[bytes]:
        """The payload in parts of at most 1 MiB, of which one is in memory at a time."""
        delivery = self._held.delivery
        if delivery.pieces is None:
            if delivery.payload:
                yield delivery.payload
            return
        reading = Reading(delivery)
        while not reading.is_over:
            yield reading.take(await self.read_part(reading.offset, PART))

    async def write_to(self, file: Target) -> int:
        """Write the payload to an open binary file, or to a path; answers its length."""
        with opened(file) as target:
            if self._held.delivery.pieces is None:
                return write_all(target, self._held.delivery.payload)
            length = 0
            async for part in self.chunks():
                # In a thread: a disk that is slow to take so much must not keep the loop.
                length += await asyncio.to_thread(write_all, target, part)
            return length

    async def ack(self) -> None:
        await self._settle(Verdict(settle=Settle.ACK, receipt=self._held.delivery.receipt))

    async def nack(
        self, error: str | None = None, *, delay: Duration | None = None, defer: bool = False, final: bool = False
    ) -> Result:
        return await self._settle(
            nack_verdict(self._held.delivery.receipt, error, delay=delay, defer=defer, final=final)
        )

    async def release(self) -> None:
        await self._settle(Verdict(settle=Settle.RELEASE, receipt=self._held.delivery.receipt))

    async def extend(self, lease: Duration | None = None) -> int:
        """Expiry = now + lease (the queue's where none is given); answers when it runs out."""
        lease_ms = None if lease is None else parse_duration_ms("lease", lease)
        receipt = self._held.delivery.receipt
        result = await self._settle(Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms))
        assert result.lease_expires_at is not None
        return result.lease_expires_at

    async def save_state(self, document: Any, etag: str | None = None) -> str | None:
        """Save if nobody else has since `etag` (left out: since this message read or saved it)."""
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
        """Let go: without a verdict so far, it is nacked, to come back after claim's `on_close_delay`."""
        if not self._held.is_settled:
            receipt, delay_ms = self._held.delivery.receipt, self._held.on_close_delay_ms
            error = "closed without a verdict"
            await self._settle(Verdict(settle=Settle.NACK, receipt=receipt, error=error, delay_ms=delay_ms))

    async def _settle(self, verdict: Verdict) -> Result:
        [result] = await self._transport.messages.settle(self._held.ref, [verdict])
        note_result(self._held, verdict, result)
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
            # The block's own error goes on; that its message could not be nacked is told beside it.
            error.add_note(f"holdfast: message {self.id} could not be nacked: {refused.message}")


def describe(error: BaseException) -> str:
    """An exception as a nack's text, in characters that can be stored."""
    return f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()


def nack_verdict(receipt: Receipt, error: str | None, *, delay: Duration | None, defer: bool, final: bool) -> Verdict:
    delay_ms = None if delay is None else parse_duration_ms("delay", delay)
    return Verdict(settle=Settle.NACK, receipt=receipt, error=plain(error), delay_ms=delay_ms, defer=defer, final=final)


def note_result(held: Held, verdict: Verdict, result: Result) -> None:
    """Remember what a verdict did to a message in hand."""
    if not result.ok and not result.is_stale:
        return  # nothing has changed: the lease stands, and the message can still be settled
    if not result.ok:
        held.lost = held.lost or LOST
    if verdict.settle is not Settle.EXTEND:
        # A stale lease is past settling too: leaving the block must not try again.
        held.is_settled = True
    elif result.ok and result.lease_expires_at is not None:
        held.lease_expires_at = result.lease_expires_at
