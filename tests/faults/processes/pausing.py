"""A worker to be stopped in its tracks: `python -m tests.faults.processes.pausing URL HISTORY SEED NUMBER LEASE_MS`.

It enqueues, claims, works for a part of the lease and settles, until it is killed.
"""

import asyncio
import itertools
import random
import sys
from pathlib import Path

import holdfast
from holdfast.clock import SystemClock
from holdfast.model.message import NewMessage
from tests.machinery import history as h
from tests.machinery.history.recording import AsyncCaller, FileSink
from tests.machinery.history.scripts import Recorder

QUEUE = "acme/mail"
# Each process writes this many calls at most, so that numbers of calls never meet.
CALLS_EACH = 10_000_000
BACKLOG = 40


async def main(url: str, history: str, seed: str, number: str, lease_ms: str) -> None:
    recorder = Recorder(FileSink(Path(history)), SystemClock().now_ms, first_call=int(number) * CALLS_EACH)
    async with holdfast.open_async(url) as hf:
        caller = AsyncCaller(hf, recorder)
        works = [_work(caller, f"{seed} {number} {each}", int(lease_ms)) for each in range(2)]
        await asyncio.gather(_produce(hf, caller, f"{seed} {number}"), *works)


async def _produce(hf: holdfast.AsyncHoldfast, caller: AsyncCaller, name: str) -> None:
    dice = random.Random(name)
    tenant, _, queue = QUEUE.partition("/")
    for number in itertools.count():
        await caller.enqueue(QUEUE, [NewMessage(f"{name} {number}", max_retries=dice.choice([h.ENDLESS, 2]))])
        while (await hf.queue(queue, tenant=tenant).stats()).ready > BACKLOG:
            await asyncio.sleep(0.05)


async def _work(caller: AsyncCaller, name: str, lease_ms: int) -> None:
    dice = random.Random(name)
    while True:
        for each in await caller.claim(QUEUE, dice.choice([1, 2]), lease_ms=lease_ms, wait_ms=200):
            if dice.random() < 0.3:
                await caller.settle(QUEUE, "extend", [each.receipt], lease=f"{lease_ms}ms")
            await asyncio.sleep(dice.random() * lease_ms / 2_000)
            await caller.settle(QUEUE, dice.choice(["ack", "ack", "ack", "nack", "release"]), [each.receipt])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
