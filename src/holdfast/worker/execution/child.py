"""Inside a handler's own process."""

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
from holdfast.worker.outcome import HandlerFault, fault_of

# --- What is said over the pipe ------------------------------------------------------------------------------------


class ChildReady(NamedTuple):
    pass


class ChildBroken(NamedTuple):
    text: str


class ChildJob(NamedTuple):
    held: MessageFacts


class ChildRequest(NamedTuple):
    """A verb of the message, for the worker to carry out: the connection is there."""

    verb: str
    args: tuple[Any, ...]
    named: dict[str, Any]


class ChildReply(NamedTuple):
    value: Any
    error: tuple[type[HoldfastError], str, dict[str, object]] | None
    held: MessageFacts


class ChildDone(NamedTuple):
    fault: HandlerFault | None


# --- The message ---------------------------------------------------------------------------------------------------


class ChildMessage(SyncMessage):
    """A message whose verbs travel to the worker's process."""

    __slots__ = ("_lock", "_pipe")

    def __init__(self, held: MessageFacts, pipe: "Connection[Any, Any]") -> None:
        super().__init__(held)
        self._pipe = pipe
        # The handler may have threads of its own.
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
            answer: ChildReply = self._pipe.recv()
        delivery = self._held.delivery
        self._held = answer.held
        if delivery.pieces is None:
            self._held.delivery = delivery  # a large payload that was read here: the worker does not have it
        if answer.error is not None:
            kind, text, facts = answer.error
            raise kind(text, **facts)
        return answer.value


# --- The process ---------------------------------------------------------------------------------------------------


def child_main(pipe: "Connection[Any, Any]", target: str) -> None:
    # A terminal's Ctrl-C, and a service manager's SIGTERM, reach every process of the group: the worker decides.
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
        return fault_of(error)._replace(traceback="".join(traceback.format_exception(error))[-8_192:]).packed()
    return None


def import_target(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    found: Any = reduce(getattr, name.split("."), importlib.import_module(module))
    function: Callable[..., Any] = found
    return function


def _end_with_parent() -> None:
    """A worker that is killed takes its handlers with it: their leases run out, and another does their work."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
