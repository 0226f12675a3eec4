"""One open call, from its CALL frame to its final response."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.clock import steady_s
from holdfast.doors.sockets.steps import RemainingSteps, StepsDone, begin
from holdfast.model.errors import HoldfastError, Internal, InvalidArgument, StoreUnavailable
from holdfast.model.message import normalise_correlation_id
from holdfast.model.names import QueueRef
from holdfast.service.limits.request_turns import UNIDENTIFIED
from holdfast.service.session import Session
from holdfast.telemetry.trace import Tracing
from holdfast.wire.framed.calls import CallFrame, operation_of
from holdfast.wire.framed.frames import FrameKind
from holdfast.wire.framed.greetings import write_error

if TYPE_CHECKING:
    from holdfast.doors.framed.connection import FramedConnection
    from holdfast.doors.framed.uploads import Incoming

T = TypeVar("T")

GiveBack = Callable[[], None]
Handler = Callable[["FramedCall", Any], Coroutine[Any, Any, bytes]]

_OUTSIDERS = frozenset({"unauthenticated", "forbidden"})
_NO_HEADERS: Mapping[bytes, bytes] = {}

_log = logging.getLogger("holdfast")


class ConnectionLost(Exception):
    """The connection is lost, so the call needs no response."""


class FramedCall:
    """One open call, as its handler gets it. The handler returns the body of the RESULT frame."""

    __slots__ = (
        "_ended",
        "_waiting",
        "_work",
        "bytes_in_hand",
        "connection",
        "correlation_id",
        "give_back",
        "headers",
        "incoming",
        "is_cancelled",
        "number",
        "operation",
        "queue",
        "session",
        "task",
    )

    session: Session

    def __init__(self, connection: "FramedConnection", number: int, size: int) -> None:
        self.connection = connection
        self.number = number
        # The bytes of its frames that are held in memory.
        self.bytes_in_hand = size
        # The operation's name in metrics.
        self.operation = "unknown"
        # The queue of the call, once it is known.
        self.queue: QueueRef | None = None
        self.headers = _NO_HEADERS
        self.correlation_id: str | None = None
        # True once the caller has sent CANCEL.
        self.is_cancelled = False
        # Called if the response is not sent, to undo the claim of its deliveries.
        self.give_back: GiveBack | None = None
        # The payload of an upload, while it arrives.
        self.incoming: Incoming | None = None
        self.task: asyncio.Task[None] | None = None
        self._work: Coroutine[Any, Any, None] | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._ended: asyncio.Future[None] | None = None

    # --- For the connection ----------------------------------------------------------------------------------------

    def run(self, handler: Handler, given: CallFrame, *, is_short: bool) -> None:
        """Carry out the call: run it to its first wait now, and continue whenever its wait ends.

        A short call (`is_short`) waits only for the store. It gets no task, because a task would cost as much as
        everything else here.
        """
        self.operation = operation_of(given)
        work = self._carry_out(handler, given)
        if is_short:
            self._work = work
            self._go_on(None)
        else:
            self._own(work)

    def refuse(self, error: HoldfastError) -> None:
        """Respond with an error to a call that is not carried out."""
        self.connection.door.observer.request(self.operation, None, error.code, 0.0)
        self._answer(FrameKind.ERROR, write_error(error))
        self._end()

    def cancel(self) -> None:
        """End the wait of the call, because the caller has cancelled it."""
        self.is_cancelled = True
        self._stop_waiting()

    def leave(self) -> None:
        """End the wait of the call, because the connection is lost."""
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            # Scheduled after the first step of its task: a task that is cancelled before that step never runs its work.
            self.connection.loop.call_soon(self._waiting.cancel)

    def ended(self) -> "asyncio.Future[None]":
        """Return a future that is done once the call has ended completely."""
        if self.task is not None:
            return self.task
        if self._ended is None:
            self._ended = self.connection.loop.create_future()
        return self._ended

    @property
    def is_waiting(self) -> bool:
        """Return whether the call waits in `wait`."""
        return self._waiting is not None

    # --- Running ---------------------------------------------------------------------------------------------------

    def _go_on(self, _: object) -> None:
        work = self._work
        assert work is not None
        try:
            waits_for = work.send(None)
        except StopIteration:
            self._end()
        except (Exception, asyncio.CancelledError) as error:
            self._break_off(error)
        else:
            if getattr(waits_for, "_asyncio_future_blocking", False):
                # A task resets this flag too: it tells asyncio that the future is being waited for.
                waits_for._asyncio_future_blocking = False
                waits_for.add_done_callback(self._go_on)
            else:
                self._work = None
                self._own(RemainingSteps(work, waits_for).wait())

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        self.task = task = self.connection.loop.create_task(work)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self._end()
        else:
            self._break_off(error)

    def _break_off(self, error: BaseException) -> None:
        """End the connection after an unexpected error, because this call can have no response."""
        _log.error("call_aborted", exc_info=error)
        self._end()
        self.connection.abort()

    def _end(self) -> None:
        self._work = None
        self.connection.discard(self)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def _carry_out(self, handler: Handler, given: CallFrame) -> None:
        """Carry out the call, from the check of its credential to its response. Raise nothing but `CancelledError`."""
        started_at = steady_s()
        connection = self.connection
        door = connection.door
        outcome = "ok"
        is_known = False
        try:
            self.session = await self._identify()
            is_known = True
            caller = self.session.caller
            if not caller.is_operator:
                connection.note_tenant(caller.tenant)
            if door.is_draining:
                # `closing` means that no part of the call was carried out.
                raise StoreUnavailable("this server is shutting down; call another one, or retry later", closing=True)
            if given.context is not None:
                self._read_context(given)
            self._answer(FrameKind.RESULT, await handler(self, given))
        except ConnectionLost:
            outcome = "left"
        except asyncio.CancelledError:
            outcome = "left"
            raise
        except Exception as error:
            outcome = self._answer_error(error)
            if not is_known and outcome == "unauthenticated":
                connection.note_tenant(UNIDENTIFIED)
        # Metrics must not name a queue that the caller has no access to.
        queue = None if outcome in _OUTSIDERS else self.queue
        door.observer.request(self.operation, queue, outcome, steady_s() - started_at)

    async def _identify(self) -> Session:
        """Return the session of the caller. Raise `Unauthenticated`, or the error of a failed check."""
        connection = self.connection
        credential = connection.credential
        return connection.door.sessions.anyone or await connection.door.sessions.identify(
            credential.headers, credential.peer
        )

    def _read_context(self, given: CallFrame) -> None:
        context = given.context
        assert context is not None
        if context.correlation_id is not None:
            self.correlation_id = normalise_correlation_id(context.correlation_id)
        if context.traceparent is not None:
            self.headers = {
                b"traceparent": context.traceparent.encode("latin-1", "replace"),
                b"tracestate": (context.tracestate or "").encode("latin-1", "replace"),
            }

    def _answer_error(self, error: Exception) -> str:
        """Respond with an error, and return its code.

        The error is a local variable of this function only. As a variable of `_carry_out` it would be part of a
        reference cycle through its traceback, which only the garbage collector frees.
        """
        sent = _error_to_send(error, self.correlation_id, self.queue)
        self._answer(FrameKind.ERROR, write_error(sent))
        return sent.code

    def _answer(self, kind: FrameKind, body: bytes) -> None:
        # From here on the caller may use the number for another call.
        self.connection.forget(self)
        give_back = self.give_back if kind is FrameKind.RESULT else None
        self.connection.send(kind, self.number, body, give_back)

    # --- For handlers ----------------------------------------------------------------------------------------------

    @property
    def tracing(self) -> Tracing:
        """Return the tracing of the server."""
        return self.connection.door.tracing

    def ref(self, given: CallFrame) -> QueueRef:
        """Return the queue of the call. The default tenant is the caller's own, and the default queue is `default`."""
        caller = self.session.caller
        tenant = given.tenant
        ref = self.connection.door.names.ref(caller.own_tenant if tenant is None else tenant, given.queue)
        self.queue = ref
        if caller.is_operator:  # the tenant of any other caller is known from its credential
            self.connection.note_tenant(ref.tenant)
        return ref

    def send_item(self, body: bytes, give_back: GiveBack) -> None:
        """Send one item of a stream. `give_back` is called if the item is not sent."""
        self.connection.send(FrameKind.ITEM, self.number, body, give_back)

    async def wait(self, work: Coroutine[Any, Any, T], *, measured_as: str | None = None) -> T | None:
        """Return the result of work that may take long; None if the caller cancels the call meanwhile.

        Raise `ConnectionLost` if the connection is lost meanwhile. Work that is cancelled while it waits undoes itself.
        `measured_as` is the operation's name in metrics if the work does not end at once.
        """
        connection = self.connection
        if connection.is_lost or self.is_cancelled:
            work.close()
        if self._is_left():
            return None
        begun = begin(work)
        if isinstance(begun, StepsDone):
            return begun.value
        self.operation = measured_as or self.operation
        self._waiting = working = connection.loop.create_task(begun.wait())
        try:
            return await working
        except asyncio.CancelledError:
            if not self._is_left():  # this call itself is cancelled, not its work
                raise
            return None
        finally:
            # A cancelled task must not be referenced from here: only the garbage collector frees such a cycle.
            self._waiting = None
            del working

    def _is_left(self) -> bool:
        """Return whether the caller has cancelled this call. Raise `ConnectionLost` if the connection is lost."""
        if self.connection.is_lost:
            raise ConnectionLost
        return self.is_cancelled


def _error_to_send(error: Exception, correlation_id: str | None, queue: QueueRef | None) -> HoldfastError:
    """Return the error to send. An unexpected error is logged, and sent as `Internal`."""
    if isinstance(error, HoldfastError):
        return error
    if isinstance(error, UnicodeError):
        return InvalidArgument("a text is not UTF-8")
    names = {} if queue is None else queue._asdict()
    _log.error("call_failed", exc_info=error, extra={**names, "correlation_id": correlation_id})
    return Internal("the server failed; its log shows the cause")
