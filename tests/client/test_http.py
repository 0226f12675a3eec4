"""The client over HTTP: what a network adds, and what it must not take away. (That the laws hold through it is proved
by tests/stores/test_http_laws.py.)"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.queue import AsyncQueue
from holdfast.model.message import Receipt
from holdfast.model.requests import Ask, Settle, Verdict
from holdfast.testing import ManualClock
from holdfast.testing.proxy import Fault, FaultProxy, Kind
from tests.client.answering import answering
from tests.doors.serving import Server, Tokens, caller, serve

PATIENCE_S = 30
# The server did what it was asked, and the client does not hear of it.
LOST_ANSWER = Fault(Kind.CUT_BEFORE_REPLY)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(clock: ManualClock) -> AsyncIterator[Server]:
    async with serve(clock) as serving:
        yield serving


@pytest.fixture
async def hf(server: Server) -> AsyncIterator[AsyncHoldfast]:
    async with holdfast.open_async(server.url) as opened:
        yield opened


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.url) as opened:
        yield opened


@pytest.fixture
async def far(proxy: FaultProxy) -> AsyncIterator[AsyncHoldfast]:
    """A client whose way to the server the test can break."""
    async with holdfast.open_async(proxy.url) as opened:
        yield opened


def calls(server: Server, operation: str) -> int:
    return sum(1 for seen, _, _ in server.requests.seen if seen == operation)


async def soon(work: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await work


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.001)


async def until_waiting(q: AsyncQueue, number: int) -> None:
    async def is_so() -> bool:
        return (await q.stats()).waiters == number

    await until(is_so)


# --- Opening ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tokn": "x"}, "tokn"),
        ({"durability": "os"}, "durability"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": 0}, "timeout"),
        ({"retries": -1}, "retries"),
        ({"pool": 0}, "pool"),
        ({"token": "two words"}, "token"),
        ({"token": "line\n"}, "token"),
        ({"tls_ca": "ca.pem"}, "tls_ca"),
        ({"wait_round": 0}, "wait_round"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(holdfast.InvalidArgument) as refused:
        holdfast.open_async("http://localhost:7077", **settings)
    assert refused.value.facts["field"] == named
    assert named in refused.value.message


@pytest.mark.parametrize(
    "url", ["http://", "http://:7077", "http://host:port", "http://host:99999", "http://host/?token=x", "http://host#x"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(holdfast.InvalidArgument):
        holdfast.open_async(url)


@pytest.mark.parametrize("url", ["http://ada:secret@host:7077", "https://secret@host"])
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(holdfast.InvalidArgument, match="token") as refused:
        holdfast.open_async(url)
    assert "secret" not in refused.value.message


async def test_a_token_is_sent_from_the_setting_the_variable_or_a_function(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = iter(["good", "good", "stale"])
    async with serve(clock, identity=Tokens({"good": caller("default", "admin")})) as server:
        monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
        async with holdfast.open_async(server.url) as hf:
            with pytest.raises(holdfast.Unauthenticated):
                await hf.queue("q").enqueue(1)
        async with holdfast.open_async(server.url, token="good") as hf:
            await hf.queue("q").enqueue(1)
        async with holdfast.open_async(server.url, token=lambda: next(tokens)) as hf:
            await hf.queue("q").enqueue(2)
            await hf.queue("q").enqueue(3)
            with pytest.raises(holdfast.Unauthenticated):
                await hf.queue("q").enqueue(4)
        monkeypatch.setenv("HOLDFAST_TOKEN", "good")
        async with holdfast.open_async(server.url) as hf:
            assert (await hf.queue("q").stats()).ready == 3


async def test_a_server_below_a_path_is_asked_there() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with holdfast.open_async(f"http://127.0.0.1:{port}/queues/") as hf:
        await hf.queue("q").pause()
    listening.close()
    assert seen[0].startswith(b"POST /queues/v1/tenants/default/queues/q/pause HTTP/1.1\r\n")


# --- Errors ----------------------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_named_with_what_to_do() -> None:
    async with FaultProxy("http://127.0.0.1:1") as gone:
        url = gone.url
    async with holdfast.open_async(url) as hf:
        with pytest.raises(holdfast.StoreUnavailable, match="holdfast serve") as refused:
            await hf.queue("q").enqueue(1)
    assert url in refused.value.message


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>", holdfast.InvalidArgument),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", holdfast.InvalidArgument),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", holdfast.InvalidArgument),
        (b"HTTP/1.1 301 Moved\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", holdfast.InvalidArgument),
        (b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", holdfast.PayloadTooLarge),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", holdfast.Unauthenticated),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", holdfast.StoreUnavailable),
        (b"SSH-2.0-OpenSSH_9.6\r\n", holdfast.StoreUnavailable),
    ],
)
async def test_what_is_not_holdfast_is_told_apart(answer: bytes, kind: type[holdfast.HoldfastError]) -> None:
    async with answering(answer) as url, holdfast.open_async(url, retries=0) as hf:
        with pytest.raises(kind) as refused:
            await hf.queue("q").stats()
    assert url in refused.value.message


async def test_the_servers_errors_come_with_their_facts(clock: ManualClock) -> None:
    async with serve(clock, max_payload=10) as server, holdfast.open_async(server.url) as hf:
        with pytest.raises(holdfast.PayloadTooLarge) as refused:
            await hf.queue("q").enqueue(b"x" * 11)
        assert (refused.value.facts["bytes"], refused.value.facts["limit"]) == (11, 10)
        with pytest.raises(holdfast.QueueNotFound):
            await hf.queue("nowhere").stats()


# --- Connections -----------------------------------------------------------------------------------------------


async def test_one_connection_serves_call_after_call(proxy: FaultProxy, far: AsyncHoldfast) -> None:
    q = far.queue("q")
    for number in range(20):
        await q.enqueue(number)
    for _ in range(20):
        async with (await q.claim())[0]:
            pass
    assert proxy.connections == 1


async def test_a_connection_that_died_while_idle_is_replaced_without_a_word(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    q = far.queue("q")
    await q.enqueue(1)
    await proxy.cut()
    await q.enqueue(2)  # without a key: nothing was sent into the dead one
    assert (await q.stats()).ready == 2


async def test_claims_that_wait_leave_connections_for_verdicts(server: Server) -> None:
    async with holdfast.open_async(server.url, pool=1) as hf:
        q = hf.queue("q")
        await q.enqueue(1)
        [held] = await q.claim()
        waiting = [asyncio.create_task(q.claim(wait=None)) for _ in range(5)]
        await until_waiting(q, 5)
        await soon(held.ack())
        await q.enqueue(list(range(5)))
        assert sorted(m.json() for [m] in await soon(asyncio.gather(*waiting))) == list(range(5))


async def test_large_payloads_go_and_come_whole(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    payload = bytes(range(256)) * 2_000
    await q.enqueue(payload, headers={"a": "b"}, key="k", priority=3, content_type="image/png")
    await q.enqueue("x" * 500_000)
    first, second = await q.claim(limit=2)
    assert (first.payload, first.headers, first.priority, first.content_type) == (payload, {"a": "b"}, 3, "image/png")
    assert second.json() == "x" * 500_000
    assert (await q.enqueue(payload, key="k"))[0].duplicate


# --- Repeats ---------------------------------------------------------------------------------------------------


async def test_an_enqueue_with_a_key_whose_answer_was_lost_is_repeated_and_enqueues_once(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    q = far.queue("q")
    proxy.strike(LOST_ANSWER)
    [id] = await q.enqueue(1, key="order-1")
    assert id.duplicate  # the first try held
    proxy.strike(LOST_ANSWER)
    ids = await q.enqueue([holdfast.NewMessage(n, key=str(n)) for n in range(3)])
    assert (await q.stats()).ready == 4
    assert len(set(ids)) == 3


async def test_an_enqueue_without_a_key_whose_answer_was_lost_is_not_repeated(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    q = far.queue("q")
    proxy.strike(LOST_ANSWER)
    with pytest.raises(holdfast.StoreUnavailable, match="key"):
        await q.enqueue(1)
    proxy.strike(LOST_ANSWER)
    with pytest.raises(holdfast.StoreUnavailable, match="key"):
        await q.enqueue([holdfast.NewMessage(1, key="a"), 2])
    assert (await q.stats()).ready == 3


async def test_an_error_tells_a_call_that_was_never_sent_from_one_that_may_have_happened(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    proxy.strike(LOST_ANSWER)
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
    proxy.strike(LOST_ANSWER)
    with pytest.raises(holdfast.StoreUnavailable, match="not known"):
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
        proxy.strike(LOST_ANSWER)
        await soon(work())


async def test_a_repeated_ack_that_comes_too_late_for_itself_says_that_it_is_unsure(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    q = far.queue("q")
    await q.enqueue(1)
    [m] = await q.claim()
    proxy.strike(LOST_ANSWER)
    with pytest.raises(holdfast.StaleLease, match="first try") as refused:
        await m.ack()
    assert refused.value.facts["is_unsure"]


async def test_a_repeated_verdict_is_believed_where_the_message_tells_that_it_held(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    q = far.queue("q")
    await q.set_policy(keep_succeeded_ms=60_000)
    await q.enqueue([1, 2, 3])
    acked, nacked, extended = await q.claim(limit=3)
    proxy.strike(LOST_ANSWER)
    await acked.ack()
    proxy.strike(LOST_ANSWER)
    assert (await nacked.nack("broken", delay=60)).state is holdfast.State.READY
    proxy.strike(LOST_ANSWER)
    await extended.extend(60)
    assert (await q.get(nacked.id)).failures == 1


async def test_a_verdict_that_lost_its_lease_is_refused_for_sure(
    proxy: FaultProxy, far: AsyncHoldfast, clock: ManualClock
) -> None:
    q = far.queue("q")
    await q.enqueue(1)
    [m] = await q.claim(lease=1)
    clock.advance(1_000)
    [other] = await q.claim(lease=60)
    proxy.strike(LOST_ANSWER)
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
    proxy.strike(LOST_ANSWER)
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
    results = await asyncio.gather(*(m.ack() for m in messages), return_exceptions=True)
    assert [at for at, each in enumerate(results) if isinstance(each, holdfast.StaleLease)] == [5]
    assert calls(server, "ack") == 2


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
    exchanged = await q._messages.exchange(q.ref, verdicts, Ask(limit=10))
    assert len(server.requests.seen) == before + 1
    assert [(each.ok, each.state) for each in exchanged.results] == [
        (True, "succeeded"),
        (True, "failed"),
        (True, "ready"),
    ]
    assert [each.payload for each in exchanged.deliveries] == [b"3", b"4"]
    again = await q._messages.exchange(q.ref, verdicts[:1], Ask(limit=10))
    assert [(each.ok, each.error) for each in again.results] == [(False, "stale_lease")]


async def test_an_embedded_queue_takes_verdicts_with_a_claim_too() -> None:
    async with holdfast.open_async("memory://") as hf:
        q = hf.queue("q")
        await q.enqueue([1, 2])
        [m] = await q.claim()
        verdict = Verdict(settle=Settle.ACK, receipt=Receipt.parse(m.receipt))
        results, deliveries = await q._messages.exchange(q.ref, [verdict], Ask(limit=10))
        assert [each.ok for each in results] == [True]
        assert [each.payload for each in deliveries] == [b"2"]


# --- Waiting ---------------------------------------------------------------------------------------------------


async def test_a_wait_goes_on_in_rounds_until_it_is_over(server: Server, clock: ManualClock) -> None:
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
    assert (await q.stats()).waiters == 0
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


@pytest.mark.parametrize("where", ["embedded", "http"])
async def test_verdicts_on_a_claim_over_its_rate_are_heard_of(where: str, server: Server, clock: ManualClock) -> None:
    opened = holdfast.open_async("memory://", clock=clock) if where == "embedded" else holdfast.open_async(server.url)
    async with opened as hf:
        q = hf.queue("q")
        await q.enqueue([1, 2])
        [m] = await q.claim()
        await q.set_policy(limits={"read_ops_per_s": 0})
        verdict = Verdict(settle=Settle.ACK, receipt=Receipt.parse(m.receipt))
        results, deliveries = await soon(q._messages.exchange(q.ref, [verdict], Ask(limit=10)))
        assert ([each.ok for each in results], deliveries) == ([True], [])
        with pytest.raises(holdfast.RateLimited):  # a minute is more than a call waits
            await soon(q.claim())
