"""Sweeps during the close of a store."""

from typing import cast

import pytest

from holdfast.dice import SeededDice
from holdfast.model.errors import StoreUnavailable
from holdfast.server.embedded import Embedded, open_on_loop
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock, with_faults


class ClosedUnderneath:
    """A store that is closed during a sweep."""

    def __init__(self) -> None:
        self.close = lambda: None

    async def before(self, call: str) -> None:
        if call == "sweep":
            self.close()
            raise StoreUnavailable("this store was closed: open it again")

    async def after(self, call: str) -> None: ...


@pytest.mark.parametrize("is_closed", [True, False])
async def test_a_sweep_that_fails_is_spoken_of_unless_its_store_was_closed(
    caplog: pytest.LogCaptureFixture, is_closed: bool
) -> None:
    faults = ClosedUnderneath()
    store = with_faults(MemoryStore(SeededDice(0), 86_400_000), faults)
    async with open_on_loop("", {}, clock=ManualClock(), store=store) as hf:
        sweeper = cast(Embedded, hf._transport).core.sweeper
        if is_closed:
            faults.close = sweeper.close
        await sweeper._sweep()
    assert ("background_failed loop=sweep" in caplog.text) == (not is_closed)
