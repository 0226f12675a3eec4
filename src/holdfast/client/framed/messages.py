"""The calls on messages over frames: large payloads go in parts, and the server sends deliveries by itself."""

from collections.abc import AsyncIterator

from msgspec.structs import replace

from holdfast.client.framed.calls import FramedCalls, FramedRequest
from holdfast.client.framed.codec import FramedCodec
from holdfast.client.framed.open_call import ResponseFrame
from holdfast.client.framed.streams import stream
from holdfast.client.remote.messages import RemoteMessages
from holdfast.client.transport import Interrupted, OperationCalls
from holdfast.model.answers import Delivery, Enqueued
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest

# Payloads above this size go in parts, because a server holds a whole frame in memory and limits its length.
_UPLOAD_ABOVE = 1 << 20


class FramedMessages(RemoteMessages[FramedRequest, ResponseFrame]):
    """The calls on messages over frames."""

    def __init__(self, calls: FramedCalls, codec: FramedCodec, operations: OperationCalls) -> None:
        super().__init__(calls, codec, operations)
        self._framed = calls

    async def _enqueue(self, ref: QueueRef, drafts: list[Draft], *, is_shared: bool = False) -> list[Enqueued]:
        if len(drafts) == 1 and len(drafts[0].payload) > _UPLOAD_ABOVE:
            return [await self._enqueue_in_parts(ref, drafts[0])]
        return await super()._enqueue(ref, drafts, is_shared=is_shared)

    async def _enqueue_in_parts(self, ref: QueueRef, draft: Draft) -> Enqueued:
        upload = self._codec.upload(ref, replace(draft, payload=b""), len(draft.payload))
        try:
            while True:
                try:
                    await upload.write(draft.payload)
                    return await upload.enqueue()
                except Interrupted:
                    pass  # send again from the first byte; the upload counts its tries
        finally:
            await upload.abandon()

    def stream(self, ref: QueueRef, ask: ClaimRequest, prefetch: int) -> AsyncIterator[Delivery]:
        return stream(self._framed, self.give_back, ref, ask, prefetch)
