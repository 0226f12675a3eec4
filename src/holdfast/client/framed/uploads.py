"""An enqueue whose payload goes out bit by bit: the server says how much of it may be under way."""

from typing import NoReturn

from holdfast.client.framed.answer import CREDIT, ERROR, RESULT, Answer, OpenCall
from holdfast.client.framed.calls import FramedCalls
from holdfast.client.http.failures import strange_answer
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

# Of a payload in one frame: other calls on the connection get their turn in between.
_PIECE = 64 << 10


class FramedUpload:
    """`client.transport.Upload`. It has a call from its first byte until its answer, or until it is abandoned.

    A payload that is cut off before its end is nothing to the server. Behind it a lost answer leaves open what became
    of the message, as for every other enqueue.
    """

    def __init__(self, calls: FramedCalls, ref: QueueRef, draft: Draft) -> None:
        self._calls = calls
        self._body = write_upload(ref, draft)
        self._tries = calls.tries(is_repeatable=draft.key is not None)
        self._pause_ms = 0
        self._call: OpenCall | None = None
        # Bytes that the server takes now.
        self._credit = 0
        # All of it was sent, as far as can be known.
        self._is_whole = False

    async def write(self, part: bytes) -> None:
        call = await self._begun()
        rest = memoryview(part)
        while rest:
            while not self._credit:
                await self._hear_credit(call)
            size = min(len(rest), self._credit, _PIECE)
            await self._send(call, FrameKind.DATA, bytes(rest[:size]))
            self._credit -= size
            rest = rest[size:]

    async def enqueue(self) -> Enqueued:
        call = await self._begun()
        self._is_whole = True
        await self._send(call, FrameKind.END, b"")
        while (answer := await self._hear(call))[0] != RESULT:
            pass
        self._call = None
        self._calls.connections.put_back(call, is_long=True)
        try:
            [enqueued] = read_enqueued(answer[1])
        except ValueError:
            raise strange_answer(self._calls.url) from None
        return enqueued

    async def abandon(self) -> None:
        self._close()

    def _close(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.give_up(None)
            self._calls.connections.put_back(call, is_long=True)

    # --- One try ---------------------------------------------------------------------------------------------------

    async def _begun(self) -> OpenCall:
        """Return a call that is open and has credit. Until then trying again loses nothing."""
        calls = self._calls
        while self._call is None:
            calls.check_open()
            pause_ms, self._pause_ms = self._pause_ms, 0
            if pause_ms:
                await calls.tasks.sleep(pause_ms / 1_000)
                calls.check_open()
            self._is_whole = False
            try:
                # A fresh one: what is sent may be impossible to send again.
                call = self._call = await calls.connections.take(is_long=True, timeout_s=calls.timeout_s, is_fresh=True)
                await call.open(self._body)
                self._credit = (await call.server(calls.timeout_s)).window_bytes
            except Lost as lost:
                self._close()
                failure = self._tries.lost(lost, is_cut=True)
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

    async def _hear_credit(self, call: OpenCall) -> None:
        kind, body = await self._hear(call)
        if kind != CREDIT:
            raise strange_answer(self._calls.url)  # a success, of what was not there yet
        try:
            self._credit += read_credit(body)
        except ValueError:
            raise strange_answer(self._calls.url) from None

    async def _hear(self, call: OpenCall) -> Answer:
        """Return the next frame, unless it is a refusal."""
        try:
            answer = await call.hear(self._calls.timeout_s)
        except Lost as lost:
            self._lose(lost)
        if answer[0] == ERROR:
            error = read_error(answer[1])
            failure = self._calls.refusal(error, lambda: self._tries, repeats_undone=False)
            if failure is None:
                raise error
            self._fail(failure)
        return answer

    def _lose(self, lost: Lost) -> NoReturn:
        # Not as on a connection that died while it was idle: this one carried the payload.
        own = Lost(lost.reason, was_sent=lost.was_sent, is_timeout=lost.is_timeout)
        self._fail(self._tries.lost(own, is_cut=not self._is_whole))

    def _fail(self, failure: Failure) -> NoReturn:
        self._close()
        self._calls.check_open()
        if failure.pause_ms is None:
            raise failure.error from None
        self._pause_ms = failure.pause_ms
        raise Interrupted(failure.error) from None
