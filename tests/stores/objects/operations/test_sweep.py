"""Sweeps that meet another process at work on the same documents."""

import asyncio
import logging
from contextlib import suppress

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.bucket import ObjectVersion, PreconditionFailed
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.verify.store import verify_bucket
from holdfast.testing import EmbeddedSubject
from tests.stores.objects.faulty import FaultyBucket

WEEK_MS = 7 * 86_400_000
# After this long an unfinished step counts as abandoned (20 s on a bucket).
ABANDONED_MS = 600_000
PROCESSES = 4
BROKEN_AFTER_S = 30.0


class _ContendedBucket(FaultyBucket):
    """Every conditional write to a message loses to another process while `loses` is set."""

    def __init__(self, inner: MemoryBucket) -> None:
        super().__init__(inner)
        self.loses = True
        self.lost = 0

    async def replace(self, key: str, content: bytes, etag: str) -> ObjectVersion:
        if self.loses and "/msg/" in key:
            self.lost += 1
            raise PreconditionFailed(f"another process changed {key}")
        return await super().replace(key, content, etag)


async def _killed_producer(bucket: MemoryBucket) -> EmbeddedSubject:
    """Leave behind the documents of a batch that was never decided, in a queue with one message."""
    faulty = FaultyBucket(bucket)
    subject = EmbeddedSubject(lambda dice: ObjectStore(faulty, dice, journal_retention_ms=WEEK_MS))
    async with subject.open() as hf:
        await hf.queue("q").enqueue("stored")
        # The batch has three documents; the last one is never written.
        faulty._dies_at = faulty.writes + 3
        with suppress(HoldfastError):
            await hf.queue("q").enqueue(["a", "b", "c"])
        assert faulty.is_dead
    return subject


def _opened(bucket: MemoryBucket | FaultyBucket, subject: EmbeddedSubject, seed: int) -> EmbeddedSubject:
    other = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS), seed=seed)
    other.clock = subject.clock
    return other


async def test_a_sweep_that_loses_every_write_to_other_processes_continues(caplog: pytest.LogCaptureFixture) -> None:
    bucket = MemoryBucket()
    subject = await _killed_producer(bucket)
    subject.clock.step_to(subject.clock.now_ms() + ABANDONED_MS)
    contended = _ContendedBucket(bucket)
    survivor = _opened(contended, subject, 1)
    async with survivor.open() as hf:
        await survivor.sweep(hf)
        assert contended.lost, "the sweep found nothing to undo: this test tests nothing"
        contended.loses = False
        # The next pass over the queue finds what this one could not undo.
        survivor.clock.step_to(survivor.clock.now_ms() + ABANDONED_MS)
        await survivor.sweep(hf)
        assert [message.json() for message in await hf.queue("q").claim(limit=10)] == ["stored"]
    assert "background_work_failed" not in caplog.text
    report = await verify_bucket(bucket, survivor.clock, pause_ms=0)
    assert not report.violations


class _TogetherBucket(FaultyBucket):
    """The first write to a message waits until every process is about to make the same one: one of them wins."""

    def __init__(self, inner: MemoryBucket, all_there: asyncio.Barrier) -> None:
        super().__init__(inner)
        self._all_there = all_there
        self._has_met = False

    async def replace(self, key: str, content: bytes, etag: str) -> ObjectVersion:
        if "/msg/" in key and not self._has_met:
            self._has_met = True
            async with asyncio.timeout(BROKEN_AFTER_S):
                await self._all_there.wait()
        return await super().replace(key, content, etag)


@pytest.mark.spec("6.4")
async def test_four_processes_that_open_after_a_killed_producer_sweep_without_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket, all_there = MemoryBucket(), asyncio.Barrier(PROCESSES)
    subject = await _killed_producer(bucket)
    subject.clock.step_to(subject.clock.now_ms() + ABANDONED_MS)
    caplog.clear()

    async def live(seed: int) -> None:
        process = _opened(_TogetherBucket(bucket, all_there), subject, seed)
        async with process.open() as hf:
            await process.sweep(hf)

    await asyncio.gather(*(live(seed) for seed in range(PROCESSES)))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
