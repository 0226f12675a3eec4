"""An enqueue whose payload goes out bit by bit: one request, as a form of two parts."""

import secrets
from typing import NoReturn

import msgspec

from holdfast.client.http.calls import HttpCalls
from holdfast.client.http.connection import AnyConnection
from holdfast.client.http.failures import answer_error, strange_answer
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
    """What stands around the payload."""

    def __init__(self, ref: QueueRef, draft: Draft) -> None:
        boundary = secrets.token_hex(16).encode()
        meta = encode(meta_in(draft, ref.tenant, ref.queue))
        self.content_type = b"multipart/form-data; boundary=" + boundary
        self.before = _HEAD % (boundary, b"meta", b"application/json") + meta + b"\r\n"
        self.before += _HEAD % (boundary, b"payload", b"application/octet-stream")
        self.after = b"\r\n--%b--\r\n" % boundary


class HttpUpload:
    """`client.transport.Upload`. It has a connection from its first byte until its answer, or until it is closed.

    What is cut off before its last boundary is nothing to the server. After it, a lost answer leaves open what became
    of the message, as for every other enqueue.
    """

    def __init__(self, calls: HttpCalls, ref: QueueRef, draft: Draft, size: int | None) -> None:
        self._calls = calls
        self._form = form = MultipartForm(ref, draft)
        self._length = None if size is None else len(form.before) + size + len(form.after)
        self._tries = calls.tries(is_repeatable=draft.key is not None)
        self._pause_ms = 0
        self._connection: AnyConnection | None = None
        # All of it was sent, as far as can be known.
        self._is_whole = False

    async def write(self, part: bytes) -> None:
        await self._send(await self._begun(), part)

    async def enqueue(self) -> Enqueued:
        connection = await self._begun()
        await self._send(connection, self._form.after, is_last=True)
        answer = await self._hear(connection)
        try:
            [enqueued] = _enqueued.decode(answer.body).messages
        except (msgspec.DecodeError, ValueError):
            raise strange_answer(self._calls.url) from None
        self._connection = None
        self._calls.put_back(connection)
        return enqueued_of(enqueued)

    async def abandon(self) -> None:
        self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.abandon()  # also when it was answered: what follows would be read as the rest of this body
        self._calls.put_back(connection)

    # --- One try ---------------------------------------------------------------------------------------------------

    async def _begun(self) -> AnyConnection:
        """A connection on which all that comes before the payload was sent. Until then trying again loses nothing."""
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
                failure = self._tries.lost(lost)
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
            await self._hear(connection)

    async def _hear(self, connection: AnyConnection) -> HttpReply:
        """Return the answer, if it is a success."""
        try:
            answer = await connection.answer(self._calls.timeout_s)
        except Lost as lost:
            self._fail(self._tries.lost(lost, is_cut=not self._is_whole))
        failure = self._calls.refusal(answer, self._tries, repeats_undone=False)
        if failure is not None:
            self._fail(failure)
        if answer.status >= 300:
            raise answer_error(self._calls.url, answer)
        if not self._is_whole:
            raise strange_answer(self._calls.url)  # a success, of what was not there yet
        return answer

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
