"""A verdict that the store could not write raises that error over every protocol, never `StaleLease`."""

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.dice import SeededDice
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing import with_unwritable_verdicts
from tests.doors.capnp.test_calls import ref, stock_client
from tests.doors.capnp_serving import serve_capnp
from tests.doors.serving import Server, serve

WHERE = {"tenant": "acme", "queue": "jobs"}


@pytest.fixture
def unwritable() -> set[int]:
    return set()


@pytest.fixture
def store(unwritable: set[int]) -> Store:
    return with_unwritable_verdicts(MemoryStore(SeededDice(0), 86_400_000), unwritable)


@pytest.fixture
async def server(store: Store) -> AsyncIterator[Server]:
    async with serve(SystemClock(), store=store) as serving:
        yield serving


@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "release"])
async def test_a_verdict_that_could_not_be_written_is_503_with_results_and_the_lease_stands(
    server: Server, unwritable: set[int], verb: str
) -> None:
    await server.enqueue(1)
    [held] = await server.dequeue(lease_ms=60_000)
    unwritable.add(int(held["snowflake"]))
    asked = {**WHERE, "receipts": [held["receipt"]]}
    answer = await server.post(f"/v1/queue/{verb}", asked)
    assert (answer.status, answer.code) == (503, "store_unavailable")
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json["error"]["ids"] == [held["id"]]
    assert [(each["id"], each["ok"], each["error"]) for each in answer.json["results"]] == [
        (held["id"], False, "store_unavailable")
    ]
    unwritable.clear()
    again = await server.post(f"/v1/queue/{verb}", asked)
    assert (again.status, again.json["results"][0]["ok"]) == (200, True)


async def test_503_goes_before_409_so_that_the_status_alone_says_to_send_again(
    server: Server, unwritable: set[int]
) -> None:
    await server.enqueue(1, 2, 3)
    fine, stale, unwritten = await server.dequeue(3, lease_ms=60_000)
    await server.post("/v1/queue/ack", {**WHERE, "receipts": [stale["receipt"]]})
    unwritable.add(int(unwritten["snowflake"]))
    asked = {**WHERE, "receipts": [each["receipt"] for each in (stale, fine, unwritten)]}
    answer = await server.post("/v1/queue/ack", asked)
    assert (answer.status, answer.code) == (503, "store_unavailable")
    assert [each.get("error") for each in answer.json["results"]] == [
        "queue_message_lease_mismatch",
        None,
        "store_unavailable",
    ]
    unwritable.clear()
    again = await server.post("/v1/queue/ack", asked)
    assert (again.status, again.code) == (409, "queue_message_lease_mismatch")
    assert [each["ok"] for each in again.json["results"]] == [False, False, True]


async def test_a_verdict_that_rides_on_a_dequeue_says_that_it_could_not_be_written(
    server: Server, unwritable: set[int]
) -> None:
    await server.enqueue(1)
    [held] = await server.dequeue(lease_ms=60_000)
    unwritable.add(int(held["snowflake"]))
    verdicts = [{"receipt": held["receipt"], "verdict": "ack"}]
    answer = await server.post("/v1/queue/dequeue", {**WHERE, "verdicts": verdicts})
    assert answer.status == 200
    assert [(each["ok"], each["error"]) for each in answer.json["results"]] == [(False, "store_unavailable")]


@pytest.mark.parametrize("verb", ["ack", "nack"])
async def test_the_compatible_door_answers_503_and_the_lease_stands(
    server: Server, unwritable: set[int], verb: str
) -> None:
    await server.enqueue(1)
    [held] = await server.dequeue(lease_ms=60_000)
    unwritable.add(int(held["snowflake"]))
    asked = {"namespace": "acme", "topic": "jobs", "id": int(held["snowflake"]), "receipt": held["receipt"]}
    refused = await server.post(f"/{verb}", asked)
    assert (refused.status, refused.code) == (503, "store_unavailable")
    unwritable.clear()
    assert (await server.post(f"/{verb}", asked)).status == 200


async def test_a_client_does_not_repeat_verdicts_that_were_carried_out(server: Server, unwritable: set[int]) -> None:
    async with holdfast.open_async(server.url, retries=3) as hf:
        q = hf.queue("jobs", tenant="acme")
        await q.enqueue([1, 2])
        fine, unwritten = await q.claim(limit=2, lease=60)
        unwritable.add(unwritten.id.snowflake)
        results = await q.ack([fine, unwritten])
        assert [(each.ok, each.error) for each in results] == [(True, None), (False, "store_unavailable")]
        with pytest.raises(holdfast.StoreUnavailable):
            await unwritten.ack()


async def test_a_capnp_caller_is_told_store_unavailable_and_the_lease_stands(
    store: Store, unwritable: set[int]
) -> None:
    async with serve_capnp(SystemClock(), store=store) as server, stock_client(server) as queues:
        await queues.add(ref=ref(), items=[b"one"])
        [message] = (await queues.poll(ref=ref(), numItems=1, leaseMs=60_000)).messages
        unwritable.add(message.snowflake)
        refused = await queues.ack(ref=ref(), receipt=message.receipt)
        assert refused.error.code == "store_unavailable"
        unwritable.clear()
        assert not (await queues.ack(ref=ref(), receipt=message.receipt))._has("error")


@pytest.mark.slow
async def test_the_command_line_exits_75_for_a_verdict_that_could_not_be_written_and_5_for_a_stale_one(
    server: Server, unwritable: set[int]
) -> None:
    await server.enqueue(1)
    [held] = await server.dequeue(lease_ms=60_000)
    codes = []
    for is_unwritable in (True, False, False):
        unwritable.clear()
        if is_unwritable:
            unwritable.add(int(held["snowflake"]))
        arguments = ["ack", held["receipt"], "--queue", "acme/jobs", "--url", server.url]
        ran = await asyncio.create_subprocess_exec(sys.executable, "-m", "holdfast", *arguments)
        codes.append(await ran.wait())
    assert codes == [75, 0, 5]
