"""Calls on one queue that begin at the same time go to the store as one, and no caller notices."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.dice import SeededDice
from holdfast.model.answers import Enqueued
from holdfast.model.errors import OverQuota, StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.runtime import LoopRuntime
from holdfast.server.embedded import open_on_loop
from holdfast.service.joined_calls import JoinedCalls, weigh_drafts
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.testing import ManualClock

REF = QueueRef("acme", "mail")


class Calls:
    """The calls that reach the store. Each waits until the test lets it end."""

    def __init__(self) -> None:
        self.payloads: list[list[bytes]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        # Returns the error of a call with these payloads, or None.
        self.refuse: Callable[[list[bytes]], Exception | None] = lambda payloads: None
        self.joined = JoinedCalls(LoopRuntime(ManualClock()), self._call, weigh_drafts)

    async def _call(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        payloads = [draft.payload for draft in drafts]
        self.payloads.append(payloads)
        await self.may_end.wait()
        if (error := self.refuse(payloads)) is not None:
            raise error
        return [Enqueued(snowflake=int(payload)) for payload in payloads]

    def add(self, *numbers: int, ref: QueueRef = REF, key: str | None = None) -> "asyncio.Task[list[Enqueued]]":
        drafts = [Draft(payload=b"%d" % number, key=key) for number in numbers]
        return asyncio.ensure_future(self.joined.add(ref, drafts))

    def begin(self, *numbers: int) -> "asyncio.Task[list[Enqueued]]":
        """Begin a call that stays open. Calls that begin before the next pass of the loop are joined."""
        self.may_end.clear()
        return self.add(*numbers)


@pytest.fixture
async def calls() -> AsyncIterator[Calls]:
    calls = Calls()
    yield calls
    assert calls.joined.waiting_queues == 0


def ids(results: list[Enqueued]) -> list[int]:
    return [each.snowflake for each in results]


async def test_a_lone_call_reaches_the_store_in_the_same_step(calls: Calls) -> None:
    work = calls.joined.add(REF, [Draft(payload=b"1")])
    with pytest.raises(StopIteration) as ended:
        work.send(None)
    assert ids(ended.value.value) == [1]


async def test_calls_beside_an_open_one_are_one_call_and_each_gets_its_own_results(calls: Calls) -> None:
    first = calls.begin(1)
    others = [calls.add(2), calls.add(3, 4), calls.add(5)]
    await asyncio.sleep(0)
    calls.may_end.set()
    assert [ids(each) for each in await asyncio.gather(first, *others)] == [[1], [2], [3, 4], [5]]
    assert calls.payloads == [[b"1"], [b"2", b"3", b"4", b"5"]]


async def test_calls_on_other_queues_are_not_joined(calls: Calls) -> None:
    first = calls.begin(1)
    other = calls.add(2, ref=QueueRef("acme", "other"))
    await asyncio.sleep(0)
    assert calls.payloads == [[b"1"], [b"2"]]
    calls.may_end.set()
    await asyncio.gather(first, other)


async def test_a_refused_call_is_made_again_for_each_caller(calls: Calls) -> None:
    calls.refuse = lambda payloads: OverQuota("full", limit="messages") if b"3" in payloads else None
    first = calls.begin(1)
    others = [calls.add(number) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    calls.may_end.set()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(each) for each in results] == [list, list, OverQuota, list]
    assert calls.payloads == [[b"1"], [b"2", b"3", b"4"], [b"2"], [b"3"], [b"4"]]


async def test_an_unavailable_store_is_told_to_each_caller_by_an_error_of_its_own(calls: Calls) -> None:
    calls.refuse = lambda payloads: StoreUnavailable("gone", outcome="unknown")
    first = calls.begin(1)
    others = [calls.add(number) for number in (2, 3)]
    await asyncio.sleep(0)
    calls.may_end.set()
    errors = await asyncio.gather(first, *others, return_exceptions=True)
    assert [cast(StoreUnavailable, each).facts for each in errors] == [{"outcome": "unknown"}] * 3
    assert len({id(each) for each in errors}) == 3
    assert len(calls.payloads) == 2  # it is not repeated, because it may have been carried out


async def test_a_caller_that_leaves_before_the_turn_ends_is_not_carried_out(calls: Calls) -> None:
    first = calls.begin(1)
    others = [calls.add(number) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    others[1].cancel()
    calls.may_end.set()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert isinstance(results[2], asyncio.CancelledError)
    assert calls.payloads == [[b"1"], [b"2", b"4"]]


async def test_a_call_of_a_later_turn_does_not_wait_for_an_open_one(calls: Calls) -> None:
    first = calls.begin(1)
    for _ in range(3):  # the call begins, its turn ends
        await asyncio.sleep(0)
    later = calls.add(2)
    await asyncio.sleep(0)
    assert calls.payloads == [[b"1"], [b"2"]]
    calls.may_end.set()
    await asyncio.gather(first, later)


async def test_a_caller_that_leaves_later_does_not_end_the_call_of_the_others(calls: Calls) -> None:
    first = calls.begin(1)
    others = [calls.add(number) for number in (2, 3)]
    while len(calls.payloads) < 2:
        await asyncio.sleep(0)
    others[0].cancel()
    calls.may_end.set()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    assert ids(cast(list[Enqueued], results[2])) == [3]


async def test_a_call_with_a_key_stays_alone_and_in_its_place(calls: Calls) -> None:
    first = calls.begin(1)
    others = [calls.add(2), calls.add(3), calls.add(4, key="four"), calls.add(5), calls.add(6)]
    await asyncio.sleep(0)
    calls.may_end.set()
    await asyncio.gather(first, *others)
    assert calls.payloads == [[b"1"], [b"2", b"3"], [b"4"], [b"5", b"6"]]


async def test_joined_calls_are_bounded_by_their_items_and_their_bytes(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.service.joined_calls.MAX_BATCH", 3)
    monkeypatch.setattr("holdfast.service.joined_calls._MAX_BYTES", 5)
    first = calls.begin(1)
    others = [calls.add(*numbers) for numbers in ((2, 3), (4,), (5,), (66666,), (7, 77777777, 7, 7))]
    await asyncio.sleep(0)
    calls.may_end.set()
    await asyncio.gather(first, *others)
    assert calls.payloads[1:] == [[b"2", b"3", b"4"], [b"5"], [b"66666"], [b"7", b"77777777", b"7", b"7"]]


# --- Over a store that asks for it -----------------------------------------------------------------------------------


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[AsyncHoldfast]:
    store = RocksStore(tmp_path / "store", SeededDice(0), durability=Durability.OS, journal_retention_ms=1 << 40)
    async with open_on_loop("", {}, clock=ManualClock(), store=store) as hf:
        yield hf


async def test_concurrent_enqueues_to_a_directory_fill_its_quota_exactly(hf: AsyncHoldfast) -> None:
    await hf.tenant("acme").set(quotas={"max_messages": 7})
    q = hf.queue("mail", tenant="acme")
    results = await asyncio.gather(*(q.enqueue(number) for number in range(20)), return_exceptions=True)
    refused = [each for each in results if isinstance(each, holdfast.OverQuota)]
    assert (len(refused), (await q.stats()).ready) == (13, 7)


async def test_concurrent_enqueues_and_acks_keep_their_order_and_their_journal(hf: AsyncHoldfast) -> None:
    q = hf.queue("mail")
    enqueued = await asyncio.gather(*(q.enqueue(number) for number in range(50)))
    messages = await q.claim(50)
    assert [message.json() for message in messages] == list(range(50))
    assert [message.id for message in messages] == [id for [id] in enqueued]
    stale = messages[0].receipt
    await messages[0].ack()
    results = await asyncio.gather(q.ack([stale]), *(q.ack([message]) for message in messages[1:]))
    assert [result.ok for [result] in results] == [False] + [True] * 49
    events = [event.event for event in await hf.journal(limit=1_000)]
    assert {name: events.count(name) for name in set(events)} == {"enqueued": 50, "claimed": 50, "succeeded": 50}


async def test_concurrent_enqueues_with_one_key_are_one_message(hf: AsyncHoldfast) -> None:
    q = hf.queue("mail")
    enqueued = await asyncio.gather(*(q.enqueue(number, key="same") for number in range(10)))
    assert len({id for [id] in enqueued}) == 1
    assert sum(id.duplicate for [id] in enqueued) == 9
