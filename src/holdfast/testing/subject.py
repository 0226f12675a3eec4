"""Subjects of the store laws: a store behind a door, with a clock that the test controls."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, Protocol, cast

from holdfast.client.client import AsyncHoldfast
from holdfast.dice import Dice, SeededDice
from holdfast.runtime import LoopRuntime
from holdfast.server.compose import Core
from holdfast.server.embedded import Embedded, open_on_loop
from holdfast.stores.contract import Store
from holdfast.testing.clock import ManualClock
from holdfast.testing.faults import with_unwritable_verdicts


class Subject(Protocol):
    """A store behind a door. The store reads its time from `clock`."""

    clock: ManualClock

    def open(self, *, unwritable: Collection[int] | None = None, **settings: Any) -> "AsyncHoldfastContext":
        """Open a new, empty store for the duration of an `async with` block.

        `unwritable` holds snowflakes of messages: verdicts on them fail, see `with_unwritable_verdicts`. `settings` are
        settings of the server.
        """

    async def sweep(self, hf: AsyncHoldfast) -> int:
        """Sweep until nothing remains to be swept at the current time; return the number of changes."""

    async def fire(self, hf: AsyncHoldfast) -> None:
        """Fire schedules until none is due at the current time."""


class AsyncHoldfastContext(Protocol):
    """An async context manager that gives an open client."""

    async def __aenter__(self) -> AsyncHoldfast: ...
    async def __aexit__(self, *raised: Any) -> None: ...


class EmbeddedSubject:
    """A subject that opens a store in process, on the running event loop, with a `ManualClock`.

    `make_store` returns a new, empty store each time; `seed` makes the random numbers of the store repeatable.
    """

    def __init__(self, make_store: Callable[[Dice], Store], seed: int = 0) -> None:
        self.clock = ManualClock()
        self._make_store = make_store
        self._dice = SeededDice(seed)

    @asynccontextmanager
    async def open(self, *, unwritable: Collection[int] | None = None, **settings: Any) -> AsyncIterator[AsyncHoldfast]:
        store = self._make_store(self._dice)
        if unwritable is not None:
            store = with_unwritable_verdicts(store, unwritable)
        async with open_on_loop("", settings, clock=self.clock, store=store) as hf:
            yield hf

    async def sweep(self, hf: AsyncHoldfast) -> int:
        sweeper = cast(Embedded, hf._transport).core.sweeper
        total = 0
        while changed := await sweeper.sweep_once():
            total += changed
        return total

    async def fire(self, hf: AsyncHoldfast) -> None:
        await fire_due(cast(Embedded, hf._transport).core)


async def fire_due(core: Core) -> None:
    """Fire the due schedules of a core that runs on an event loop, until none is due.

    Also wait for a pass that an alarm of the clock has started.
    """
    while await core.scheduler.fire_once():
        pass
    await cast(LoopRuntime, core.runtime).idle()
