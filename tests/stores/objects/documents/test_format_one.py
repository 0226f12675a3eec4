"""A store of format 1, written once and kept as a fixture, is read by every later version."""

import base64
import json
from pathlib import Path

import msgspec
import pytest

from holdfast.model.message import NewMessage
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.documents.document_format import FORMAT, decode_document
from holdfast.stores.objects.verify.store import verify_bucket
from holdfast.testing import EmbeddedSubject

WEEK_MS = 7 * 86_400_000


class _Fixture(msgspec.Struct):
    """The objects of a store by key, in base64, and the time of its last change."""

    now_ms: int
    objects: dict[str, str]


FIXTURE = msgspec.json.decode(Path(__file__).with_name("format_1.json").read_bytes(), type=_Fixture)


@pytest.fixture
async def bucket() -> MemoryBucket:
    bucket = MemoryBucket()
    for key, content in FIXTURE.objects.items():
        await bucket.put(key, base64.b64decode(content))
    return bucket


def _subject(bucket: MemoryBucket) -> EmbeddedSubject:
    subject = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS), seed=1)
    subject.clock.step_to(FIXTURE.now_ms)
    return subject


@pytest.mark.spec("6.1")
def test_the_fixture_has_every_kind_of_object() -> None:
    kinds = {"msg", "state", "dlq", "key", "group", "ledger", "schedule", "policy.json"}
    assert kinds <= {key.split("/")[3] for key in FIXTURE.objects if "/q/" in key}
    others = {key.removeprefix("acme/").removeprefix(".holdfast/").split("/")[0] for key in FIXTURE.objects}
    assert {"tenant.json", "room.pb", "tenants.json", "node", "step", "journal", "journal.json"} <= others
    for key, content in FIXTURE.objects.items():
        if key.endswith(".pb"):
            assert base64.b64decode(content)[2] == 1
            decode_document(key, base64.b64decode(content))
        elif key.endswith(".json"):
            json.loads(base64.b64decode(content))
    assert FORMAT == 1, "keep this fixture, and add one of the new format"


async def test_a_store_of_format_1_has_no_violations_and_all_of_its_messages(bucket: MemoryBucket) -> None:
    report = await verify_bucket(bucket, _subject(bucket).clock, pause_ms=0)

    assert report.violations == []
    assert (report.ready, report.delayed, report.in_flight, report.failed) == (4, 1, 3, 1)
    assert (report.tenants, report.queues) == (1, 4)


@pytest.mark.spec("6.1")
async def test_a_store_of_format_1_continues_where_it_stopped(bucket: MemoryBucket) -> None:
    subject = _subject(bucket)
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
