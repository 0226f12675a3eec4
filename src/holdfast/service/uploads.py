"""Uploads: messages whose payloads arrive in parts."""

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
    """The upload of one message.

    A small payload is held in memory. A larger one is written to the store part by part, if the store can do that.
    Always call `close` at the end; it deletes a payload that was not enqueued.
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
        """Add a part of the payload. Raise `PayloadTooLarge` or `OverQuota` as soon as a limit is exceeded."""
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
        """Return the message to enqueue, after the last part."""
        if self._writer is None:
            return replace(self._draft, payload=bytes(self._held))
        return replace(self._draft, pieces=await self._writer.finish())

    async def enqueue(self) -> Enqueued:
        """Finish the upload, and enqueue the message. For a duplicate key return the first message with that key."""
        [enqueued] = await self._enqueue([await self.finish()])
        return enqueued

    def close(self) -> None:
        """Delete the payload unless it was enqueued."""
        if self._writer is not None:
            self._writer.abandon()

    async def abandon(self) -> None:
        """Do the same as `close`. Callers on other threads can only make async calls."""
        self.close()
