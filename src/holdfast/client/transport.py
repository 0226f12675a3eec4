"""The interface between the client and the services, which are either in the same process or behind a network."""

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
    """Raised when the connection of an upload was lost and the payload may be written again from its first byte.

    `error` is the error to raise if the source cannot be read again.
    """

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(str(error))
        self.error = error


class TransportUpload(Protocol):
    """An enqueue whose payload is sent in parts. The caller always calls `abandon` at the end, also after an error."""

    async def write(self, part: bytes) -> None:
        """Add a part to the payload. Raise the server's error as soon as it is known, or `Interrupted`."""

    async def enqueue(self) -> Enqueued:
        """Enqueue the message, whose payload is complete. Raise the server's error, or `Interrupted`."""

    async def abandon(self) -> None:
        """Discard the payload unless it was enqueued."""


class MessageCalls(Protocol):
    """The calls made for every message. Each protocol encodes them by hand, for speed."""

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        """Add messages, all or none, and return one record for each once they are durable."""

    async def upload(self, ref: QueueRef, draft: Draft, size: int | None = None) -> TransportUpload:
        """Begin an upload. `draft` is the message without payload; `size` is the payload's length in bytes if known."""

    async def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        """Claim ready messages, or wait for one for up to `wait_ms` milliseconds; None waits for ever."""

    async def exchange(
        self, ref: QueueRef, verdicts: list[Verdict], ask: ClaimRequest, wait_ms: int | None = 0
    ) -> Exchanged:
        """Settle messages, then claim others. If only the claim fails, return the results without deliveries."""

    def stream(self, ref: QueueRef, ask: ClaimRequest, prefetch: int) -> AsyncIterator[Delivery]:
        """Yield deliveries as they become ready, without end, with at most `prefetch` unsettled at a time."""

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        """Carry out verdicts, and return one result for each, in order."""

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> PayloadPart:
        """Return a part of a payload that a claim left in the store (`ClaimRequest.streams`).

        Raise `StaleLease` if the lease is lost.
        """


class OperationCalls(Protocol):
    """The other operations, each described by its row of `wire/operations.py`."""

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        """Carry out an operation on the queue `ref`, on its tenant, or on the server, and return its result."""


class Transport(OperationCalls, Protocol):
    """A connection to an embedded core or to a server."""

    @property
    def messages(self) -> MessageCalls:
        """The calls on messages."""

    async def close(self) -> None:
        """Disconnect, and give back what the connection holds."""
