"""The interface between the client and the services: called directly when embedded, over a network otherwise."""

from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

from holdfast.model.answers import Delivery, Enqueued, Exchanged, PayloadPart, Result
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Verdict
from holdfast.wire.operation import Operation

R = TypeVar("R")
A = TypeVar("A")


class Interrupted(Exception):
    """An upload was lost on its way and may be written again from its first byte.

    `error` is the error to raise if the source cannot be read again.
    """

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(str(error))
        self.error = error


class TransportUpload(Protocol):
    """An enqueue whose payload comes in parts. Its caller calls `abandon` in the end, whatever happened."""

    async def write(self, part: bytes) -> None:
        """Add a part to the payload. Raise a refusal as soon as it is known, and `Interrupted`."""

    async def enqueue(self) -> Enqueued:
        """Enqueue the message, whose payload is complete. Raise `Interrupted`."""

    async def abandon(self) -> None:
        """Drop the payload unless it was enqueued."""


class MessageCalls(Protocol):
    """The calls that every message goes through. They have hand-written paths over each wire."""

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]: ...

    async def upload(self, ref: QueueRef, draft: Draft, size: int | None = None) -> TransportUpload:
        """Begin an upload. `draft` is the message without its payload, `size` the payload's length if it is known."""

    async def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]: ...

    async def exchange(
        self, ref: QueueRef, verdicts: list[Verdict], ask: ClaimRequest, wait_ms: int | None = 0
    ) -> Exchanged:
        """Settle, then claim. Return the results even if the claim is refused for now."""

    def stream(self, ref: QueueRef, ask: ClaimRequest, prefetch: int) -> AsyncIterator[Delivery]:
        """Yield deliveries as they become ready, without end; at most `prefetch` are unsettled at a time."""

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]: ...

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> PayloadPart:
        """Read a part of a payload that a claim left in the store (`ClaimRequest.streams`). Raise `StaleLease`."""


class OperationCalls(Protocol):
    """A way to carry out the other operations of the table, each by its row."""

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        """Carry out an operation on a queue, on the tenant of `ref`, or on the server."""


class Transport(OperationCalls, Protocol):
    @property
    def messages(self) -> MessageCalls: ...

    async def close(self) -> None: ...
