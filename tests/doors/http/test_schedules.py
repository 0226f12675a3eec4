"""Schedules over HTTP."""

from typing import Any

import pytest

from holdfast.model.schedules import MAX_PAYLOAD
from holdfast.testing import ManualClock
from holdfast.testing.subject import fire_due
from tests.doors.serving import Server

QUEUE = "/v1/tenants/acme/queues/jobs"
NIGHTLY = QUEUE + "/schedules/nightly"
MESSAGE = {"payload": {"n": 1}, "priority": 7, "headers": {"a": "b"}, "ttl_ms": 9_000_000, "correlation_id": "abc"}


async def test_a_schedule_is_put_looked_up_listed_and_deleted(stored: Server, clock: ManualClock) -> None:
    put = await stored.put(NIGHTLY, {"every_ms": 60_000, "message": MESSAGE})
    assert put.status == 200
    document = {
        "name": "nightly",
        "cron": None,
        "every_ms": 60_000,
        "timezone": "UTC",
        "message": {
            "content_type": "application/json",
            "is_json": True,
            "headers": {"a": "b"},
            "priority": 7,
            "ttl_ms": 9_000_000,
            "group": None,
            "correlation_id": "abc",
            "max_retries": None,
            "bytes": 10,
        },
        "paused": False,
        "next_at": clock.now_ms() + 60_000,
        "last_at": None,
        "last_id": None,
        "last_error": None,
    }
    assert put.json == document
    assert (await stored.get(NIGHTLY)).json == document
    assert (await stored.get(QUEUE + "/schedules")).json == {"schedules": [document]}
    with_payload = (await stored.get(NIGHTLY, payload=1)).json
    assert with_payload["message"]["payload"] == {"n": 1}
    deleted = await stored.delete(NIGHTLY)
    assert (deleted.status, deleted.json) == (200, {})
    assert (await stored.get(QUEUE + "/schedules")).json == {"schedules": []}


async def test_a_tick_is_a_message_like_any_other(stored: Server, clock: ManualClock) -> None:
    await stored.put(NIGHTLY, {"every_ms": 60_000, "message": MESSAGE}, headers={"X-Correlation-Id": "of-the-put"})
    await stored.put(QUEUE + "/schedules/raw", {"every_ms": 90_000, "message": {"payload_base64": "AAE="}})
    for _ in range(2):
        clock.advance(60_000)
        await fire_due(stored.core)
    nightly, *_, raw = sorted(await stored.dequeue(10), key=lambda each: each["priority"])
    assert (nightly["payload"], nightly["priority"], nightly["correlation_id"]) == ({"n": 1}, 7, "abc")
    assert nightly["headers"]["schedule"] == "nightly"
    assert raw["payload_base64"] == "AAE="
    # A tick is no part of the call that put it.
    assert raw["correlation_id"] == raw["id"]
    shown = (await stored.get(NIGHTLY)).json
    assert (shown["last_at"], shown["next_at"]) == (clock.now_ms(), clock.now_ms() + 60_000)


async def test_what_is_given_changes_and_the_rest_stays(stored: Server) -> None:
    await stored.put(NIGHTLY, {"cron": " 0  3 * * * ", "timezone": "Europe/Berlin", "message": MESSAGE})
    paused = (await stored.put(NIGHTLY, {"paused": True})).json
    assert (paused["cron"], paused["timezone"], paused["paused"]) == ("0 3 * * *", "Europe/Berlin", True)
    assert (paused["next_at"], paused["message"]["priority"]) == (None, 7)
    resumed = (await stored.put(NIGHTLY, {"paused": False, "cron": "0 4 * * *"})).json
    assert (resumed["cron"], resumed["timezone"]) == ("0 4 * * *", "Europe/Berlin")
    assert resumed["next_at"] is not None


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "message"),
        ({"message": MESSAGE}, "cron"),
        ({"cron": "* * * * *", "every_ms": 5_000, "message": MESSAGE}, "every_ms"),
        ({"every_ms": 999, "message": MESSAGE}, "every_ms"),
        ({"cron": "0 0 30 2 *", "message": MESSAGE}, "cron"),
        ({"cron": "* * * * *", "timezone": "Nowhere", "message": MESSAGE}, "timezone"),
        ({"every_ms": 5_000, "message": {}}, "message.payload"),
        ({"every_ms": 5_000, "message": {"payload": 1, "payload_base64": ""}}, "message.payload_base64"),
        ({"every_ms": 5_000, "message": {"payload": 1, "delay_ms": 1}}, "message"),
        ({"every_ms": 5_000, "message": {"payload": 1, "idempotency_key": "k"}}, "message"),
        ({"every_ms": 5_000, "message": {"payload": 1, "headers": {"schedule": "x"}}}, "message.headers"),
        ({"every": 5, "message": MESSAGE}, "body"),
        ([], "body"),
    ],
)
async def test_what_cannot_be_scheduled_is_refused_by_name(stored: Server, document: Any, field: str) -> None:
    answer = await stored.put(NIGHTLY, document)
    assert (answer.status, answer.code) == (400, "invalid_argument"), answer
    assert answer.json["error"]["field"] == field
    assert (await stored.get("/v1/tenants/acme/queues")).json == {"queues": []}


async def test_what_is_not_there_is_not_found(stored: Server) -> None:
    assert (await stored.get(QUEUE + "/schedules")).code == "queue_not_found"
    await stored.enqueue(1)
    for answer in (await stored.get(NIGHTLY), await stored.delete(NIGHTLY)):
        assert (answer.status, answer.code) == (404, "message_not_found")
        assert answer.json["error"]["schedule"] == "nightly"


@pytest.mark.parametrize("name", [".hidden", "a%2Fb", "a%20b", "%00", "x" * 129])
async def test_a_name_that_is_none_is_refused_as_such(server: Server, name: str) -> None:
    await server.enqueue(1)
    for answer in (
        await server.get(f"{QUEUE}/schedules/{name}"),
        await server.put(f"{QUEUE}/schedules/{name}", {"every_ms": 5_000, "message": MESSAGE}),
        await server.delete(f"{QUEUE}/schedules/{name}"),
    ):
        assert (answer.status, answer.code) == (400, "invalid_name")


async def test_a_schedule_makes_its_queue_as_an_enqueue_would(server: Server) -> None:
    await server.put(NIGHTLY, {"every_ms": 5_000, "message": MESSAGE})
    assert (await server.get(QUEUE)).status == 200


async def test_a_payload_too_large_to_keep_is_refused(server: Server) -> None:
    answer = await server.put(NIGHTLY, {"every_ms": 5_000, "message": {"payload": "x" * MAX_PAYLOAD}})
    assert (answer.status, answer.code) == (413, "payload_too_large")


async def test_a_queue_being_deleted_takes_none(server: Server) -> None:
    await server.enqueue(1)
    await server.dequeue()
    await server.delete(QUEUE)
    answer = await server.put(NIGHTLY, {"every_ms": 5_000, "message": MESSAGE})
    assert (answer.status, answer.code) == (409, "draining")
