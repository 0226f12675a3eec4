"""Functions to run waiting claims beside a test, without sleeping and with a limit on every wait."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from holdfast.client.client import AsyncHoldfast
from holdfast.client.message import AsyncMessage
from holdfast.client.queue import AsyncQueue

T = TypeVar("T")

WaitingClaim = asyncio.Task[list[AsyncMessage]]

# In real seconds. Only a failing law waits this long: the manual clock does not end a wait by itself.
_BROKEN_AFTER_S = 30.0
# Enough iterations of the event loop for all work that needs no passing of time, even through a network.
_TURNS = 50
# More iterations of the event loop than a claim through any store and door takes.
_LOOKS = 10_000


async def run_others(number: int = _TURNS) -> None:
    """Let the other tasks run for `number` iterations of the event loop."""
    for _ in range(number):
        await asyncio.sleep(0)


async def finish(work: Awaitable[T]) -> T:
    """Return the result of work that must end without time passing. Raise TimeoutError if it does not end."""
    async with asyncio.timeout(_BROKEN_AFTER_S):
        return await work


async def until_started(hf: AsyncHoldfast, waiters: int = 1) -> None:
    """Let the other tasks run until at least `waiters` claims of the default tenant wait.

    The tenant's counts are used because the queue may not exist yet.
    """
    for _ in range(_LOOKS):
        if (await hf.tenant().stats()).waiters >= waiters:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"fewer than {waiters} claims wait")


async def cancel_claim(claim: WaitingClaim) -> list[AsyncMessage]:
    """Cancel a claim. Return its messages if it had already ended, and otherwise an empty list."""
    claim.cancel()
    await asyncio.wait([claim])
    return [] if claim.cancelled() else claim.result()


async def start_claim(q: AsyncQueue, limit: int = 1, **options: Any) -> WaitingClaim:
    """Start a claim on an existing queue and return its task once it waits. By default it waits without a limit."""
    before = (await q.stats()).waiters
    task = asyncio.create_task(q.claim(limit, **{"wait": None, **options}))
    await until_waiting(q, before + 1)
    return task


async def until_waiting(q: AsyncQueue, number: int) -> None:
    """Let the other tasks run until exactly `number` claims wait on the queue."""
    for _ in range(_LOOKS):
        if (await q.stats()).waiters == number:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{(await q.stats()).waiters} claims wait, not {number}")


async def assert_waits(q: AsyncQueue, *tasks: WaitingClaim) -> None:
    """Assert that these claims, and no others, wait on the queue."""
    await run_others()
    assert not any(task.done() for task in tasks)
    assert (await q.stats()).waiters == len(tasks)
