"""A store process's part in a divided store: the calls that other processes make to it, beside those of callers."""

import asyncio
from typing import Any

from holdfast.clock import Clock
from holdfast.server.processes.link import StoreLink
from holdfast.server.processes.reports import NO_CALLER
from holdfast.server.store_processes.counts import StoreCounts, StoreScrape
from holdfast.server.store_processes.tokens import TokenServer
from holdfast.service.access import ANYONE
from holdfast.stores.rocks.portions.call_bytes import (
    read_portion_call,
    read_portion_result,
    write_portion_call,
    write_portion_result,
)
from holdfast.stores.rocks.portions.calls import PortionCall, PortionEnd
from holdfast.wire.framed import links


class Division:
    """The ends of calls in one store process."""

    def __init__(self, portion: PortionEnd, coordinator: PortionEnd | None, counts: StoreCounts, clock: Clock) -> None:
        """`coordinator` is None in every process but the first."""
        self._portion = portion
        self._coordinator = coordinator
        self._counts = counts
        self.tokens = TokenServer(clock)

    async def carry_out(self, given: links.PortionFrame) -> bytes:
        """Carry out a call between store processes, and return its result as bytes."""
        end = self._coordinator if given.to_coordinator else self._portion
        assert end is not None  # only the first process is called as the coordinator
        return write_portion_result(await end.ask(read_portion_call(given.call)))

    async def scrape(self) -> StoreScrape:
        """Return the metrics of this process since the last call."""
        return await self._counts.take()


class RemoteEnd:
    """A `PortionEnd` in another process."""

    def __init__(self, link: StoreLink, *, is_coordinator: bool = False) -> None:
        self._link = link
        self._is_coordinator = is_coordinator

    async def ask(self, call: PortionCall) -> Any:
        """Carry out a call; see `PortionEnd.ask`."""
        # A task of its own: some callers have none, and connecting needs one.
        return await asyncio.get_running_loop().create_task(self._ask(call))

    async def _ask(self, call: PortionCall) -> Any:
        frame = links.PortionFrame(None, None, None, self._is_coordinator, write_portion_call(call))
        answer = await self._link.ask(NO_CALLER + links.write_link_call(frame), ANYONE.own_tenant)
        return read_portion_result(call, answer)
