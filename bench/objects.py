"""The object store on a directory: what a claim costs by the backlog behind it, and how soon a waiter wakes."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import holdfast
from bench.report import Figure

PAYLOAD = b"x" * 256
CLAIM = 10
# Some seconds of them: what opening a long queue costs is a part of it, and not most of it.
CLAIMS = 300
WAKES = 40
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
        wake = asyncio.run(_wake_ms(Path(directory) / "wake"))
        yield Figure(
            "object store on disk: from another process's enqueue to a waiting claim",
            f"{wake:.1f} ms",
            "what is asked",
            "20 ms",
            20 / wake,
            goal=1,
        )
