"""The embedded store: its speed beside raw RocksDB writes, and beside itself under other loads."""

import asyncio
import gc
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import holdfast
from bench.embedded.raw import Change, raw_database, recording, replayer, scratch
from bench.measure import paired, timed_us
from bench.report import Figure
from holdfast.stores.rocks.journal.journal import RocksJournal

PAYLOAD = b"x" * 256
BATCH = 100


def lifecycle(queues: list[holdfast.Queue], messages: int, batch: int = BATCH) -> None:
    """Enqueue, claim and ack, batch by batch, round robin over the queues."""
    for number in range(messages // batch):
        queue = queues[number % len(queues)]
        queue.enqueue([PAYLOAD] * batch)
        queue.ack(queue.claim(limit=batch))


def against_raw_writes(messages: int = 10_000) -> Figure:
    with scratch() as path:
        batches: list[list[Change]] = []
        with recording(batches), holdfast.open(str(path / "recorded"), durability="os") as hf:
            queue = hf.queue("bench")
            lifecycle([queue], BATCH)
            batches.clear()
            lifecycle([queue], messages)
            written = list(batches)
        with raw_database(path / "raw") as raw, holdfast.open(str(path / "store"), durability="os") as hf:
            queue = hf.queue("bench")
            pair = paired(lambda: lifecycle([queue], messages), replayer(raw, written), operations=messages)
    return Figure(
        "lifecycle, one thread, batches of 100, OS-buffered",
        f"{1e6 / pair.subject_us:,.0f} msg/s",
        "raw loop of the same writes",
        f"{1e6 / pair.baseline_us:,.0f} msg/s",
        pair.speed_ratio,
        goal=0.7,
    )


def single_enqueues(messages: int = 3_000) -> Figure:
    with scratch() as path:
        batches: list[list[Change]] = []
        with recording(batches), holdfast.open(str(path / "recorded"), durability="os") as hf:
            queue = hf.queue("bench")
            queue.enqueue(PAYLOAD)
            batches.clear()
            for _ in range(messages):
                queue.enqueue(PAYLOAD)
            written = list(batches)
        with raw_database(path / "raw") as raw, holdfast.open(str(path / "store"), durability="os") as hf:
            queue = hf.queue("bench")

            def enqueue() -> None:
                for _ in range(messages):
                    queue.enqueue(PAYLOAD)

            pair = paired(enqueue, replayer(raw, written), operations=messages)
    return Figure(
        "blocking enqueue of single messages, OS-buffered",
        f"{pair.subject_us:.1f} us",
        "raw put-and-write loop",
        f"{pair.baseline_us:.1f} us",
        pair.speed_ratio,
        goal=0.4,
    )


async def _callers(path: Path, durability: str, callers: int, rounds: int) -> float:
    """Lifecycles a second of single messages by concurrent callers."""
    async with holdfast.open_async(str(path), durability=durability) as hf:
        queue = hf.queue("bench")

        async def call() -> None:
            for _ in range(rounds):
                await queue.enqueue(PAYLOAD)
                [message] = await queue.claim(wait=None)
                await message.ack()

        await call()
        started = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(callers)))
        return callers * rounds / (time.perf_counter() - started)


def concurrent_callers() -> list[Figure]:
    rates: dict[str, list[float]] = {"one": [], "hundred": [], "buffered": []}
    with scratch() as path:
        for number in range(5):
            for name, durability, callers, rounds in (
                ("one", "fsync", 1, 100),
                ("hundred", "fsync", 100, 20),
                ("buffered", "os", 100, 20),
            ):
                rates[name].append(asyncio.run(_callers(path / f"{name}{number}", durability, callers, rounds)))
    one, hundred, buffered = (statistics.median(rates[name]) for name in ("one", "hundred", "buffered"))
    subject = f"{hundred:,.0f} msg/s"
    return [
        Figure("100 concurrent callers of single messages, fsync", subject, "one caller", f"{one:,.0f} msg/s",
               hundred / one, goal=20),
        Figure("100 concurrent callers of single messages, fsync", subject, "the same, OS-buffered",
               f"{buffered:,.0f} msg/s", hundred / buffered, goal=0.5),
    ]  # fmt: skip


def _claim_us(queue: holdfast.Queue, rounds: int = 30) -> float:
    """The median cost of claiming 100; what was claimed is given back out of the measured time."""
    times = []
    for _ in range(rounds):
        claimed: list[holdfast.BlockingMessage] = []
        times.append(timed_us(lambda into=claimed: into.extend(queue.claim(limit=BATCH))))
        queue.ack(claimed)
        queue.enqueue([PAYLOAD] * BATCH)
    return statistics.median(times)


def _resident_bytes() -> int:
    """Return the current memory of the process. The peak would hide the growth by this part."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def backlog(messages: int) -> list[Figure]:
    """Claims with a long backlog, and behind many consumed messages; reopening; memory."""
    with scratch() as path:
        with holdfast.open(str(path), durability="os") as hf:
            small, large, used = (hf.queue(name) for name in ("small", "large", "used"))
            for queue in (small, large, used):
                queue.enqueue([PAYLOAD] * 5_000)
            halves = []
            for _ in range(2):
                for _ in range(messages // 20_000):
                    large.enqueue([PAYLOAD] * 10_000)
                halves.append(_resident_bytes())
            grown = halves[1] - halves[0]
            lifecycle([used], messages, 1_000)
            base_us, large_us, used_us = _claim_us(small), _claim_us(large), _claim_us(used)
            base_us = statistics.median([base_us, _claim_us(small)])
        opened = []
        for _ in range(3):
            started = time.perf_counter()
            with holdfast.open(str(path), durability="os") as hf:
                [message] = hf.queue("large").claim()
                opened.append(time.perf_counter() - started)
                message.release()
    label = f"{messages:,}"
    return [
        Figure(f"claim of 100 with {label} queued", f"{large_us:,.0f} us", "with 5,000 queued", f"{base_us:,.0f} us",
               large_us / base_us, goal=1.2, lower_is_better=True),
        Figure(f"claim of 100 after {label} consumed", f"{used_us:,.0f} us", "after few", f"{base_us:,.0f} us",
               used_us / base_us, goal=1.2, lower_is_better=True),
        Figure(f"reopen with {label} queued, and claim one", f"{statistics.median(opened) * 1e3:,.0f} ms",
               "goal", "1,000 ms", statistics.median(opened), goal=1, lower_is_better=True),
        Figure(f"memory grown by the second half of {label} queued", f"{grown / 2**20:,.0f} MiB", "200 bytes each",
               f"{messages * 100 / 2**20:,.0f} MiB", grown / (messages * 100), goal=1,
               lower_is_better=True),
    ]  # fmt: skip


def many_queues(messages: int = 20_000) -> list[Figure]:
    figures = []
    for label, tenants, queues in (("1,000 queues of one tenant", 1, 1_000), ("100 tenants, 10 queues each", 100, 10)):
        with scratch() as path, holdfast.open(str(path), durability="os") as hf:
            one = [hf.queue("only", tenant="single")]
            many = [hf.queue(f"q{q}", tenant=f"t{t}") for t in range(tenants) for q in range(queues)]
            for queue in many:
                queue.set_policy()
            pair = paired(
                lambda many=many: lifecycle(many, messages, 10),
                lambda one=one: lifecycle(one, messages, 10),
                operations=messages,
                rounds=5,
            )
        figures.append(
            Figure(
                f"lifecycle in batches of 10, {label}",
                f"{1e6 / pair.subject_us:,.0f} msg/s",
                "one queue",
                f"{1e6 / pair.baseline_us:,.0f} msg/s",
                pair.speed_ratio,
                goal=0.8,
            )
        )
    return figures


def idle_queues(queues: int = 100_000) -> list[Figure]:
    """Make queues, open a store that holds them, and load them."""
    tenants = queues // 5_000
    with scratch() as path:

        def handles(hf: holdfast.Holdfast) -> list[holdfast.Queue]:
            return [hf.queue(f"queue-{number}", tenant=f"tenant-{number % tenants}") for number in range(queues)]

        with holdfast.open(str(path), durability="os") as hf:
            made = handles(hf)
            started = time.process_time()
            for queue in made:
                queue.set_policy()
            make_us = (time.process_time() - started) * 1e6 / queues
        opened_ms = []
        for _ in range(5):
            started = time.process_time()
            hf = holdfast.open(str(path), durability="os")
            opened_ms.append((time.process_time() - started) * 1e3)
            hf.close()
        with holdfast.open(str(path), durability="os") as hf:
            made = handles(hf)
            gc.collect()
            # Not the memory of the process: that has RocksDB's cache of blocks too, which is bounded.
            tracemalloc.start()
            try:
                for queue in made:
                    queue.policy()
                gc.collect()
                loaded_bytes = tracemalloc.get_traced_memory()[0] / queues
            finally:
                tracemalloc.stop()
    open_ms = statistics.median(opened_ms)
    return [
        Figure(f"CPU to open a store with {queues:,} idle queues", f"{open_ms:,.0f} ms", "goal", "500 ms",
               open_ms / 500, goal=1, lower_is_better=True),
        Figure("memory of an idle queue once it is loaded", f"{loaded_bytes:,.0f} bytes", "goal", "1,024 bytes",
               loaded_bytes / 1_024, goal=1, lower_is_better=True),
        Figure("CPU to make a queue", f"{make_us:.0f} us", "goal", "50 us",
               make_us / 50, goal=1, lower_is_better=True),
    ]  # fmt: skip


def journal_cost(messages: int = 10_000) -> Figure:
    """The same lifecycles with the journal's two methods taken out."""
    append, write_block = RocksJournal.append, RocksJournal.write_block

    def without(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            RocksJournal.append = lambda *event, **facts: None
            RocksJournal.write_block = lambda self: None
            try:
                work()
            finally:
                RocksJournal.append, RocksJournal.write_block = append, write_block

        return run

    with scratch() as path, holdfast.open(str(path), durability="os") as hf:
        queue = hf.queue("bench")
        pair = paired(
            lambda: lifecycle([queue], messages), without(lambda: lifecycle([queue], messages)), operations=messages
        )
    return Figure(
        "cost of a lifecycle with the journal",
        f"{pair.subject_us:.1f} us",
        "without it",
        f"{pair.baseline_us:.1f} us",
        pair.subject_us / pair.baseline_us,
        goal=1.25,
        lower_is_better=True,
    )


def measure(backlog_messages: int) -> Iterator[Figure]:
    """One figure after the other, as they are measured."""
    yield against_raw_writes()
    yield single_enqueues()
    yield from concurrent_callers()
    yield journal_cost()
    yield from many_queues()
    yield from idle_queues()
    yield from backlog(backlog_messages)
