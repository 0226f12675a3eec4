"""Holdfast: a multi-tenant message and job queue.

    client/     programs hold queues and messages
    worker/     feeds handlers from queues, and keeps them alive
    service/    who may ask, how much, for which queue
    dispatch/   who is waiting, who is woken, whose lease ran out
    stores/     keeps the promise across a crash
    model/      the words and rules that all of them share

An enqueue goes down to the store and leaves a wake-up with `dispatch/`. A claim goes down, waits in `dispatch/` if
nothing is ready, and comes back up with a lease. Ack, nack and extend carry that lease down again.
"""

from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

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
from holdfast.model.store_url import UrlKind, parse_store_url

if TYPE_CHECKING:
    from holdfast.client.blocking import BlockingMessage, Holdfast, Queue
    from holdfast.client.client import AsyncHoldfast
    from holdfast.client.message import AsyncMessage, Message
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
def open(url: str | PathLike[str], **settings: Any) -> "_package.Holdfast":
    """Open queues for blocking use.

    `url` is a directory (as text or `os.PathLike`), the URL of a store (`memory://`, `postgres://…`, `file:///…`,
    `s3://…`, `az://…`, `gs://…`), or that of a server: `http://host:port`, `holdfast://host:port` (the framed
    protocol), `capnp://host:port`. Text that looks like a host or a mistyped URL raises InvalidArgument with the right
    spelling; a directory of that name is `./name:1`.

    Settings by name: of a store those of `holdfast serve`; of a server token, timeout, retries, pool, wait_round,
    tls_ca, tls_cert and tls_key. `clock` and `dice` are for tests of embedded queues.
    """
    kind, text = parse_store_url(url)
    # Imported here: `import holdfast` alone loads no store, and no network.
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
def open_async(url: str | PathLike[str], **settings: Any) -> "_package.AsyncHoldfast":
    """Open queues as `open` does, for `async with`, with every call awaited."""
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
# package, the command line and the child processes of a worker among them; few use all of it.
_MODULES = {
    "holdfast.client.blocking": ("BlockingMessage", "Holdfast", "Queue"),
    "holdfast.client.client": ("AsyncHoldfast",),
    "holdfast.client.message": ("AsyncMessage", "Message"),
    "holdfast.client.queue": ("AsyncQueue",),
    "holdfast.model.ids": ("MessageId",),
    "holdfast.model.message": ("NewMessage", "State"),
    "holdfast.model.names": ("QueueRef",),
    "holdfast.model.requests": ("Filter",),
    "holdfast.worker": ("Defer", "LeaseLost", "Outcome", "Reject", "Retry", "Worker", "WorkerStuck"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

# Type checkers read the imports above instead: seeing `__getattr__`, they would accept any misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name from its module when it is first used."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_MODULE_OF[name]), name)
        # Kept: later uses find it without a call of this function.
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
