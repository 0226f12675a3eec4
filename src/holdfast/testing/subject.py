"""What the store laws are pointed at: a queue of any kind, with its time in the test's hands."""

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
    """One store behind one door. `clock` moves the time that the store goes by."""

    clock: ManualClock

    def open(self, *, unwritable: Collection[int] | None = None, **settings: Any) -> "AsyncHoldfastContext":
        """Open a fresh, empty store for the length of an `async with`.

        Verdicts on the messages in `unwritable` fail as `with_unwritable_verdicts` describes.
        """

    async def sweep(self, hf: AsyncHoldfast) -> int:
        """Sweep until nothing is left to do now; answers how much changed."""

    async def fire(self, hf: AsyncHoldfast) -> None:
        """Until no schedule is due now."""


class AsyncHoldfastContext(Protocol):
    async def __aenter__(self) -> AsyncHoldfast: ...
    async def __aexit__(self, *raised: Any) -> None: ...


class EmbeddedSubject:
    """Any store under the embedded core, on the running loop and the manual clock."""

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
    """Until no schedule of a core on a loop is due, and a pass that its clock began has ended."""
    while await core.scheduler.fire_once():
        pass
    await cast(LoopRuntime, core.runtime).idle()
