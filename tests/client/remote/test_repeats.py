"""The client repeats requests after a lost answer only where that is safe, and otherwise raises an error."""

import asyncio

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.testing import ManualClock
from holdfast.testing.proxy import Fault, FaultProxy, NetworkFaultKind
from tests.client.remote.patience import soon, until
from tests.doors.serving import Server

# The server did what it was asked, and the client does not hear of it.
LOST_ANSWER = Fault(NetworkFaultKind.CUT_BEFORE_REPLY)


@pytest.mark.spec("3.5")
async def test_an_enqueue_with_a_key_whose_answer_was_lost_is_repeated_and_enqueues_once(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    q = far.queue("q")
    proxy.inject(LOST_ANSWER)
    [id] = await q.enqueue(1, key="order-1")
    assert id.duplicate  # the first try held
    proxy.inject(LOST_ANSWER)
    ids = await q.enqueue([holdfast.NewMessage(n, key=str(n)) for n in range(3)])
    assert (await q.stats()).ready == 4
    assert len(set(ids)) == 3


async def test_an_enqueue_without_a_key_whose_answer_was_lost_is_not_repeated(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    q = far.queue("q")
    proxy.inject(LOST_ANSWER)
    with pytest.raises(holdfast.StoreUnavailable, match="key"):
        await q.enqueue(1)
    proxy.inject(LOST_ANSWER)
    with pytest.raises(holdfast.StoreUnavailable, match="key"):
        await q.enqueue([holdfast.NewMessage(1, key="a"), 2])
    assert (await q.stats()).ready == 3


async def test_an_error_tells_a_call_that_was_never_sent_from_one_that_may_have_happened(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    proxy.inject(LOST_ANSWER)
    with pytest.raises(holdfast.StoreUnavailable) as cut_off:
        await far.queue("q").enqueue(1)
    assert cut_off.value.facts["outcome"] == "unknown"
    async with holdfast.open_async("http://127.0.0.1:1", retries=0) as nowhere:
        with pytest.raises(holdfast.StoreUnavailable) as unsent:
            await nowhere.queue("q").enqueue(1)
    assert unsent.value.facts["outcome"] == "nothing happened"


async def test_a_purge_whose_answer_was_lost_is_not_repeated(proxy: FaultProxy, far: AsyncHoldfast) -> None:
    q = far.queue("q")
    await q.enqueue([1, 2])
    proxy.inject(LOST_ANSWER)
    with pytest.raises(holdfast.StoreUnavailable, match="may have been carried out"):
        await q.purge()
    assert (await q.stats()).ready == 0


async def test_reads_and_verbs_that_can_be_repeated_survive_a_lost_answer(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    q = far.queue("q")
    ids = await q.enqueue([1, 2])
    for work in (
        lambda: q.stats(),
        lambda: q.get(ids[0]),
        lambda: q.peek(),
        lambda: q.list(),
        lambda: q.set_policy(lease_ms=60_000),
        lambda: q.pause(),
        lambda: q.resume(),
        lambda: q.remove(ids[0]),
        lambda: far.journal(),
        lambda: far.queues(),
        lambda: far.tenant().stats(),
        lambda: q.delete(),
    ):
        proxy.inject(LOST_ANSWER)
        await soon(work())


async def test_a_repeated_ack_that_comes_too_late_for_itself_says_that_it_is_unsure(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    q = far.queue("q")
    await q.enqueue(1)
    [m] = await q.claim()
    proxy.inject(LOST_ANSWER)
    with pytest.raises(holdfast.StaleLease, match="first attempt") as refused:
        await m.ack()
    assert refused.value.facts["is_unsure"]


async def test_a_repeated_verdict_is_believed_where_the_message_tells_that_it_held(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    q = far.queue("q")
    await q.set_policy(keep_succeeded_ms=60_000)
    await q.enqueue([1, 2, 3])
    acked, nacked, extended = await q.claim(limit=3)
    proxy.inject(LOST_ANSWER)
    await acked.ack()
    proxy.inject(LOST_ANSWER)
    assert (await nacked.nack("broken", delay=60)).state is holdfast.State.READY
    proxy.inject(LOST_ANSWER)
    await extended.extend(60)
    assert (await q.get(nacked.id)).failures == 1


async def until_ready(q: holdfast.AsyncQueue, id: str) -> None:
    """Wait until the server has ended a lease that ran out."""
    async with asyncio.timeout(60):
        while (await q.get(id)).state is not holdfast.State.READY:
            await asyncio.sleep(0.01)


async def test_a_repeated_nack_is_not_believed_by_the_error_of_an_earlier_one(
    proxy: FaultProxy, far: AsyncHoldfast, clock: ManualClock
) -> None:
    q = far.queue("q")
    await q.enqueue(1)
    [first] = await q.claim()
    await first.nack("broken", delay=0)
    [late] = await q.claim(lease=1)
    clock.advance(1_000)
    await until_ready(q, late.id)
    proxy.inject(LOST_ANSWER)
    with pytest.raises(holdfast.StaleLease) as refused:
        await late.nack("broken")
    assert refused.value.facts["is_unsure"]


async def test_a_verdict_that_lost_its_lease_is_refused_for_sure(
    proxy: FaultProxy, far: AsyncHoldfast, clock: ManualClock
) -> None:
    q = far.queue("q")
    await q.enqueue(1)
    [m] = await q.claim(lease=1)
    clock.advance(1_000)
    [other] = await q.claim(lease=60)
    proxy.inject(LOST_ANSWER)
    with pytest.raises(holdfast.StaleLease) as refused:
        await m.ack()
    assert not refused.value.facts["is_unsure"]
    await other.ack()


async def test_a_repeated_extend_that_comes_too_late_for_the_lease_it_made_shorter_says_that_it_is_unsure(
    server: Server, clock: ManualClock
) -> None:
    tries = 0

    def plan(connection: int, exchange: int) -> Fault | None:
        """Loses the answer to the first extend; the lease runs out before the second."""
        nonlocal tries
        tries += is_extending
        if tries == 2:
            clock.advance(1_000)
        return LOST_ANSWER if tries == 1 else None

    is_extending = False
    async with FaultProxy(server.url, plan) as proxy, holdfast.open_async(proxy.url) as far:
        q = far.queue("q")
        await q.enqueue(1)
        [m] = await q.claim(lease=60)
        is_extending = True
        with pytest.raises(holdfast.StaleLease) as refused:
            await m.extend(1)
    assert refused.value.facts["is_unsure"]


async def test_a_claim_whose_answer_was_lost_is_made_again(
    proxy: FaultProxy, far: AsyncHoldfast, clock: ManualClock
) -> None:
    q = far.queue("q")
    await q.enqueue([1, 2])
    proxy.inject(LOST_ANSWER)
    [m] = await q.claim(lease=5)
    assert m.json() == 2  # the first is held by the claim that was not heard of
    clock.advance(5_000)
    [m] = await q.claim()
    assert m.json() == 1


async def test_a_server_that_is_closing_is_asked_again_even_without_a_key(server: Server, hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    await q.enqueue(0)
    server.drain.is_draining = True
    sending = asyncio.create_task(q.enqueue(1))

    async def was_refused() -> bool:
        return ("enqueue", None, "store_unavailable") in server.requests.seen

    await until(was_refused)
    assert not sending.done()
    server.drain.is_draining = False
    await soon(sending)
    assert (await q.stats()).ready == 2


async def test_a_rate_is_waited_out_and_a_quota_is_raised(
    server: Server, hf: AsyncHoldfast, clock: ManualClock
) -> None:
    q = hf.queue("q")
    await q.set_policy(limits={"write_ops_per_s": 1, "burst_s": 1})
    await q.enqueue(1)
    sending = asyncio.create_task(q.enqueue(2))

    async def was_refused() -> bool:
        return any(outcome == "rate_limited" for _, _, outcome in server.requests.seen)

    await until(was_refused)
    clock.advance(1_000)
    await soon(sending)
    await q.set_policy(limits={"write_ops_per_s": None})
    await hf.tenant().set(quotas={"max_messages": 2})
    with pytest.raises(holdfast.OverQuota):
        await soon(q.enqueue(3))
