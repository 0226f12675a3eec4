"""The client over HTTP: what concurrent callers of single messages gain by sharing requests."""

import asyncio
import statistics
import time
from collections.abc import Iterator

import holdfast
from bench.http_servers import holdfast_server
from bench.raw import scratch
from bench.report import Figure
from holdfast.client.queue import AsyncQueue

CALLERS = 64
PAYLOAD = "x" * 256


def measure() -> Iterator[Figure]:
    with scratch() as path, holdfast_server(path / "data", "--durability", "os") as port:
        yield asyncio.run(_single_enqueues(f"http://127.0.0.1:{port}"))


async def _single_enqueues(url: str, rounds: int = 7, each: int = 60) -> Figure:
    """64 tasks of one client that enqueue one message at a time, beside one task that enqueues 64 at a time."""
    singles: list[float] = []
    batches: list[float] = []
    async with holdfast.open_async(url) as hf:
        for number in range(rounds + 1):
            q = hf.queue(f"bench{number}")
            loads = (_concurrently, _in_batches)
            took = [await load(q, each) for load in (loads if number % 2 else reversed(loads))]
            single_s, batch_s = took if number % 2 else reversed(took)
            if number:  # the first warms up
                singles.append(single_s)
                batches.append(batch_s)
    messages = CALLERS * each
    single_s, batch_s = statistics.median(singles), statistics.median(batches)
    return Figure(
        f"one HTTP client, {CALLERS} concurrent enqueues of single messages, OS-buffered",
        f"{messages / single_s:,.0f} msg/s",
        f"the same client, batches of {CALLERS}",
        f"{messages / batch_s:,.0f} msg/s",
        batch_s / single_s,
        goal=0.5,
    )


async def _concurrently(q: AsyncQueue, each: int) -> float:
    async def enqueue() -> None:
        for _ in range(each):
            await q.enqueue(PAYLOAD)

    started = time.perf_counter()
    await asyncio.gather(*(enqueue() for _ in range(CALLERS)))
    return time.perf_counter() - started


async def _in_batches(q: AsyncQueue, each: int) -> float:
    started = time.perf_counter()
    for _ in range(each):
        await q.enqueue([PAYLOAD] * CALLERS)
    return time.perf_counter() - started
