"""Write a store that had something of everything as a fixture: `python -m tests.stores.objects.documents.make_fixture
format_2.json`. Run it once for each new format, and keep the file."""

import asyncio
import base64
import sys
from pathlib import Path

import msgspec

from holdfast.client.client import AsyncHoldfast
from holdfast.model.message import NewMessage
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.testing import EmbeddedSubject

WEEK_MS = 7 * 86_400_000
NOW_MS = 1_750_000_000_000
LARGE = "large" * 3_500


class StoredFixture(msgspec.Struct):
    """The objects of a store by key, in base64, and the time of its last change."""

    now_ms: int
    objects: dict[str, str]


async def _live(hf: AsyncHoldfast, subject: EmbeddedSubject) -> None:
    await hf.tenant("acme").set(quotas={"max_messages": 100})
    q = hf.queue("mail", tenant="acme")
    await q.enqueue("dead", priority=1)
    [dead] = await q.claim(lease=60, state=True)
    await dead.save_state({"step": 1})
    await dead.nack("no", final=True)
    await hf.journal()
    await q.enqueue("flying", priority=1, key="k")
    [flying] = await q.claim(lease=3_600, state=True)
    await flying.save_state({"at": 2})
    await q.enqueue("acked", priority=1)
    [acked] = await q.claim(lease=60)
    await acked.ack()
    await q.enqueue([NewMessage("ready"), NewMessage("grouped", group="g"), NewMessage("late", delay=60)])
    await hf.queue("ordered", tenant="acme").enqueue("first", group="g")
    assert await hf.queue("ordered", tenant="acme").claim(lease=3_600)
    await hf.queue("fed", tenant="acme").enqueue("fed")
    assert await hf.queue("fed", tenant="acme").claim(lease=3_600, ledger=("consumer", 0))
    await q.schedule("nightly", cron="0 3 * * *", payload={})
    await hf.queue("other", tenant="acme").enqueue(LARGE)
    await subject.sweep(hf)
    await hf.journal()


async def main(name: str) -> None:
    bucket = MemoryBucket()
    subject = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS))
    subject.clock.step_to(NOW_MS)
    async with subject.open() as hf:
        await _live(hf, subject)
    keys = [item.key async for page in bucket.pages("") for item in page]
    objects = {key: base64.b64encode((await bucket.read(key)).content).decode() for key in sorted(keys)}
    fixture = StoredFixture(now_ms=subject.clock.now_ms(), objects=objects)
    await asyncio.to_thread(
        Path(__file__).with_name(name).write_bytes, msgspec.json.format(msgspec.json.encode(fixture), indent=1) + b"\n"
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
