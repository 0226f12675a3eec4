"""Rate limits over HTTP: refusals say when to try again, and allowances are exact."""

import asyncio
import itertools
from typing import Any

import pytest

from holdfast.testing import ManualClock
from tests.doors.serving import Answer, Server, serve
from tests.waiting import until

ENQUEUE = "/v1/queue/enqueue"
OWN = {"tenant": "acme", "queue": "jobs"}
QUEUE = "/v1/tenants/acme/queues/jobs"


async def enqueue(server: Server, count: int = 1, payload: Any = 1, **where: str) -> Answer:
    return await server.post(ENQUEUE, {**OWN, **where, "messages": [{"payload": payload}] * count})


async def dequeue(server: Server, **more: Any) -> Answer:
    return await server.post("/v1/queue/dequeue", {**OWN, **more})


async def stats(server: Server) -> Any:
    return (await server.get("/v1/queue/stats", **OWN)).json


async def set_limits(server: Server, of: str, **limits: float) -> None:
    path = "/v1/tenants/acme" if of == "tenant" else QUEUE
    assert (await server.put(path, {"limits": limits})).status == 200


def wait_of(answer: Answer) -> int:
    """Return the wait that a refusal asks for. The header and the body must agree."""
    assert (answer.status, answer.code) == (429, "rate_limited"), answer
    wait_ms = answer.json["error"]["retry_after_ms"]
    assert isinstance(wait_ms, int)
    assert wait_ms >= 1
    seconds = answer.headers["Retry-After"]
    assert seconds.isdigit()
    assert int(seconds) == max(1, -(-wait_ms // 1_000))
    return int(wait_ms)


# --- Rates -----------------------------------------------------------------------------------------------------

RATES = {
    "write_ops_per_s": 2,
    "write_bytes_per_s": 2,
    "read_ops_per_s": 2,
    "read_bytes_per_s": 2,
}


@pytest.mark.parametrize(("limit", "of"), [*itertools.product(RATES, ("tenant", "queue"))])
async def test_over_a_rate_a_call_is_refused_until_it_said_and_others_are_not(
    server: Server, clock: ManualClock, limit: str, of: str
) -> None:
    for tenant in ("acme", "other"):
        assert (await enqueue(server, 20, tenant=tenant)).status == 200
    await set_limits(server, of, **{limit: RATES[limit], "burst_s": 1})
    call = enqueue if limit.startswith("write") else dequeue
    assert [(await call(server)).status for _ in range(2)] == [200, 200]
    before = await stats(server)
    refused = await call(server)
    wait_ms = wait_of(refused)
    assert refused.json["error"]["limit"] == limit
    assert refused.json["error"]["of"] == of
    assert await stats(server) == before
    # The other kind of call, another tenant and the verdicts continue as before.
    other = dequeue if limit.startswith("write") else enqueue
    assert (await other(server)).status == 200
    assert (await call(server, tenant="other")).status == 200
    clock.advance(wait_ms - 1)
    assert (await call(server)).status == 429
    clock.advance(1)
    assert (await call(server)).status == 200
    assert (await call(server)).status == 429


async def test_every_message_of_a_batch_counts_and_a_refused_batch_costs_nothing(
    server: Server, clock: ManualClock
) -> None:
    await set_limits(server, "tenant", write_ops_per_s=10, burst_s=1)
    assert (await enqueue(server, 6)).status == 200
    wait_ms = wait_of(await enqueue(server, 6))
    assert (await enqueue(server, 4)).status == 200
    assert (await stats(server))["ready"] == 10
    clock.advance(1_000)
    assert wait_ms < 1_000
    assert (await enqueue(server, 10)).status == 200


async def test_the_compatible_door_and_parts_are_counted_with_the_rest(server: Server) -> None:
    await set_limits(server, "tenant", write_ops_per_s=1, read_ops_per_s=1, burst_s=1)
    item = {"namespace": "acme", "topic": "jobs", "payload": "YQ=="}
    assert (await server.post("/enqueue", [item])).status == 200
    wait_of(await server.post("/enqueue", [item]))
    wait_of(await enqueue(server))
    parts = (
        b'--b\r\nContent-Disposition: form-data; name="meta"\r\n\r\n{"tenant":"acme","queue":"jobs"}\r\n'
        b'--b\r\nContent-Disposition: form-data; name="payload"\r\n\r\nx\r\n--b--\r\n'
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    wait_of(await server.call("POST", ENQUEUE, data=parts, headers=headers))
    assert (await server.get("/dequeue", namespace="acme", topic="jobs")).status == 200
    wait_of(await server.get("/dequeue", namespace="acme", topic="jobs"))
    wait_of(await server.post("/v1/queue/dequeueWithState", OWN))
    wait_of(await server.post("/v1/queue/ledger/claim", {**OWN, "consumer": "c", "number": 1}))
    for path in ("/messages", "/peek", "/messages/1"):
        wait_of(await server.get(QUEUE + path))


async def test_verdicts_are_never_rate_limited(server: Server) -> None:
    await enqueue(server, 5)
    held = [each["receipt"] for each in (await dequeue(server, limit=5, lease_ms=60_000)).json["messages"]]
    for of in ("tenant", "queue"):
        await set_limits(server, of, write_ops_per_s=0, write_bytes_per_s=0, read_ops_per_s=0, read_bytes_per_s=0)
    assert wait_of(await enqueue(server)) == wait_of(await dequeue(server)) == 60_000
    for _ in range(3):
        extended = await server.post("/v1/queue/extend", {**OWN, "receipts": held, "lease_ms": 60_000})
        assert extended.status == 200
    for verdict, receipt in zip(("ack", "nack", "release"), held, strict=False):
        assert (await server.post(f"/v1/queue/{verdict}", {**OWN, "receipts": [receipt]})).status == 200
    # What rides on a claim is settled, and the caller hears of it; its next claim is told to wait.
    riding = await dequeue(server, verdicts=[{"receipt": held[3], "verdict": "ack"}])
    assert (riding.status, riding.json["messages"]) == (200, [])
    assert [each["ok"] for each in riding.json["results"]] == [True]
    await server.delete(QUEUE)
    riding = await dequeue(server, verdicts=[{"receipt": held[4], "verdict": "ack"}])
    assert [each["ok"] for each in riding.json["results"]] == [True]


# --- Quotas ----------------------------------------------------------------------------------------------------


async def set_quotas(server: Server, **quotas: int) -> None:
    assert (await server.put("/v1/tenants/acme", {"quotas": quotas})).status == 200


@pytest.mark.spec("8.9")
async def test_a_quota_of_messages_is_exact_under_a_hundred_enqueues_at_once(stored: Server) -> None:
    await set_quotas(stored, max_messages=50)
    answers = await asyncio.gather(*(enqueue(stored, queue=f"q{number % 7}") for number in range(100)))
    assert sorted(each.status for each in answers) == [200] * 50 + [429] * 50
    for refused in (each for each in answers if each.status == 429):
        assert refused.code == "over_quota"
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json["error"]["retry_after_ms"] >= 1
    tenant = (await stored.get("/v1/tenants/acme")).json
    assert tenant["stats"]["ready"] == 50
    # What is settled makes room, exactly.
    [held] = (await dequeue(stored, queue="q0")).json["messages"]
    assert (await enqueue(stored)).code == "over_quota"
    await stored.post("/v1/queue/ack", {**OWN, "queue": "q0", "receipts": [held["receipt"]]})
    assert [(await enqueue(stored)).status for _ in range(2)] == [200, 429]


async def test_a_quota_of_bytes_is_exact_and_a_batch_is_taken_whole_or_not(stored: Server) -> None:
    await set_quotas(stored, max_bytes=100)
    answers = await asyncio.gather(*(enqueue(stored, 3, "x" * 8) for _ in range(20)))
    assert sorted(each.status for each in answers) == [200] * 3 + [429] * 17
    assert (await stats(stored))["bytes"] == 90
    assert (await enqueue(stored, 1, "x" * 8)).status == 200
    assert (await enqueue(stored, 1, 1)).code == "over_quota"


@pytest.mark.spec("1.3")
async def test_a_quota_of_queues_is_exact(stored: Server) -> None:
    await set_quotas(stored, max_queues=5)
    answers = await asyncio.gather(*(enqueue(stored, queue=f"q{number}") for number in range(20)))
    assert sorted(each.status for each in answers) == [200] * 5 + [429] * 15
    assert len((await stored.get("/v1/tenants/acme/queues")).json["queues"]) == 5
    refused = await stored.put("/v1/tenants/acme/queues/one-more", {})
    assert (refused.status, refused.code) == (429, "over_quota")
    assert (await enqueue(stored, tenant="other")).status == 200


async def test_a_message_over_its_tenants_limit_is_too_large_and_its_batch_not_taken(stored: Server) -> None:
    await set_quotas(stored, max_message_bytes=10)
    messages = [{"payload": 1}, {"payload": "x" * 9}]
    answer = await stored.post(ENQUEUE, {**OWN, "messages": messages})
    assert (answer.status, answer.code) == (413, "payload_too_large")
    assert "Retry-After" not in answer.headers
    headers = [{"payload": 1, "headers": {"a": "x" * 9}}]
    assert (await stored.post(ENQUEUE, {**OWN, "messages": headers})).status == 413
    assert (await stored.get("/v1/tenants/acme")).json["stats"]["ready"] == 0
    assert (await enqueue(stored, 1, "x" * 8)).status == 200


# --- Calls under way -------------------------------------------------------------------------------------------


async def waiting(server: Server, expected: int, tenant: str = "acme") -> None:
    await until(lambda: server.core.dispatcher.count_tenant_waiters(tenant) == expected)


async def settle_down() -> None:
    """Until what was sent has come as far as it can: in turns of the loop, which a stall does not take away."""
    for _ in range(50):
        await asyncio.sleep(0.002)


async def test_one_claim_too_many_waits_its_turn_and_is_refused_after_it(server: Server, clock: ManualClock) -> None:
    await server.put(QUEUE, {"max_claims": 2})
    claims = [asyncio.create_task(dequeue(server, wait_ms=60_000)) for _ in range(2)]
    await waiting(server, 2)
    third = asyncio.create_task(dequeue(server, wait_ms=60_000))
    await settle_down()
    assert not third.done()
    clock.advance(5_001)
    refused = await asyncio.wait_for(third, 60)
    wait_of(refused)
    assert refused.json["error"]["limit"] == "max_claims"
    # The two that were there have noticed nothing, and are served.
    await waiting(server, 2)
    await enqueue(server, 2)
    served = [await asyncio.wait_for(each, 60) for each in claims]
    assert [len(each.json["messages"]) for each in served] == [1, 1]
    assert (await dequeue(server)).status == 200


@pytest.mark.spec("8.8")
async def test_one_enqueue_too_many_is_refused_after_its_turn_did_not_come(server: Server, clock: ManualClock) -> None:
    await server.put(QUEUE, {"max_enqueues": 0})
    call = asyncio.create_task(enqueue(server))
    await settle_down()
    assert not call.done()
    clock.advance(5_001)
    refused = await asyncio.wait_for(call, 60)
    wait_of(refused)
    assert refused.json["error"]["limit"] == "max_enqueues"
    assert (await stats(server))["ready"] == 0
    await server.put(QUEUE, {"max_enqueues": 1})
    answers = await asyncio.gather(*(enqueue(server) for _ in range(20)))
    assert {each.status for each in answers} == {200}
    assert (await stats(server))["ready"] == 20


@pytest.mark.spec("7.2")
async def test_one_waiting_claim_too_many_is_refused_and_the_others_are_untouched(clock: ManualClock) -> None:
    async with serve(clock, queue_max_consumers=3) as server:
        tenants = ("acme", "acme", "other")
        claims = [asyncio.create_task(dequeue(server, tenant=each, wait_ms=None)) for each in tenants]
        await waiting(server, 2)
        await waiting(server, 1, "other")
        refused = await asyncio.wait_for(dequeue(server, wait_ms=600_000), 60)
        wait_of(refused)
        # One that does not wait needs no place.
        assert (await dequeue(server)).json["messages"] == []
        await waiting(server, 2)
        await enqueue(server, 2)
        await enqueue(server, tenant="other")
        served = [await asyncio.wait_for(each, 60) for each in claims]
        assert [each.status for each in served] == [200] * 3
        assert [len(each.json["messages"]) for each in served] == [1] * 3
