"""Holdfast: a multi-tenant message and job queue.

The tree is the path of a message, from the program that calls down to the disk:

    cli/         the command line
    worker/      run handlers for messages
    pipeline/    move and examine messages in bulk, on Spark
    client/      the queues and messages that programs use, blocking and async
    ──────────── the wire, or nothing at all when embedded
    server/      read settings, choose the concrete classes, start and stop them
    doors/       speak a protocol, decide nothing
    service/     who may call, how much, on which queue
    dispatch/    who waits, who is woken, whose lease expired
    stores/      keep the promise across a crash
    model/       the words and rules shared by all of them

Beside the path stand:

    wire/        shapes that cross the network, and the table of operations
    telemetry/   metrics, logs and traces
    testing/     the clock, the store laws and the fault store, for tests of ours and of users
    runtime      tasks and timers of the core, on an event loop or in the calling threads
    background   how background loops log errors, back off and go on
    forking      what a forked child may not use of its parent
    signals      handlers of signals that are put back as they were
    clock, dice  time and randomness, which are handed in so that tests own them

An enqueue goes down to the store and wakes a waiter in `dispatch/`. A claim goes down, waits in `dispatch/` if nothing
is ready, and returns with a lease. Ack, nack and extend carry that lease down again.
"""

from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack, cast

import holdfast as _package
from holdfast.client.tracebacks import raising_plainly
from holdfast.model.errors import (
    AlreadyExists,
    Conflict,
    Draining,
    Forbidden,
    HoldfastError,
    Internal,
    InvalidArgument,
    InvalidName,
    MessageNotFound,
    OverQuota,
    PayloadTooLarge,
    QueueNotFound,
    RateLimited,
    Refused,
    StaleLease,
    StoreUnavailable,
    Throttled,
    Unauthenticated,
    Unavailable,
)
from holdfast.model.parsing.store_url import UrlKind, parse_store_url

if TYPE_CHECKING:
    from holdfast.client.blocking import BlockingMessage, Holdfast, Queue
    from holdfast.client.client import AsyncHoldfast
    from holdfast.client.message import AsyncMessage, Message
    from holdfast.client.options import OpenOptions
    from holdfast.client.queue import AsyncQueue
    from holdfast.model.ids import MessageId
    from holdfast.model.message import NewMessage, State
    from holdfast.model.names import QueueRef
    from holdfast.model.requests import Filter
    from holdfast.worker import Defer, LeaseLost, Outcome, Reject, Retry, Worker, WorkerStuck

__all__ = [
    "AlreadyExists",
    "AsyncHoldfast",
    "AsyncMessage",
    "AsyncQueue",
    "BlockingMessage",
    "Conflict",
    "Defer",
    "Draining",
    "Filter",
    "Forbidden",
    "Holdfast",
    "HoldfastError",
    "Internal",
    "InvalidArgument",
    "InvalidName",
    "LeaseLost",
    "Message",
    "MessageId",
    "MessageNotFound",
    "NewMessage",
    "OpenOptions",
    "Outcome",
    "OverQuota",
    "PayloadTooLarge",
    "Queue",
    "QueueNotFound",
    "QueueRef",
    "RateLimited",
    "Refused",
    "Reject",
    "Retry",
    "StaleLease",
    "State",
    "StoreUnavailable",
    "Throttled",
    "Unauthenticated",
    "Unavailable",
    "Worker",
    "WorkerStuck",
    "open",
    "open_async",
]


@raising_plainly
def open(url: str | PathLike[str], **options: "Unpack[_package.OpenOptions]") -> "_package.Holdfast":
    """Open a store or connect to a server, for blocking use.

    `url` is a directory (as text or `os.PathLike`), the URL of a store (`memory://`, `postgres://…`, `file:///…`,
    `s3://…`, `az://…`, `gs://…`), or that of a server: `http://host:port`, `holdfast://host:port` (the framed
    protocol), `capnp://host:port`. A directory whose name looks like a host is given as `./name:1`.

    The options of a store are the settings of `holdfast serve` that concern it, such as `durability`. Those of a server
    are `token`, `timeout`, `retries`, `pool`, `wait_round`, `tls_ca`, `tls_cert` and `tls_key`. `clock` and `dice` are
    for tests of embedded queues.

    Raise `InvalidArgument` for a URL or an option that cannot be used, and `StoreUnavailable` if another process has
    the directory open. A server is not called yet: it may come up later.

        with holdfast.open("./data", durability="os") as hf:
            hf.queue("mail").enqueue({"to": "ada"})
    """
    settings = cast("dict[str, Any]", options)
    kind, text = parse_store_url(url)
    # Imported here, so that `import holdfast` alone loads neither a store nor the network.
    if kind is UrlKind.HTTP:
        from holdfast.client.http.transport import open_http

        return open_http(text, settings)
    if kind is UrlKind.FRAMED:
        from holdfast.client.framed.transport import open_framed

        return open_framed(text, settings)
    if kind is UrlKind.CAPNP:
        from holdfast.client.capnp.transport import open_capnp

        return open_capnp(text, settings)
    from holdfast.server.embedded import open_blocking

    clock, dice = settings.pop("clock", None), settings.pop("dice", None)
    return open_blocking(text, settings, clock=clock, dice=dice)


@raising_plainly
def open_async(url: str | PathLike[str], **options: "Unpack[_package.OpenOptions]") -> "_package.AsyncHoldfast":
    """Open a store or connect to a server as `open` does, for `async with`; every call is awaited.

    async with holdfast.open_async("http://localhost:7077") as hf:
        await hf.queue("mail").enqueue({"to": "ada"})
    """
    settings = cast("dict[str, Any]", options)
    kind, text = parse_store_url(url)
    if kind is UrlKind.HTTP:
        from holdfast.client.http.transport import open_http_on_loop

        return open_http_on_loop(text, settings)
    if kind is UrlKind.FRAMED:
        from holdfast.client.framed.transport import open_framed_on_loop

        return open_framed_on_loop(text, settings)
    if kind is UrlKind.CAPNP:
        from holdfast.client.capnp.transport import open_capnp_on_loop

        return open_capnp_on_loop(text, settings)
    from holdfast.server.embedded import open_on_loop

    clock, dice = settings.pop("clock", None), settings.pop("dice", None)
    return open_on_loop(text, settings, clock=clock, dice=dice)


# The modules of the other public names, each imported when one of its names is first used. Every program imports this
# package, also the command line and the child processes of a worker, and few use all of it.
_MODULES = {
    "holdfast.client.blocking": ("BlockingMessage", "Holdfast", "Queue"),
    "holdfast.client.client": ("AsyncHoldfast",),
    "holdfast.client.message": ("AsyncMessage", "Message"),
    "holdfast.client.options": ("OpenOptions",),
    "holdfast.client.queue": ("AsyncQueue",),
    "holdfast.model.ids": ("MessageId",),
    "holdfast.model.message": ("NewMessage", "State"),
    "holdfast.model.names": ("QueueRef",),
    "holdfast.model.requests": ("Filter",),
    "holdfast.worker": ("Defer", "LeaseLost", "Outcome", "Reject", "Retry", "Worker", "WorkerStuck"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

# Type checkers read the imports above instead. If they saw `__getattr__`, they would accept any misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name from its module when it is first used."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_MODULE_OF[name]), name)
        # Later uses find the name without calling this function.
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
