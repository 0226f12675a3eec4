"""The code that runs inside a handler process."""

import importlib
import os
import signal
import threading
import traceback
from collections.abc import Callable
from functools import reduce
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from holdfast.client.message import MessageFacts
from holdfast.client.sync_message import SyncMessage
from holdfast.model.errors import HoldfastError
from holdfast.model.parsing.durations import Duration
from holdfast.worker.execution.tracing import following
from holdfast.worker.handlers import read_signature
from holdfast.worker.outcomes import HandlerFault, fault_of

# --- Messages over the pipe ----------------------------------------------------------------------------------------


class ChildReady(NamedTuple):
    """Sent by the process: it has imported the handler."""


class ChildBroken(NamedTuple):
    """Sent by the process: it could not import the handler."""

    text: str


class ChildJob(NamedTuple):
    """Sent by the worker: a message to handle."""

    held: MessageFacts


class ChildRequest(NamedTuple):
    """Sent by the process: a method of the message for the worker, which has the connection, to carry out."""

    verb: str
    args: tuple[Any, ...]
    named: dict[str, Any]


class ChildReply(NamedTuple):
    """Sent by the worker: the result of a `ChildRequest`."""

    value: Any
    error: tuple[type[HoldfastError], str, dict[str, object]] | None
    held: MessageFacts


class ChildDone(NamedTuple):
    """Sent by the process: the handler has ended."""

    fault: HandlerFault | None


# --- The message ---------------------------------------------------------------------------------------------------


class ChildMessage(SyncMessage):
    """A message whose methods are carried out by the worker's process."""

    __slots__ = ("_lock", "_pipe")

    def __init__(self, held: MessageFacts, pipe: "Connection[Any, Any]") -> None:
        super().__init__(held)
        self._pipe = pipe
        # The handler may use the message in several threads.
        self._lock = threading.Lock()

    def read_part(self, offset: int, limit: int) -> bytes:
        part: bytes = self._ask("read_part", offset, limit)
        return part

    def ack(self) -> None:
        self._ask("ack")

    def nack(
        self, error: str | None = None, *, delay: Duration | None = None, defer: bool = False, final: bool = False
    ) -> Any:
        return self._ask("nack", error, delay=delay, defer=defer, final=final)

    def extend(self, lease: Duration | None = None) -> Any:
        return self._ask("extend", lease)

    def release(self) -> None:
        self._ask("release")

    def save_state(self, document: Any, etag: str | None = None) -> Any:
        return self._ask("save_state", document, etag)

    def progress(self, percent: float, text: str = "") -> None:
        self._ask("progress", percent, text)

    def close(self) -> None:
        self._ask("close")

    def _ask(self, verb: str, *args: Any, **named: Any) -> Any:
        with self._lock:
            self._pipe.send(ChildRequest(verb, args, named))
            reply: ChildReply = self._pipe.recv()
        delivery = self._held.delivery
        self._held = reply.held
        if delivery.pieces is None:
            self._held.delivery = delivery  # keeps a large payload that was read here and that the worker does not have
        if reply.error is not None:
            kind, text, facts = reply.error
            raise kind(text, **facts)
        return reply.value


# --- The process ---------------------------------------------------------------------------------------------------


def child_main(pipe: "Connection[Any, Any]", target: str) -> None:
    """Import a handler and run it for each message that the worker sends, until the worker closes the pipe."""
    # Ctrl-C in a terminal and a service manager's SIGTERM reach every process of the group. Only the worker reacts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        function = import_target(target)
        signature = read_signature(function)
    except BaseException as error:
        pipe.send(ChildBroken(f"{type(error).__name__}: {error}"))
        return
    pipe.send(ChildReady())
    while True:
        try:
            job: ChildJob = pipe.recv()
        except EOFError:
            return
        pipe.send(ChildDone(_handle(function, signature, ChildMessage(job.held, pipe))))


def _handle(function: Callable[..., Any], signature: Any, message: ChildMessage) -> HandlerFault | None:
    try:
        if signature.payload is not None:
            message.load()
        payload = signature.decode(message._held.delivery)
        with following(message):
            signature.call(function, payload, message)
    except BaseException as error:
        return (
            fault_of(error)._replace(traceback="".join(traceback.format_exception(error))[-8_192:]).without_exception()
        )
    return None


def import_target(target: str) -> Callable[..., Any]:
    """Return the function that `module:name` names."""
    module, _, name = target.partition(":")
    found: Any = reduce(getattr, name.split("."), importlib.import_module(module))
    function: Callable[..., Any] = found
    return function


def _end_with_parent() -> None:
    """End this process when the worker dies. The leases then expire, and another worker handles the messages."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
