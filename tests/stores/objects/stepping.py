"""Step a manual clock while calls run that may pause on it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from holdfast.testing import ManualClock


@asynccontextmanager
async def stepped(clock: ManualClock, step_ms: int = 20) -> AsyncIterator[None]:
    """Advance the clock by `step_ms` in every turn of the loop, until the block ends."""

    async def step() -> None:
        while True:
            await asyncio.sleep(0)
            clock.advance(step_ms)

    task = asyncio.create_task(step())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
