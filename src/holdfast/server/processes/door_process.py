"""A door process: it serves callers on the ports of the server, and forwards their calls to the store process.

The store process starts it with `python -m holdfast.server.processes.door_process`. They communicate by its standard
input and output:

    in      8 bytes of length and a pickled `DoorStart`, then the line "drain" to end it
    out     one line of JSON (`DoorState`): it is serving, or the error that prevents it

The end of the input means that the store process has ended. The door process then exits at once, because its calls
could no longer be carried out.
"""

import asyncio
import logging
import os
import pickle
import signal
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Final

import msgspec
import structlog

from holdfast.clock import SystemClock
from holdfast.model.errors import HoldfastError
from holdfast.runtime import LoopRuntime
from holdfast.server.doors.doors import LAST_S, Doors
from holdfast.server.doors.identities import identity_of
from holdfast.server.doors.listen import make_tls
from holdfast.server.doors.ports import Ports
from holdfast.server.ending import OVERTIME, Watchdog, leave
from holdfast.server.process import make_loop, raise_file_limit, rest_garbage_collector
from holdfast.server.processes.link import LinkAddress, StoreLink
from holdfast.server.processes.relay import RelayBackend
from holdfast.server.processes.reports import DoorCounts, TenantWeights
from holdfast.server.settings import Settings
from holdfast.signals import LoopSignals
from holdfast.telemetry import log
from holdfast.telemetry.exporting import tracing_from
from holdfast.wire.errors import error_document

LENGTH_BYTES: Final = 8
DRAIN: Final = b"drain\n"

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


class DoorState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The line that a door process writes once its start is decided."""

    is_serving: bool
    # The error as a document (`wire.errors`), if it is not serving.
    error: dict[str, Any] | None = None


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
    link = StoreLink(start.link, weights.weight_of, most_at_once(settings.processes))
    backend, counts = RelayBackend(link, weights), DoorCounts(link, weights)
    clock = SystemClock()
    runtime = LoopRuntime(clock)
    identity = identity_of(settings, clock)
    ports = Ports(settings, is_shared=True)
    doors = Doors(ports, settings, make_tls(settings))
    tracing = tracing_from(os.environ, version=version("holdfast"))
    await identity.start()
    background = [
        asyncio.create_task(work) for work in (counts.run(clock), counts.lag.run(runtime), _obey(control, stop))
    ]
    try:
        await counts.report_once()
        await doors.start(backend, identity, counts, tracing)
        rest_garbage_collector()
        _report_state(DoorState(True))
        await stop.wait()
        grace_s = settings.shutdown_grace_ms / 1_000
        watchdog.start(grace_s + LAST_S * 0.75)
        is_finished = await doors.drain(backend.begin_drain, loop.time() + grace_s)
        await link.idle()
        with suppress(HoldfastError):  # the store process has ended, so nothing could show these counts
            await counts.report_once()
        return is_finished
    finally:
        await doors.close()
        ports.close()
        for task in background:
            task.cancel()
        link.close()
        await identity.close()
        await runtime.aclose()
        await asyncio.to_thread(tracing.shut_down)
        watchdog.dismiss()
        signals.restore()


async def _obey(control: asyncio.StreamReader, stop: asyncio.Event) -> None:
    while line := await control.readline():
        if line == DRAIN:
            stop.set()
    leave(OVERTIME)


async def _read_start(control: asyncio.StreamReader) -> DoorStart:
    length = int.from_bytes(await control.readexactly(LENGTH_BYTES), "big")
    # Safe to unpickle: the pipe is private to the process that started this one.
    start: DoorStart = pickle.loads(await control.readexactly(length))
    return start


def _report_state(state: DoorState) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(state) + b"\n")
    sys.stdout.flush()


async def _main() -> int:
    control = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(control), sys.stdin)
    start = await _read_start(control)
    log.configure(start.log_format)
    structlog.contextvars.bind_contextvars(door_process=start.number)
    raise_file_limit()
    try:
        return 0 if await serve(start, control) else OVERTIME
    except HoldfastError as error:
        _report_state(DoorState(False, error_document(error)))
        return OVERTIME


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=make_loop()) as runner:
        sys.exit(runner.run(_main()))
