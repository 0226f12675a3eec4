"""The capabilities of the schema. Each method is one call, run as `calls.run` has it."""

from typing import Any

from holdfast.doors.capnp import messages, queues
from holdfast.doors.capnp.calls import CapnpCall, run
from holdfast.doors.capnp.connection import CapnpConnection
from holdfast.doors.capnp.operations import operate
from holdfast.doors.capnp.shapes import write_enqueued
from holdfast.model.errors import InvalidArgument
from holdfast.model.names import QueueRef
from holdfast.service.uploads import PayloadStream
from holdfast.wire.capnp.schema import SCHEMA, VERSION


class Queues(SCHEMA.Queues.Server):  # type: ignore[misc]  # pycapnp has no types
    """What a connection begins with. pycapnp calls `NAME_context` for the method NAME."""

    def __init__(self, connection: CapnpConnection) -> None:
        self._connection = connection

    async def add_context(self, context: Any) -> None:
        await run("enqueue", messages.add, self._connection, context)

    async def poll_context(self, context: Any) -> None:
        await run("claim", messages.poll, self._connection, context)

    async def ack_context(self, context: Any) -> None:
        await run("ack", messages.ack, self._connection, context)

    async def extend_context(self, context: Any) -> None:
        await run("extend", messages.extend, self._connection, context)

    async def remove_context(self, context: Any) -> None:
        await run("remove_held", messages.remove, self._connection, context)

    async def nack_context(self, context: Any) -> None:
        await run("nack", messages.nack, self._connection, context)

    async def release_context(self, context: Any) -> None:
        await run("release", messages.release, self._connection, context)

    async def settle_context(self, context: Any) -> None:
        await run("settle", messages.settle, self._connection, context)

    async def createQueue_context(self, context: Any) -> None:
        await run("set_policy", queues.create, self._connection, context)

    async def deleteQueue_context(self, context: Any) -> None:
        await run("delete", queues.delete, self._connection, context)

    async def listQueues_context(self, context: Any) -> None:
        await run("queues", queues.list_queues, self._connection, context)

    async def stats_context(self, context: Any) -> None:
        await run("stats", queues.stats, self._connection, context)

    async def readPart_context(self, context: Any) -> None:
        await run("read_part", messages.read_part, self._connection, context)

    async def upload_context(self, context: Any) -> None:
        await run("upload", self._upload, self._connection, context)

    async def operate_context(self, context: Any) -> None:
        await run("operate", operate, self._connection, context)

    async def _upload(self, call: CapnpCall) -> None:
        if len(self._connection.uploads) >= _MOST_UPLOADS:
            raise InvalidArgument(f"a connection has at most {_MOST_UPLOADS} uploads at a time")
        call.results.sink = Sink(self._connection, *await messages.begin_upload(call))

    # --- Of the connection -------------------------------------------------------------------------------------

    async def authenticate_context(self, context: Any) -> None:
        """A token that is not good is refused at once, and leaves the connection without one."""
        self._connection.authenticate(context.params.token)
        await run("authenticate", _nothing_more, self._connection, context)
        if context.results._has("error"):
            self._connection.authenticate("")

    async def hello_context(self, context: Any) -> None:
        context.results.version = VERSION
        context.results.server = "holdfast"

    async def leave_context(self, context: Any) -> None:
        waiting = self._connection.tickets.get(context.params.ticket)
        if waiting is not None:
            waiting.cancel()


class Sink(SCHEMA.Sink.Server):  # type: ignore[misc]
    """An upload. It ends with its connection, if not before."""

    def __init__(self, connection: CapnpConnection, upload: PayloadStream, queue: QueueRef) -> None:
        self._connection = connection
        self._upload = upload
        self._queue = queue

    async def write_context(self, context: Any) -> None:
        await run("upload", self._write, self._connection, context)

    async def finish_context(self, context: Any) -> None:
        await run("enqueue", self._finish, self._connection, context)

    async def abandon_context(self, context: Any) -> None:
        self._close()

    async def _write(self, call: CapnpCall) -> None:
        self._check_open()
        call.queue = self._queue
        await self._upload.write(call.params.part)

    async def _finish(self, call: CapnpCall) -> None:
        self._check_open()
        call.queue = self._queue
        try:
            draft = await self._upload.finish()
            write_enqueued(call.results, await messages.enqueue(call, self._queue, [draft]))
        finally:
            self._close()

    def _check_open(self) -> None:
        if self._upload not in self._connection.uploads:
            raise InvalidArgument("this upload has ended: begin another")

    def _close(self) -> None:
        self._connection.uploads.discard(self._upload)
        self._upload.close()


async def _nothing_more(call: CapnpCall) -> None:
    """Who it is was found out before."""


_MOST_UPLOADS = 1_000
