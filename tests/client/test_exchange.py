"""`exchange`: earlier deliveries are settled and messages claimed in one call, embedded and over each wire."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.queue import AsyncQueue
from holdfast.clock import steady_s
from holdfast.model.message import State
from holdfast.server.embedded import open_blocking, open_on_loop
from holdfast.testing import ManualClock
from tests.doors.capnp_serving import serve_capnp
from tests.doors.framed.serving import serve_framed
from tests.doors.serving import serve

PATIENCE_S = 30


@pytest.fixture(params=["embedded", "http", "capnp", "framed"])
async def hf(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[AsyncHoldfast]:
    if request.param == "embedded":
        async with open_on_loop("memory://", {}, clock=clock) as hf:
            yield hf
        return
    serving: Any = {"http": serve, "capnp": serve_capnp, "framed": serve_framed}[request.param]
    async with serving(clock) as server, holdfast.open_async(server.url) as hf:
        yield hf


@pytest.fixture
def q(hf: AsyncHoldfast) -> AsyncQueue:
    return hf.queue("q", tenant="acme")


async def until_waiting(q: AsyncQueue) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not (await q.stats()).waiters:
            await asyncio.sleep(0)


async def test_messages_and_receipts_are_acked_and_others_claimed(q: AsyncQueue) -> None:
    await q.enqueue(list(range(5)))
    one, two = await q.claim(2)
    results, messages = await q.exchange([one, two.receipt], limit=10, lease=60)
    assert [(each.id, each.ok) for each in results] == [(one.id, True), (two.id, True)]
    assert [each.json() for each in messages] == [2, 3, 4]
    assert (await q.stats()).in_flight == 3


async def test_each_verdict_may_be_a_document(q: AsyncQueue) -> None:
    await q.set_policy(max_retries=9)
    await q.enqueue(list(range(4)))
    acked, nacked, released, final = await q.claim(4)
    results, messages = await q.exchange(
        [
            {"receipt": acked, "verdict": "ack"},
            {"receipt": nacked.receipt, "verdict": "nack", "error": "busy", "delay_ms": 60_000, "defer": True},
            {"receipt": released, "verdict": "release"},
            {"receipt": final, "verdict": "nack", "error": "no such user", "final": True},
        ]
    )
    assert [each.ok for each in results] == [True] * 4
    assert [each.json() for each in messages] == [2]
    deferred = await q.get(nacked.id)
    assert (deferred.state, deferred.failures, deferred.last_error) == (State.READY, 0, "busy")
    assert deferred.visible_at == results[1].retry_at
    assert (await q.get(final.id)).state is State.FAILED


async def test_a_message_in_hand_remembers_its_verdict(q: AsyncQueue) -> None:
    await q.enqueue([1, 2])
    acked, nacked = await q.claim(2)
    await q.exchange([acked, {"receipt": nacked, "verdict": "nack", "delay_ms": 60_000}])
    async with acked, nacked:  # leaving the block settles neither of them again
        pass
    assert not acked.is_lost
    results, _ = await q.exchange([acked])
    assert [each.error for each in results] == ["stale_lease"]
    assert acked.is_lost


async def test_a_stale_receipt_has_a_result_of_its_own_and_the_claim_continues(q: AsyncQueue) -> None:
    await q.enqueue([1, 2])
    [message] = await q.claim()
    await message.ack()
    results, messages = await q.exchange([message.receipt])
    assert [(each.ok, each.is_stale) for each in results] == [(False, True)]
    assert [each.json() for each in messages] == [2]


async def test_without_verdicts_it_is_a_claim(q: AsyncQueue) -> None:
    await q.enqueue(1)
    results, [message] = await q.exchange([], state=True, owner="me")
    assert (results, message.json(), message.state) == ([], 1, None)
    assert (await q.get(message.id)).owner == "me"


async def test_it_waits_for_a_message_once_the_verdicts_are_settled(q: AsyncQueue) -> None:
    await q.enqueue("first")
    [first] = await q.claim()
    exchange = asyncio.ensure_future(q.exchange([first], wait=20))
    await until_waiting(q)
    assert (await q.stats()).in_flight == 0
    await q.enqueue("second")
    async with asyncio.timeout(PATIENCE_S):
        results, messages = await exchange
    assert [each.ok for each in results] == [True]
    assert [each.json() for each in messages] == ["second"]


async def test_results_are_returned_though_the_waiting_claim_is_refused(q: AsyncQueue) -> None:
    await q.enqueue(1)
    [message] = await q.claim()
    exchange = asyncio.ensure_future(q.exchange([message], wait=None))
    await until_waiting(q)
    await q.delete()
    async with asyncio.timeout(PATIENCE_S):
        results, messages = await exchange
    assert ([each.ok for each in results], messages) == ([True], [])


async def test_results_are_returned_though_the_claim_is_over_its_rate(q: AsyncQueue, hf: AsyncHoldfast) -> None:
    await q.enqueue([1, 2, 3])
    await hf.tenant("acme").set(limits={"read_ops_per_s": 1})
    [message] = await q.claim()
    results, messages = await q.exchange([message])
    assert ([each.ok for each in results], messages) == ([True], [])


async def test_a_message_that_is_closed_without_a_verdict_comes_back_after_the_delay_asked_for(
    q: AsyncQueue, clock: ManualClock
) -> None:
    await q.enqueue(1)
    _, [message] = await q.exchange([], on_close_delay="1m")
    await message.close()
    assert (await q.get(message.id)).visible_at == clock.now_ms() + 60_000


def _with(**fields: Any) -> Callable[[str], object]:
    return lambda receipt: {"receipt": receipt, "verdict": "nack", **fields}


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (lambda receipt: 7, "verdicts[1]"),
        (lambda receipt: None, "verdicts[1]"),
        (lambda receipt: "not a receipt", "verdicts[1].receipt"),
        (lambda receipt: {"verdict": "ack"}, "verdicts[1].receipt"),
        (lambda receipt: {"receipt": receipt}, "verdicts[1].verdict"),
        (lambda receipt: {"receipt": b"x", "verdict": "ack"}, "verdicts[1].receipt"),
        (_with(verdict="extend"), "verdicts[1].verdict"),
        (_with(verdict=["ack"]), "verdicts[1].verdict"),
        (_with(colour="red"), "verdicts[1].colour"),
        (_with(error=7), "verdicts[1].error"),
        (_with(delay_ms="1m"), "verdicts[1].delay_ms"),
        (_with(delay_ms=-1), "verdicts[1].delay_ms"),
        (_with(defer=1), "verdicts[1].defer"),
        (_with(final="yes"), "verdicts[1].final"),
        (_with(defer=True, final=True), "verdicts[1].final"),
    ],
)
async def test_a_bad_verdict_is_refused_by_name_before_anything_is_settled(
    q: AsyncQueue, bad: Callable[[str], object], field: str
) -> None:
    await q.enqueue([1, 2])
    good, other = await q.claim(2)
    with pytest.raises(holdfast.InvalidArgument) as refused:
        await q.exchange([good, bad(other.receipt)])  # type: ignore[list-item]  # of a type that is refused
    assert refused.value.facts["field"] == field
    assert (await q.stats()).in_flight == 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"wait": -1}, "wait"),
        ({"lease": 0}, "lease"),
        ({"colour": 1}, "colour"),
        ({"on_close_delay": "soon"}, "on_close_delay"),
    ],
)
async def test_a_bad_claim_is_refused_before_anything_is_settled(
    q: AsyncQueue, options: dict[str, Any], field: str
) -> None:
    await q.enqueue(1)
    [message] = await q.claim()
    with pytest.raises(holdfast.InvalidArgument) as refused:
        await q.exchange([message], **options)
    assert refused.value.facts["field"] == field
    assert (await q.stats()).in_flight == 1


@pytest.mark.parametrize("serving", [serve, serve_capnp, serve_framed])
async def test_over_a_wire_it_is_one_request_if_messages_are_ready(clock: ManualClock, serving: Any) -> None:
    async with serving(clock) as server, holdfast.open_async(server.url) as hf:
        await hf.queue("q").enqueue([1, 2])
        messages = await hf.queue("q").claim()
        before = len(server.requests.seen)
        results, messages = await hf.queue("q").exchange(messages, wait=20)
        assert ([each.ok for each in results], [each.json() for each in messages]) == ([True], [2])
        assert len(server.requests.seen) == before + 1


@pytest.mark.parametrize("serving", [serve, serve_framed])
async def test_over_a_wire_a_wait_needs_no_other_request(clock: ManualClock, serving: Any) -> None:
    async with serving(clock) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        await q.enqueue(1)
        messages = await q.claim()
        before = [operation for operation, _, _ in server.requests.seen]
        exchange = asyncio.ensure_future(q.exchange(messages, wait=20))
        await until_waiting(q)
        await q.enqueue(2)
        async with asyncio.timeout(PATIENCE_S):
            results, messages = await exchange
        assert ([each.ok for each in results], [each.json() for each in messages]) == ([True], [2])
        made = Counter(operation for operation, _, _ in server.requests.seen) - Counter(before)
        assert made["exchange"] + made["exchange_wait"] == 1
        assert not [operation for operation in made if operation.startswith(("dequeue", "claim"))]


@pytest.mark.parametrize("serving", [serve, serve_framed])
async def test_a_wait_longer_than_a_round_continues_by_a_claim(clock: ManualClock, serving: Any) -> None:
    async with serving(clock) as server, holdfast.open_async(server.url, wait_round="1ms") as hf:
        q = hf.queue("q")
        await q.enqueue(1)
        exchange = asyncio.ensure_future(q.exchange(await q.claim(), wait=3_600))
        async with asyncio.timeout(PATIENCE_S):
            while not [each for each, _, _ in server.requests.seen if each in ("dequeue_wait", "claim_wait")]:
                await until_waiting(q)
                # A round that ends much sooner, by the client's own time, counts as refused.
                round_over_s = steady_s() + 0.002
                while steady_s() < round_over_s:
                    await asyncio.sleep(0)
                clock.advance(1)
            await q.enqueue(2)
            results, [message] = await exchange
        assert ([each.ok for each in results], message.json()) == ([True], 2)


async def test_closing_the_client_while_an_exchange_waits_is_an_error(clock: ManualClock) -> None:
    async with serve(clock) as server, holdfast.open_async(server.url) as other:
        await other.queue("q").enqueue(1)
        async with holdfast.open_async(server.url) as hf:
            exchange = asyncio.ensure_future(hf.queue("q").exchange(await hf.queue("q").claim(), wait=None))
            await until_waiting(other.queue("q"))
        with pytest.raises(holdfast.StoreUnavailable):
            await exchange
        assert (await other.queue("q").stats()).in_flight == 0


@pytest.mark.parametrize("serving", [serve, serve_capnp])
async def test_a_subscription_needs_one_request_for_each_batch_that_is_settled(
    clock: ManualClock, serving: Any
) -> None:
    """Over HTTP the next messages come by themselves, over Cap'n Proto with the answer to the verdicts."""
    batch, batches = 8, 20
    async with serving(clock) as server, holdfast.open_async(server.url) as hf:
        q = hf.queue("q")
        await q.enqueue(list(range(batch * batches)))
        messages = q.subscribe(prefetch=batch)
        server.requests.seen.clear()
        seen: list[int] = []
        for _ in range(batches):
            held = [await anext(messages) for _ in range(batch)]
            seen += [each.json() for each in held]
            await q.ack(held)
        made = [operation for operation, _, _ in server.requests.seen]
        await messages.aclose()
    assert seen == list(range(batch * batches))
    assert batches <= len(made) <= batches + 1, made  # and the first claim


def test_the_blocking_exchange_gives_blocking_messages(clock: ManualClock) -> None:
    with open_blocking("memory://", {}, clock=clock) as hf:
        q = hf.queue("q")
        q.enqueue([1, 2, 3])
        messages = q.claim()
        seen = []
        while messages:
            seen += [each.json() for each in messages]
            results, messages = q.exchange(messages)
            assert all(each.ok for each in results)
        assert seen == [1, 2, 3]
        assert q.stats().in_flight == 0
