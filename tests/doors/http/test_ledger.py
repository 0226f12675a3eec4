"""The claim ledger over HTTP."""

from typing import Any

import pytest

from holdfast.testing import ManualClock
from tests.doors.serving import Answer, Server

WHERE = {"tenant": "acme", "queue": "jobs"}


async def claim(server: Server, number: int, **options: Any) -> Answer:
    document = {**WHERE, "consumer": "spark", "number": number, "limit": 2, **options}
    return await server.post("/v1/queue/ledger/claim", document)


async def open_claims(server: Server, **query: Any) -> list[Any]:
    answer = await server.get("/v1/queue/ledger", **WHERE, consumer="spark", **query)
    assert answer.status == 200, answer
    return list(answer.json["claims"])


async def test_a_numbered_claim_is_read_again_as_it_was(stored: Server) -> None:
    ids = await stored.enqueue(1, 2, 3)
    first = await claim(stored, 0)
    assert [each["id"] for each in first.json["messages"]] == ids[:2]
    again = (await claim(stored, 0)).json["messages"]
    assert [each["receipt"] for each in again] == [each["receipt"] for each in first.json["messages"]]
    assert [each["attempt"] for each in again] == [1, 1]
    assert [each["id"] for each in (await claim(stored, 1)).json["messages"]] == ids[2:]


@pytest.mark.spec("3.12")
async def test_the_ledger_shows_what_is_open_by_number(stored: Server) -> None:
    ids = await stored.enqueue(1, 2, 3)
    await claim(stored, 0)
    await claim(stored, 1)
    claims = await open_claims(stored)
    assert [(each["number"], len(each["messages"]), each["lost"]) for each in claims] == [(0, 2, 0), (1, 1, 0)]
    [one] = await open_claims(stored, number=1)
    assert [each["id"] for each in one["messages"]] == ids[2:]
    assert await open_claims(stored, number=9) == []


async def test_acking_up_to_a_number_finishes_and_closes_its_claims(stored: Server) -> None:
    ids = await stored.enqueue(1, 2, 3)
    await claim(stored, 0)
    await claim(stored, 1)
    answer = await stored.post("/v1/queue/ledger/ack", {**WHERE, "consumer": "spark", "upto": 0})
    assert [(each["id"], each["ok"]) for each in answer.json["results"]] == [(id, True) for id in ids[:2]]
    assert [each["number"] for each in await open_claims(stored)] == [1]
    closed = await claim(stored, 0)
    assert (closed.status, closed.code) == (400, "invalid_argument")


async def test_extending_holds_all_open_claims_longer(stored: Server, clock: ManualClock) -> None:
    await stored.enqueue(1, 2, 3)
    await claim(stored, 0)
    await claim(stored, 1)
    clock.advance(4_000)
    answer = await stored.post("/v1/queue/ledger/extend", {**WHERE, "consumer": "spark", "lease_ms": 60_000})
    assert {each["lease_expires_at"] for each in answer.json["results"]} == {clock.now_ms() + 60_000}
    clock.advance(30_000)
    assert [each["lost"] for each in await open_claims(stored)] == [0, 0]


async def test_what_was_lost_is_said_and_the_rest_is_acked(stored: Server, clock: ManualClock) -> None:
    await stored.enqueue(1, 2)
    await claim(stored, 0, lease_ms=1_000)
    clock.advance(1_001)
    [taken] = await stored.dequeue()
    [entry] = await open_claims(stored)
    assert (entry["lost"], entry["messages"]) == (2, [])
    answer = await stored.post("/v1/queue/ledger/ack", {**WHERE, "consumer": "spark", "upto": 5})
    assert answer.status == 200
    assert {each["error"] for each in answer.json["results"]} == {"queue_message_lease_mismatch"}
    ack = {**WHERE, "receipts": [taken["receipt"]]}
    assert (await stored.post("/v1/queue/ack", ack)).status == 200


async def test_a_consumer_that_leaves_in_the_middle_reads_its_claim_again(server: Server) -> None:
    """The part of a large answer that did not arrive is not given back: it belongs to its claim number."""
    await server.enqueue("x" * 900_000, "y" * 900_000)
    document = {**WHERE, "consumer": "spark", "number": 0, "limit": 2}
    async with server.http.post(server.url + "/v1/queue/ledger/claim", json=document) as response:
        await response.content.readexactly(10)
        response.close()
    again = (await claim(server, 0)).json["messages"]
    assert [each["attempt"] for each in again] == [1, 1]
    assert len({each["payload"][0] for each in again}) == 2


async def test_a_claim_with_state_has_state_documents(server: Server) -> None:
    await server.enqueue(1)
    [message] = (await claim(server, 0, with_state=True)).json["messages"]
    assert message["state"] == {"document": None, "etag": None}


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"consumer": "spark"}, "number"),
        ({"number": 1}, "consumer"),
        ({"consumer": "", "number": 1}, "consumer"),
        ({"consumer": "spark", "number": -1}, "number"),
    ],
)
async def test_a_claim_without_consumer_or_number_is_refused(
    server: Server, document: dict[str, Any], field: str
) -> None:
    answer = await server.post("/v1/queue/ledger/claim", {**WHERE, **document})
    assert (answer.status, answer.code) == (400, "invalid_argument")
    assert field in answer.json["error"]["message"]


async def test_the_ledger_of_nobody_and_of_no_queue_are_refused(server: Server) -> None:
    assert (await server.get("/v1/queue/ledger", **WHERE)).code == "invalid_argument"
    assert (await server.get("/v1/queue/ledger", **WHERE, consumer="spark")).code == "queue_not_found"
    refused = await server.post("/v1/queue/ledger/ack", {**WHERE, "consumer": "spark", "upto": 1})
    assert refused.code == "queue_not_found"
