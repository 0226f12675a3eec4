"""Calls that share a request, claims that wait and subscriptions: none of them harms another, over HTTP and frames."""

import asyncio

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.model.message import Receipt
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.testing import ManualClock
from holdfast.testing.proxy import FaultProxy
from tests.client.remote.patience import soon, until, until_waiting
from tests.doors.serving import Server, serve


def calls(server: Server, operation: str) -> int:
    """Return how many calls of an operation the server saw; over frames every verdict is a `settle`."""
    names = (operation, "settle") if operation == "ack" else (operation,)
    return sum(1 for seen, _, _ in server.requests.seen if seen in names)


# --- Calls that share a request --------------------------------------------------------------------------------


async def test_concurrent_single_enqueues_share_requests(server: Server, hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    answers = await asyncio.gather(*(q.enqueue(number, priority=number) for number in range(64)))
    assert calls(server, "enqueue") == 2  # the first at once, the others together
    for number, [id] in enumerate(answers):
        assert (await q.get(id)).priority == number
    before = calls(server, "enqueue")
    await q.enqueue("alone")
    assert calls(server, "enqueue") == before + 1


async def test_one_bad_message_does_not_fail_those_it_shared_a_request_with(clock: ManualClock) -> None:
    async with serve(clock, max_payload=100) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        payloads = ["x" * (200 if number == 7 else 10) for number in range(20)]
        results = await asyncio.gather(*(q.enqueue(each) for each in payloads), return_exceptions=True)
        assert [at for at, each in enumerate(results) if isinstance(each, holdfast.PayloadTooLarge)] == [7]
        assert (await q.stats()).ready == 19


async def test_a_caller_that_leaves_does_not_fail_those_it_shared_a_request_with(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    tasks = [asyncio.create_task(q.enqueue(number)) for number in range(10)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.wait(tasks)
    kept = [task.result()[0] for task in tasks[1::2]]
    listed = {each.id for each in await q.list()}
    assert {str(each) for each in kept} <= listed


async def test_a_list_is_one_call_however_many_there_are_beside_it(server: Server, hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    await asyncio.gather(*(q.enqueue([number, number]) for number in range(10)))
    assert calls(server, "enqueue") == 10


async def test_concurrent_acks_share_requests_and_each_hears_of_its_own(
    server: Server, hf: AsyncHoldfast, clock: ManualClock
) -> None:
    q = hf.queue("q")
    await q.enqueue(list(range(32)))
    messages = await q.claim(limit=32)
    await q.release([messages[5]])
    calls_before = calls(server, "ack")
    results = await asyncio.gather(*(m.ack() for m in messages), return_exceptions=True)
    assert [at for at, each in enumerate(results) if isinstance(each, holdfast.StaleLease)] == [5]
    # The first at once, the others together.
    assert calls(server, "ack") - calls_before == 2


async def test_verdicts_ride_on_the_next_claim(server: Server, hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    await q.enqueue([1, 2, 3, 4])
    first, second, third = await q.claim(limit=3)
    receipts = [Receipt.parse(each.receipt) for each in (first, second, third)]
    verdicts = [
        Verdict(settle=Settle.ACK, receipt=receipts[0]),
        Verdict(settle=Settle.NACK, receipt=receipts[1], error="no", final=True),
        Verdict(settle=Settle.RELEASE, receipt=receipts[2]),
    ]
    before = len(server.requests.seen)
    exchanged = await q._messages.exchange(q.ref, verdicts, ClaimRequest(limit=10))
    assert len(server.requests.seen) == before + 1
    assert [(each.ok, each.state) for each in exchanged.results] == [
        (True, "succeeded"),
        (True, "failed"),
        (True, "ready"),
    ]
    assert [each.payload for each in exchanged.deliveries] == [b"3", b"4"]
    again = await q._messages.exchange(q.ref, verdicts[:1], ClaimRequest(limit=10))
    assert [(each.ok, each.error) for each in again.results] == [(False, "stale_lease")]


async def test_an_embedded_queue_takes_verdicts_with_a_claim_too() -> None:
    async with holdfast.open_async("memory://") as hf:
        q = hf.queue("q")
        await q.enqueue([1, 2])
        [m] = await q.claim()
        verdict = Verdict(settle=Settle.ACK, receipt=Receipt.parse(m.receipt))
        results, deliveries = await q._messages.exchange(q.ref, [verdict], ClaimRequest(limit=10))
        assert [each.ok for each in results] == [True]
        assert [each.payload for each in deliveries] == [b"2"]


@pytest.mark.parametrize("where", ["embedded", "http"])
async def test_verdicts_on_a_claim_over_its_rate_are_heard_of(where: str, server: Server, clock: ManualClock) -> None:
    opened = holdfast.open_async("memory://", clock=clock) if where == "embedded" else holdfast.open_async(server.url)
    async with opened as hf:
        q = hf.queue("q")
        await q.enqueue([1, 2])
        [m] = await q.claim()
        await q.set_policy(limits={"read_ops_per_s": 0})
        verdict = Verdict(settle=Settle.ACK, receipt=Receipt.parse(m.receipt))
        results, deliveries = await soon(q._messages.exchange(q.ref, [verdict], ClaimRequest(limit=10)))
        assert ([each.ok for each in results], deliveries) == ([True], [])
        with pytest.raises(holdfast.RateLimited):  # a minute is more than a call waits
            await soon(q.claim())


# --- Waiting ---------------------------------------------------------------------------------------------------


async def test_a_wait_continues_in_rounds_until_it_is_over(server: Server, clock: ManualClock) -> None:
    async with holdfast.open_async(server.url, wait_round=20) as hf:
        q = hf.queue("q")
        await q.set_policy()
        waiting = asyncio.create_task(q.claim(wait=None))
        for number in range(3):
            await until_waiting(q, 1)
            assert calls(server, "claim_wait") == number
            clock.advance(20_000)

            async def came_back(expected: int = number + 1) -> bool:
                return calls(server, "claim_wait") == expected

            await until(came_back)
        await until_waiting(q, 1)
        await q.enqueue("now")
        [m] = await soon(waiting)
        assert m.json() == "now"


async def test_a_waiting_claim_survives_a_lost_connection(proxy: FaultProxy, far: AsyncHoldfast) -> None:
    q = far.queue("q")
    await q.set_policy()
    waiting = asyncio.create_task(q.claim(wait=None))
    await until_waiting(q, 1)
    await proxy.cut()
    await until_waiting(q, 1)
    await q.enqueue("a")
    [m] = await soon(waiting)
    assert m.attempt <= 2  # handed perhaps to the connection that was lost, whose lease then had to run out


async def test_closing_lets_waiting_claims_go_with_nothing(server: Server, hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    await q.set_policy()
    async with holdfast.open_async(server.url) as other:
        waiting = asyncio.create_task(other.queue("q").claim(wait=None))
        await until_waiting(q, 1)
        closed = other.queue("q")
    assert await soon(waiting) == []
    await until_waiting(q, 0)
    with pytest.raises(holdfast.StoreUnavailable, match="closed"):
        await closed.enqueue(1)


# --- Subscriptions ---------------------------------------------------------------------------------------------


async def test_a_subscription_gives_messages_as_they_come(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    await q.enqueue([0, 1])
    messages = q.subscribe(prefetch=2, lease=60, owner="me")
    for number in range(6):
        if number > 1:
            await q.enqueue(number)
        async with await soon(anext(messages)) as m:
            assert (m.json(), (await q.get(m.id)).owner) == (number, "me")
    await messages.aclose()


async def test_a_subscription_sends_ahead_no_more_than_it_was_asked_to(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    await q.enqueue(list(range(10)))
    messages = q.subscribe(prefetch=3)
    first = await soon(anext(messages))

    async def has_sent() -> bool:
        return (await q.stats()).in_flight == 3

    await until(has_sent)
    await first.ack()
    await until(has_sent)
    await messages.aclose()


async def test_leaving_a_subscription_gives_back_what_was_not_seen(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    await q.enqueue(list(range(10)))
    messages = q.subscribe(prefetch=5, lease=3_600)
    first = await soon(anext(messages))

    async def has_sent() -> bool:
        return (await q.stats()).in_flight == 5

    await until(has_sent)
    await messages.aclose()

    async def is_given_back() -> bool:
        return (await q.stats()).in_flight == 1

    await until(is_given_back)
    await first.ack()
    assert [(m.json(), m.attempt) for m in await q.claim(limit=10)] == [(n, 1) for n in range(1, 10)]


async def test_a_subscription_is_taken_up_again_after_a_lost_connection(proxy: FaultProxy, far: AsyncHoldfast) -> None:
    q = far.queue("q")
    seen = []
    messages = q.subscribe(prefetch=1, lease=3_600, state=True)
    for number in range(3):
        await q.enqueue(number)
        async with await soon(anext(messages)) as m:
            seen.append(m.json())
            assert m.state is None
        await proxy.cut()
    await messages.aclose()
    assert seen == [0, 1, 2]
