"""Waits for tests of a remote client: for the end of a call, for a condition, and for waiting claims."""

import asyncio
from typing import Any

from holdfast.client.queue import AsyncQueue
from tests.waiting import until

PATIENCE_S = 30


async def soon(work: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await work


async def until_waiting(q: AsyncQueue, number: int) -> None:
    async def is_so() -> bool:
        return (await q.stats()).waiters == number

    await until(is_so)
