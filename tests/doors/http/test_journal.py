"""The journal over HTTP."""

import asyncio
import builtins
import sys
from typing import Any

import pyarrow as pa
import pytest

from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.testing import ManualClock
from tests.doors.serving import Server

ARROW = "application/vnd.apache.arrow.stream"


async def test_events_come_in_order_as_lines_with_the_position_after_them(stored: Server, clock: ManualClock) -> None:
    [id] = await stored.enqueue("x", correlation_id="order-7", priority=3)
    clock.advance(10)
    [held] = await stored.dequeue()
    await stored.post("/v1/queue/ack", {"tenant": "acme", "queue": "jobs", "receipts": [held["receipt"]]})
    answer = await stored.get("/v1/journal")
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    assert [each["event"] for each in answer.lines] == ["enqueued", "claimed", "succeeded"]
    assert [each["seq"] for each in answer.lines] == sorted({each["seq"] for each in answer.lines})
    first = answer.lines[0]
    assert (first["tenant"], first["queue"], first["id"]) == ("acme", "jobs", id)
    assert (first["correlation_id"], first["priority"], first["claimed_at"]) == ("order-7", 3, None)
    last = answer.lines[-1]
    assert last["claimed_at"] - last["enqueued_at"] == 10
    assert (last["attempt"], last["version"]) == (1, 1)
    empty = await stored.get("/v1/journal", after=answer.headers["X-Journal-Next"])
    assert (empty.status, empty.lines) == (200, [])
    assert empty.headers["X-Journal-Next"] == answer.headers["X-Journal-Next"]


async def test_reading_page_by_page_gives_every_event_once(stored: Server) -> None:
    for number in range(7):
        await stored.enqueue(number)
    whole = (await stored.get("/v1/journal")).lines
    read: list[Any] = []
    after: dict[str, str] = {}
    while True:
        page = await stored.get("/v1/journal", limit=3, **after)
        if not page.lines:
            break
        assert len(page.lines) <= 3
        read += page.lines
        after = {"after": page.headers["X-Journal-Next"]}
    assert read == whole


async def test_an_arrow_stream_holds_what_the_lines_hold(stored: Server) -> None:
    await stored.fail("x", error="boom")
    await stored.enqueue("y")
    lines = await stored.get("/v1/journal")
    arrow = await stored.get("/v1/journal", headers={"Accept": f"{ARROW}, application/x-ndjson;q=0.5"})
    assert arrow.headers["Content-Type"] == ARROW
    assert arrow.headers["X-Journal-Next"] == lines.headers["X-Journal-Next"]
    table = pa.ipc.open_stream(arrow.body).read_all()
    assert table.to_pylist() == lines.lines
    assert table.schema.field("seq").type == pa.int64()
    assert not table.schema.field("at").nullable
    assert table.schema.field("claimed_at").nullable


async def test_an_arrow_stream_without_events_still_has_its_schema(server: Server) -> None:
    answer = await server.get("/v1/journal", headers={"Accept": ARROW})
    table = pa.ipc.open_stream(answer.body).read_all()
    assert (table.num_rows, table.num_columns) == (0, 16)


async def test_without_pyarrow_the_error_says_what_to_install(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = await server.get("/v1/journal", headers={"Accept": ARROW})
    assert (answer.status, answer.code) == (400, "invalid_argument")
    assert "holdfast[arrow]" in answer.json["error"]["message"]
    assert (await server.get("/v1/journal")).status == 200


async def test_a_reader_may_wait_for_the_next_event(stored: Server, clock: ManualClock) -> None:
    reading = asyncio.create_task(stored.get("/v1/journal", wait_ms=60_000))
    await until_reading(stored)
    [id] = await stored.enqueue("x")
    clock.advance(100)
    answer = await asyncio.wait_for(reading, 60)
    assert [each["id"] for each in answer.lines] == [id]


async def test_a_reader_waits_no_longer_than_it_asked_to(server: Server, clock: ManualClock) -> None:
    reading = asyncio.create_task(server.get("/v1/journal", wait_ms=250))
    while not reading.done():
        await until_reading(server)
        clock.advance(50)
    assert (reading.result().status, reading.result().lines) == (200, [])


async def test_a_waiting_reader_that_leaves_is_let_go(server: Server, clock: ManualClock) -> None:
    reading = asyncio.create_task(server.get("/v1/journal", wait_ms=60_000))
    await until_reading(server)
    reading.cancel()
    for _ in range(1_000):
        if ("journal", None, "left") in server.requests.seen:
            return
        await asyncio.sleep(0.005)
    pytest.fail("it is still waited for")


async def until_reading(server: Server) -> None:
    """Wait until earlier requests have been read: calls of other connections overtake them at most once."""
    for _ in range(5):
        await server.get("/v1/tenants")


async def test_a_server_that_closes_lets_readers_go(server: Server, clock: ManualClock) -> None:
    reading = asyncio.create_task(server.get("/v1/journal", wait_ms=60_000))
    await until_reading(server)
    server.core.inspection.close()
    clock.advance(100)
    assert (await asyncio.wait_for(reading, 60)).status == 200


@pytest.mark.spec("9.1")
async def test_a_tenant_sees_its_own_events_and_an_operator_all(guarded: Server) -> None:
    await guarded.with_token("acme").enqueue(1)
    await guarded.with_token("other").enqueue(2, tenant="other")
    seen = {}
    for token in ("acme-reader", "other", "operator"):
        lines = (await guarded.with_token(token).get("/v1/journal")).lines
        seen[token] = [each["tenant"] for each in lines]
    assert seen == {"acme-reader": ["acme"], "other": ["other"], "operator": ["acme", "other"]}
    chosen = await guarded.with_token("operator").get("/v1/journal", tenant="other")
    assert [each["tenant"] for each in chosen.lines] == ["other"]
    refused = await guarded.with_token("acme").get("/v1/journal", tenant="other")
    assert (refused.status, refused.code) == (403, "forbidden")


async def test_a_tenants_events_are_found_far_behind_those_of_others(stored: Server) -> None:
    first = await stored.enqueue("first", tenant="acme")
    for _ in range(3):
        await stored.core.messages.enqueue(QueueRef("other", "jobs"), [Draft(payload=b"x")] * 9_000)
    last = await stored.enqueue("last", tenant="acme")
    answer = await stored.get("/v1/journal", tenant="acme", limit=2)
    assert [each["id"] for each in answer.lines] == first + last
    assert (await stored.get("/v1/journal", tenant="nobody")).lines == []


@pytest.mark.parametrize(
    "query", [{"after": "soon"}, {"limit": 0}, {"limit": 10_001}, {"wait_ms": -1}, {"wait_ms": "x"}, {"tenant": ".."}]
)
async def test_a_wrong_field_is_refused(server: Server, query: builtins.dict[str, Any]) -> None:
    answer = await server.get("/v1/journal", **query)
    assert (answer.status, answer.code) == (400, "invalid_name" if "tenant" in query else "invalid_argument")
