"""A server from its start to its end.

    start   bind the ports, read TLS files and identities, open the store, then listen; so every error is reported
            before the first caller connects
    drain   refuse new calls, end waits, finish the calls under way, close the connections, close the store

A second signal ends the server at once, and so does a drain that exceeds its grace. Even then every acknowledged change
is in the store, or in the log that the next start reads. The exit code tells whether the server could finish.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from holdfast.clock import SystemClock
from holdfast.dice import SystemDice
from holdfast.doors.identity import Identity
from holdfast.model.errors import InvalidArgument
from holdfast.runtime import LoopRuntime
from holdfast.server.compose import Core, make_store
from holdfast.server.doors.doors import LAST_S, Doors, MakeDoor
from holdfast.server.doors.identities import identity_of, make_door
from holdfast.server.doors.listen import make_tls
from holdfast.server.doors.ports import Ports, Urls
from holdfast.server.ending import OVERTIME, ServerStop, Watchdog, leave
from holdfast.server.process import make_loop, raise_file_limit, rest_garbage_collector
from holdfast.server.processes.supervisor import DoorProcesses
from holdfast.server.scrape import CoreSource
from holdfast.server.settings import Settings
from holdfast.telemetry import log
from holdfast.telemetry.exporting import tracing_from
from holdfast.telemetry.labels import MetricsNames
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.trace import Tracing

if TYPE_CHECKING:
    from holdfast.server.store_processes.supervisor import StoreProcesses

_log = logging.getLogger("holdfast")

Announce = Callable[[str], None]


def run(settings: Settings, announce: Announce, make_door: MakeDoor = make_door, warnings: Sequence[str] = ()) -> int:
    """Serve until a signal, and return the exit code. Raise a HoldfastError if the server cannot start.

    `announce` gets the line with the URLs of the server, in the format of the log. `warnings` about the settings are
    logged.
    """
    log.configure(log_format_of(settings))
    for warning in warnings:
        _log.warning("setting_suspicious: %s", warning)
    raise_file_limit()
    with asyncio.Runner(loop_factory=make_loop()) as runner:
        return runner.run(serve(settings, announce, make_door))


class Front(Protocol):
    """The doors of a server, either in the process of the store or in processes of their own."""

    async def start(self, core: Core, identity: Identity, metrics: Metrics, tracing: Tracing) -> None:
        """Begin to listen. Raise a HoldfastError if that is not possible."""

    async def drain(self, end_waits: Callable[[], None], deadline: float) -> bool:
        """Refuse new calls and finish those under way, until `deadline` on the loop's clock.

        `end_waits` ends the waits of the calls. Return whether every call has finished and every caller has read its
        response.
        """

    async def close(self) -> None:
        """Stop listening, and abort the connections that a drain has not closed."""


async def serve(settings: Settings, announce: Announce, make_door: MakeDoor = make_door) -> int:
    """Serve on the running event loop until a signal, and return the exit code; see `run`."""
    loop = asyncio.get_running_loop()
    with ExitStack() as last:
        stop, watchdog = ServerStop(loop), Watchdog()
        last.callback(stop.forget)
        last.callback(watchdog.dismiss)
        clock = SystemClock()
        ports = _bind_ports(settings)
        last.callback(ports.close)
        tls = make_tls(settings)
        # Tokens and keys expire by the wall clock, and the clock of a store may be ahead of it.
        identity = identity_of(settings, SystemClock())
        front: Front
        runtime = LoopRuntime(clock)
        stores = _store_processes(settings, runtime)
        if _has_door_processes(settings):
            front = DoorProcesses(ports, settings, log_format_of(settings), [] if stores is None else stores.others)
        else:
            front = Doors(ports, settings, tls, make_door)
        is_finished = True
        async with (
            _opened(settings, runtime, stores) as core,
            _started(identity),
            _measured(core, settings, runtime, stores) as (metrics, tracing),
        ):
            try:
                await front.start(core, identity, metrics, tracing)
                rest_garbage_collector()
                _announce_start(settings, ports.urls, announce)
                core.on_store_lost = stop.store_lost
                await stop.wait()
                grace_s = settings.shutdown_grace_ms / 1_000
                watchdog.start(grace_s + LAST_S)
                deadline = loop.time() + grace_s
                is_finished = await front.drain(core.begin_drain, deadline)
                with suppress(TimeoutError):
                    # Deliveries that callers left behind are given back by background work of the core.
                    await asyncio.wait_for(runtime.idle(), max(deadline - loop.time(), LAST_S / 4))
            finally:
                await front.close()
        if stop.has_lost_store:
            # A thread is stuck in RocksDB, and a normal exit would wait for it.
            leave(OVERTIME)
        return OVERTIME if core.left_to_log or not is_finished else 0


def _store_processes(settings: Settings, runtime: LoopRuntime) -> "StoreProcesses | None":
    if settings.stores == 1:
        return None
    # Imported here, because it loads the embedded store.
    from holdfast.server.store_processes.supervisor import StoreProcesses

    return StoreProcesses(settings, log_format_of(settings), runtime)


def _has_door_processes(settings: Settings) -> bool:
    """Return whether the doors are in processes of their own: before several store processes, even a single one."""
    return settings.processes > 1 or settings.stores > 1


def _bind_ports(settings: Settings) -> Ports:
    """Bind the ports of the doors, so that door processes of this server can bind them too."""
    if _has_door_processes(settings) and not hasattr(socket, "SO_REUSEPORT"):
        raise InvalidArgument(
            "processes: this system cannot share a port between processes: give 1", setting="processes"
        )
    ports = Ports(settings)
    if not _has_door_processes(settings):
        return ports
    # Exclusive sockets come first, because only they reveal a port that another server uses. Shared ones replace them.
    ports.close()
    return Ports(replace(settings, **ports.numbers), is_shared=True)


@asynccontextmanager
async def _opened(settings: Settings, runtime: LoopRuntime, stores: "StoreProcesses | None") -> AsyncIterator[Core]:
    if stores is not None:
        try:
            yield await stores.open()
        finally:
            await stores.close()
            await runtime.aclose()
            _log.info("stopped: the store is closed")
        return
    core = Core(make_store(settings.store_url, settings, SystemDice()), runtime, settings)
    await core.open()
    try:
        with log.numbering_queues(core.numbers_of):
            yield core
    finally:
        await core.close()
        await runtime.aclose()
        _log.info("server_stopped")


@asynccontextmanager
async def _started(identity: Identity) -> AsyncIterator[None]:
    await identity.start()
    try:
        yield
    finally:
        await identity.close()


@asynccontextmanager
async def _measured(
    core: Core, settings: Settings, runtime: LoopRuntime, stores: "StoreProcesses | None"
) -> AsyncIterator[tuple[Metrics, Tracing]]:
    own = CoreSource(core.store, core.dispatcher, runtime.clock)
    divided = None if stores is None else stores.source_of(own)
    metrics = Metrics(
        divided or own,
        max_labels=settings.metrics_max_labels,
        names=MetricsNames(settings.metrics_names),
        version=version("holdfast"),
    )
    tracing = tracing_from(os.environ, version=version("holdfast"))
    if stores is not None and divided is not None:
        stores.measure(divided, metrics)
    core.admission.set_observer(metrics)
    if (shared := core.shared) is not None:
        metrics.shares_limits = lambda: shared.is_shared
    measuring = asyncio.create_task(metrics.lag.run(runtime))
    try:
        yield metrics, tracing
    finally:
        measuring.cancel()
        await asyncio.to_thread(tracing.shut_down)  # sends the remaining spans, which may take long


def _announce_start(settings: Settings, urls: Urls, announce: Announce) -> None:
    identities = [
        name for name, has in (("tokens", settings.has_tokens), ("certificates", settings.has_certificates)) if has
    ]
    facts = {
        "version": version("holdfast"),
        "store": settings.shown_store,
        "durability": settings.durability,
        "address": urls.http,
        **urls.named("address"),
        "identities": " and ".join(identities) or "none",
        "pid": os.getpid(),
    }
    _log.info("serving", extra=facts)
    if not identities:
        _log.warning(
            "authentication_off: no identities are configured; this server listens on loopback only, and anyone who "
            "reaches it may do everything"
        )
    elif settings.tls_cert is None:
        _log.warning("tokens_unencrypted: set tls_cert, or put a proxy with TLS in front of this server")
    announce(_listening_line(settings, urls))


def _listening_line(settings: Settings, urls: Urls) -> str:
    """Return the line for stdout: a sentence for people, or a log line if the log is JSON."""
    if log_format_of(settings) == "json":
        return log.format_line(
            _log, "listening", {"url": urls.http, **urls.named("url"), "store": settings.shown_store}
        )
    where = " and ".join(filter(None, urls))
    return f"Holdfast is serving {settings.shown_store} at {where}"


def log_format_of(settings: Settings) -> str:
    """Return the format of the log: by default `console` on a terminal, else `json`."""
    return settings.log_format or ("console" if sys.stderr.isatty() else "json")
