"""The hot routes: enqueue, dequeue, verdicts, state documents, subscribe."""

import asyncio
import json
from email.message import Message
from email.parser import BytesParser
from typing import Any

import aiohttp
import pytest

from holdfast.testing import ManualClock
from tests.doors.serving import Answer, Server

WHERE = {"tenant": "acme", "queue": "jobs"}


async def ack(server: Server, *receipts: str) -> Answer:
    return await server.post("/v1/queue/ack", {**WHERE, "receipts": list(receipts)})


@pytest.mark.spec("8.1")
async def test_a_message_comes_out_as_it_went_in(stored: Server, clock: ManualClock) -> None:
    message = {
        "payload": {"n": [1, "ü", None]},
        "headers": {"kind": "x"},
        "priority": 7,
        "group": "g",
        "correlation_id": "order-7",
    }
    answer = await stored.post("/v1/queue/enqueue", {**WHERE, "messages": [message]})
    [enqueued] = answer.json["messages"]
    assert set(enqueued) == {"id", "snowflake", "correlation_id", "duplicate"}
    assert answer.headers["X-Correlation-Id"] == "order-7"
    [delivered] = await stored.dequeue(lease_ms=1_000)
    receipt = delivered.pop("receipt")
    assert delivered == {
        **message,
        "id": enqueued["id"],
        "snowflake": enqueued["snowflake"],
        "content_type": "application/json",
        "attempt": 1,
        "version": 1,
        "enqueued_at": clock.now_ms(),
        "lease_expires_at": clock.now_ms() + 1_000,
    }
    assert (await ack(stored, receipt)).json["results"][0]["ok"] is True


@pytest.mark.spec("8.1")
async def test_bytes_come_out_as_base64(server: Server) -> None:
    await server.post("/v1/queue/enqueue", {**WHERE, "messages": [{"payload_base64": "AP8="}]})
    [delivered] = await server.dequeue()
    assert (delivered["payload_base64"], delivered["content_type"]) == ("AP8=", "application/octet-stream")
    assert "payload" not in delivered


@pytest.mark.spec("3.2")
async def test_one_wrong_message_keeps_out_all_of_them(server: Server) -> None:
    for wrong in ({}, {"payload": 1, "payload_base64": ""}, {"payload_base64": "?"}, {"payload": 1, "delay": 5}):
        answer = await server.post("/v1/queue/enqueue", {**WHERE, "messages": [{"payload": 1}, wrong]})
        assert (answer.status, answer.code) == (400, "invalid_argument")
        assert "messages[1]" in answer.json["error"]["field"]
    assert (await server.get("/v1/tenants")).json == {"tenants": []}


@pytest.mark.spec("8.1")
async def test_a_stale_receipt_answers_409_and_the_others_hold(stored: Server, clock: ManualClock) -> None:
    await stored.enqueue("stale", "held")
    [stale] = await stored.dequeue(lease_ms=10)
    clock.advance(11)
    held = await stored.dequeue(2)
    answer = await ack(stored, stale["receipt"], held[1]["receipt"])
    assert answer.status == 409
    assert answer.code == "queue_message_lease_mismatch"
    first, second = answer.json["results"]
    assert (first["id"], first["ok"], first["error"]) == (stale["id"], False, "queue_message_lease_mismatch")
    assert (second["ok"], "error" in second) == (True, False)
    assert (await stored.get("/v1/queue/stats", **WHERE)).json["in_flight"] == 1


async def test_a_nack_says_when_the_message_comes_back(stored: Server, clock: ManualClock) -> None:
    await stored.enqueue(1, 2)
    one, two = await stored.dequeue(2)
    receipts = [{"receipt": one["receipt"], "error": "no", "delay_ms": 500}, {"receipt": two["receipt"], "final": True}]
    answer = await stored.post("/v1/queue/nack", {**WHERE, "receipts": receipts})
    assert [(each["state"], each["retry_at"]) for each in answer.json["results"]] == [
        ("ready", clock.now_ms() + 500),
        ("failed", None),
    ]


async def test_extend_sets_and_release_gives_back(stored: Server, clock: ManualClock) -> None:
    await stored.enqueue(1)
    [held] = await stored.dequeue()
    document = {**WHERE, "receipts": [held["receipt"]], "lease_ms": 9_000}
    extended = await stored.post("/v1/queue/extend", document)
    assert extended.json["results"][0]["lease_expires_at"] == clock.now_ms() + 9_000
    released = await stored.post("/v1/queue/release", {**WHERE, "receipts": [held["receipt"]]})
    assert released.status == 200
    [again] = await stored.dequeue()
    assert (again["attempt"], again["version"]) == (2, 2)


async def test_verdicts_ride_on_a_dequeue_and_a_stale_one_does_not_stop_it(stored: Server) -> None:
    await stored.enqueue(1, 2)
    [first] = await stored.dequeue()
    verdicts = [{"receipt": first["receipt"], "verdict": "ack"}] * 2
    answer = await stored.post("/v1/queue/dequeue", {**WHERE, "verdicts": verdicts})
    assert answer.status == 200
    assert [each["ok"] for each in answer.json["results"]] == [True, False]
    assert len(answer.json["messages"]) == 1


async def test_an_exchange_settles_and_claims_in_one_call(stored: Server) -> None:
    await stored.enqueue(1, 2, 3)
    first, second = await stored.dequeue(limit=2)
    verdicts = [
        {"receipt": first["receipt"], "verdict": "ack"},
        {"receipt": second["receipt"], "verdict": "nack", "error": "e", "delay_ms": 60_000},
        {"receipt": first["receipt"], "verdict": "release"},
    ]
    answer = await stored.post("/v1/queue/exchange", {**WHERE, "verdicts": verdicts, "limit": 5})
    assert answer.status == 200
    assert [each["ok"] for each in answer.json["results"]] == [True, True, False]
    assert [each["payload"] for each in answer.json["messages"]] == [3]
    empty = await stored.post("/v1/queue/exchange", {**WHERE, "verdicts": []})
    assert empty.json == {"messages": [], "results": []}


async def test_an_exchange_waits_for_a_message_once_its_verdicts_are_settled(stored: Server) -> None:
    await stored.enqueue(1)
    [held] = await stored.dequeue()
    document = {**WHERE, "verdicts": [{"receipt": held["receipt"], "verdict": "ack"}], "wait_ms": None}
    waiting = asyncio.create_task(stored.post("/v1/queue/exchange", document))
    while (await stored.get("/v1/queue/stats", **WHERE)).json["waiters"] == 0:
        await asyncio.sleep(0)
    assert (await stored.get("/v1/queue/stats", **WHERE)).json["in_flight"] == 0
    await stored.enqueue(2)
    answer = await waiting
    assert [each["ok"] for each in answer.json["results"]] == [True]
    assert [each["payload"] for each in answer.json["messages"]] == [2]


@pytest.mark.parametrize(
    "wrong",
    [{}, {"verdicts": None}, {"verdicts": [{"receipt": "x", "verdict": "ack"}]}, {"verdicts": [], "wait_ms": -1}],
)
async def test_an_exchange_without_verdicts_or_with_a_wrong_one_is_refused(
    server: Server, wrong: dict[str, Any]
) -> None:
    answer = await server.post("/v1/queue/exchange", {**WHERE, **wrong})
    assert (answer.status, answer.code) == (400, "invalid_argument")


@pytest.mark.parametrize(
    "wrong", [{"wait_ms": -1}, {"limit": 0}, {"limit": 10_001}, {"lease_ms": 0}, {"owner": ""}, {"limits": 1}]
)
async def test_a_wrong_dequeue_is_refused_whether_or_not_something_is_ready(
    server: Server, wrong: dict[str, Any]
) -> None:
    for _ in range(2):
        answer = await server.post("/v1/queue/dequeue", {**WHERE, **wrong})
        assert (answer.status, answer.code) == (400, "invalid_argument")
        assert next(iter(wrong)) in answer.json["error"]["message"]
        await server.enqueue(1)


async def test_a_queue_that_does_not_exist_yet_has_nothing(server: Server) -> None:
    assert await server.dequeue() == []


@pytest.mark.spec("3.6")
async def test_state_is_saved_by_compare_and_swap(stored: Server) -> None:
    await stored.enqueue(1)
    [held] = (await stored.post("/v1/queue/dequeueWithState", WHERE)).json["messages"]
    assert held["state"] == {"document": None, "etag": None}
    change = {**WHERE, "receipt": held["receipt"], "document": {"page": 2}, "etag": None}
    saved = await stored.put("/v1/queue/state", change)
    assert saved.headers["X-Correlation-Id"] == held["correlation_id"]
    refused = await stored.put("/v1/queue/state", change)
    assert (refused.status, refused.code) == (412, "conflict")
    await stored.post("/v1/queue/release", {**WHERE, "receipts": [held["receipt"]]})
    [again] = (await stored.post("/v1/queue/dequeueWithState", WHERE)).json["messages"]
    assert again["state"] == {"document": {"page": 2}, "etag": saved.json["etag"]}


# --- Parts -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("8.1")
async def test_a_message_goes_in_as_parts_and_comes_out_as_parts(stored: Server) -> None:
    form = aiohttp.FormData()
    form.add_field("meta", json.dumps({**WHERE, "content_type": "image/png"}), content_type="application/json")
    form.add_field("payload", b"\x89PNG\r\n--", filename="x.png", content_type="application/octet-stream")
    answer = await stored.post("/v1/queue/enqueue", data=form)
    assert answer.status == 200, answer
    parts = await stored.post("/v1/queue/dequeue", WHERE, headers={"Accept": "multipart/mixed"})
    described, payload = parts_of(parts.headers["Content-Type"], parts.body)
    assert json.loads(described.get_payload(decode=True))["id"] == answer.json["messages"][0]["id"]
    assert payload.get_content_type() == "image/png"
    assert payload.get_payload(decode=True) == b"\x89PNG\r\n--"


def parts_of(content_type: str, body: bytes) -> list[Message]:
    parsed = BytesParser().parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    return list(parsed.get_payload())


# --- Subscriptions ---------------------------------------------------------------------------------------------


async def lines_of(response: aiohttp.ClientResponse, number: int) -> list[Any]:
    async with asyncio.timeout(60):
        return [json.loads(await response.content.readline()) for _ in range(number)]


@pytest.mark.spec("8.1")
async def test_a_subscriber_gets_a_line_a_message_as_they_come(stored: Server) -> None:
    await stored.enqueue("first")
    async with stored.http.post(stored.url + "/v1/queue/subscribe", json=WHERE) as response:
        assert response.content_type == "application/x-ndjson"
        assert [each["payload"] for each in await lines_of(response, 1)] == ["first"]
        await stored.enqueue("second", "third")
        assert [each["payload"] for each in await lines_of(response, 2)] == ["second", "third"]


async def test_no_more_is_under_way_to_a_subscriber_than_it_prefetches(stored: Server) -> None:
    await stored.enqueue(*range(5))
    async with stored.http.post(stored.url + "/v1/queue/subscribe", json={**WHERE, "prefetch": 2}) as response:
        first, second = await lines_of(response, 2)
        assert (await stored.get("/v1/queue/stats", **WHERE)).json["in_flight"] == 2
        await ack(stored, first["receipt"], second["receipt"])
        assert [each["payload"] for each in await lines_of(response, 2)] == [2, 3]


async def test_verdicts_of_a_subscription_are_settled_before_its_first_claim(stored: Server) -> None:
    await stored.enqueue(1, 2)
    [held] = await stored.dequeue()
    verdicts = [{"receipt": held["receipt"], "verdict": "ack"}]
    async with stored.http.post(stored.url + "/v1/queue/subscribe", json={**WHERE, "verdicts": verdicts}) as response:
        results, delivered = await lines_of(response, 2)
    assert [each["ok"] for each in results["results"]] == [True]
    assert delivered["payload"] == 2
    wrong = {**WHERE, "verdicts": [{"receipt": held["receipt"], "verdict": "explode"}]}
    assert (await stored.post("/v1/queue/subscribe", wrong)).code == "invalid_argument"
