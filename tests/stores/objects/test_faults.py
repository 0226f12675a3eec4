"""Two processes on one bucket that refuses, fails, responds too late and lists too late: no message is lost or claimed
twice.

Each write of a document may fail in four ways (faulty.FAULTS), and each listing may miss the latest objects.
"""

import asyncio
import random
from collections import Counter

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.model.errors import HoldfastError, StoreUnavailable, Unavailable
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.verify.store import verify_bucket
from holdfast.testing import EmbeddedSubject
from tests.seeds import run_seed
from tests.stores.objects.faulty import FaultyBucket

WEEK_MS = 7 * 86_400_000
MESSAGES = 120


class _Ledger:
    """The responses that callers got, and the calls whose outcome is unknown."""

    def __init__(self) -> None:
        self.enqueued: set[str] = set()
        self.acked: set[str] = set()
        self.unsure: set[str] = set()
        self.held: dict[str, int] = {}
        self.resurrected: list[str] = []
        self.double: list[str] = []

    def claimed(self, id: str, version: int) -> None:
        if id in self.acked:
            self.resurrected.append(id)
        if self.held.get(id, -1) >= version:
            self.double.append(id)
        self.held[id] = version


async def _work(hf: AsyncHoldfast, ledger: _Ledger, dice: random.Random, producer: str) -> None:
    q = hf.queue("q")
    for number in range(MESSAGES):
        try:
            names = [f"{producer}-{number}-{each}" for each in range(dice.choice([1, 1, 3]))]
            key = f"{producer}-{number}" if len(names) == 1 and dice.random() < 0.3 else None
            ledger.enqueued.update(await q.enqueue(names, **({"key": key} if key else {})))
        except Unavailable:
            pass  # not answered: it may be there or not
        await _consume(q, ledger, dice)
        await asyncio.sleep(0)


async def _consume(q: object, ledger: _Ledger, dice: random.Random) -> None:
    try:
        messages = await q.claim(limit=dice.choice([1, 2, 5]), lease=3_600)
    except Unavailable:
        return
    for message in messages:
        ledger.claimed(message.id, message.version)
        try:
            if dice.random() < 0.2:
                await message.nack("no", delay=0)
            else:
                await message.ack()
                ledger.acked.add(message.id)
        except HoldfastError:
            ledger.unsure.add(message.id)


@pytest.mark.spec("6.2", "6.4")
@pytest.mark.slow
@pytest.mark.parametrize("round", range(3))
async def test_faults_of_the_bucket_lose_nothing_bring_nothing_back_and_lease_nothing_twice(round: int) -> None:
    dice = random.Random(run_seed() + round)
    bucket = MemoryBucket()
    faulty = [FaultyBucket(bucket, dice=random.Random(dice.random()), rate=0.1) for _ in range(2)]
    ledger = _Ledger()
    subjects = [
        EmbeddedSubject(lambda d, b=each: ObjectStore(b, d, journal_retention_ms=WEEK_MS), seed=at)
        for at, each in enumerate(faulty)
    ]
    subjects[1].clock = subjects[0].clock
    for each in faulty:
        each._rate, each.rate = 0.0, 0.1
    async with subjects[0].open() as first, subjects[1].open() as second:
        await first.queue("q").set_policy(max_retries=1_000_000)
        for each in faulty:
            each._rate = 0.1
        await asyncio.gather(
            _work(first, ledger, random.Random(dice.random()), "a"),
            _work(second, ledger, random.Random(dice.random()), "b"),
        )
        for each in faulty:
            each._rate = 0.0
        # Leases that nobody could settle run out, and all that is left is claimed.
        subjects[0].clock.advance(3_600_000 + 10_000)
        q = second.queue("q")
        while messages := await q.claim(limit=100, lease=3_600):
            for message in messages:
                ledger.claimed(message.id, message.version)
                await message.ack()
                ledger.acked.add(message.id)
        assert sum(each.struck for each in faulty) > 50
        assert ledger.enqueued - ledger.acked - ledger.unsure == set(), "lost"
        assert ledger.resurrected == []
        assert ledger.double == []
        events, after = [], None
        while page := await second.journal(after=after):
            events += page
            after = page.next
        told = Counter((event.id, event.event) for event in events)
        assert {id: told[id, "succeeded"] for id in ledger.acked if told[id, "succeeded"] != 1} == {}
        assert {id: told[id, "enqueued"] for id in ledger.acked if told[id, "enqueued"] != 1} == {}
    assert (await verify_bucket(bucket, subjects[0].clock, pause_ms=0)).violations == []


@pytest.mark.spec("6.2")
async def test_the_events_of_a_message_are_in_their_order_whichever_process_made_them() -> None:
    bucket = MemoryBucket()
    subjects = [
        EmbeddedSubject(lambda d: ObjectStore(bucket, d, journal_retention_ms=WEEK_MS), seed=seed) for seed in (1, 2)
    ]
    subjects[1].clock = subjects[0].clock
    async with subjects[0].open() as busy, subjects[1].open() as idle:
        await busy.queue("other").enqueue(list(range(20)))
        ids = [(await busy.queue("q").enqueue(number))[0] for number in range(5)]
        # In the same millisecond, by a process that has told of nothing yet.
        for message in await idle.queue("q").claim(limit=5):
            await message.ack()
        told = [(event.id, event.event) for event in await busy.journal()]
    for id in ids:
        assert [event for each, event in told if each == id] == ["enqueued", "claimed", "succeeded"]


@pytest.mark.spec("6.2")
async def test_a_verdict_that_the_bucket_does_not_take_is_store_unavailable_and_the_lease_stands() -> None:
    faulty = FaultyBucket(MemoryBucket())
    subject = EmbeddedSubject(lambda dice: ObjectStore(faulty, dice, journal_retention_ms=WEEK_MS))
    async with subject.open() as hf:
        q = hf.queue("q")
        await q.enqueue([b"one", b"two"])
        [one] = await q.claim(lease=3_600)
        [two] = await q.claim(lease=3_600, ledger=("reader", 1))
        faulty.is_dead = True
        with pytest.raises(StoreUnavailable):
            await one.ack()
        assert [each.error for each in await q.ack([one, two])] == ["store_unavailable"] * 2
        with pytest.raises(StoreUnavailable):
            await q.ledger_extend("reader", 60)
        faulty.is_dead = False
        assert not one.is_lost
        await one.ack()
        assert [each.ok for each in await q.ledger_extend("reader", 60)] == [True]
