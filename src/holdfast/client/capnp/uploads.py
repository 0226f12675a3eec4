"""Uploads over Cap'n Proto, to a sink that the server makes for each."""

from contextlib import suppress
from typing import Any, NoReturn

from holdfast.client.capnp.calls import CapnpCalls
from holdfast.client.capnp.connection import CapnpClientConnection
from holdfast.client.capnp.shapes import enqueued_of, write_draft, write_ref
from holdfast.client.remote.lost import Lost
from holdfast.client.transport import Interrupted
from holdfast.model.answers import Enqueued
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef

# The most bytes of a payload in one call, all of which are in memory on the way.
_MAX_PART_BYTES = 1 << 20


class CapnpUpload:
    """The upload of one message. A sink belongs to its connection, so a lost upload begins again."""

    def __init__(self, calls: CapnpCalls, ref: QueueRef, draft: Draft) -> None:
        self._calls = calls
        self._ref = ref
        self._draft = draft
        self._connection: CapnpClientConnection | None = None
        self._sink: Any = None
        self._tries = 0

    async def write(self, part: bytes) -> None:
        for at in range(0, len(part), _MAX_PART_BYTES):
            await self._send(part[at : at + _MAX_PART_BYTES])

    async def enqueue(self) -> Enqueued:
        connection, sink = await self._begin()
        try:
            response = await self._calls.await_response(connection, sink.finish())
        except Lost as lost:
            self._end()
            error = self._calls.lost(lost, is_whole=True, is_repeatable=self._draft.key is not None)
            if self._draft.key is None:
                raise error from None
            self._interrupt(error)
        self._end()
        [enqueued] = enqueued_of(response)
        return enqueued

    async def abandon(self) -> None:
        sink, connection = self._sink, self._connection
        try:
            if sink is not None and connection is not None:
                with suppress(Lost, HoldfastError):  # the server discards an upload whose caller disappears
                    await connection.await_response(sink.abandon(), self._calls.timeout_s)
        finally:
            self._end()

    def _end(self) -> None:
        """Let go of the sink and of its connection."""
        self._sink = None
        connection, self._connection = self._connection, None
        if connection is not None:
            self._calls.connections.give_back(connection)

    async def _send(self, part: bytes) -> None:
        connection, sink = await self._begin()
        try:
            await self._calls.await_response(connection, sink.write(part=part))
        except Lost as lost:
            self._lose(lost)

    async def _begin(self) -> tuple[CapnpClientConnection, Any]:
        if self._connection is None or self._sink is None:
            self._calls.check_open()
            self._end()
            self._connection = self._calls.connections.take()
            try:
                request = (await self._connection.queues()).upload_request()
                write_ref(request, self._ref)
                write_draft(request, self._draft)
                self._sink = (await self._calls.await_response(self._connection, request.send())).sink
            except Lost as lost:
                self._lose(lost)
        return self._connection, self._sink

    def _lose(self, lost: Lost) -> NoReturn:
        self._end()
        self._interrupt(self._calls.lost(lost, is_whole=False, is_repeatable=True))

    def _interrupt(self, error: HoldfastError) -> NoReturn:
        self._tries += 1
        if self._tries > self._calls.max_tries:
            raise error from None
        raise Interrupted(error) from None
