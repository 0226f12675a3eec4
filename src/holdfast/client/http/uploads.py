"""Uploads over HTTP: one request with a multipart form of metadata and payload, sent in parts."""

import secrets
from typing import NoReturn

import msgspec

from holdfast.client.http.calls import HttpCalls
from holdfast.client.http.connection import AnyConnection
from holdfast.client.http.failures import error_of_response, unexpected_response
from holdfast.client.http.response import HttpReply
from holdfast.client.http.shapes import enqueued_of
from holdfast.client.remote.lost import Lost
from holdfast.client.remote.tries import Failure
from holdfast.client.transport import Interrupted
from holdfast.model.answers import Enqueued
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.wire.http.bodies import EnqueueAnswer, encode
from holdfast.wire.http.drafts import meta_in

PATH = "/v1/queue/enqueue"

_enqueued = msgspec.json.Decoder(EnqueueAnswer)
_HEAD = b'--%b\r\nContent-Disposition: form-data; name="%b"\r\nContent-Type: %b\r\n\r\n'


class MultipartForm:
    """The bytes of the form before and after the payload."""

    def __init__(self, ref: QueueRef, draft: Draft) -> None:
        boundary = secrets.token_hex(16).encode()
        meta = encode(meta_in(draft, ref.tenant, ref.queue))
        self.content_type = b"multipart/form-data; boundary=" + boundary
        self.before = _HEAD % (boundary, b"meta", b"application/json") + meta + b"\r\n"
        self.before += _HEAD % (boundary, b"payload", b"application/octet-stream")
        self.after = b"\r\n--%b--\r\n" % boundary


class HttpUpload:
    """The upload of one message. It holds a connection from its first byte until its response or `abandon`.

    The server discards a form that ends before its last boundary. If the response to a complete form is lost, the
    outcome is unknown, as for any other enqueue.
    """

    def __init__(self, calls: HttpCalls, ref: QueueRef, draft: Draft, size: int | None) -> None:
        self._calls = calls
        self._form = form = MultipartForm(ref, draft)
        self._length = None if size is None else len(form.before) + size + len(form.after)
        self._tries = calls.tries(is_repeatable=draft.key is not None)
        self._pause_ms = 0
        self._connection: AnyConnection | None = None
        # The whole form was sent, as far as is known.
        self._is_whole = False

    async def write(self, part: bytes) -> None:
        await self._send(await self._begin(), part)

    async def enqueue(self) -> Enqueued:
        connection = await self._begin()
        await self._send(connection, self._form.after, is_last=True)
        response = await self._read_response(connection)
        try:
            [enqueued] = _enqueued.decode(response.body).messages
        except (msgspec.DecodeError, ValueError):
            raise unexpected_response(self._calls.url) from None
        self._connection = None
        self._calls.put_back(connection)
        return enqueued_of(enqueued)

    async def abandon(self) -> None:
        self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.abandon()  # even after a response, because the server would read what follows as part of this body
        self._calls.put_back(connection)

    # --- One try ---------------------------------------------------------------------------------------------------

    async def _begin(self) -> AnyConnection:
        """Return a connection on which the bytes before the payload were sent. Until then, a retry loses nothing."""
        while self._connection is None:
            self._calls.check_open()
            pause_ms, self._pause_ms = self._pause_ms, 0
            if pause_ms:
                await self._calls.tasks.sleep(pause_ms / 1_000)
                self._calls.check_open()
            self._is_whole = False
            head = self._calls.head("POST", PATH, self._framing())
            try:
                self._connection = await self._calls.connect()
                self._connection.begin()
            except Lost as lost:
                self._close()
                failure = self._tries.record_loss(lost)
                self._calls.check_open()
                if failure.pause_ms is None:
                    raise failure.error from None
                self._pause_ms = failure.pause_ms
                continue
            await self._connection.send([head, *self._framed(self._form.before)], self._calls.timeout_s)
        return self._connection

    async def _send(self, connection: AnyConnection, part: bytes, *, is_last: bool = False) -> None:
        if not connection.is_over:
            self._is_whole = is_last
            parts = self._framed(part)
            if is_last and self._length is None:
                parts.append(b"0\r\n\r\n")
            await connection.send(parts, self._calls.timeout_s)
        if connection.is_over and not is_last:
            await self._read_response(connection)

    async def _read_response(self, connection: AnyConnection) -> HttpReply:
        """Return the response if it is a success. Raise its error, or `Interrupted` if the upload can be repeated."""
        try:
            response = await connection.read_response(self._calls.timeout_s)
        except Lost as lost:
            self._fail(self._tries.record_loss(lost, is_cut=not self._is_whole))
        failure = self._calls.refusal(response, self._tries, repeats_undone=False)
        if failure is not None:
            self._fail(failure)
        if response.status >= 300:
            raise error_of_response(self._calls.url, response)
        if not self._is_whole:
            raise unexpected_response(self._calls.url)  # a success for an incomplete payload
        return response

    def _fail(self, failure: Failure) -> NoReturn:
        self._close()
        self._calls.check_open()
        if failure.pause_ms is None:
            raise failure.error from None
        self._pause_ms = failure.pause_ms
        raise Interrupted(failure.error) from None

    def _framing(self) -> bytes:
        how = b"Transfer-Encoding: chunked" if self._length is None else b"Content-Length: %d" % self._length
        return b"Content-Type: %b\r\n%b\r\n\r\n" % (self._form.content_type, how)

    def _framed(self, part: bytes) -> list[bytes]:
        return [part] if self._length is not None else [b"%x\r\n" % len(part), part, b"\r\n"]
