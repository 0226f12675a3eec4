"""A divided store in the test's own event loop and on its clock: every portion, and the links between them."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.clock import Alarm, Clock
from holdfast.dice import SeededDice
from holdfast.model.names import QueueRef
from holdfast.runtime import LoopRuntime
from holdfast.server.processes.link import LinkAddress, StoreLink
from holdfast.server.processes.peers import DoorPeer
from holdfast.server.processes.reports import ServerReports, TenantWeights
from holdfast.server.processes.store_links import StoreLinks
from holdfast.server.scrape import CoreSource
from holdfast.server.settings import Settings, parse_settings
from holdfast.server.store_processes.counts import StoreCounts
from holdfast.server.store_processes.division import Division, RemoteEnd
from holdfast.server.store_processes.opening import make_portion, recover_whole
from holdfast.server.store_processes.portion_links import PortionLinks
from holdfast.server.store_processes.routes import RoutedBackend, StoreRoutes
from holdfast.server.store_processes.store_core import StoreCore
from holdfast.server.store_processes.tokens import Take, answer_at_once, ask_first
from holdfast.stores.contract import Store
from holdfast.stores.rocks.portions.answers import PortionAnswers
from holdfast.stores.rocks.portions.calls import PortionEnd
from holdfast.stores.rocks.portions.coordinator import Coordinator
from holdfast.stores.rocks.portions.store import PortionStore
from holdfast.telemetry.metrics import Metrics

SECRET = "the secret of the processes of one server"


class Divided:
    """The processes of one server, without their doors."""

    def __init__(self, path: Path, clock: Clock, settings: Settings, sockets: Path) -> None:
        self.path = path
        self.clock = clock
        self.settings = settings
        self.sockets = sockets
        self.coordinator = Coordinator(settings.stores)
        self.cores: dict[int, StoreCore] = {}
        self.portions: dict[int, PortionStore] = {}
        self.answers: dict[int, PortionAnswers] = {}
        self.wrap: Callable[[PortionStore], Store] = lambda store: store
        self._links: dict[int, StoreLinks] = {}
        self._clients: dict[int, list[StoreLink]] = {}
        self._dice = SeededDice(0)

    def link(self, number: int, user: int = -1) -> StoreLink:
        """Return a new link to a process, which is closed with process `user`."""
        address = LinkAddress(path=str(self.sockets / str(number)), secret=SECRET)
        link = StoreLink(address, lambda tenant: 1, 256)
        self._clients.setdefault(user, []).append(link)
        return link

    async def open(self) -> None:
        runtime = self._runtime()
        self.lock = await recover_whole(self.path, self.settings, self._dice, runtime)
        await runtime.aclose()
        for number in range(self.settings.stores):
            await self.start(number)

    def _runtime(self) -> LoopRuntime:
        return LoopRuntime(self.clock, self.clock if isinstance(self.clock, Alarm) else None)

    async def start(self, number: int) -> None:
        runtime = self._runtime()
        to_first: StoreLink | None = None
        coordinator: PortionEnd = self.coordinator
        if number:
            to_first = self.link(0, user=number)
            coordinator = RemoteEnd(to_first, is_coordinator=True)
        portion = make_portion(self.path, self.settings, self._dice, number, coordinator, self.lock)
        answers = PortionAnswers(portion)

        async def take_here(call: Any) -> Any:
            return await answer_at_once(division.tokens, call)

        take: Take = take_here if to_first is None else ask_first(to_first)
        core = StoreCore(portion, runtime, self.settings, take, store=self.wrap(portion))
        counts = StoreCounts(CoreSource(core.store, core.dispatcher, self.clock))
        division = Division(answers, None if number else self.coordinator, counts, self.clock)
        await core.open()
        self.portions[number], self.cores[number], self.answers[number] = portion, core, answers
        links: StoreLinks
        if number == 0:
            self.coordinator.attach(portion)
            links = StoreLinks(core, ServerReports(Metrics(), core.weight_of), division)
            links.admit(DoorPeer(1, SECRET))
        else:
            links = PortionLinks(core, division, SECRET, number)
        await links.listen(str(self.sockets / str(number)))
        self._links[number] = links
        await self.coordinator.join(number, answers if number == 0 else RemoteEnd(self.link(number, user=number)))

    async def stop(self, number: int) -> None:
        """Close a process in order."""
        self.coordinator.leave(number)
        core = self.cores.pop(number)
        core.begin_drain()
        await self._links.pop(number).close(1.0)
        await core.close()
        for link in self._clients.pop(number, ()):
            link.close()
        await core.runtime.aclose()  # type: ignore[attr-defined]  # a LoopRuntime

    async def close(self) -> None:
        for core in self.cores.values():
            core.begin_drain()
        for link in self._clients.pop(-1, ()):
            await link.idle()
            link.close()
        for number in sorted(self.cores, reverse=True):
            await self.stop(number)
        self.lock.release()

    def portion_with(self, ref: QueueRef) -> int:
        """Return the number of the process that has a queue."""
        [number] = [number for number, portion in self.portions.items() if portion.has_queue(ref)]
        return number


@contextlib.asynccontextmanager
async def divided(
    path: Path, clock: Clock, *, stores: int = 2, shards: int = 4, wrap: Any = None, **settings: Any
) -> AsyncIterator[Divided]:
    parsed = replace(parse_settings({"shards": shards, **settings}), stores=stores)
    with tempfile.TemporaryDirectory() as sockets:
        server = Divided(path, clock, parsed, Path(sockets))
        if wrap is not None:
            server.wrap = wrap
        await server.open()
        try:
            yield server
        finally:
            await server.close()


def backend_of(server: Divided) -> RoutedBackend:
    """Return the store as the doors of one door process use it."""
    links = [server.link(number) for number in range(server.settings.stores)]
    return RoutedBackend(StoreRoutes(links, TenantWeights(), server.settings.max_payload))


Unwritable = Collection[int] | None
