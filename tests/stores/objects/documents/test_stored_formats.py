"""Stores of every format, written once and kept as fixtures, are read by every later version."""

import base64
import json
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import parse_id
from holdfast.model.message import NewMessage
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.document_format import FORMAT, decode_document
from holdfast.stores.objects.verify.store import verify_bucket
from holdfast.testing import EmbeddedSubject
from tests.stores.objects.documents.make_fixture import WEEK_MS, StoredFixture
from tests.stores.objects.faulty import FaultyBucket

FORMATS = [1, 2]
FIXTURES = {
    format: msgspec.json.decode(Path(__file__).with_name(f"format_{format}.json").read_bytes(), type=StoredFixture)
    for format in FORMATS
}


@pytest.fixture(params=FORMATS)
def fixture(request: pytest.FixtureRequest) -> StoredFixture:
    return FIXTURES[request.param]


async def bucket_of(fixture: StoredFixture) -> MemoryBucket:
    bucket = MemoryBucket()
    for key, content in fixture.objects.items():
        await bucket.put(key, base64.b64decode(content))
    return bucket


def subject_of(bucket: MemoryBucket, fixture: StoredFixture) -> EmbeddedSubject:
    subject = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS), seed=1)
    subject.clock.step_to(fixture.now_ms)
    return subject


@pytest.mark.spec("6.1")
@pytest.mark.parametrize(("format", "head"), [(1, b"HF\x01"), (2, b"\x08\x02\x15")])
def test_the_fixtures_have_every_kind_of_object(format: int, head: bytes) -> None:
    objects = FIXTURES[format].objects
    kinds = {"msg", "state", "dlq", "key", "group", "ledger", "schedule", "policy.json"}
    assert kinds <= {key.split("/")[3] for key in objects if "/q/" in key}
    others = {key.removeprefix("acme/").removeprefix(".holdfast/").split("/")[0] for key in objects}
    assert {"tenant.json", "room.pb", "tenants.json", "node", "step", "journal", "journal.json"} <= others
    for key, content in objects.items():
        if key.endswith(".pb"):
            assert base64.b64decode(content).startswith(head)
            decode_document(key, base64.b64decode(content))
        elif key.endswith(".json"):
            json.loads(base64.b64decode(content))
    assert FORMATS[-1] == FORMAT, "keep these fixtures, and add one of the new format"


async def test_a_store_of_an_earlier_version_has_no_violations_and_all_of_its_messages(fixture: StoredFixture) -> None:
    bucket = await bucket_of(fixture)

    report = await verify_bucket(bucket, subject_of(bucket, fixture).clock, pause_ms=0)

    assert report.violations == []
    assert (report.ready, report.delayed, report.in_flight, report.failed) == (4, 1, 3, 1)
    assert (report.tenants, report.queues) == (1, 4)


@pytest.mark.spec("6.1")
async def test_a_store_of_an_earlier_version_continues_where_it_stopped(fixture: StoredFixture) -> None:
    bucket = await bucket_of(fixture)
    subject = subject_of(bucket, fixture)
    async with subject.open() as hf:
        q = hf.queue("mail", tenant="acme")
        await subject.sweep(hf)
        assert sorted(message.json() for message in await q.claim(limit=10, lease=60)) == ["grouped", "ready"]
        [again] = await q.enqueue([NewMessage("flying", key="k")])
        assert again.duplicate
        [dead] = await q.list("failed", payload=True)
        assert json.loads(dead.payload) == "dead"
        assert (await q.redrive()).changed == 1
        [revived] = await q.claim(lease=60, state=True)
        assert revived.state == {"step": 1}
        fed = hf.queue("fed", tenant="acme")
        assert [message.json() for message in await fed.claim(lease=60, ledger=("consumer", 0))] == ["fed"]
        assert [schedule.name for schedule in await q.schedules()] == ["nightly"]
        assert (await hf.tenant("acme").get()).quotas.max_messages == 100
        assert len({event.id for event in await hf.journal()}) == 9
    assert (await verify_bucket(bucket, subject.clock, pause_ms=0)).violations == []


async def test_a_message_of_format_1_keeps_its_name_and_gets_the_current_format_when_it_changes() -> None:
    bucket = await bucket_of(FIXTURES[1])
    subject = subject_of(bucket, FIXTURES[1])
    async with subject.open() as hf:
        q = hf.queue("mail", tenant="acme")
        [message, *_] = await q.claim(lease=60)
        key = layout.message_of_format_1(q.ref, parse_id(message.id))
        assert (await bucket.read(key)).content.startswith(b"\x08\x02")
        assert await _names_of(bucket, parse_id(message.id)) == {key}
        [id] = await q.enqueue("new")
        assert await _names_of(bucket, id.snowflake) == {layout.message(q.ref, id.snowflake)}
        # Both names in one listing: pages are in order of id all the same.
        listed = [info.snowflake for info in await q.list(limit=100)]
        assert listed == sorted(listed, key=layout.listing_order)
        assert id.snowflake in listed
        assert parse_id(message.id) in listed
        paged, cursor = [], None
        while True:
            page = await q.list(limit=1, cursor=cursor)
            paged += [info.snowflake for info in page]
            cursor = page.cursor
            if cursor is None:
                break
        assert paged == listed


async def test_a_message_of_format_1_that_fails_and_is_redriven_has_one_name_in_each_place() -> None:
    bucket = await bucket_of(FIXTURES[1])
    subject = subject_of(bucket, FIXTURES[1])
    async with subject.open() as hf:
        q = hf.queue("mail", tenant="acme")
        [dead] = await q.list("failed")
        before = layout.message_of_format_1(q.ref, dead.snowflake, dead=True)
        stub = layout.message_of_format_1(q.ref, dead.snowflake)
        assert await _names_of(bucket, dead.snowflake) == {before, stub}
        assert (await q.redrive()).changed == 1
        assert await _names_of(bucket, dead.snowflake) == {before, stub}
        [again] = await q.claim(lease=60)
        assert again.id == dead.id
        await again.nack("no", final=True)
        await subject.sweep(hf)
        assert await _names_of(bucket, dead.snowflake) == {before, stub}
        assert [info.snowflake for info in await q.list("failed")] == [dead.snowflake]
    assert (await verify_bucket(bucket, subject.clock, pause_ms=0)).violations == []


async def test_a_queue_whose_last_message_of_format_1_is_gone_is_not_searched_for_such_names_any_more() -> None:
    bucket = await bucket_of(FIXTURES[1])
    subject = subject_of(bucket, FIXTURES[1])
    async with subject.open() as hf:
        q = hf.queue("other", tenant="acme")
        policy = layout.policy(q.ref)
        await subject.sweep(hf)
        assert json.loads((await bucket.read(policy)).content).get("may_have_format_1", True)
        [message] = await q.claim(lease=60)
        await message.ack()
        await subject.sweep(hf)
        subject.clock.advance(120_000)
        await subject.sweep(hf)
        await subject.sweep(hf)
        assert json.loads((await bucket.read(policy)).content)["may_have_format_1"] is False


async def _change_most(hf: AsyncHoldfast, subject: EmbeddedSubject, acked: set[str]) -> None:
    """Change messages of format 1 in every way that writes them, and move some."""
    q = hf.queue("mail", tenant="acme")
    await subject.sweep(hf)
    first, second = await q.claim(limit=2, lease=60)
    await first.save_state({"step": 2})
    await first.ack()
    acked.add(first.id)
    await second.nack("no", final=True)
    await subject.sweep(hf)
    await q.redrive()
    [again, *_] = await q.claim(lease=60)
    await again.ack()
    acked.add(again.id)
    await q.enqueue("new")
    await q.move("other")
    await hf.queue("other", tenant="acme").move("mail")
    await subject.sweep(hf)
    await hf.journal()


async def _drain(hf: AsyncHoldfast, subject: EmbeddedSubject) -> list[str]:
    await subject.sweep(hf)
    delivered = []
    for name in ("mail", "other", "ordered", "fed"):
        q = hf.queue(name, tenant="acme")
        await q.redrive()
        while messages := await q.claim(limit=10, lease=60):
            for message in messages:
                delivered.append(message.id)
                await message.ack()
    await subject.sweep(hf)
    return delivered


async def _die(dies_at: int | None) -> int:
    """Run a process that dies before one of its writes, and another one after it. Return the number of writes."""
    bucket, before, acked = await bucket_of(FIXTURES[1]), set[str](), set[str]()
    faulty = FaultyBucket(bucket, dies_at=dies_at)
    subject = EmbeddedSubject(lambda dice: ObjectStore(faulty, dice, journal_retention_ms=WEEK_MS), seed=1)
    subject.clock.step_to(FIXTURES[1].now_ms)
    with suppress(HoldfastError):
        async with subject.open() as hf:
            before = {
                info.id
                for name in ("mail", "other", "ordered", "fed")
                for info in await hf.queue(name, tenant="acme").list(limit=100)
            }
            assert len(before) == 8
            await _change_most(hf, subject, acked)
            faulty.is_dead = True
    survivor = subject_of(bucket, FIXTURES[1])
    survivor.clock.step_to(FIXTURES[1].now_ms + 7_200_000)
    async with survivor.open() as hf:
        names = [item.key async for page in bucket.pages("acme/") for item in page if layout.is_message(item.key)]
        places = Counter((key.rpartition("/")[0], layout.parse_message(key)) for key in names)
        assert set(places.values()) <= {1}, "two names of one message in one place"
        delivered = await _drain(hf, survivor)
    assert len(set(delivered)) == len(delivered), "delivered twice"
    assert not acked & set(delivered), "came back"
    assert before <= acked | set(delivered), "lost"
    assert (await verify_bucket(bucket, survivor.clock, pause_ms=0)).violations == []
    return faulty.writes


async def test_a_process_that_dies_while_it_changes_messages_of_format_1_loses_none() -> None:
    writes = await _die(None)
    assert writes > 40
    for dies_at in range(1, writes + 1):
        try:
            await _die(dies_at)
        except AssertionError as error:
            pytest.fail(f"write {dies_at} of {writes}: {error}")


async def _names_of(bucket: MemoryBucket, id: int) -> set[str]:
    return {item.key async for page in bucket.pages("acme/") for item in page if layout.parse_message(item.key) == id}
