"""The interface between the client and the carrier of its calls: the service when embedded, a network otherwise."""

from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

from holdfast.model.answers import Delivery, Enqueued, Exchanged, Part, Result
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Draft, Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import Ask, Verdict
from holdfast.wire.operation import Operation

R = TypeVar("R")
A = TypeVar("A")


class Interrupted(Exception):
    """An upload was lost on its way, and may be written again from its first byte. `error`: for those who cannot."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(str(error))
        self.error = error


class Upload(Protocol):
    """An enqueue whose payload comes bit by bit. However it ends, whoever began it calls `abandon`."""

    async def write(self, part: bytes) -> None:
        """A refusal is raised as soon as it is known. `Interrupted`."""

    async def enqueue(self) -> Enqueued:
        """The payload is whole. `Interrupted`."""

    async def abandon(self) -> None:
        """What was not enqueued is gone. Does nothing to what was."""


class Messages(Protocol):
    """The calls that every message goes through. They have hand-written paths over each wire."""

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]: ...

    async def upload(self, ref: QueueRef, draft: Draft, size: int | None = None) -> Upload:
        """Of the message all but its payload, which is to come; its length where it is known."""

    async def claim(self, ref: QueueRef, ask: Ask, wait_ms: int | None) -> list[Delivery]: ...

    async def exchange(self, ref: QueueRef, verdicts: list[Verdict], ask: Ask, wait_ms: int | None = 0) -> Exchanged:
        """Settle, then claim. Return the results also where the claim is refused for now."""

    def stream(self, ref: QueueRef, ask: Ask, prefetch: int) -> AsyncIterator[Delivery]:
        """Deliveries as they become ready, for ever; at most `prefetch` are under way or unsettled."""

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]: ...

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> Part:
        """Of a payload that a claim left where it is (`Ask.streams`), as long as the receipt holds. `StaleLease`."""


class Operations(Protocol):
    """A way to carry out the other operations of the table, each by its row."""

    async def call(self, operation: Operation[R, A], ref: QueueRef, request: R) -> A:
        """Carry out an operation on a queue, on the tenant of `ref`, or on the server."""


class Transport(Operations, Protocol):
    @property
    def messages(self) -> Messages: ...

    async def close(self) -> None: ...
