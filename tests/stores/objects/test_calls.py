"""The calls that each operation costs are those in the table of docs/stores/objects.md, which the test reads."""

import asyncio
import re
from pathlib import Path
from typing import cast

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.client.queue import AsyncQueue
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict
from holdfast.runtime import LoopRuntime
from holdfast.server.embedded import Embedded
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.objects.operations.follow_up import FollowUp
from holdfast.testing import EmbeddedSubject
from tests.stores.objects.metered import Calls, MeteredBucket

WEEK_MS = 7 * 86_400_000
MANY = 100
PAGE = Path(__file__).parents[3] / "docs/stores/objects.md"


class Bill:
    """Calls by the operation that made them."""

    def __init__(self, bucket: MeteredBucket, runtime: LoopRuntime) -> None:
        self._bucket = bucket
        self._runtime = runtime
        self.lines: dict[str, Calls] = {}

    def note(self, what: str) -> None:
        self.lines[what] = self._bucket.take()

    def skip(self) -> None:
        self._bucket.take()

    async def settle(self) -> None:
        """Wait until the background of the store is idle: a store sweeps when it is opened."""
        self.skip()
        while True:
            await self._runtime.idle()
            # A pass that is due begins a millisecond later: timers round up.
            for _ in range(10):
                await asyncio.sleep(0.001)
            if self._bucket.take() == Calls():
                return


@pytest.fixture(autouse=True)
def tidied_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """By sweeps alone: else it is the machine's speed that says which call it falls into."""

    async def never(self: FollowUp) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FollowUp, "run", never)


async def _bill() -> dict[str, Calls]:
    bucket = MeteredBucket(MemoryBucket())
    subject = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS))
    async with subject.open() as hf:
        bill = Bill(bucket, cast(LoopRuntime, cast(Embedded, hf._transport).core.runtime))
        q = hf.queue("q")
        await q.set_policy()
        await q.claim()
        await subject.sweep(hf)
        await bill.settle()
        await q.claim()
        bill.note("claim that finds an empty queue")
        await _bill_of_one(q, bill)
        await _bill_of_many(q, bill)
        await bill.settle()
        await subject.sweep(hf)
        bill.note(f"collecting the events of {MANY + 2} that were acked, and deleting them")
        subject.clock.advance(10_000)
        await bill.settle()
        await subject.sweep(hf)
        bill.note("finishing two steps, whose messages are gone")
        await _bill_of_waiting(hf.queue("waiting", tenant="other"), bill, subject, hf)
        await _bill_of_failure(q, bill)
        await bill.settle()
        await subject.sweep(hf)
        bill.note("carrying a dead letter with a state to dlq/")
        await hf.tenant().set(quotas={"max_messages": 1_000})
        await bill.settle()
        await q.enqueue("limited")
        bill.note("enqueue of one to a tenant with quotas, of one queue")
    return bill.lines


async def _bill_of_one(q: AsyncQueue, bill: Bill) -> None:
    await q.enqueue("first")
    bill.note("enqueue of one")
    [message] = await q.claim(lease=60)
    bill.note("claim of one, once a second")
    await message.ack()
    await q.enqueue("second")
    bill.skip()
    [message] = await q.claim(lease=60)
    bill.note("claim of one")
    await message.extend(60)
    bill.note("extend")
    await message.nack("no", delay=0)
    bill.note("nack")
    [message] = await q.claim(lease=60)
    bill.skip()
    await message.release()
    bill.note("release")
    [message] = await q.claim(lease=60)
    bill.skip()
    await message.ack()
    bill.note("ack")


async def _bill_of_many(q: AsyncQueue, bill: Bill) -> None:
    await q.enqueue("keyed", key="k")
    bill.note("enqueue of one with a key")
    await q.enqueue("keyed", key="k")
    bill.note("enqueue of one whose key was seen")
    await q.enqueue(list(range(MANY - 1)))
    bill.note(f"enqueue of {MANY - 1}")
    await q.stats()
    bill.note(f"stats of a queue of {MANY}")
    messages = await q.claim(limit=MANY, lease=60)
    bill.note(f"claim of {MANY}")
    await q.ack(messages)
    bill.note(f"ack of {MANY}")


async def _bill_of_waiting(q: AsyncQueue, bill: Bill, subject: EmbeddedSubject, hf: AsyncHoldfast) -> None:
    """Messages that wait so long that their events are collected before they are claimed."""
    await q.set_policy()
    await q.enqueue(list(range(MANY)))
    subject.clock.advance(10_000)
    await bill.settle()
    await subject.sweep(hf)
    bill.note(f"collecting the events of {MANY} that wait, and finishing their step")
    await q.ack(await q.claim(limit=MANY, lease=60))
    await bill.settle()
    await subject.sweep(hf)
    bill.note(f"collecting the events of {MANY} that waited and were acked, and deleting them")


async def _bill_of_failure(q: AsyncQueue, bill: Bill) -> None:
    await q.enqueue("grouped", group="g")
    bill.note("enqueue of one in a group")
    [message] = await q.claim(lease=60, state=True)
    bill.note("claim of one in a group")
    await message.save_state({"step": 1})
    bill.note("first state of a message")
    await message.save_state({"step": 2}, etag="1")
    bill.note("later state of a message")
    await message.nack("no", final=True)
    bill.note("nack of a last attempt")


def _stated() -> dict[str, Calls]:
    """The page's table."""
    rows = re.findall(r"^\| ([^|]+) \| (\d*) \| (\d*) \| (\d*) \| (\d*) \|$", PAGE.read_text(), re.M)
    return {what: Calls(*(int(number or 0) for number in numbers)) for what, *numbers in rows}


def _dollars_per_million(calls: Calls, messages: int) -> float:
    return (calls.writes + calls.lists) * 5.0 / messages + calls.reads * 0.4 / messages


async def test_each_operation_takes_the_calls_that_the_page_states() -> None:
    assert await _bill() == _stated()


async def test_a_million_messages_cost_what_the_page_states() -> None:
    bill = await _bill()
    for_one = [_dollars_per_million(bill[what], 1) for what in ("enqueue of one", "claim of one", "ack")]
    for_many = [_dollars_per_million(bill[f"{what} of {MANY}"], MANY) for what in ("claim", "ack")] + [
        _dollars_per_million(bill[f"enqueue of {MANY - 1}"], MANY - 1)
    ]
    collecting = bill[f"collecting the events of {MANY + 2} that were acked, and deleting them"]
    after = _dollars_per_million(collecting, MANY + 2)
    steps = _dollars_per_million(bill["finishing two steps, whose messages are gone"], MANY)
    waiting = _dollars_per_million(
        bill[f"collecting the events of {MANY} that wait, and finishing their step"], MANY
    ) + _dollars_per_million(
        bill[f"collecting the events of {MANY} that waited and were acked, and deleting them"], MANY
    )
    page = " ".join(PAGE.read_text().split())
    assert f"${sum(for_one) + after:.2f} for a million messages" in page
    assert f"${sum(for_many) + after + steps:.2f} in calls of a hundred" in page
    assert f"${sum(for_many) + waiting:.2f} if they wait" in page


async def test_a_message_that_is_consumed_at_once_takes_at_most_four_calls_and_half_of_what_it_took() -> None:
    bill = await _bill()
    collecting = bill[f"collecting the events of {MANY + 2} that were acked, and deleting them"]
    for_one = sum(sum(bill[what]) for what in ("enqueue of one", "claim of one", "ack")) + sum(collecting) / (MANY + 2)
    for_many = (
        sum(bill[f"enqueue of {MANY - 1}"]) / (MANY - 1)
        + (sum(bill[f"claim of {MANY}"]) + sum(bill[f"ack of {MANY}"])) / MANY
        + sum(collecting) / (MANY + 2)
        + sum(bill["finishing two steps, whose messages are gone"]) / MANY
    )
    page = " ".join(PAGE.read_text().split())
    assert for_one < 9.05 / 2
    assert for_many < 9.16 / 2
    assert f"{for_one:.1f} calls for each message one by one, and {for_many:.1f} in calls of a hundred" in page


async def test_an_extension_and_an_ack_of_one_message_in_one_call_are_one_write_and_two_events() -> None:
    bucket = MeteredBucket(MemoryBucket())
    subject = EmbeddedSubject(lambda dice: ObjectStore(bucket, dice, journal_retention_ms=WEEK_MS))
    async with subject.open() as hf:
        q = hf.queue("q")
        await q.enqueue("once")
        [message] = await q.claim(lease=60)
        core, receipt = cast(Embedded, hf._transport).core, message._held.delivery.receipt
        bill = Bill(bucket, cast(LoopRuntime, core.runtime))
        await bill.settle()
        verdicts = [Verdict(settle=settle, receipt=receipt) for settle in (Settle.EXTEND, Settle.ACK)]
        results = await core.store.settle(QueueRef("default", "q"), verdicts, subject.clock.now_ms())
        assert [result.ok for result in results] == [True, True]
        bill.note("settle")
        assert bill.lines["settle"] == Calls(writes=1)
        await subject.sweep(hf)
        assert [event.event for event in await hf.journal()] == ["enqueued", "claimed", "extended", "succeeded"]
