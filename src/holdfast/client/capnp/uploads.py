"""An enqueue whose payload goes out bit by bit, to a sink that the server made for it."""

from contextlib import suppress
from typing import Any, NoReturn

from holdfast.client.capnp.calls import CapnpCalls
from holdfast.client.capnp.link import CapnpClientConnection
from holdfast.client.capnp.shapes import enqueued_of, write_draft, write_ref
from holdfast.client.remote.lost import Lost
from holdfast.client.transport import Interrupted
from holdfast.model.answers import Enqueued
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef

# Of a part in one call: what lies in memory on the way.
_PART = 1 << 20


class CapnpUpload:
    """`client.transport.Upload`. A sink goes with its connection: what was lost on the way begins again."""

    def __init__(self, calls: CapnpCalls, ref: QueueRef, draft: Draft) -> None:
        self._calls = calls
        self._ref = ref
        self._draft = draft
        self._link: CapnpClientConnection | None = None
        self._sink: Any = None
        self._tries = 0

    async def write(self, part: bytes) -> None:
        for at in range(0, len(part), _PART):
            await self._send(part[at : at + _PART])

    async def enqueue(self) -> Enqueued:
        link, sink = await self._begun()
        try:
            answer = await self._calls.answer(link, sink.finish())
        except Lost as lost:
            self._sink = None
            error = self._calls.lost(lost, is_whole=True, is_repeatable=self._draft.key is not None)
            if self._draft.key is None:
                raise error from None
            self._interrupt(error)
        self._sink = None
        [enqueued] = enqueued_of(answer)
        return enqueued

    async def abandon(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None and self._link is not None:
            with suppress(Lost, HoldfastError):  # the server gives up what its caller does not finish
                await self._link.answer(sink.abandon(), self._calls.timeout_s)

    async def _send(self, part: bytes) -> None:
        link, sink = await self._begun()
        try:
            await self._calls.answer(link, sink.write(part=part))
        except Lost as lost:
            self._lose(lost)

    async def _begun(self) -> tuple[CapnpClientConnection, Any]:
        if self._link is None or self._sink is None:
            self._calls.check_open()
            self._link = self._calls.links.choose()
            try:
                request = (await self._link.queues()).upload_request()
                write_ref(request, self._ref)
                write_draft(request, self._draft)
                self._sink = (await self._calls.answer(self._link, request.send())).sink
            except Lost as lost:
                self._lose(lost)
        return self._link, self._sink

    def _lose(self, lost: Lost) -> NoReturn:
        self._sink = None
        self._interrupt(self._calls.lost(lost, is_whole=False, is_repeatable=True))

    def _interrupt(self, error: HoldfastError) -> NoReturn:
        self._tries += 1
        if self._tries > self._calls.most_tries:
            raise error from None
        raise Interrupted(error) from None
