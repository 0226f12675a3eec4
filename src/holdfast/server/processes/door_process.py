"""A door process: it serves callers on the ports of the server, and forwards their calls to the store process.

The store process starts it with `python -m holdfast.server.processes.door_process` and a `DoorStart`
(`child_process.py`). The end of its input means that the store process is gone. The door process then exits at once,
because its calls could no longer be carried out.
"""

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from importlib.metadata import version

import msgspec
import structlog

from holdfast.clock import SystemClock
from holdfast.model.errors import HoldfastError
from holdfast.runtime import LoopRuntime
from holdfast.server.doors.backend import Backend
from holdfast.server.doors.doors import LAST_S, Doors
from holdfast.server.doors.identities import identity_of
from holdfast.server.doors.listen import make_tls
from holdfast.server.doors.ports import Ports
from holdfast.server.ending import OVERTIME, Watchdog
from holdfast.server.process import make_loop, raise_file_limit, rest_garbage_collector
from holdfast.server.processes.child_process import obey, open_control, read_task, report_error, report_serving
from holdfast.server.processes.link import LinkAddress, StoreLink
from holdfast.server.processes.relay import RelayBackend
from holdfast.server.processes.reports import DoorCounts, TenantWeights
from holdfast.server.settings import Settings
from holdfast.signals import LoopSignals
from holdfast.telemetry import log
from holdfast.telemetry.exporting import tracing_from

# The maximum number of calls under way on all links of a server. The store commits concurrent calls together, so it
# needs some; but each new call waits for those before it.
_MOST_AT_ONCE = 256
_FEWEST_AT_ONCE = 16

_log = logging.getLogger("holdfast")


class DoorStart(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a door process."""

    number: int
    # Their ports are the numbers that the server has bound.
    settings: Settings
    link: LinkAddress
    log_format: str
    # The other store processes, of a server that has several.
    other_stores: list[LinkAddress] = []


def most_at_once(processes: int) -> int:
    """Return the number of calls that each of `processes` door processes may have under way."""
    return max(_FEWEST_AT_ONCE, _MOST_AT_ONCE // processes)


async def serve(start: DoorStart, control: asyncio.StreamReader) -> bool:
    """Serve until the drain. Return whether every call was finished."""
    settings = start.settings
    loop = asyncio.get_running_loop()
    stop, watchdog, signals = asyncio.Event(), Watchdog(), LoopSignals(loop)
    # Ctrl-C in a terminal reaches every process of the group. The store process decides when this one drains.
    signals.handle(signal.SIGINT, lambda: None)
    signals.handle(signal.SIGTERM, stop.set)
    weights = TenantWeights()
    links = [
        StoreLink(address, weights.weight_of, most_at_once(settings.processes))
        for address in (start.link, *start.other_stores)
    ]
    backend = _backend_of(links, weights, settings)
    counts = DoorCounts(links[0], weights)
    clock = SystemClock()
    runtime = LoopRuntime(clock)
    identity = identity_of(settings, clock)
    ports = Ports(settings, is_shared=True)
    doors = Doors(ports, settings, make_tls(settings))
    tracing = tracing_from(os.environ, version=version("holdfast"))
    await identity.start()
    background = [
        asyncio.create_task(work) for work in (counts.run(clock), counts.lag.run(runtime), obey(control, stop.set))
    ]
    try:
        await counts.report_once()
        await doors.start(backend, identity, counts, tracing)
        rest_garbage_collector()
        report_serving()
        await stop.wait()
        grace_s = settings.shutdown_grace_ms / 1_000
        watchdog.start(grace_s + LAST_S * 0.75)
        is_finished = await doors.drain(backend.begin_drain, loop.time() + grace_s)
        for link in links:
            await link.idle()
        with suppress(HoldfastError):  # the store process has ended, so nothing could show these counts
            await counts.report_once()
        return is_finished
    finally:
        await doors.close()
        ports.close()
        for task in background:
            task.cancel()
        for link in links:
            link.close()
        await identity.close()
        await runtime.aclose()
        await asyncio.to_thread(tracing.shut_down)
        watchdog.dismiss()
        signals.restore()


def _backend_of(links: list[StoreLink], weights: TenantWeights, settings: Settings) -> Backend:
    if len(links) == 1:
        return RelayBackend(links[0], weights)
    # Imported here, because it loads the embedded store, which the doors of other servers do not need.
    from holdfast.server.store_processes.routes import RoutedBackend, StoreRoutes

    return RoutedBackend(StoreRoutes(links, weights, settings.max_payload))


async def _main() -> int:
    control = await open_control()
    start: DoorStart = await read_task(control)
    log.configure(start.log_format)
    structlog.contextvars.bind_contextvars(door_process=start.number)
    raise_file_limit()
    try:
        return 0 if await serve(start, control) else OVERTIME
    except HoldfastError as error:
        report_error(error)
        return OVERTIME


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=make_loop()) as runner:
        sys.exit(runner.run(_main()))
