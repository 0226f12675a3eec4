"""Quotas over several processes: what one adds, another counts, whenever it does so (SPEC 8.9)."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.clock import SystemClock
from holdfast.model.errors import HoldfastError, OverQuota
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.bucket import ListedObject
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.buckets.disk import DiskBucket
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.verify.store import verify_bucket
from holdfast.testing import EmbeddedSubject
from tests.seeds import run_seed
from tests.stores.objects.faulty import FaultyBucket
from tests.stores.objects.stepping import stepped

WEEK_MS = 7 * 86_400_000
PROCESSES = 3


@asynccontextmanager
async def processes(path: Path) -> AsyncIterator[list[AsyncHoldfast]]:
    """Several on one directory, each with a window and locks of its own."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(holdfast.open_async(path.as_uri(), durability="os"))
            for _ in range(PROCESSES)
        ]


async def limit(hf: AsyncHoldfast, **quotas: int) -> None:
    await hf.tenant("acme").set(quotas=quotas)
    for name in ("a", "b"):
        await hf.queue(name, tenant="acme").set_policy()


async def accepted(hf: AsyncHoldfast, queue: str, payloads: list[bytes]) -> int:
    """Enqueue all payloads in one call. Return their number, or 0 if the quota refuses them."""
    try:
        return len(await hf.queue(queue, tenant="acme").enqueue(payloads))
    except OverQuota:
        return 0


@pytest.mark.spec("6.4", "8.9")
async def test_messages_of_several_processes_at_once_never_pass_a_quota_and_fill_it(tmp_path: Path) -> None:
    async with processes(tmp_path) as every:
        await limit(every[0], max_messages=21)
        calls = [(hf, name, [b"x"] * (1 + number % 3)) for number in range(6) for hf in every for name in ("a", "b")]
        taken = sum(await asyncio.gather(*(accepted(*call) for call in calls)))
        assert taken <= 21
        while await accepted(every[taken % PROCESSES], "a", [b"x"]):
            taken += 1
        assert taken == 21
        assert (await every[1].tenant("acme").stats()).ready == 21
        report = await verify_bucket(DiskBucket(tmp_path, syncs=False), SystemClock(), pause_ms=100)
        assert (report.violations, report.unfinished) == ([], 0), "a refused enqueue left its payload"


async def test_bytes_of_several_processes_at_once_never_pass_a_quota(tmp_path: Path) -> None:
    async with processes(tmp_path) as every:
        await limit(every[0], max_bytes=1_000)
        sizes = [bytes(90 + number) for number in range(20)]
        await asyncio.gather(
            *(accepted(every[number % PROCESSES], "ab"[number % 2], [each]) for number, each in enumerate(sizes))
        )
        kept = (await every[1].tenant("acme").stats()).bytes
        assert 800 < kept <= 1_000


async def test_room_that_an_ack_makes_is_given_once(tmp_path: Path) -> None:
    async with processes(tmp_path) as every:
        await limit(every[0], max_messages=3)
        assert await accepted(every[0], "a", [b"x"] * 3) == 3
        for _ in range(4):
            [message] = await every[1].queue("a", tenant="acme").claim()
            await message.ack()
            assert sum(await asyncio.gather(*(accepted(hf, "a", [b"x"]) for hf in every))) == 1


async def test_moves_to_a_tenant_with_a_quota_race_its_own_messages_and_pass_nothing(tmp_path: Path) -> None:
    async with processes(tmp_path) as every:
        await limit(every[0], max_messages=10)
        await every[1].queue("spare", tenant="other").enqueue([b"x"] * 12)

        async def move(hf: AsyncHoldfast) -> None:
            for _ in range(6):
                # None is listed while the other mover has just taken the one that was looked at.
                for info in await hf.queue("spare", tenant="other").list(limit=1):
                    with suppress(OverQuota):
                        await hf.queue("spare", tenant="other").move("a", tenant="acme", filter={"ids": [info.id]})

        async def add(hf: AsyncHoldfast) -> None:
            for _ in range(6):
                await accepted(hf, "b", [b"x"])

        await asyncio.gather(move(every[0]), add(every[1]), move(every[2]))
        assert (await every[1].tenant("acme").stats()).ready == 10
        assert (await every[0].tenant("other").stats()).ready > 0


class BucketOfSlowListings(MemoryBucket):
    """A bucket that calls `meanwhile` before it lists dead letters."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def pages(self, prefix: str, after: str | None = None) -> AsyncIterator[list[ListedObject]]:
        if "/dlq/" in prefix and (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            await meanwhile()
        async for page in super().pages(prefix, after):
            yield page


async def test_a_message_that_moves_while_another_process_counts_is_counted_all_the_same() -> None:
    bucket = BucketOfSlowListings()
    subjects = [EmbeddedSubject(lambda d: ObjectStore(bucket, d, journal_retention_ms=WEEK_MS), seed=n) for n in (1, 2)]
    subjects[1].clock = subjects[0].clock
    async with subjects[0].open() as one, subjects[1].open() as other:
        await limit(one, max_messages=1)
        q = one.queue("a", tenant="acme")
        await q.enqueue(b"x")
        [message] = await q.claim()
        await message.nack("no", final=True)
        await subjects[0].sweep(one)
        assert (await other.tenant("acme").stats()).failed == 1
        # It is not among the messages when those are listed, and not among the dead letters when those are.
        bucket.meanwhile = q.redrive
        assert await accepted(other, "a", [b"y"]) == 0
        assert bucket.meanwhile is None
        assert (await other.tenant("acme").stats()).ready == 1


async def test_schedules_of_a_tenant_with_a_quota_fire_beside_other_processes(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    subjects = [EmbeddedSubject(lambda d: ObjectStore(bucket, d, journal_retention_ms=WEEK_MS), seed=n) for n in (1, 2)]
    subjects[1].clock = subjects[0].clock
    async with subjects[0].open() as one, subjects[1].open() as other:
        await limit(one, max_messages=40)
        for name in ("s", "t", "u"):
            await one.queue("a", tenant="acme").schedule(name, every=10, payload=b"tick")
        for _ in range(3):
            subjects[0].clock.advance(10_000)
            # One process waits on the clock for a step of the other.
            async with stepped(subjects[0].clock, 1):
                await asyncio.gather(
                    subjects[0].fire(one),
                    subjects[1].fire(other),
                    *(accepted(hf, "b", [b"x"]) for hf in (one, other)),
                )
        ticks = await other.queue("a", tenant="acme").list()
        assert len({(info.headers["schedule"], info.headers["scheduled-at"]) for info in ticks}) == len(ticks) == 9
        assert (await one.queue("b", tenant="acme").stats()).ready == 6


async def test_a_process_that_dies_before_any_write_of_an_enqueue_takes_no_room_with_it() -> None:
    died_at = []
    for dies_at in range(1, 100):
        bucket = MemoryBucket()
        subject = EmbeddedSubject(lambda dice, b=bucket: ObjectStore(b, dice, journal_retention_ms=WEEK_MS))
        async with subject.open() as hf:
            await limit(hf, max_messages=4)
            await hf.queue("a", tenant="acme").enqueue([b"x"] * 2)
        dying = FaultyBucket(bucket, dies_at=dies_at)
        doomed = EmbeddedSubject(lambda dice, b=dying: ObjectStore(b, dice, journal_retention_ms=WEEK_MS))
        doomed.clock = subject.clock
        answered = 0
        with suppress(HoldfastError):
            async with doomed.open() as hf:
                answered = await accepted(hf, "b", [b"x"])
                dying.is_dead = True
        subject.clock.advance(600_000)
        async with subject.open() as hf:
            taken = sum([await accepted(hf, "a", [b"x"]) for _ in range(4)])
            kept = (await hf.tenant("acme").stats()).ready
            assert kept == 4, f"write {dies_at}"
            assert answered <= 2 - taken, f"write {dies_at}"
        assert (await verify_bucket(bucket, subject.clock, pause_ms=0)).violations == []
        died_at.append(answered)
        if dying.writes < dies_at:
            break
    assert 4 < len(died_at) < 99
    assert died_at[0] == 0
    assert died_at[-1] == 1


async def test_a_tenant_without_quotas_has_no_sheet_for_them(tmp_path: Path) -> None:
    async with processes(tmp_path) as every:
        await every[0].tenant("acme").set(quotas={"max_message_bytes": 10})
        assert await accepted(every[0], "a", [b"x"]) == 1
        assert not (tmp_path / layout.quota_guard("acme")).exists()
        await limit(every[0], max_messages=5)
        assert await accepted(every[0], "a", [b"x"]) == 1
        assert (tmp_path / layout.quota_guard("acme")).exists()


@pytest.mark.slow
@pytest.mark.parametrize("round", range(2))
async def test_faults_of_the_bucket_pass_no_quota(round: int) -> None:
    dice = random.Random(run_seed() + round)
    bucket = MemoryBucket()
    faulty = [FaultyBucket(bucket, dice=random.Random(dice.random()), lists_late=False) for _ in range(2)]
    subjects = [
        EmbeddedSubject(lambda d, b=each: ObjectStore(b, d, journal_retention_ms=WEEK_MS), seed=at)
        for at, each in enumerate(faulty)
    ]
    subjects[1].clock = subjects[0].clock
    async with subjects[0].open() as one, subjects[1].open() as other:
        await limit(one, max_messages=15)
        for each in faulty:
            each._rate = 0.1

        async def work(hf: AsyncHoldfast, queue: str) -> None:
            for _ in range(30):
                with suppress(HoldfastError):
                    await accepted(hf, queue, [b"x"] * dice.choice([1, 2]))
                if dice.random() < 0.3:
                    with suppress(HoldfastError):
                        for message in await hf.queue(queue, tenant="acme").claim():
                            await message.nack("no", final=True) if dice.random() < 0.5 else await message.ack()
                kept = await bodies(bucket)
                assert kept <= 15

        # A step that could not be aborted blocks others until it counts as abandoned.
        async with stepped(subjects[0].clock, 100):
            await asyncio.gather(work(one, "a"), work(other, "b"), work(other, "a"))
        assert sum(each.struck for each in faulty) > 10


async def bodies(bucket: MemoryBucket) -> int:
    """Return the number of the tenant's messages, read without faults."""
    clean = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS), seed=99)
    async with clean.open() as hf:
        stats = await hf.tenant("acme").stats()
    return stats.ready + stats.delayed + stats.in_flight + stats.failed
