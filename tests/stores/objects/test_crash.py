"""A process dies before each of its writes in turn, and another continues: no message with a response is lost or comes
back, and the journal has each event once."""

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.model.errors import HoldfastError
from holdfast.model.message import NewMessage
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.verify.store import verify_bucket
from holdfast.testing import EmbeddedSubject
from tests.stores.objects.faulty import FaultyBucket

WEEK_MS = 7 * 86_400_000


class _Answers:
    """The responses that the process got before it died."""

    def __init__(self) -> None:
        self.enqueued: set[str] = set()
        self.acked: set[str] = set()
        self.is_whole = False


async def _live(hf: AsyncHoldfast, subject: EmbeddedSubject, answers: _Answers) -> None:
    """One of everything that takes several writes."""
    q = hf.queue("q")
    answers.enqueued.update(await q.enqueue("single"))
    answers.enqueued.update(await q.enqueue([NewMessage("a", group="g"), NewMessage("b", group="g"), NewMessage("c")]))
    answers.enqueued.update(await q.enqueue("keyed", key="k"))
    first, *others = await q.claim(limit=3, lease=60)
    await first.save_state({"step": 1})
    await first.nack("broken", final=True)
    for message in others:
        await message.ack()
        answers.acked.add(message.id)
    await subject.sweep(hf)
    await hf.journal()
    await q.redrive()
    [again] = await q.claim(lease=60)
    await again.ack()
    answers.acked.add(again.id)
    await q.move("other")
    await subject.sweep(hf)
    await hf.journal()


async def _run(dies_at: int | None) -> tuple[_Answers, int, dict[str, Any]]:
    bucket, answers = MemoryBucket(), _Answers()
    faulty = FaultyBucket(bucket, dies_at=dies_at)
    subject = EmbeddedSubject(lambda dice: ObjectStore(faulty, dice, journal_retention_ms=WEEK_MS))
    with suppress(HoldfastError):
        async with subject.open() as hf:
            await _live(hf, subject, answers)
            answers.is_whole = True
            faulty.is_dead = True
    survivor = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS), seed=1)
    survivor.clock = subject.clock
    survivor.clock.step_to(subject.clock.now_ms() + 600_000)
    async with survivor.open() as hf:
        drained = await _drain(hf, survivor)
    report = await verify_bucket(bucket, survivor.clock, pause_ms=0)
    return answers, faulty.writes, {**drained, "broken": list(map(str, report.violations))}


async def _drain(hf: AsyncHoldfast, subject: EmbeddedSubject) -> dict[str, Any]:
    """Claim and ack everything that remains, and read the whole journal."""
    await subject.sweep(hf)
    delivered: list[str] = []
    payloads: Counter[str] = Counter()
    for name in ("q", "other"):
        q = hf.queue(name)
        with suppress(HoldfastError):  # killed before the queue was made
            await q.redrive()
        while messages := await q.claim(limit=10, lease=60):
            for message in messages:
                delivered.append(message.id)
                payloads[message.json()] += 1
                await message.ack()
    await subject.sweep(hf)
    events, after = [], None
    while page := await hf.journal(after=after):
        events += page
        after = page.next
    return {"delivered": delivered, "payloads": payloads, "events": events}


def _check(answers: _Answers, after: dict[str, Any]) -> None:
    assert after["broken"] == []
    delivered = set(after["delivered"])
    assert len(delivered) == len(after["delivered"]), "delivered twice without a lease that ran out"
    assert answers.enqueued - answers.acked <= delivered, "lost"
    assert not answers.acked & delivered, "came back"
    assert len({"a", "b", "c"} & set(after["payloads"])) in (0, 1, 2, 3)
    counted = Counter((event.id, event.event) for event in after["events"])
    for id in delivered | answers.enqueued:
        assert counted[id, "enqueued"] == 1
        assert counted[id, "succeeded"] == 1
    for id in delivered | answers.acked:
        claims = [event.version for event in after["events"] if event.id == id and event.event == "claimed"]
        assert claims == sorted(set(claims)), "a claim told twice, or a version that went back"


async def test_a_process_that_dies_before_any_of_its_writes_loses_nothing_it_answered() -> None:
    answers, writes, after = await _run(None)
    assert answers.is_whole
    _check(answers, after)
    assert writes > 60
    for dies_at in range(1, writes + 1):
        answers, _, after = await _run(dies_at)
        try:
            _check(answers, after)
        except AssertionError as error:
            pytest.fail(f"write {dies_at} of {writes}: {error}")
