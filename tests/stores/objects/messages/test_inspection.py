"""Messages that another process moves or deletes while they are read."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from holdfast.client.queue import AsyncQueue
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.bucket import StoredObject
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.documents import layout
from holdfast.testing import EmbeddedSubject, ManualClock

WEEK_MS = 7 * 86_400_000
# Too large to be stored in the metadata.
PAYLOAD = b"payload" * 3_000
BROKEN_AFTER_S = 30.0
# In the key of every state.
STATE = "/state/"
# In the key of whatever belongs to a dead letter in its place.
DEAD = "/dlq/"


class _SlowBucket(MemoryBucket):
    """A bucket that copies nothing until it may, and calls `meanwhile` before the next read of an object of one
    kind."""

    def __init__(self) -> None:
        super().__init__()
        self.may_copy = asyncio.Event()
        self.before_reading = layout.PAYLOAD
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.delays = 0

    async def copy(self, source: str, target: str) -> None:
        await self.may_copy.wait()
        await super().copy(source, target)

    async def read(self, key: str) -> StoredObject:
        if self.before_reading in key and (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            self.delays += 1
            await meanwhile()
        return await super().read(key)

    async def keys(self, *parts: str) -> list[str]:
        keys = [item.key async for page in self.pages("") for item in page]
        return [key for key in keys if any(part in key for part in parts)]


class _DeadLetter:
    """A dead letter in msg/, which the other of two processes on one bucket is about to move to dlq/."""

    def __init__(self, bucket: _SlowBucket, one: AsyncQueue, other: AsyncQueue, id: str, clock: ManualClock) -> None:
        self.bucket, self.one, self.other, self.id, self.clock = bucket, one, other, id, clock

    async def carry(self) -> None:
        """Return once message, payload and state are in dlq/ only."""
        self.bucket.may_copy.set()
        async with asyncio.timeout(BROKEN_AFTER_S):
            while not all(DEAD in key for key in await self.bucket.keys(layout.PAYLOAD, STATE)):
                self.clock.advance(50)  # the follow-up of the other process runs on the clock
                await asyncio.sleep(0)


@asynccontextmanager
async def dead_letter() -> AsyncIterator[_DeadLetter]:
    bucket = _SlowBucket()
    subjects = [EmbeddedSubject(lambda d: ObjectStore(bucket, d, journal_retention_ms=WEEK_MS), seed=n) for n in (1, 2)]
    subjects[1].clock = subjects[0].clock
    async with subjects[0].open() as one, subjects[1].open() as other:
        await other.queue("q").enqueue(PAYLOAD)
        [message] = await other.queue("q").claim()
        await message.progress(40, "resized")
        await message.nack("no", final=True)
        try:
            yield _DeadLetter(bucket, one.queue("q"), other.queue("q"), message.id, subjects[0].clock)
        finally:
            bucket.may_copy.set()


async def test_a_dead_letter_carried_to_its_place_while_it_is_listed_is_listed_with_its_payload() -> None:
    async with dead_letter() as letter:
        letter.bucket.meanwhile = letter.carry
        [info] = await letter.one.list("failed", payload=True)
        assert letter.bucket.delays == 1
        assert info.payload == PAYLOAD


async def test_a_dead_letter_carried_to_its_place_while_its_state_is_read_is_read_with_its_state() -> None:
    async with dead_letter() as letter:
        letter.bucket.meanwhile, letter.bucket.before_reading = letter.carry, STATE
        progress = (await letter.one.get(letter.id)).progress
        assert letter.bucket.delays == 1
        assert progress is not None
        assert (progress.percent, progress.text) == (40, "resized")


async def test_a_message_whose_state_is_lost_is_read_all_the_same() -> None:
    async with dead_letter() as letter:
        await letter.carry()
        await letter.bucket.delete(await letter.bucket.keys(STATE))
        assert (await letter.one.get(letter.id)).progress is None


async def test_a_message_redriven_with_a_new_payload_while_it_is_read_is_no_dead_letter_any_more() -> None:
    async with dead_letter() as letter:

        async def redrive() -> None:
            await letter.carry()
            await letter.other.redrive(edit={"id": letter.id, "payload": b"new"})

        letter.bucket.meanwhile = redrive
        assert await letter.one.list("failed", payload=True) == []
        assert letter.bucket.delays == 1


async def test_a_message_redriven_with_a_new_payload_while_it_is_read_by_its_id_is_found() -> None:
    async with dead_letter() as letter:

        async def redrive() -> None:
            await letter.carry()
            await letter.other.redrive(edit={"id": letter.id, "payload": b"new"})

        letter.bucket.meanwhile = redrive
        info = await letter.one.get(letter.id, payload=True)
        assert letter.bucket.delays == 1
        assert (info.state, info.payload) == ("ready", b"new")


async def test_a_message_deleted_while_it_is_read_is_left_out() -> None:
    async with dead_letter() as letter:

        async def delete() -> None:
            await letter.carry()
            await letter.other.purge("failed")

        letter.bucket.meanwhile = delete
        assert await letter.one.list("failed", payload=True) == []
        assert letter.bucket.delays == 1


@pytest.mark.spec("6.2")
async def test_a_message_whose_payload_is_lost_is_listed_all_the_same() -> None:
    async with dead_letter() as letter:
        await letter.carry()
        await letter.bucket.delete(await letter.bucket.keys(layout.PAYLOAD))
        [info] = await letter.one.list("failed", payload=True)
        assert (info.id, info.payload) == (letter.id, b"")
