"""The object store on a directory: what a claim costs by the backlog behind it, and how soon a waiter wakes."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import holdfast
from bench.report import Figure
from holdfast.client.queue import AsyncQueue

PAYLOAD = b"x" * 256
CLAIM = 10
# Some seconds of them: what opening a long queue costs is a part of it, and not most of it.
CLAIMS = 300
WAKES = 40
# Claims and acks beside the embedded store.
BATCH = 100
CONSUMED = 2_000
ROUNDS = 3
_GAP_S = 0.02


async def _claim_ms(directory: Path, backlog: int) -> float:
    """Return the mean time of a claim of ten with this number queued. Claimed messages are put back."""
    async with holdfast.open_async(directory.as_uri(), durability="os") as hf:
        queue = hf.queue("bench")
        for start in range(0, backlog, 1_000):
            await queue.enqueue([PAYLOAD] * min(1_000, backlog - start))
    times: list[float] = []
    # Opened anew: nothing of the backlog is known.
    async with holdfast.open_async(directory.as_uri(), durability="os") as hf:
        queue = hf.queue("bench")
        await queue.claim(limit=CLAIM, lease=600)
        for _ in range(CLAIMS):
            started = time.perf_counter()
            messages = await queue.claim(limit=CLAIM, lease=600)
            times.append((time.perf_counter() - started) * 1_000)
            assert len(messages) == CLAIM
            await queue.ack(messages)
            await queue.enqueue([PAYLOAD] * CLAIM)
    # The mean: a page is listed and read now and then, and belongs to the cost of every claim.
    return statistics.mean(times)


async def _wake_ms(directory: Path) -> float:
    """Return the time from another process's enqueue to the delivery. Both stores run on one loop."""
    url, times = directory.as_uri(), []
    async with (
        holdfast.open_async(url, durability="os", queue_poll_interval="1h") as mine,
        holdfast.open_async(url, durability="os") as others,
    ):
        await others.queue("wake").set_policy()
        for number in range(WAKES):
            waiting = asyncio.create_task(mine.queue("wake").claim(wait=None))
            await asyncio.sleep(_GAP_S)
            started = time.perf_counter()
            await others.queue("wake").enqueue(number)
            [message] = await waiting
            times.append((time.perf_counter() - started) * 1_000)
            await message.ack()
    return statistics.median(times)


async def _consume(queue: AsyncQueue, messages: int) -> tuple[float, float]:
    """Return messages a second and microseconds of processor a message, of claims and acks of a hundred."""
    for start in range(0, messages, 1_000):
        await queue.enqueue([PAYLOAD] * min(1_000, messages - start))
    started, processor = time.perf_counter(), time.process_time()
    for _ in range(messages // BATCH):
        await queue.ack(await queue.claim(limit=BATCH, lease=600))
    seconds, processor_s = time.perf_counter() - started, time.process_time() - processor
    return messages / seconds, processor_s / messages * 1e6


async def _beside_embedded(directory: Path, messages: int) -> tuple[list[float], list[float], float]:
    """Return the rates of the object store and of the embedded one, measured in turn, and the object store's processor
    time a message in microseconds."""
    rates: list[float] = []
    embedded_rates: list[float] = []
    processor: list[float] = []
    async with (
        holdfast.open_async(str(directory / "embedded")) as embedded,
        holdfast.open_async((directory / "objects").as_uri()) as objects,
    ):
        await _consume(embedded.queue("bench"), messages)
        await _consume(objects.queue("bench"), BATCH)
        for _ in range(ROUNDS):
            embedded_rates.append((await _consume(embedded.queue("bench"), messages))[0])
            rate, microseconds = await _consume(objects.queue("bench"), messages)
            rates.append(rate)
            processor.append(microseconds)
    return rates, embedded_rates, statistics.median(processor)


def measure(backlog: int = 100_000) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        few = asyncio.run(_claim_ms(Path(directory) / "few", 1_000))
        many = asyncio.run(_claim_ms(Path(directory) / "many", backlog))
        yield Figure(
            f"object store on disk: claim of {CLAIM} with {backlog:,} queued",
            f"{many:.1f} ms",
            "with 1,000 queued",
            f"{few:.1f} ms",
            few / many,
            goal=0.5,
        )
        rates, embedded_rates, microseconds = asyncio.run(_beside_embedded(Path(directory) / "beside", CONSUMED))
        yield Figure(
            f"object store on disk: claim and ack in batches of {BATCH}, synced",
            f"{statistics.median(rates):,.0f}/s, {microseconds:,.0f} us of processor",
            "the embedded store, in turn",
            f"{statistics.median(embedded_rates):,.0f}/s",
            statistics.median(mine / other for mine, other in zip(rates, embedded_rates, strict=True)),
            goal=0.3,
        )
        wake = asyncio.run(_wake_ms(Path(directory) / "wake"))
        yield Figure(
            "object store on disk: from another process's enqueue to a waiting claim",
            f"{wake:.1f} ms",
            "what is asked",
            "20 ms",
            20 / wake,
            goal=1,
        )
