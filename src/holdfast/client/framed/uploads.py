"""Uploads over frames. The server says how many bytes of the payload it accepts at a time."""

from typing import NoReturn

from holdfast.client.framed.calls import FramedCalls
from holdfast.client.framed.open_call import CREDIT, ERROR, RESULT, OpenCall, ResponseFrame
from holdfast.client.http.failures import unexpected_response
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.tries import Failure
from holdfast.client.transport import Interrupted
from holdfast.model.answers import Enqueued
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.wire.framed.answers import read_enqueued
from holdfast.wire.framed.calls import write_upload
from holdfast.wire.framed.frames import FrameKind
from holdfast.wire.framed.greetings import read_credit, read_error

# The size of one frame of a payload, small enough for other calls on the connection to get their turn.
_FRAME_BYTES = 64 << 10


class FramedUpload:
    """The upload of one message. It holds a call from its first byte until its response or `abandon`.

    The server discards an incomplete payload. If the response to a complete one is lost, the outcome is unknown, as for
    any other enqueue.
    """

    def __init__(self, calls: FramedCalls, ref: QueueRef, draft: Draft) -> None:
        self._calls = calls
        self._body = write_upload(ref, draft)
        self._tries = calls.tries(is_repeatable=draft.key is not None)
        self._pause_ms = 0
        self._call: OpenCall | None = None
        # The number of bytes that the server accepts now.
        self._credit = 0
        # The whole payload was sent, as far as is known.
        self._is_whole = False

    async def write(self, part: bytes) -> None:
        call = await self._begin()
        rest = memoryview(part)
        while rest:
            while not self._credit:
                await self._receive_credit(call)
            size = min(len(rest), self._credit, _FRAME_BYTES)
            await self._send(call, FrameKind.DATA, bytes(rest[:size]))
            self._credit -= size
            rest = rest[size:]

    async def enqueue(self) -> Enqueued:
        call = await self._begin()
        self._is_whole = True
        await self._send(call, FrameKind.END, b"")
        while (response := await self._receive_frame(call))[0] != RESULT:
            pass
        self._call = None
        self._calls.connections.put_back(call, is_long=True)
        try:
            [enqueued] = read_enqueued(response[1])
        except ValueError:
            raise unexpected_response(self._calls.url) from None
        return enqueued

    async def abandon(self) -> None:
        self._close()

    def _close(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.abandon(None)
            self._calls.connections.put_back(call, is_long=True)

    # --- One try ---------------------------------------------------------------------------------------------------

    async def _begin(self) -> OpenCall:
        """Return an open call with credit. Until then, a retry loses nothing."""
        calls = self._calls
        while self._call is None:
            calls.check_open()
            pause_ms, self._pause_ms = self._pause_ms, 0
            if pause_ms:
                await calls.tasks.sleep(pause_ms / 1_000)
                calls.check_open()
            self._is_whole = False
            try:
                # A fresh connection, because some uploads cannot be sent again.
                call = self._call = await calls.connections.take(is_long=True, timeout_s=calls.timeout_s, is_fresh=True)
                await call.open(self._body)
                self._credit = (await call.server_hello(calls.timeout_s)).window_bytes
            except Lost as lost:
                self._close()
                failure = self._tries.record_loss(lost, is_cut=True)
                calls.check_open()
                if failure.pause_ms is None:
                    raise failure.error from None
                self._pause_ms = failure.pause_ms
        return self._call

    async def _send(self, call: OpenCall, kind: int, body: bytes) -> None:
        try:
            await call.send(kind, body)
        except Lost as lost:
            self._lose(lost)

    async def _receive_credit(self, call: OpenCall) -> None:
        kind, body = await self._receive_frame(call)
        if kind != CREDIT:
            raise unexpected_response(self._calls.url)  # a success for an incomplete payload
        try:
            self._credit += read_credit(body)
        except ValueError:
            raise unexpected_response(self._calls.url) from None

    async def _receive_frame(self, call: OpenCall) -> ResponseFrame:
        """Return the next frame. Raise its error, or `Interrupted` if the upload can be repeated."""
        try:
            response = await call.receive(self._calls.timeout_s)
        except Lost as lost:
            self._lose(lost)
        if response[0] == ERROR:
            error = read_error(response[1])
            failure = self._calls.refusal(error, lambda: self._tries, repeats_undone=False)
            if failure is None:
                raise error
            self._fail(failure)
        return response

    def _lose(self, lost: Lost) -> NoReturn:
        # This is not the loss of an idle connection, because the connection carried the payload.
        own = Lost(lost.reason, was_sent=lost.was_sent, is_timeout=lost.is_timeout)
        self._fail(self._tries.record_loss(own, is_cut=not self._is_whole))

    def _fail(self, failure: Failure) -> NoReturn:
        self._close()
        self._calls.check_open()
        if failure.pause_ms is None:
            raise failure.error from None
        self._pause_ms = failure.pause_ms
        raise Interrupted(failure.error) from None
