"""The embedded store's engine: beside a sketch of the least it could do, while checkpoints run, and after a kill."""

import asyncio
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import holdfast
from bench.embedded.log_sketch import LogSketch
from bench.embedded.raw import scratch
from bench.measure import Pair, paired
from bench.report import Figure
from holdfast.stores.rocks.engine.engine import Engine

PAYLOAD = b"x" * 256
_MIB = 1 << 20

# Fills a store and is gone as a kill leaves it.
_FILL = """
import os, sys, holdfast
path, messages, size, checkpoint = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
hf = holdfast.open(path, durability="os", checkpoint_bytes=checkpoint)
queue = hf.queue("bench")
for _ in range(messages // 1_000):
    queue.enqueue([b"x" * size] * 1_000)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), flush=True)
os._exit(0)
"""

# Opens a store, claims one message, and tells the processor time of both.
_OPEN = """
import sys, time, holdfast
began = time.process_time()
with holdfast.open(sys.argv[1], durability="os") as hf:
    [message] = hf.queue("bench").claim()
    print(time.process_time() - began, flush=True)
    message.release()
"""


def _fill(path: Path, messages: int, size: int, checkpoint: str = "64MiB") -> float:
    """Return the most memory that the process had, in MiB."""
    command = [sys.executable, "-c", _FILL, str(path), str(messages), str(size), checkpoint]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1_024


def _open_s(path: Path) -> float:
    command = [sys.executable, "-c", _OPEN, str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _cpu(work: Callable[[], None], operations: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / operations * 1e6


def beside_the_sketch() -> Iterator[Figure]:
    """Lifecycles with fsync, in batches of 1, 10 and 100."""
    with scratch() as path, holdfast.open(str(path / "store")) as hf:
        sketch, queue = LogSketch(path / "sketch"), hf.queue("bench")
        for batch, times, goal in ((1, 150, 0.6), (10, 60, 0.4), (100, 30, 0.3)):

            def ours(batch: int = batch, times: int = times) -> None:
                for _ in range(times):
                    queue.enqueue([PAYLOAD] * batch)
                    queue.ack(queue.claim(limit=batch, lease=30))

            def least(batch: int = batch, times: int = times) -> None:
                for _ in range(times):
                    sketch.enqueue([PAYLOAD] * batch)
                    sketch.ack(sketch.claim(batch))

            pair: Pair = paired(ours, least, operations=batch * times)
            cpu = _cpu(ours, batch * times), _cpu(least, batch * times)
            yield Figure(
                f"lifecycle, fsync, batches of {batch}",
                f"{1e6 / pair.subject_us:,.0f} msg/s, {cpu[0]:.1f} us CPU",
                "a sketch with journal and checkpoints",
                f"{1e6 / pair.baseline_us:,.0f} msg/s, {cpu[1]:.1f} us CPU",
                pair.speed_ratio,
                goal=goal,
            )
        sketch.close()


def lone_caller_on_a_loop(rounds: int = 5, lifecycles: int = 500) -> Figure:
    """Lifecycles of one caller on a loop with fsync: its syncs on the loop itself, and handed to another thread."""
    figures: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    may_sync_on_loop = Engine._may_sync_on_loop
    try:
        for _ in range(rounds):
            for is_on_loop in (True, False):
                setattr(Engine, "_may_sync_on_loop", may_sync_on_loop if is_on_loop else lambda engine: False)  # noqa: B010
                figures[is_on_loop].append(asyncio.run(_lifecycles_on_a_loop(lifecycles)))
    finally:
        setattr(Engine, "_may_sync_on_loop", may_sync_on_loop)  # noqa: B010
    here, there = (
        (statistics.median(rate for rate, _ in each), statistics.median(cpu for _, cpu in each))
        for each in (figures[True], figures[False])
    )
    return Figure(
        "lifecycle of one caller on a loop, fsync, its syncs on the loop",
        f"{here[0]:,.0f} msg/s, {here[1]:.1f} us CPU",
        "its syncs on another thread",
        f"{there[0]:,.0f} msg/s, {there[1]:.1f} us CPU",
        here[0] / there[0],
        goal=1,
    )


async def _lifecycles_on_a_loop(number: int) -> tuple[float, float]:
    """Return the rate and the processor time of each in microseconds."""
    with scratch() as path:
        async with holdfast.open_async(str(path / "store")) as hf:
            queue = hf.queue("bench")
            await queue.enqueue(PAYLOAD)
            began_s, cpu_s = time.perf_counter(), time.process_time()
            for _ in range(number):
                await queue.enqueue(PAYLOAD)
                [message] = await queue.claim()
                await message.ack()
            took_s = time.perf_counter() - began_s
            return number / took_s, (time.process_time() - cpu_s) / number * 1e6


def while_a_checkpoint_runs(rounds: int = 5, dirty: int = 40_000) -> Figure:
    """The 99th percentile of single enqueues with fsync."""
    quiet: list[float] = []
    busy: list[float] = []
    with scratch() as path, holdfast.open(str(path / "store")) as hf:
        queue, store = hf.queue("bench"), hf._inner._transport.core.store
        for _ in range(rounds):
            quiet += [_timed(lambda: queue.enqueue(PAYLOAD)) for _ in range(400)]
            for _ in range(dirty // 1_000):
                queue.enqueue([PAYLOAD] * 1_000)
            running = threading.Thread(target=lambda: hf._driver.run(store.shards[0].checkpoints.run_once()))
            running.start()
            while running.is_alive():
                busy.append(_timed(lambda: queue.enqueue(PAYLOAD)))
            running.join()
    p99 = [statistics.quantiles(times, n=100)[98] * 1e3 for times in (busy, quiet)]
    return Figure(
        f"p99 of single enqueues, fsync, while a checkpoint of {dirty:,} messages runs ({len(busy):,} measured)",
        f"{p99[0]:.2f} ms",
        "without one",
        f"{p99[1]:.2f} ms",
        p99[0] / p99[1],
        goal=2,
        lower_is_better=True,
    )


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def recovery(messages: int) -> Iterator[Figure]:
    """After a kill: a log of 64 MiB, and a long backlog of which the log has the last part."""
    with scratch() as path:
        _fill(path / "log", 150_000, 256, "4GiB")
        log_mib = sum(file.stat().st_size for file in (path / "log" / "log").iterdir()) / _MIB
        took_s = _open_s(path / "log")
        yield Figure(
            f"opening after a kill: 150,000 messages of 256 bytes in the log alone (segments of {log_mib:.0f} MiB)",
            f"{took_s * 1e3:,.0f} ms CPU",
            "goal",
            "1,000 ms",
            took_s,
            goal=1,
            lower_is_better=True,
        )
        _fill(path / "long", messages, 256)
        took_s = _open_s(path / "long")
        yield Figure(
            f"opening after a kill with {messages:,} queued, and claiming one",
            f"{took_s * 1e3:,.0f} ms CPU",
            "goal",
            "1,000 ms",
            took_s,
            goal=1,
            lower_is_better=True,
        )


def memory(messages: int = 300_000) -> Iterator[Figure]:
    """The most memory of a process that enqueues as fast as it can."""
    with scratch() as path:
        empty = _fill(path / "empty", 1_000, 1)
        for size in (1, 256):
            most = _fill(path / f"of {size}", messages, size) - empty
            yield Figure(
                f"peak memory of {messages:,} enqueues at full rate, payloads of {size} bytes",
                f"{most:,.0f} MiB more than an empty store",
                "twice checkpoint_bytes, and what is remembered",
                "192 MiB",
                most / 192,
                goal=1,
                lower_is_better=True,
            )


def measure(backlog: int) -> Iterator[Figure]:
    """One figure after the other, as they are measured."""
    yield from beside_the_sketch()
    yield lone_caller_on_a_loop()
    yield while_a_checkpoint_runs()
    yield from recovery(backlog)
    yield from memory()
