"""Start, replace and end the door processes of a server. This runs in the store process."""

import asyncio
import logging
import secrets
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from holdfast.background import Backoff, sleep_for
from holdfast.clock import Clock
from holdfast.doors.identity import Identity
from holdfast.server.compose import Core
from holdfast.server.doors.doors import LAST_S
from holdfast.server.doors.ports import Ports
from holdfast.server.processes.child_process import ChildProcess
from holdfast.server.processes.door_process import DoorStart
from holdfast.server.processes.link import LinkAddress
from holdfast.server.processes.peers import DoorPeer
from holdfast.server.processes.reports import ServerReports
from holdfast.server.processes.store_links import StoreLinks
from holdfast.server.settings import Settings
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.trace import Tracing

_log = logging.getLogger("holdfast")

_PROGRAM = "holdfast.server.processes.door_process"
# A door process imports its modules, and may fetch verification keys from a URL, before it serves.
_START_S = 60.0


class DoorProcesses:
    """The doors of a server (`server.run.Front`) in several processes, each of which has all doors."""

    def __init__(
        self, ports: Ports, settings: Settings, log_format: str, other_stores: Sequence[LinkAddress] = ()
    ) -> None:
        """`ports` are shared sockets, on which this process never listens: they reserve the ports.

        `other_stores` are the store processes beside this one.
        """
        self._other_stores = list(other_stores)
        self._settings = replace(settings, **ports.numbers)
        self._log_format = log_format
        self._directory = tempfile.TemporaryDirectory(prefix="holdfast-")
        self._path = str(Path(self._directory.name) / "store")
        self._links: StoreLinks | None = None
        self._reports: ServerReports | None = None
        self._processes: list[DoorProcess] = []
        self._replacing: list[asyncio.Task[None]] = []
        self._is_ending = False

    async def start(self, core: Core, identity: Identity, metrics: Metrics, tracing: Tracing) -> None:
        """Start every door process, and wait until all of them serve. Raise the error of one that fails to start."""
        self._reports = ServerReports(metrics, core.weight_of)
        self._links = StoreLinks(core, self._reports, core.division)
        await self._links.listen(self._path)
        self._processes = [DoorProcess(number) for number in range(1, self._settings.processes + 1)]
        started = await asyncio.gather(*(self._start(each) for each in self._processes), return_exceptions=True)
        for error in started:
            if isinstance(error, BaseException):
                raise error
        self._replacing = [
            asyncio.create_task(self._replace_on_end(each, core.runtime.clock)) for each in self._processes
        ]

    async def _start(self, process: "DoorProcess") -> None:
        assert self._links is not None
        peer = DoorPeer(process.number, secrets.token_urlsafe(32))
        self._links.admit(peer)
        process.peer = peer
        link = LinkAddress(path=self._path, secret=peer.secret)
        start = DoorStart(
            number=process.number,
            settings=self._settings,
            link=link,
            log_format=self._log_format,
            other_stores=self._other_stores,
        )
        try:
            await process.start(start)
        except BaseException:
            await self._links.dismiss(peer)
            raise

    async def _replace_on_end(self, process: "DoorProcess", clock: Clock) -> None:
        """Replace a door process whenever it ends by itself."""
        assert self._links is not None
        assert self._reports is not None
        backoff = Backoff("door_process", door_process=process.number)
        while True:
            code = await process.ended()
            if process.peer is not None:
                await self._links.dismiss(process.peer)
            self._reports.forget(process.number)
            if self._is_ending:
                return
            self._reports.count_end()
            _log.error(
                "door_process_ended process=%s exit_code=%s: starting another",
                process.number,
                code,
                extra={"door_process": process.number, "exit_code": code},
            )
            while not self._is_ending:
                try:
                    await self._start(process)
                except Exception as error:
                    await sleep_for(clock, backoff.failed(error))
                else:
                    backoff.succeeded()
                    break

    async def drain(self, end_waits: Callable[[], None], deadline: float) -> bool:
        """Let every door process finish its calls, and then end the waits of the store."""
        self._is_ending = True
        _log.info("drain_started: the door processes finish the calls under way; a second signal ends them at once")
        for process in self._processes:
            process.drain()
        remaining_s = max(deadline + LAST_S * 0.9 - asyncio.get_running_loop().time(), 0)
        codes = await asyncio.gather(*(process.end_within(remaining_s) for process in self._processes))
        end_waits()
        if any(codes):
            _log.error("door_processes_failed exit_codes=%s", ", ".join(map(str, codes)))
        return not any(codes)

    async def close(self) -> None:
        """End the remaining door processes."""
        self._is_ending = True
        await asyncio.gather(*(process.end_within(0) for process in self._processes))
        for replacing in self._replacing:
            replacing.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        if self._links is not None:
            await self._links.close(0)
        self._directory.cleanup()


class DoorProcess(ChildProcess):
    """One door process by its number. A process that ends is replaced under the same number."""

    def __init__(self, number: int) -> None:
        super().__init__(_PROGRAM, f"door process {number}")
        self.number = number
        self.peer: DoorPeer | None = None
