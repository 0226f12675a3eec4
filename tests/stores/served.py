"""The subject of the laws behind a door: a memory store, called by the client through that door."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.dice import SeededDice
from holdfast.server.compose import Core
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.testing.faults import with_unwritable_verdicts
from holdfast.testing.subject import fire_due

WEEK_MS = 7 * 86_400_000


class Served(Protocol):
    url: str
    core: Core


class ServedSubject:
    """`serve` opens the door on the test's clock.

    The client has no clock of its own to move: a waiting claim is one request, so that its wait is the server's to
    end. Refusals to ask again later are raised at once: no time passes that would change them.
    """

    def __init__(self, serve: Callable[..., AbstractAsyncContextManager[Served]]) -> None:
        self.clock = ManualClock()
        self._serve = serve
        self._dice = SeededDice(0)
        self._core: Core | None = None

    @asynccontextmanager
    async def open(self, *, unwritable: Collection[int] | None = None, **settings: Any) -> AsyncIterator[AsyncHoldfast]:
        store: Store = MemoryStore(self._dice, WEEK_MS)
        if unwritable is not None:
            store = with_unwritable_verdicts(store, unwritable)
        async with self._serve(self.clock, store=store, **settings) as server:
            self._core = server.core
            async with holdfast.open_async(server.url, retries=0, wait_round=None) as hf:
                yield hf

    async def sweep(self, hf: AsyncHoldfast) -> int:
        assert self._core is not None
        total = 0
        while changed := await self._core.sweeper.sweep_once():
            total += changed
        return total

    async def fire(self, hf: AsyncHoldfast) -> None:
        assert self._core is not None
        await fire_due(self._core)
