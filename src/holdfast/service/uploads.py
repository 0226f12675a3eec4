"""Uploads: messages whose payloads come bit by bit."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec.structs import replace

from holdfast.model.answers import Enqueued
from holdfast.model.message import Draft, check_size
from holdfast.stores.contract import PayloadWriter

Stage = Callable[[], Awaitable[PayloadWriter]]
Enqueue = Callable[[list[Draft]], Awaitable[list[Enqueued]]]


class PayloadStream(Protocol):
    """A payload on its way into the store, as a door uses it. The one who opened it calls `close`, however it ends."""

    async def write(self, part: bytes) -> None:
        """Add a part. Raise `PayloadTooLarge` or `OverQuota` as soon as that is certain."""

    async def finish(self) -> Draft:
        """Return the message to enqueue, once its payload is complete."""

    def close(self) -> None:
        """Forget the parts, unless their message was enqueued."""


class PayloadUpload:
    """What has come so far is held here while it is small, and in the store from then on, where the store can.

    However it ends, whoever opened it calls `close`: what was not enqueued is gone after.
    """

    def __init__(
        self, draft: Draft, *, max_payload: int, stages_above: int | None, stage: Stage, enqueue: Enqueue
    ) -> None:
        self._draft = draft
        self._enqueue = enqueue
        self._max_payload = max_payload
        self._stages_above = stages_above
        self._stage = stage
        self._size = 0
        self._held = bytearray()
        self._writer: PayloadWriter | None = None

    async def write(self, part: bytes) -> None:
        self._size += len(part)
        check_size("payload", self._size, self._max_payload)
        if self._writer is None:
            self._held += part
            if self._stages_above is None or self._size <= self._stages_above:
                return
            self._writer = await self._stage()
            part = bytes(self._held)
            self._held.clear()
        await self._writer.write(part)

    async def finish(self) -> Draft:
        if self._writer is None:
            return replace(self._draft, payload=bytes(self._held))
        return replace(self._draft, pieces=await self._writer.finish())

    async def enqueue(self) -> Enqueued:
        """Finish it, and make it a message. Of a key that is known the message that has it is answered."""
        [enqueued] = await self._enqueue([await self.finish()])
        return enqueued

    def close(self) -> None:
        if self._writer is not None:
            self._writer.abandon()

    async def abandon(self) -> None:
        """As `close`, for callers of another thread: they are let in to calls alone."""
        self.close()
