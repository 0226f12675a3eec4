"""Run one call: identify its caller, carry it out, write its results or its error, and measure it."""

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
    """One call, as a method gets it. `params` and `results` are pycapnp objects."""

    __slots__ = ("connection", "correlation_id", "headers", "operation", "params", "queue", "results", "session")

    def __init__(self, operation: str, connection: CapnpConnection, session: Session, context: Any) -> None:
        # The operation's name in metrics.
        self.operation = operation
        self.connection = connection
        self.session = session
        self.params: Any = context.params
        self.results: Any = context.results
        # The queue of the call, once it is known.
        self.queue: QueueRef | None = None
        self.headers = _NO_HEADERS
        self.correlation_id: str | None = None

    @property
    def tracing(self) -> Tracing:
        """Return the server's tracing."""
        return self.connection.door.tracing

    def ref(self) -> QueueRef:
        """Return the queue of the call. The default tenant is the caller's own, and the default queue is `default`.

        Raise `InvalidName` for an invalid name.
        """
        given = self.params.ref
        caller = self.session.caller
        self.queue = ref = self.connection.door.names.ref(given.tenant or caller.own_tenant, given.queue or None)
        # The call counts towards the caller's own tenant, unless the caller is an operator.
        self.connection.note_tenant(ref.tenant if caller.is_operator else caller.tenant)
        return ref

    def read_context(self) -> None:
        """Read the call's correlation id and trace, if its parameters have a context."""
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
    """Run one call, from its credential to its results or its error.

    Only cancellation is raised, because pycapnp would send the caller a traceback of any other error.
    """
    door = connection.door
    started_at = steady_s()
    call: CapnpCall | None = None
    outcome = "ok"
    task = asyncio.current_task()
    assert task is not None
    connection.add_call(task)
    try:
        session = door.sessions.anyone or await door.sessions.identify(connection.headers, connection.peer)
        call = CapnpCall(operation, connection, session, context)
        if door.is_draining:
            # `closing` tells the caller that no part of its call was carried out.
            raise StoreUnavailable("this server is shutting down; call another one, or retry later", closing=True)
        await work(call)
    except asyncio.CancelledError:
        outcome = "left"
        raise
    except capnp.KjException as error:
        # Reading the message failed: one of its pointers is invalid, or it exceeds the traversal limit.
        outcome = "malformed"
        connection.cut_off(Malformed(first_line(error)))
    except Exception as error:
        public_error = _public_error(error, call)
        outcome = public_error.code
        if call is None and outcome == "unauthenticated":
            connection.note_tenant(UNIDENTIFIED)
        write_error(context.results.init("error"), public_error)
    finally:
        connection.discard_call(task)
        # Metrics must not name a queue that the caller has no access to.
        queue = None if call is None or outcome in _OUTSIDERS else call.queue
        door.observer.request(operation if call is None else call.operation, queue, outcome, steady_s() - started_at)


def _public_error(error: Exception, call: CapnpCall | None) -> HoldfastError:
    """Return the error to send. An unexpected one is logged and becomes `Internal`, as its text may show internals."""
    if isinstance(error, HoldfastError):
        return error
    if isinstance(error, UnicodeDecodeError):
        return InvalidArgument("a text is not UTF-8")
    facts: dict[str, object] = {}
    if call is not None:
        facts = {**({} if call.queue is None else call.queue._asdict()), "correlation_id": call.correlation_id}
    _log.error("call_failed", exc_info=error, extra=facts)
    return Internal("the server failed; its log shows the cause")
