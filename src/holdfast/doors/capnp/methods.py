"""The capabilities of the schema. Each method runs one call by `calls.run`."""

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
    """The capability that a caller gets first. pycapnp calls `NAME_context` for the method NAME."""

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
        if len(self._connection.uploads) >= _MAX_UPLOADS:
            raise InvalidArgument(
                f"this connection has {_MAX_UPLOADS} open uploads, which is the limit; finish one first"
            )
        call.results.sink = Sink(self._connection, *await messages.begin_upload(call))

    # --- About the connection ----------------------------------------------------------------------------------

    async def authenticate_context(self, context: Any) -> None:
        """Set the connection's token. An invalid one is refused at once and leaves the connection without a token."""
        self._connection.authenticate(context.params.token)
        await run("authenticate", _do_nothing, self._connection, context)
        if context.results._has("error"):
            self._connection.authenticate("")

    async def hello_context(self, context: Any) -> None:
        context.results.version = VERSION
        context.results.server = "holdfast"

    async def leave_context(self, context: Any) -> None:
        waiting = self._connection.tickets.get(context.params.ticket)
        if waiting is not None:
            waiting.cancel()


class Sink(SCHEMA.Sink.Server):  # type: ignore[misc]  # pycapnp has no types
    """An upload. It ends with its connection at the latest."""

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
            raise InvalidArgument("this upload has ended; begin another")

    def _close(self) -> None:
        self._connection.uploads.discard(self._upload)
        self._upload.close()


async def _do_nothing(call: CapnpCall) -> None:
    """Do nothing: `run` has already checked the credential."""


_MAX_UPLOADS = 1_000
