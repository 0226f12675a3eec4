"""Claims that wait while the test goes on: no sleeping, and no waiting for ever on a claim that never wakes."""

import asyncio
from typing import Any, TypeVar

from holdfast.client.message import AsyncMessage
from holdfast.client.queue import AsyncQueue

T = TypeVar("T")

Waiting = asyncio.Task[list[AsyncMessage]]

# Real seconds: only a law that is broken ever waits for them.
_BROKEN_AFTER_S = 5.0
# Turns of the loop: enough for whatever can go on to have gone on, with a network in between too.
_TURNS = 50
_LOOKS = 2_000


async def let_others_run() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def start_claim(q: AsyncQueue, limit: int = 1, **options: Any) -> Waiting:
    """A claim that has joined the line of its queue, which exists; it waits for ever unless told otherwise."""
    before = (await q.stats()).waiters
    task = asyncio.create_task(q.claim(limit, **{"wait": None, **options}))
    await until_waiting(q, before + 1)
    return task


async def until_waiting(q: AsyncQueue, number: int) -> None:
    """Exactly that many claims wait, however long their coming or leaving takes to arrive."""
    for _ in range(_LOOKS):
        if (await q.stats()).waiters == number:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{(await q.stats()).waiters} claims wait, not {number}")


async def answer_of(task: asyncio.Task[T]) -> T:
    """What the task answers without further ado: nobody moves the clock meanwhile."""
    async with asyncio.timeout(_BROKEN_AFTER_S):
        return await task


async def assert_waits(q: AsyncQueue, *tasks: Waiting) -> None:
    await let_others_run()
    assert not any(task.done() for task in tasks)
    assert (await q.stats()).waiters == len(tasks)
