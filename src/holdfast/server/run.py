"""A server from its start to its end.

    start   ports bound, TLS and identities read, the store opened, then listening: whatever is wrong is reported before
            the first caller gets through
    drain   new calls refused, waits ended, calls under way finished, connections closed, the store closed

A second signal ends it at once, and so does a drain that outlasts its grace: every acknowledged change is in the store
even so, or in the log that its next start reads. A server that could not finish says so by its exit code.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from typing import Protocol

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
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.trace import Tracing

_log = logging.getLogger("holdfast")

Announce = Callable[[str], None]


def run(settings: Settings, announce: Announce, make_door: MakeDoor = make_door, warnings: Sequence[str] = ()) -> int:
    """Serve until a signal ends it, and return the exit code. Raise a HoldfastError if the server cannot start.

    `announce` writes the line that says where the server listens, in the format of the log. `warnings` about the
    settings go to the log.
    """
    log.configure(log_format_of(settings))
    for warning in warnings:
        _log.warning(warning)
    raise_file_limit()
    with asyncio.Runner(loop_factory=make_loop()) as runner:
        return runner.run(serve(settings, announce, make_door))


class Front(Protocol):
    """The doors of a server: in the process of the store, or in processes of their own."""

    async def start(self, core: Core, identity: Identity, metrics: Metrics, tracing: Tracing) -> None:
        """Begin to listen. Raise a HoldfastError if that is not possible."""

    async def drain(self, end_waits: Callable[[], None], deadline: float) -> bool:
        """Refuse new calls and finish those under way, until `deadline` on the loop's clock.

        `end_waits` ends the waits of the calls. Return whether every call was finished and every response taken.
        """

    async def close(self) -> None:
        """Listen no more, and drop the connections that a drain has not closed."""


async def serve(settings: Settings, announce: Announce, make_door: MakeDoor = make_door) -> int:
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
        if settings.processes > 1:
            front = DoorProcesses(ports, settings, log_format_of(settings))
        else:
            front = Doors(ports, settings, tls, make_door)
        runtime = LoopRuntime(clock)
        is_finished = True
        async with (
            _opened(settings, runtime) as core,
            _started(identity),
            _measured(core, settings, runtime) as (metrics, tracing),
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
            # A thread is stuck in RocksDB, and the interpreter's own end would wait for it.
            leave(OVERTIME)
        return OVERTIME if core.left_to_log or not is_finished else 0


def _bind_ports(settings: Settings) -> Ports:
    """Bind the ports of the doors, so that door processes of this server can bind them too."""
    if settings.processes > 1 and not hasattr(socket, "SO_REUSEPORT"):
        raise InvalidArgument(
            "processes: this system cannot share a port between processes: give 1", setting="processes"
        )
    ports = Ports(settings)
    if settings.processes == 1:
        return ports
    # The first ones are bound alone, to find a port that another server has. They give way to shared ones.
    ports.close()
    return Ports(replace(settings, **ports.numbers), is_shared=True)


@asynccontextmanager
async def _opened(settings: Settings, runtime: LoopRuntime) -> AsyncIterator[Core]:
    core = Core(make_store(settings.store_url, settings, SystemDice()), runtime, settings)
    await core.open()
    try:
        yield core
    finally:
        await core.close()
        await runtime.aclose()
        _log.info("stopped: the store is closed")


@asynccontextmanager
async def _started(identity: Identity) -> AsyncIterator[None]:
    await identity.start()
    try:
        yield
    finally:
        await identity.close()


@asynccontextmanager
async def _measured(core: Core, settings: Settings, runtime: LoopRuntime) -> AsyncIterator[tuple[Metrics, Tracing]]:
    source = CoreSource(core.store, core.dispatcher, runtime.clock)
    metrics = Metrics(source, max_labels=settings.metrics_max_labels, version=version("holdfast"))
    tracing = tracing_from(os.environ, version=version("holdfast"))
    core.admission.set_observer(metrics)
    if (shared := core.shared) is not None:
        metrics.shares_limits = lambda: shared.is_shared
    measuring = asyncio.create_task(metrics.lag.run(runtime))
    try:
        yield metrics, tracing
    finally:
        measuring.cancel()
        await asyncio.to_thread(tracing.shut_down)  # it sends the remaining spans, and that may take a while


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
            "no identities are configured: this server listens on loopback only, and whoever reaches it there may do "
            "everything"
        )
    elif settings.tls_cert is None:
        _log.warning("callers' tokens come unencrypted: set tls_cert, or let something in front speak TLS")
    announce(_listening_line(settings, urls))


def _listening_line(settings: Settings, urls: Urls) -> str:
    """Return the one line on stdout: a sentence for people, a log line where lines are read by programs."""

    if log_format_of(settings) == "json":
        return log.format_line(
            _log, "listening", {"url": urls.http, **urls.named("url"), "store": settings.shown_store}
        )
    where = " and ".join(filter(None, urls))
    return f"Holdfast is serving {settings.shown_store} at {where}"


def log_format_of(settings: Settings) -> str:
    return settings.log_format or ("console" if sys.stderr.isatty() else "json")
