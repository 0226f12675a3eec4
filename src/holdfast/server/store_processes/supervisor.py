"""Starts, replaces and ends the store processes of a server. Runs in the first one, which is the started process.

start    the store is opened as a whole, which recovers it, and closed again; then each process opens its portion
end      a store process that ends by itself is replaced. Calls for its queues fail meanwhile, and others go on
stop     the doors end first, then the other store processes, then this one closes its portion
"""

import asyncio
import logging
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from holdfast.background import Backoff, sleep_for
from holdfast.dice import SystemDice
from holdfast.runtime import LoopRuntime
from holdfast.server.doors.doors import LAST_S
from holdfast.server.processes.child_process import ChildProcess
from holdfast.server.processes.link import LinkAddress, StoreLink
from holdfast.server.scrape import CoreSource
from holdfast.server.settings import Settings
from holdfast.server.store_processes.counts import DividedSource, StoreCounts
from holdfast.server.store_processes.division import Division, RemoteEnd
from holdfast.server.store_processes.opening import check_divisible, make_portion, recover_whole
from holdfast.server.store_processes.portion_links import PortionLinks
from holdfast.server.store_processes.store_core import StoreCore
from holdfast.server.store_processes.store_process import MOST_AT_ONCE, StoreStart
from holdfast.server.store_processes.tokens import answer_at_once
from holdfast.stores.disk.directory_lock import DirectoryLock
from holdfast.stores.rocks.portions.answers import PortionAnswers
from holdfast.stores.rocks.portions.coordinator import Coordinator
from holdfast.telemetry.metrics import Metrics
from holdfast.wire.framed.links import SharedTokens, TakeTokensCall

_log = logging.getLogger("holdfast")

_PROGRAM = "holdfast.server.store_processes.store_process"
# A process that was killed first replays its log.
_START_S = 600.0


class StoreProcess(ChildProcess):
    """One place among the store processes, the process that fills it, and the link to it."""

    def __init__(self, portion: int, address: LinkAddress) -> None:
        super().__init__(_PROGRAM, f"store process {portion + 1}")
        self.portion = portion
        self.address = address
        self.link: StoreLink | None = None

    def connect(self) -> StoreLink:
        """Return a new link to the process."""
        self.disconnect()
        self.link = StoreLink(self.address, lambda tenant: 1, MOST_AT_ONCE)
        return self.link

    def disconnect(self) -> None:
        """Close the link to a process that has ended."""
        if self.link is not None:
            self.link.close()
            self.link = None


class StoreProcesses:
    """The store processes of a server: the portion of this one, and the others."""

    def __init__(self, settings: Settings, log_format: str, runtime: LoopRuntime) -> None:
        """Raise `InvalidArgument` if the store cannot be divided as the settings say."""
        self._path = check_divisible(settings.store_url, settings)
        self._settings = settings
        self._log_format = log_format
        self._runtime = runtime
        self._directory = tempfile.TemporaryDirectory(prefix="holdfast-")
        self._first = self._address(0)
        self._processes = [StoreProcess(number, self._address(number)) for number in range(1, settings.stores)]
        self._coordinator = Coordinator(settings.stores)
        self._coordinator.on_silence = self._replace
        self._keepers: list[asyncio.Task[None]] = []
        self._lock: DirectoryLock | None = None
        self._links: PortionLinks | None = None
        self._core: StoreCore | None = None
        self._metrics: Metrics | None = None
        self._is_ending = False

    def _address(self, number: int) -> LinkAddress:
        path = Path(self._directory.name) / f"store-{number + 1}"
        return LinkAddress(path=str(path), secret=secrets.token_urlsafe(32))

    @property
    def others(self) -> list[LinkAddress]:
        """Return the addresses of the other store processes, in the order of their portions."""
        return [process.address for process in self._processes]

    # --- Start ---------------------------------------------------------------------------------------------------

    async def open(self) -> StoreCore:
        """Open the store, and start every other process. Return the core of this one.

        Raise the error of the store, or of a process that cannot start.
        """
        self._lock = await recover_whole(self._path, self._settings, SystemDice(), self._runtime)
        clock = self._runtime.clock
        portion = make_portion(self._path, self._settings, SystemDice(), 0, self._coordinator, self._lock)
        answers = PortionAnswers(portion)

        async def take(call: TakeTokensCall) -> SharedTokens:
            return await answer_at_once(division.tokens, call)

        core = StoreCore(portion, self._runtime, self._settings, take)
        division = Division(answers, self._coordinator, StoreCounts(CoreSource(portion, core.dispatcher, clock)), clock)
        core.division = division
        await core.open()
        self._core = core
        self._coordinator.attach(portion)
        await self._coordinator.join(0, answers)
        self._links = PortionLinks(core, division, self._first.secret, 0)
        await self._links.listen(self._first.path)
        started = await asyncio.gather(*map(self._start, self._processes), return_exceptions=True)
        for error in started:
            if isinstance(error, BaseException):
                raise error
        self._keepers = [asyncio.create_task(self._keep(each)) for each in self._processes]
        return core

    async def _start(self, process: StoreProcess) -> None:
        assert self._lock is not None
        # A copy, because a fork closes the lock's own descriptor in the child.
        descriptor = os.dup(self._lock.descriptor)
        start = StoreStart(
            portion=process.portion,
            settings=self._settings,
            directory=str(self._path),
            own=process.address,
            first=self._first,
            lock=descriptor,
            log_format=self._log_format,
        )
        try:
            await process.start(start, descriptors=(descriptor,), within_s=_START_S)
        finally:
            os.close(descriptor)
        await self._coordinator.join(process.portion, RemoteEnd(process.connect()))

    # --- While it serves -----------------------------------------------------------------------------------------

    async def _keep(self, process: StoreProcess) -> None:
        """Replace a store process whenever it ends by itself."""
        number = process.portion + 1
        backoff = Backoff("store_process", store_process=number)
        while True:
            code = await process.ended()
            self._coordinator.leave(process.portion)
            process.disconnect()
            if self._is_ending:
                return
            if self._metrics is not None:
                self._metrics.store_process_ends += 1
            _log.error(
                "store_process_ended process=%s exit_code=%s: starting another",
                number,
                code,
                extra={"store_process": number, "exit_code": code},
            )
            while not self._is_ending:
                try:
                    await self._start(process)
                except Exception as error:
                    await process.end_within(0)
                    await sleep_for(self._runtime.clock, backoff.failed(error))
                else:
                    backoff.succeeded()
                    break

    def _replace(self, portion: int) -> None:
        """End a process that did not answer, so that another takes its place."""
        self._processes[portion - 1].kill()

    def source_of(self, own: CoreSource) -> DividedSource:
        """Return the source of the server's metrics."""
        return DividedSource(own, self._linked)

    def _linked(self) -> Mapping[int, StoreLink]:
        return {each.portion + 1: each.link for each in self._processes if each.link is not None}

    def measure(self, source: DividedSource, metrics: Metrics) -> None:
        """Count the ends and the work of store processes in these metrics."""
        self._metrics = source.metrics = metrics
        metrics.store_processes = {}

    # --- End -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the other processes, which close their portions, and then this one's portion."""
        self._is_ending = True
        try:
            for process in self._processes:
                process.drain()
            seconds = self._settings.shutdown_grace_ms / 1_000 + LAST_S
            codes = await asyncio.gather(*(process.end_within(seconds) for process in self._processes))
            for keeper in self._keepers:
                keeper.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)
            if any(codes):
                _log.error("store_processes_failed exit_codes=%s", ", ".join(map(str, codes)))
            if self._core is not None:
                await self._core.close()
            self._coordinator.close()
        finally:
            for process in self._processes:
                process.disconnect()
            if self._links is not None:
                await self._links.close(0)
            if self._lock is not None:
                self._lock.release()
            self._directory.cleanup()
