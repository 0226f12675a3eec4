"""Leftovers of a process that died are deleted once no process can be writing them."""

import os
from pathlib import Path

from holdfast.model.names import QueueRef
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.bucket import ListedObject
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.buckets.disk import DiskBucket
from holdfast.stores.objects.documents import layout
from holdfast.testing import EmbeddedSubject

WEEK_MS = 7 * 86_400_000
DAY_MS = 86_400_000
# Too large to be stored in the metadata.
WHOLE = b"whole" * 4_000


async def _keys(bucket: MemoryBucket) -> list[ListedObject]:
    return [item async for page in bucket.pages("default") for item in page]


async def test_a_payload_without_a_message_is_deleted_a_day_later_and_no_other() -> None:
    bucket = MemoryBucket()
    subject = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS))
    async with subject.open() as hf:
        [id] = await hf.queue("q").enqueue(WHOLE)
        kept = layout.payload_of(layout.message(hf.queue("q").ref, id.snowflake))
        orphan = layout.payload_of(layout.message(hf.queue("q").ref, id.snowflake + 1))
        await bucket.put(orphan, b"half")
        [written_at] = [item.changed_at for item in await _keys(bucket) if item.key == orphan]
        subject.clock.step_to(written_at + DAY_MS - 60_000)
        await subject.sweep(hf)
        assert orphan in [item.key for item in await _keys(bucket)]
        subject.clock.step_to(written_at + DAY_MS + 600_000)
        await subject.sweep(hf)
        keys = [item.key for item in await _keys(bucket)]
        assert orphan not in keys
        assert kept in keys
        assert [m.payload for m in await hf.queue("q").claim()] == [WHOLE]


async def test_a_state_and_a_place_in_a_group_without_a_message_are_deleted_a_day_later() -> None:
    bucket, ref = MemoryBucket(), QueueRef("default", "q")
    subject = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS))
    async with subject.open() as hf:
        [id] = await hf.queue("q").enqueue("whole", group="g")
        left = [layout.group_member(ref, "g", 7), layout.state_of(layout.message(ref, 7))]
        for key in left:
            await bucket.put(key, b"")
        written_at = max(item.changed_at for item in await _keys(bucket))
        subject.clock.step_to(written_at + DAY_MS + 600_000)
        await subject.sweep(hf)
        keys = [item.key for item in await _keys(bucket)]
        assert not {*left} & {*keys}
        assert layout.group_member(ref, "g", id.snowflake) in keys
        assert [m.json() for m in await hf.queue("q").claim()] == ["whole"]


async def test_a_copy_in_a_directory_is_of_now_so_that_no_sweep_takes_it_for_an_orphan(tmp_path: Path) -> None:
    bucket = DiskBucket(tmp_path / "bucket", syncs=False)
    await bucket.open()
    await bucket.put("a/old.bin", b"payload")
    os.utime(tmp_path / "bucket/a/old.bin", (1, 1))
    await bucket.copy("a/old.bin", "b/new.bin")
    [copied] = [item async for page in bucket.pages("b/") for item in page]
    assert copied.changed_at > DAY_MS
    await bucket.close()
