"""The compatible door: integer ids, base64, RFC 3339."""

import base64
import re
from typing import Any

import pytest

from holdfast.doors.http.operations.compatible import parse_instant, write_instant
from holdfast.model.errors import InvalidArgument
from holdfast.testing import ManualClock
from tests.doors.serving import Api, Server

WHERE = {"namespace": "acme", "topic": "jobs"}


def item(payload: bytes = b"x", **more: Any) -> dict[str, Any]:
    return {**WHERE, "payload": base64.b64encode(payload).decode(), **more}


async def enqueue(api: Api, *items: dict[str, Any]) -> list[int]:
    answer = await api.post("/enqueue", list(items))
    assert answer.status == 200, answer
    return list(answer.json)


async def dequeue(api: Api, **query: Any) -> list[Any]:
    answer = await api.get("/dequeue", **{**WHERE, **query})
    assert answer.status == 200, answer
    return list(answer.json)


@pytest.mark.spec("8.3")
async def test_items_go_in_and_come_out_with_integer_ids(stored: Server, clock: ManualClock) -> None:
    ids = await enqueue(stored, item(b"\x00\xff", priority=3), item(b"", priority=4))
    assert all(isinstance(id, int) for id in ids)
    answer = await stored.get("/dequeue", **WHERE)
    assert answer.headers["Cache-Control"] == "no-store"
    first, second = answer.json
    assert set(first) == {"id", "id_str", "payload", "lease_expires_at", "receipt", "priority", "attempt"}
    assert [first["id"], second["id"]] == ids
    assert (first["id_str"], first["priority"], first["attempt"]) == (str(ids[0]), 3, 1)
    assert [base64.b64decode(each["payload"]) for each in (first, second)] == [b"\x00\xff", b""]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["lease_expires_at"])
    assert parse_instant(first["lease_expires_at"], "") == clock.now_ms() + 5_000


@pytest.mark.spec("1.1", "8.3")
async def test_namespace_and_topic_are_tenant_and_queue(server: Server) -> None:
    await enqueue(server, item(b"x"))
    assert (await server.get("/v1/queue/stats", tenant="acme", queue="jobs")).json["ready"] == 1
    await enqueue(server, {"payload": "eA=="})
    assert (await server.get("/v1/queue/stats")).json["ready"] == 1


@pytest.mark.spec("8.3")
async def test_ten_items_are_leased_unless_another_limit_is_given(server: Server) -> None:
    await enqueue(server, *[item() for _ in range(15)])
    assert len(await dequeue(server)) == 10
    assert len(await dequeue(server, limit=2)) == 2
    posted = await server.post("/dequeue?namespace=acme", {"topic": "jobs", "limit": 1})
    assert len(posted.json) == 1
    assert len((await server.post("/dequeue", **WHERE)).json) == 2
    assert (await server.get("/dequeue", limit=0)).code == "invalid_argument"
    assert (await server.get("/dequeue", limit=10_001)).code == "invalid_argument"
    assert (await server.post("/dequeue?limit=1", {"limit": 2})).code == "invalid_argument"


@pytest.mark.spec("8.3")
async def test_an_item_is_delivered_after_its_time(stored: Server, clock: ManualClock) -> None:
    at = clock.now_ms() + 60_000
    await enqueue(stored, item(deliver_after=write_instant(at)))
    assert await dequeue(stored) == []
    clock.advance(59_999)
    assert await dequeue(stored) == []
    clock.advance(1)
    assert len(await dequeue(stored)) == 1


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01t01:00:00.5+01:00", 500),
        ("2030-01-31T12:00:00.123456789-08:00", 1_896_120_000_123),
        # What some languages send for "no time".
        ("0001-01-01T00:00:00Z", 0),
    ],
)
def test_an_instant_is_read_as_rfc_3339_says(text: str, at_ms: int) -> None:
    assert parse_instant(text, "deliver_after") == at_ms


NO_INSTANTS = ["", "soon", "2030-01-31T12:00:00", "2030-01-31", "20300131T120000Z", "2030-13-01T00:00:00Z"]
NO_INSTANTS += ["2030-W05-4T00:00:00Z", "2030-01-31T12:00:00+25:00", "2030-01-31T12:00Z", "2030-01-31T12:00:00Z\n"]
NO_INSTANTS += ["\uff12030-01-31T12:00:00Z"]


@pytest.mark.parametrize("text", NO_INSTANTS)
def test_what_is_no_instant_with_a_zone_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="deliver_after"):
        parse_instant(text, "deliver_after")


def test_an_instant_beyond_the_calendar_is_written_as_its_end() -> None:
    assert write_instant(1 << 60) == "9999-12-31T23:59:59.999Z"


@pytest.mark.spec("8.3")
async def test_a_repeated_key_answers_the_first_id(server: Server) -> None:
    first = await enqueue(server, item(idempotency_key="a"), item(idempotency_key="a"), item(idempotency_key="b"))
    assert first[0] == first[1] != first[2]
    assert await enqueue(server, item(idempotency_key="b")) == [first[2]]


async def test_ids_come_in_the_order_of_items_of_several_queues(stored: Server) -> None:
    topics = ["a", "b", "a", "c", "b"]
    ids = await enqueue(stored, *[item(b"%d" % n, topic=topic) for n, topic in enumerate(topics)])
    for n, (id, topic) in enumerate(zip(ids, topics, strict=True)):
        info = await stored.get(f"/v1/tenants/acme/queues/{topic}/messages/{id}", payload=1)
        assert base64.b64decode(info.json["payload_base64"]) == b"%d" % n
    assert await enqueue(stored) == []


@pytest.mark.spec("8.3")
@pytest.mark.parametrize(
    "wrong",
    [
        {"payload": "no base64!"},
        {"payload": None},
        {"topic": "../etc"},
        {"namespace": ".."},
        {"priority": 256},
        {"deliver_after": "tomorrow"},
        {"idempotency_key": ""},
        {"unknown": 1},
    ],
)
async def test_one_wrong_item_keeps_out_all_of_them(server: Server, wrong: dict[str, Any]) -> None:
    answer = await server.post("/enqueue", [item(topic="a"), {**item(topic="b"), **wrong}])
    assert (answer.status, answer.code) == (
        400,
        "invalid_name" if {"topic", "namespace"} & set(wrong) else "invalid_argument",
    )
    assert (await server.get("/v1/tenants")).json == {"tenants": []}


async def test_one_foreign_item_keeps_out_all_of_them(guarded: Server) -> None:
    answer = await guarded.with_token("acme").post("/enqueue", [item(), item(namespace="other")])
    assert (answer.status, answer.code) == (403, "forbidden")
    assert (await guarded.with_token("operator").get("/v1/tenants")).json == {"tenants": []}


@pytest.mark.spec("8.3")
async def test_a_queue_takes_its_items_all_or_none(stored: Server) -> None:
    await stored.put("/v1/tenants/acme", {"quotas": {"max_messages": 2}})
    answer = await stored.post("/enqueue", [item(topic="a"), item(topic="b"), item(topic="a"), item(topic="b")])
    assert (answer.status, answer.code) == (429, "over_quota")
    assert (await stored.get("/v1/queue/stats", tenant="acme", queue="a")).json["ready"] == 2
    assert (await stored.get("/v1/queue/stats", tenant="acme", queue="b")).code == "queue_not_found"


@pytest.mark.spec("8.3")
async def test_ack_with_a_receipt_finishes_an_item_once(stored: Server) -> None:
    await enqueue(stored, item())
    [held] = await dequeue(stored)
    ack = {**WHERE, "id": held["id"], "receipt": held["receipt"]}
    answer = await stored.post("/ack", ack)
    assert (answer.status, answer.json) == (200, {})
    again = await stored.post("/ack", ack)
    assert (again.status, again.code) == (409, "queue_message_lease_mismatch")


async def test_an_id_may_be_given_as_text(server: Server) -> None:
    await enqueue(server, item(), item())
    for held, id in zip(await dequeue(server), ("id", "id_str"), strict=True):
        assert (await server.post("/ack", {**WHERE, "id": held[id]})).status == 200
    assert (await server.post("/ack", {**WHERE, "id": "seven"})).code == "invalid_argument"
    assert (await server.post("/ack", {**WHERE, "id": -1})).code == "invalid_argument"


@pytest.mark.spec("8.3")
async def test_nack_gives_an_item_back_with_its_error(stored: Server, clock: ManualClock) -> None:
    [id] = await enqueue(stored, item())
    [held] = await dequeue(stored)
    nack = {**WHERE, "id": id, "receipt": held["receipt"], "error": "no disk"}
    assert (await stored.post("/nack", nack)).json == {}
    info = (await stored.get(f"/v1/tenants/acme/queues/jobs/messages/{id}")).json
    assert (info["state"], info["last_error"], info["failures"]) == ("ready", "no disk", 1)
    clock.advance(30_000)
    [again] = await dequeue(stored)
    assert again["attempt"] == 2
    stale = await stored.post("/nack", nack)
    assert (stale.status, stale.code) == (409, "queue_message_lease_mismatch")


async def test_a_receipt_of_another_message_is_refused(server: Server) -> None:
    await enqueue(server, item(), item())
    one, two = await dequeue(server)
    answer = await server.post("/ack", {**WHERE, "id": one["id"], "receipt": two["receipt"]})
    assert (answer.status, answer.code) == (400, "invalid_argument")
    assert (await server.get("/v1/queue/stats", tenant="acme", queue="jobs")).json["in_flight"] == 2


async def test_without_identities_anybody_acks_by_a_bare_id(stored: Server) -> None:
    [id] = await enqueue(stored, item())
    await dequeue(stored)
    assert (await stored.post("/ack", {**WHERE, "id": id})).status == 200


@pytest.mark.spec("8.3")
async def test_a_bare_id_is_for_the_bearer_that_claimed_it(guarded: Server) -> None:
    worker, other = guarded.with_token("acme-worker"), guarded.with_token("acme-reader")
    [id] = await enqueue(worker, item())
    [held] = await dequeue(worker)
    for stranger in (other, guarded.with_token("acme-nobody"), guarded.with_token("operator")):
        for verb in ("ack", "nack"):
            answer = await stranger.post(f"/{verb}", {**WHERE, "id": id})
            assert (answer.status, answer.code) == (409, "queue_message_lease_mismatch")
    foreign = await guarded.with_token("other").post("/ack", {**WHERE, "id": id})
    assert (foreign.status, foreign.code) == (403, "forbidden")
    assert (await worker.post("/ack", {**WHERE, "id": held["id"]})).status == 200


async def test_a_receipt_serves_whoever_has_it(guarded: Server) -> None:
    await enqueue(guarded.with_token("acme-worker"), item())
    [held] = await dequeue(guarded.with_token("acme-worker"))
    ack = {**WHERE, "id": held["id"], "receipt": held["receipt"]}
    assert (await guarded.with_token("acme-reader").post("/ack", ack)).status == 200


async def test_a_bearer_without_a_subject_holds_what_nobody_else_does(guarded: Server) -> None:
    nobody = guarded.with_token("acme-nobody")
    ids = await enqueue(nobody, item(), item())
    await dequeue(nobody, limit=1)
    await dequeue(guarded.with_token("acme-worker"), limit=1)
    assert (await nobody.post("/ack", {**WHERE, "id": ids[0]})).status == 200
    assert (await nobody.post("/ack", {**WHERE, "id": ids[1]})).status == 409


async def test_a_bare_id_after_its_lease_ran_out_is_refused(stored: Server, clock: ManualClock) -> None:
    [id] = await enqueue(stored, item())
    await dequeue(stored)
    clock.advance(5_001)
    answer = await stored.post("/ack", {**WHERE, "id": id})
    assert (answer.status, answer.code) == (409, "queue_message_lease_mismatch")


@pytest.mark.parametrize("topic", ["jobs", "nowhere"])
async def test_an_item_that_is_not_there_is_answered_as_one_that_is_not_held(server: Server, topic: str) -> None:
    await enqueue(server, item())
    answer = await server.post("/ack", {"namespace": "acme", "topic": topic, "id": 1})
    assert (answer.status, answer.code) == (409, "queue_message_lease_mismatch")


async def test_a_dequeue_looks_at_nothing_but_the_authorization_header(guarded: Server) -> None:
    await enqueue(guarded.with_token("acme"), item())
    cookie = {"Cookie": "Authorization=Bearer acme; token=acme"}
    answer = await guarded.get("/dequeue", headers=cookie, **WHERE)
    assert (answer.status, answer.code) == (401, "unauthenticated")


async def test_a_large_answer_to_a_caller_that_left_is_given_back(server: Server) -> None:
    await enqueue(server, *[item(b"x" * 1_000_000) for _ in range(6)])
    async with server.http.get(server.url + "/dequeue?namespace=acme&topic=jobs") as response:
        await response.content.readexactly(10)
        response.close()
    for _ in range(1_000):
        if (await server.get("/v1/queue/stats", tenant="acme", queue="jobs")).json["ready"] == 6:
            return
    pytest.fail("what it did not read is still held")
