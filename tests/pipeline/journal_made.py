"""Stores whose journal has all kinds of events, for the tests of the jobs."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast
from holdfast.model.events import JournalEvent
from holdfast.pipeline.jobs.journals import events_to_arrow
from holdfast.pipeline.schemas import EVENTS
from holdfast.testing import ManualClock

TENANTS = ("acme", "globex", "initech")


@contextmanager
def store(path: Path, clock: ManualClock | None = None) -> Iterator[holdfast.Holdfast]:
    with holdfast.open(str(path), durability="os", clock=clock or ManualClock()) as hf:
        yield hf


def make_traffic(hf: holdfast.Holdfast, clock: ManualClock, rng: random.Random, rounds: int = 120) -> None:
    """Acks, nacks, expiries, releases, defers, dead letters, redrives, moves, removals and TTLs over several days."""
    queues = [hf.queue(queue, tenant=tenant) for tenant in TENANTS for queue in ("mail", "pay")]
    for number in range(rounds):
        some = [{"n": number}] * rng.randint(1, 3)
        priority = rng.choice((10, 100))
        rng.choice(queues).enqueue(some, priority=priority, max_retries=2, correlation_id=f"c{number}")
        clock.advance(rng.randint(1, 3_000_000))
        for message in rng.choice(queues).claim(limit=4, lease=30):
            clock.advance(rng.randint(1, 900))
            if not _settle(message, clock, rng):
                break
    queues[0].redrive()
    queues[1].move("elsewhere", tenant="acme")
    queues[2].enqueue(b"gone", ttl=1)
    clock.advance(1_500)
    queues[2].claim(limit=1)
    queues[3].enqueue(b"purged")
    queues[3].purge()


def _settle(message: Any, clock: ManualClock, rng: random.Random) -> bool:
    """False: its lease ran out, and those of the others with it."""
    match rng.randint(0, 9):
        case 0 | 1 | 2 | 3 | 4:
            message.ack()
        case 5:
            error = f"TimeoutError: no answer from 10.0.0.{rng.randint(1, 9)} after {rng.randint(1, 99)} s"
            message.nack(error, delay=1)
        case 6:
            message.nack("ValueError: bad order", final=True)
        case 7:
            message.release()
        case 8:
            message.extend(40)
            message.nack(defer=True, delay=2)
        case _:
            clock.advance(30_001)
            return False
    return True


def journal_of(hf: holdfast.Holdfast) -> list[JournalEvent]:
    events: list[JournalEvent] = []
    position = None
    while page := hf.journal(position, 10_000):
        events += page
        position = page.next
    return events


def frame_of(spark: Any, events: Sequence[Any]) -> Any:
    import pyarrow as pa

    return spark.createDataFrame(pa.Table.from_batches([events_to_arrow(list(events))], EVENTS.arrow))


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    """The events of a frame, in order, with instants as milliseconds: as `facts_of` has them."""
    from pyspark.sql import functions as F

    columns = [F.unix_millis(each).alias(each) if each in _INSTANTS else F.col(each) for each in EVENTS.columns]
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def facts_of(events: Sequence[JournalEvent]) -> list[tuple[Any, ...]]:
    return sorted(
        tuple(str(getattr(each, name)) if name == "event" else getattr(each, name) for name in EVENTS.columns)
        for each in events
    )


_INSTANTS = ("at", "enqueued_at", "claimed_at")
