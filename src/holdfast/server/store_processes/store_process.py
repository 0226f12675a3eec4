"""A store process other than the first: it serves one portion of the store to the doors, and to the coordinator.

The first process starts it with `python -m holdfast.server.store_processes.store_process` and a `StoreStart`
(`processes/child_process.py`). The end of its input means that the first process is gone. It then exits at once: every
acknowledged change is in its log.
"""

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from holdfast.clock import SystemClock
from holdfast.dice import SystemDice
from holdfast.model.errors import HoldfastError
from holdfast.runtime import LoopRuntime
from holdfast.server.ending import OVERTIME, Watchdog, leave
from holdfast.server.process import make_loop, raise_file_limit, rest_garbage_collector
from holdfast.server.processes.child_process import obey, open_control, read_task, report_error, report_serving
from holdfast.server.processes.link import LinkAddress, StoreLink
from holdfast.server.scrape import CoreSource
from holdfast.server.settings import Settings
from holdfast.server.store_processes.counts import StoreCounts
from holdfast.server.store_processes.division import Division, RemoteEnd
from holdfast.server.store_processes.opening import make_portion
from holdfast.server.store_processes.portion_links import PortionLinks
from holdfast.server.store_processes.store_core import StoreCore
from holdfast.server.store_processes.tokens import ask_first
from holdfast.signals import LoopSignals
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.rocks.portions.answers import PortionAnswers
from holdfast.telemetry import log

# Calls under way at the first process. They are few, and none of them waits for a caller.
MOST_AT_ONCE = 1_024
# The time for the last work of callers that have left.
_IDLE_S = 5.0


class StoreStart(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a store process."""

    # The number of its portion, from 1: the first process has portion 0.
    portion: int
    settings: Settings
    directory: str
    # The address at which it serves, and that of the first process.
    own: LinkAddress
    first: LinkAddress
    # The descriptor with the lock on the directory.
    lock: int
    log_format: str


async def serve(start: StoreStart, control: asyncio.StreamReader) -> None:
    """Serve until the drain."""
    settings, clock = start.settings, SystemClock()
    stop, watchdog = asyncio.Event(), Watchdog()
    signals = LoopSignals(asyncio.get_running_loop())
    # Ctrl-C and SIGTERM may reach every process of a server: the first one ends this one in its own time.
    signals.handle(signal.SIGINT, lambda: None)
    signals.handle(signal.SIGTERM, lambda: None)
    obeying = asyncio.create_task(obey(control, stop.set))
    runtime = LoopRuntime(clock)
    to_first = StoreLink(start.first, lambda tenant: 1, MOST_AT_ONCE)
    lock = DirectoryLock.inherit(start.lock)
    coordinator = RemoteEnd(to_first, is_coordinator=True)
    portion = make_portion(Path(start.directory), settings, SystemDice(), start.portion, coordinator, lock)
    core = StoreCore(portion, runtime, settings, ask_first(to_first))
    counts = StoreCounts(CoreSource(portion, core.dispatcher, clock))
    core.admission.set_observer(counts)
    # Another process can open the databases again.
    core.on_store_lost = lambda why: leave(OVERTIME)
    division = Division(PortionAnswers(portion), None, counts, clock)
    await core.open()
    links = PortionLinks(core, division, start.own.secret, start.portion)
    try:
        await links.listen(start.own.path)
        rest_garbage_collector()
        report_serving()
        await stop.wait()
        watchdog.start(settings.shutdown_grace_ms / 1_000 + _IDLE_S)
        core.begin_drain()
        with suppress(TimeoutError):
            await asyncio.wait_for(runtime.idle(), _IDLE_S)
    finally:
        await links.close(0)
        await core.close()
        to_first.close()
        obeying.cancel()
        await runtime.aclose()
        watchdog.dismiss()
        signals.restore()


async def _main() -> int:
    control = await open_control()
    start: StoreStart = await read_task(control)
    log.configure(start.log_format)
    structlog.contextvars.bind_contextvars(store_process=start.portion + 1)
    raise_file_limit()
    try:
        await serve(start, control)
    except HoldfastError as error:
        report_error(error)
        return OVERTIME
    return 0


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=make_loop()) as runner:
        sys.exit(runner.run(_main()))
