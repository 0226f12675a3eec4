"""A server from its start to its end.

    start   sockets bound, TLS and identities read, the store opened, then listening: whatever is wrong is said before
            the first caller gets through
    drain   new calls refused, waiters let go, what is in hand finished, connections closed, the store closed

A second signal ends it at once, and so does a drain that outlasts its grace: what was answered is in the store even so,
or in the log that its next start reads. A server that could not finish says so by its exit code.
"""

import asyncio
import gc
import logging
import os
import resource
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from typing import NamedTuple

from holdfast.clock import SystemClock
from holdfast.dice import SystemDice
from holdfast.doors.http.app import HttpDoor
from holdfast.doors.http.connections.upgrades import Upgrade
from holdfast.doors.http.health import FramedOffer
from holdfast.doors.identity import Identity
from holdfast.runtime import LoopRuntime
from holdfast.server.capnp import CapnpServer
from holdfast.server.compose import Core, make_store
from holdfast.server.door import Telemetry, identity_of, make_door
from holdfast.server.ending import OVERTIME, ServerStop, Watchdog, leave
from holdfast.server.framed import FramedServer
from holdfast.server.http import HttpServer
from holdfast.server.listen import listening_sockets, make_tls, raise_bind_error, url_of
from holdfast.server.scrape import CoreSource
from holdfast.server.settings import Settings
from holdfast.service.drain import Drain
from holdfast.telemetry import log
from holdfast.telemetry.exporting import tracing_from
from holdfast.telemetry.metrics import Metrics
from holdfast.wire.framed.greetings import UPGRADE_NAME, UPGRADE_PATH

_log = logging.getLogger("holdfast")

MakeDoor = Callable[[Core, Identity, Drain, Telemetry, Settings, FramedOffer | None], HttpDoor]
Announce = Callable[[str], None]

# Past its grace a server cuts off what is left and closes the store if that takes no longer than this.
_LAST_S = 2.0
_MOST_FILES = 65_536


def run(settings: Settings, announce: Announce, make_door: MakeDoor = make_door, warnings: Sequence[str] = ()) -> int:
    """Serve until a signal ends it, and return the exit code. Raise a HoldfastError if the server cannot start.

    `announce` writes the line that says where the server listens, in the format of the log. `warnings` about the
    settings go to the log.
    """
    log.configure(_log_format(settings))
    for warning in warnings:
        _log.warning(warning)
    _raise_file_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(serve(settings, announce, make_door))


async def serve(settings: Settings, announce: Announce, make_door: MakeDoor = make_door) -> int:
    with ExitStack() as last:
        stop, watchdog = ServerStop(asyncio.get_running_loop()), Watchdog()
        last.callback(stop.forget)
        last.callback(watchdog.dismiss)
        clock = SystemClock()
        sockets = listening_sockets(settings)
        for each in sockets:
            last.callback(each.close)
        capnp = CapnpServer(settings)
        last.callback(capnp.release)
        framed = FramedServer(settings)
        last.callback(framed.release)
        tls = make_tls(settings)
        # Of its own: tokens and keys go by the wall, and a store may be ahead of that.
        identity = identity_of(settings, SystemClock())
        runtime = LoopRuntime(clock)
        code = 0
        async with _opened(settings, runtime) as core, _started(identity), _told(core, settings, runtime) as telemetry:
            drain, turns = Drain(), core.request_turns()
            telemetry.metrics.turns = turns
            door = make_door(core, identity, drain, telemetry, settings, FramedOffer(framed.port))
            upgrade = framed.open(core, identity, drain, telemetry, turns).connect
            server = HttpServer(
                door, tls, turns, Upgrade(UPGRADE_PATH.encode(), UPGRADE_NAME.encode(), upgrade, door.check_host)
            )
            try:
                try:
                    await server.start(sockets)
                except OSError as error:  # another program came first to listen on the port
                    raise_bind_error(settings.host, settings.port, error)
                await capnp.start(core, identity, drain, telemetry, tls, turns)
                await framed.start(tls)
                _rest_garbage_collector()
                _say_begun(settings, Urls(url_of(sockets, settings), capnp.url, framed.url), announce)
                core.on_store_lost = stop.store_lost
                await stop.wait()
                watchdog.start(settings.shutdown_grace_ms / 1_000 + _LAST_S)
                code = await _drain(settings, server, (capnp, framed), core, runtime, drain)
            finally:
                server.stop_listening()
                await capnp.close(0)
                await framed.close(0)
        if stop.has_lost_store:
            # A thread is stuck in RocksDB, and the interpreter's own end would wait for it.
            leave(OVERTIME)
        return OVERTIME if core.left_to_log else code


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
async def _told(core: Core, settings: Settings, runtime: LoopRuntime) -> AsyncIterator[Telemetry]:
    source = CoreSource(core.store, core.dispatcher, runtime.clock)
    metrics = Metrics(source, max_labels=settings.metrics_max_labels, version=version("holdfast"))
    tracing = tracing_from(os.environ, version=version("holdfast"))
    core.admission.set_observer(metrics)
    if (shared := core.shared) is not None:
        metrics.shares_limits = lambda: shared.is_shared
    measuring = asyncio.create_task(metrics.lag.run(runtime))
    try:
        yield Telemetry(metrics, tracing)
    finally:
        measuring.cancel()
        await asyncio.to_thread(tracing.shut_down)  # it sends what is left, and that may take a while


async def _drain(
    settings: Settings,
    server: HttpServer,
    others: "tuple[CapnpServer, FramedServer]",
    core: Core,
    runtime: LoopRuntime,
    drain: Drain,
) -> int:
    loop = asyncio.get_running_loop()
    grace_s = settings.shutdown_grace_ms / 1_000
    deadline = loop.time() + grace_s
    in_hand = server.connections.in_hand().union(*(each.in_hand() for each in others))
    _log.info(
        "told to stop: finishing what is in hand; another signal ends it at once",
        extra={"calls_in_hand": len(in_hand), "grace_s": grace_s},
    )
    drain.begin()
    server.connections.close_after_responses()
    for each in others:
        each.begin_drain()
    core.begin_drain()

    left = await _finish(in_hand, grace_s)
    if left:
        calls = [server.connections.describe_calls(), *(each.describe_calls() for each in others)]
        extra = {"calls_in_hand": len(left), "calls": ", ".join(filter(None, calls))}
        _log.error("calls were still in hand after %gs and are cut off", grace_s, extra=extra)
        # To a call this is a caller that left: what was meant for it is given back.
        server.connections.cut_off()
        for each in others:
            each.cut_off()
        for call in await _finish(left, _LAST_S / 4):
            call.cancel()
    unread = 0
    for each in others:
        unread += await each.close(max(deadline - loop.time(), _LAST_S / 4))
    unread += await server.close(deadline, at_least_s=_LAST_S / 4)
    if unread:
        _log.error("callers did not take their answers within %gs", grace_s, extra={"connections": unread})
    with suppress(TimeoutError):
        # What callers left behind is given back by work of the core's own.
        await asyncio.wait_for(runtime.idle(), max(deadline - loop.time(), _LAST_S / 4))
    return OVERTIME if left or unread else 0


async def _finish(calls: "set[asyncio.Future[None]]", timeout_s: float) -> "set[asyncio.Future[None]]":
    """Those that did not end in time."""
    if not calls:
        return set()
    _, left = await asyncio.wait(calls, timeout=timeout_s)
    return left


class Urls(NamedTuple):
    """Where the doors of a server listen."""

    http: str
    capnp: str | None
    framed: str | None

    def named(self, name: str) -> dict[str, str]:
        """Return those of the doors beside HTTP as fields of a log line, each named after its door."""
        others = {"capnp": self.capnp, "framed": self.framed}
        return {f"{door}_{name}": url for door, url in others.items() if url is not None}


def _say_begun(settings: Settings, urls: Urls, announce: Announce) -> None:
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
    if _log_format(settings) == "json":
        return log.format_line(
            _log, "listening", {"url": urls.http, **urls.named("url"), "store": settings.shown_store}
        )
    where = " and ".join(filter(None, urls))
    return f"Holdfast is serving {settings.shown_store} at {where}"


def _log_format(settings: Settings) -> str:
    return settings.log_format or ("console" if sys.stderr.isatty() else "json")


def _rest_garbage_collector() -> None:
    """What is there now stays; and of the thousands of objects that live as long as one call hardly any are cycles: a
    collector that looks for them after every 700 costs a tenth of a server's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _raise_file_limit() -> None:
    """Every caller that waits holds a connection open; the usual limit of 1024 files is for other programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
