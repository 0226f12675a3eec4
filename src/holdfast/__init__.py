"""Holdfast: a multi-tenant message and job queue.

The folders follow the path of a message, from the calling program down to the disk:

    cli/         the `holdfast` command
    worker/      runs handlers for messages
    pipeline/    moves and analyses messages in bulk, on Spark
    client/      the queues and messages that programs use, blocking and async
    ──────────── the network; an embedded queue calls the services directly
    server/      reads settings, chooses the concrete classes, starts and stops them
    doors/       speak one protocol each and decide nothing
    service/     checks who may call, how much, and on which queue
    dispatch/    holds waiting claims, wakes them, and sweeps expired leases
    stores/      keep messages across a crash
    model/       the terms and rules that all of the above share

These folders and modules are used along the whole path:

    wire/        the data structures that cross the network, and the table of operations
    telemetry/   metrics, logs and traces
    testing/     the manual clock, the store laws and the fault store, for our tests and for yours
    runtime/     runs the core's coroutines on an event loop or in the calling threads
    background   runs background loops: logs their errors, backs off and continues
    forking      keeps a forked child off the connections and files of its parent
    signals      installs signal handlers on an event loop and restores the previous ones
    clock        the only module that reads the time or waits for it
    dice         the only module that makes random numbers

An enqueue goes down to the store and wakes a waiting claim in `dispatch/`. A claim goes down, waits in `dispatch/` if
nothing is ready, and returns with a lease. Ack, nack and extend carry that lease down again.
"""

from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack, cast

import holdfast as _package
from holdfast.client.tracebacks import trim_tracebacks
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
    from holdfast.worker import Crash, Defer, LeaseLost, Outcome, Reject, Retry, Worker, WorkerStuck

__all__ = [
    "AlreadyExists",
    "AsyncHoldfast",
    "AsyncMessage",
    "AsyncQueue",
    "BlockingMessage",
    "Conflict",
    "Crash",
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


@trim_tracebacks
def open(url: str | PathLike[str], **options: "Unpack[_package.OpenOptions]") -> "_package.Holdfast":
    """Open a store or connect to a server, for blocking use.

    `url` is one of:

    - a directory, as text or `os.PathLike`. Write `./name:1` for a directory whose name looks like a host;
    - the URL of a store: `memory://`, `postgres://…`, `file:///…`, `s3://…`, `az://…`, `gs://…`;
    - the URL of a server: `http://host:port`, `holdfast://host:port` (the framed protocol), `capnp://host:port`.

    The options of a store are those settings of `holdfast serve` that configure it, such as `durability`. The options
    of a server are `token`, `timeout`, `retries`, `pool`, `wait_round`, `tls_ca`, `tls_cert` and `tls_key`. `clock` and
    `dice` replace time and randomness in tests of embedded queues.

    Return a `Holdfast`; use it in a `with` block, or call its `close`. Opening makes no call to a server, so the server
    may start later.

    Raise `InvalidArgument` for a URL or an option that is malformed or unknown, and `StoreUnavailable` if another
    process has the directory open.

        with holdfast.open("./data", durability="os") as hf:
            hf.queue("mail").enqueue({"to": "ada"})
    """
    settings = cast("dict[str, Any]", options)
    kind, text = parse_store_url(url)
    # Imported here so that `import holdfast` alone loads neither a store nor the network code.
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


@trim_tracebacks
def open_async(url: str | PathLike[str], **options: "Unpack[_package.OpenOptions]") -> "_package.AsyncHoldfast":
    """Open a store or connect to a server, for use on an event loop.

    The URL, the options and the errors are those of `open`. Return an `AsyncHoldfast`, which connects when its
    `async with` block begins.

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


# The modules of the other public names. Each is imported when one of its names is first used, because every program
# imports this package, the command line and the child processes of a worker included, and few use all of it.
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
    "holdfast.worker": ("Crash", "Defer", "LeaseLost", "Outcome", "Reject", "Retry", "Worker", "WorkerStuck"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

# Type checkers use the imports above instead. If they saw `__getattr__`, they would accept any misspelt name.
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
