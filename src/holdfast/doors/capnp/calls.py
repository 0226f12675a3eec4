"""One call: its caller, its queue, its answer or its error, and what is measured of it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import capnp

from holdfast.clock import steady_s
from holdfast.doors.capnp.connection import CapnpConnection, first_line
from holdfast.model.errors import HoldfastError, Internal, InvalidArgument, StoreUnavailable
from holdfast.model.message import normalise_correlation_id
from holdfast.model.names import QueueRef
from holdfast.service.limits.request_turns import UNIDENTIFIED
from holdfast.service.session import Session
from holdfast.telemetry.trace import Tracing
from holdfast.wire.capnp.frames import Malformed
from holdfast.wire.capnp.schema import write_error

_log = logging.getLogger("holdfast")

_OUTSIDERS = frozenset({"unauthenticated", "forbidden"})
_NO_HEADERS: Mapping[bytes, bytes] = {}


class CapnpCall:
    """What a method is given. `params` and `results` are pycapnp's."""

    __slots__ = ("connection", "correlation_id", "headers", "operation", "params", "queue", "results", "session")

    def __init__(self, operation: str, connection: CapnpConnection, session: Session, context: Any) -> None:
        # As which it is measured.
        self.operation = operation
        self.connection = connection
        self.session = session
        self.params: Any = context.params
        self.results: Any = context.results
        # What it was about, once that is known.
        self.queue: QueueRef | None = None
        self.headers = _NO_HEADERS
        self.correlation_id: str | None = None

    @property
    def tracing(self) -> Tracing:
        return self.connection.door.tracing

    def ref(self) -> QueueRef:
        """What is left out is the caller's own tenant, and `default`."""
        given = self.params.ref
        caller = self.session.caller
        self.queue = ref = self.connection.door.names.ref(given.tenant or caller.own_tenant, given.queue or None)
        # A tenant that another one names does not pay for it.
        self.connection.note_tenant(ref.tenant if caller.is_operator else caller.tenant)
        return ref

    def read_context(self) -> None:
        """The call's own correlation id and trace, where it has a place for them."""
        if not self.params._has("context"):
            return
        context = self.params.context
        if context.correlationId:
            self.correlation_id = normalise_correlation_id(context.correlationId)
        if context.traceparent:
            self.headers = {
                b"traceparent": context.traceparent.encode("latin-1", "replace"),
                b"tracestate": context.tracestate.encode("latin-1", "replace"),
            }


Work = Callable[[CapnpCall], Awaitable[None]]


async def run(operation: str, work: Work, connection: CapnpConnection, context: Any) -> None:
    """From its credential to its answer. Nothing is raised: the library would show the caller a traceback."""
    door = connection.door
    started_at = steady_s()
    call: CapnpCall | None = None
    outcome = "ok"
    task = asyncio.current_task()
    assert task is not None
    connection.take_in_hand(task)
    try:
        session = door.anyone or await door.session_of(connection.headers, connection.peer)
        call = CapnpCall(operation, connection, session, context)
        if door.is_draining:
            # `closing` tells a caller that nothing of its call was done.
            raise StoreUnavailable("this server is closing: ask another, or this one again later", closing=True)
        await work(call)
    except asyncio.CancelledError:
        outcome = "left"
        raise
    except capnp.KjException as error:
        # Reading the message failed: what it points to is not there, or is there too often.
        outcome = "malformed"
        connection.cut_off(Malformed(first_line(error)))
    except Exception as error:
        told = _told(error)
        outcome = told.code
        if call is None and outcome == "unauthenticated":
            connection.note_tenant(UNIDENTIFIED)
        write_error(context.results.init("error"), told)
    finally:
        connection.is_done_with(task)
        # Of a queue that the caller may not ask for nothing is told, not even here.
        queue = None if call is None or outcome in _OUTSIDERS else call.queue
        door.observer.request(operation if call is None else call.operation, queue, outcome, steady_s() - started_at)


def _told(error: Exception) -> HoldfastError:
    """What is no error of ours is logged here and nowhere shown."""
    if isinstance(error, HoldfastError):
        return error
    if isinstance(error, UnicodeDecodeError):
        return InvalidArgument("a text is not UTF-8")
    _log.error("a call failed", exc_info=error)
    return Internal("the server failed to carry this out: its log says why")
