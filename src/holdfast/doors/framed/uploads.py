"""Uploads: enqueues whose payload arrives in DATA frames, no faster than the store accepts it."""

import asyncio
from collections import deque

from holdfast.doors.framed.call import FramedCall
from holdfast.doors.framed.messages import cancelled, enqueue_drafts, with_correlation_ids
from holdfast.model.errors import InvalidArgument, RateLimited
from holdfast.wire.framed.answers import write_enqueued
from holdfast.wire.framed.calls import UploadCall
from holdfast.wire.framed.frames import FrameKind
from holdfast.wire.framed.greetings import write_credit

# The bytes of an upload that may be on their way, or in memory and not yet stored.
WINDOW_BYTES = 256 << 10
# An upload that sends no part for this long is refused.
UPLOAD_PATIENCE_S = 60.0
MAX_UPLOADS = 64


class Incoming:
    """The part of an upload's payload that has arrived and is not stored yet."""

    def __init__(self, call: FramedCall) -> None:
        self._call = call
        # An empty part marks the end of the payload.
        self._parts: deque[bytes] = deque()
        self._window = WINDOW_BYTES
        self._changed = asyncio.Event()

    def take(self, part: bytes) -> None:
        """Add a received part of the payload; an empty part marks its end."""
        self._window -= len(part)
        self._call.connection.keep_bytes(self._call, len(part))
        self._parts.append(part)
        self._changed.set()

    async def next(self) -> bytes:
        """Return the next part; empty at the payload's end.

        Raise `InvalidArgument` if the caller has sent more than its window allows.
        """
        while not self._parts:
            self._changed.clear()
            await self._changed.wait()
        if self._window < 0:
            raise InvalidArgument(f"more was sent than the window of {WINDOW_BYTES} bytes and the credit allow")
        return self._parts.popleft()

    def give_credit(self, size: int) -> None:
        """Allow the client to send `size` more bytes, because as many were stored."""
        self._window += size
        call = self._call
        call.connection.keep_bytes(call, -size)
        call.connection.send(FrameKind.CREDIT, call.number, write_credit(size))


async def upload(call: FramedCall, given: UploadCall) -> bytes:
    """Enqueue a message whose payload is stored as it arrives."""
    if call.connection.count_uploads() > MAX_UPLOADS:
        raise RateLimited(f"a connection has at most {MAX_UPLOADS} uploads at a time", limit=MAX_UPLOADS)
    incoming = call.incoming
    assert incoming is not None
    ref = call.ref(given)
    [draft] = with_correlation_ids(call, [given.draft])
    if draft.payload:
        raise InvalidArgument("the message of an upload must have no payload: send it in DATA frames", field="payload")
    uploading = await call.session.upload(ref, draft)
    try:
        while part := await _next(call, incoming):
            await uploading.write(part)
            incoming.give_credit(len(part))
        return write_enqueued(await enqueue_drafts(call, ref, [await uploading.finish()]))
    finally:
        uploading.close()


async def _next(call: FramedCall, incoming: Incoming) -> bytes:
    try:
        async with asyncio.timeout(UPLOAD_PATIENCE_S):
            part = await call.wait(incoming.next())
    except TimeoutError:
        raise InvalidArgument(f"no part of the payload arrived for {UPLOAD_PATIENCE_S:g} s") from None
    if part is None:
        raise cancelled()
    return part
