"""Wait for conditions that other tasks, threads and processes bring about in real time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

# In seconds. Only a failing test waits this long: any process may stand still for a while on a busy machine.
PATIENCE_S = 60.0
_LOOK_S = 0.001


async def until(condition: Callable[[], object | Awaitable[object]], patience_s: float = PATIENCE_S) -> None:
    """Return once the condition, which may be a coroutine function, holds. Raise `TimeoutError` if it never does."""
    async with asyncio.timeout(patience_s):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(_LOOK_S)


def wait_until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Do the same as `until`, and block the calling thread. Raise `AssertionError` if the condition never holds."""
    ends_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < ends_s, f"the condition did not hold within {patience_s:g} s"
        time.sleep(_LOOK_S)
