"""A response about one message carries its correlation id, one about several the request's own (SPEC 1.5).

Over HTTP that is the header `X-Correlation-Id`. The framed protocol and Cap'n Proto have it in the answer itself.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import capnp
import msgspec
import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.testing import ManualClock
from holdfast.wire.framed import answers
from tests.doors.capnp_serving import serve_capnp
from tests.doors.framed.frames_by_hand import greeted
from tests.doors.framed.serving import serve_framed
from tests.doors.serving import Answer, Server, serve
from tests.postgres.server import PostgresServer

SCHEMA = capnp.load(str(Path(holdfast.__file__).parent / "wire" / "capnp" / "holdfast.capnp"))
WHERE = {"tenant": "acme", "queue": "jobs"}
OLD_WHERE = {"namespace": "acme", "topic": "jobs"}
QUEUE = "/v1/tenants/acme/queues/jobs"
HEADER = {"X-Correlation-Id": "call"}
CRLF = "\r\n"


def header(answer: Answer) -> str:
    return answer.headers["X-Correlation-Id"]


async def post(server: Server, path: str, **body: Any) -> Answer:
    return await server.post(path, {**WHERE, **body}, headers=HEADER)


async def claimed(server: Server, correlation_id: str = "message", priority: int = 100) -> dict[str, Any]:
    """Enqueue one message, and return its delivery."""
    await server.enqueue(1, correlation_id=correlation_id, priority=priority)
    [delivery] = await server.dequeue(lease_ms=60_000)
    assert delivery["correlation_id"] == correlation_id
    return dict(delivery)


# --- HTTP --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("1.5")
async def test_an_enqueue_of_one_answers_with_its_message_and_of_several_with_the_request(server: Server) -> None:
    mine = {"payload": 1, "correlation_id": "message"}
    assert header(await post(server, "/v1/queue/enqueue", messages=[mine])) == "message"
    assert header(await post(server, "/v1/queue/enqueue", messages=[mine, mine])) == "call"
    # A message without an id of its own takes the request's.
    assert header(await post(server, "/v1/queue/enqueue", messages=[{"payload": 1}])) == "call"


@pytest.mark.spec("1.5")
async def test_an_enqueue_of_a_known_key_answers_with_the_first_message(server: Server) -> None:
    for correlation_id in ("first", "second"):
        message = {"payload": 1, "correlation_id": correlation_id, "idempotency_key": "k"}
        assert header(await post(server, "/v1/queue/enqueue", messages=[message])) == "first"


@pytest.mark.spec("1.5")
async def test_an_enqueue_by_multipart_answers_with_its_message(server: Server) -> None:
    meta = msgspec.json.encode({**WHERE, "correlation_id": "message"}).decode()
    parts = "".join(
        f'--b{CRLF}Content-Disposition: form-data; name="{name}"{CRLF}{CRLF}{value}{CRLF}'
        for name, value in (("meta", meta), ("payload", "x"))
    )
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = await server.post("/v1/queue/enqueue", data=f"{parts}--b--{CRLF}".encode(), headers={**HEADER, **kind})
    assert (answer.status, header(answer)) == (200, "message")


@pytest.mark.spec("1.5")
@pytest.mark.parametrize("path", ["/v1/queue/dequeue", "/v1/queue/dequeueWithState", "/v1/queue/ledger/claim"])
@pytest.mark.parametrize("accept", ["application/json", "multipart/mixed"])
async def test_a_dequeue_that_delivers_one_answers_with_its_message(server: Server, path: str, accept: str) -> None:
    more = {"consumer": "c", "number": 1} if "ledger" in path else {}

    async def dequeue() -> str:
        answer = await server.post(path, {**WHERE, "limit": 10, **more}, headers={**HEADER, "Accept": accept})
        assert answer.status == 200
        return header(answer)

    assert await dequeue() == "call"
    await server.enqueue(1, correlation_id="message")
    if more:
        more["number"] = 2
    assert await dequeue() == "message"
    await server.enqueue(1, 2, correlation_id="message")
    if more:
        more["number"] = 3
    assert await dequeue() == "call"


@pytest.mark.spec("1.5")
async def test_a_dequeue_that_waited_answers_with_its_message(server: Server) -> None:
    waiting = asyncio.create_task(post(server, "/v1/queue/dequeue", wait_ms=None))
    while server.core.dispatcher.count_tenant_waiters("acme") == 0:
        await asyncio.sleep(0)
    await server.enqueue(1, correlation_id="message")
    assert header(await waiting) == "message"


@pytest.mark.spec("1.5")
async def test_an_exchange_is_about_several_messages_unless_it_settles_none(server: Server) -> None:
    delivery = await claimed(server)
    await server.enqueue(1, correlation_id="next")
    ack = {"receipt": delivery["receipt"], "verdict": "ack"}
    assert header(await post(server, "/v1/queue/exchange", verdicts=[ack])) == "call"
    await server.enqueue(1, correlation_id="last")
    assert header(await post(server, "/v1/queue/exchange", verdicts=[])) == "last"


@pytest.mark.spec("1.5")
@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "release", "remove"])
async def test_a_verdict_on_one_message_answers_with_it_also_when_it_is_stale(server: Server, verb: str) -> None:
    first, second = await claimed(server, "first"), await claimed(server, "second")

    def receipts(*deliveries: dict[str, Any]) -> list[Any]:
        return [{"receipt": each["receipt"]} if verb == "nack" else each["receipt"] for each in deliveries]

    more = {"lease_ms": 60_000} if verb == "extend" else {}
    answer = await post(server, f"/v1/queue/{verb}", receipts=receipts(first), **more)
    assert (answer.status, header(answer)) == (200, "first")
    answer = await post(server, f"/v1/queue/{verb}", receipts=receipts(first, second), **more)
    assert header(answer) == "call"
    held = await claimed(server, "third", priority=0)
    await server.post("/v1/queue/release", {**WHERE, "receipts": [held["receipt"]]})
    answer = await post(server, f"/v1/queue/{verb}", receipts=receipts(held), **more)
    assert (answer.status, header(answer)) == (409, "third")


@pytest.mark.spec("1.5")
async def test_a_stale_verdict_on_a_message_that_is_gone_answers_with_the_request(server: Server) -> None:
    delivery = await claimed(server)
    for expected in ("message", "call"):
        assert header(await post(server, "/v1/queue/ack", receipts=[delivery["receipt"]])) == expected


@pytest.mark.spec("1.5")
async def test_a_look_up_and_a_removal_answer_with_their_message(server: Server) -> None:
    [id] = await server.enqueue(1, correlation_id="message")
    path = f"{QUEUE}/messages/{id}"
    assert header(await server.get(path, headers=HEADER)) == "message"
    removed = await server.delete(path, headers=HEADER)
    assert (removed.status, removed.json, header(removed)) == (200, {}, "message")
    gone = await server.delete(path, headers=HEADER)
    assert (gone.status, header(gone)) == (404, "call")


@pytest.mark.spec("1.5")
async def test_a_part_of_a_payload_answers_with_its_message(server: Server) -> None:
    delivery = await claimed(server)
    answer = await post(server, "/v1/queue/payload", receipt=delivery["receipt"], offset=0, limit=10)
    assert (answer.status, header(answer)) == (200, "message")


@pytest.mark.spec("1.5")
async def test_the_compatible_door_answers_with_its_one_message(server: Server) -> None:
    async def call(path: str, body: Any, own: str) -> Answer:
        return await server.post(path, body, headers={"X-Correlation-Id": own})

    item = {**OLD_WHERE, "payload": "MQ=="}
    assert header(await call("/enqueue", [{**item, "idempotency_key": "k"}], "first")) == "first"
    # The key is known, so this is about the first message.
    assert header(await call("/enqueue", [{**item, "idempotency_key": "k"}], "second")) == "first"
    leased = await call("/dequeue", OLD_WHERE, "third")
    assert header(leased) == "first"
    [message] = leased.json
    verdict = {**OLD_WHERE, "id": message["id"], "receipt": message["receipt"]}
    nacked = await call("/nack", {**verdict, "error": "no"}, "fourth")
    assert (nacked.status, header(nacked)) == (200, "first")
    stale = await call("/ack", verdict, "fifth")
    assert (stale.status, header(stale)) == (409, "first")
    assert header(await call("/enqueue", [item, item], "sixth")) == "sixth"
    assert header(await call("/dequeue", OLD_WHERE, "seventh")) == "seventh"


@pytest.fixture(params=["memory", "rocks", "objects", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of each store."""
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        return postgres.make_databases("correlation_ids")[0]
    return {"memory": "memory://", "rocks": str(tmp_path / "data"), "objects": f"file://{tmp_path}"}[request.param]


@pytest.fixture
async def kept(store: str) -> AsyncIterator[Server]:
    """A server over each store."""
    async with serve(SystemClock(), store=store, durability="os") as serving:
        yield serving


@pytest.mark.spec("1.5")
async def test_saving_a_state_answers_with_its_message_also_when_it_is_refused(kept: Server) -> None:
    delivery = await claimed(kept)
    state = {**WHERE, "receipt": delivery["receipt"], "document": 1}
    saved = await kept.put("/v1/queue/state", state, headers=HEADER)
    assert (saved.status, header(saved)) == (200, "message")
    conflict = await kept.put("/v1/queue/state", state, headers=HEADER)
    assert (conflict.status, header(conflict)) == (412, "message")
    await kept.post("/v1/queue/release", {**WHERE, "receipts": [delivery["receipt"]]})
    stale = await kept.put("/v1/queue/state", state, headers=HEADER)
    assert (stale.status, header(stale)) == (409, "message")
    [again] = await kept.dequeue(lease_ms=60_000)
    await kept.post("/v1/queue/ack", {**WHERE, "receipts": [again["receipt"]]})
    gone = await kept.put("/v1/queue/state", {**state, "receipt": again["receipt"]}, headers=HEADER)
    assert (gone.status, header(gone)) == (409, "call")


# --- The other doors -------------------------------------------------------------------------------------------------


@pytest.mark.spec("1.5")
async def test_every_answer_about_a_message_over_frames_has_its_correlation_id(clock: ManualClock) -> None:
    async with serve_framed(clock) as server, greeted(server.port) as peer:
        context = {"correlation_id": "message"}
        body = await peer.call("enqueue", "acme", "jobs", context, [[b"1"]])
        [enqueued] = answers.read_enqueued(body)
        [delivery] = await peer.claim()
        state = {"receipt": str(delivery.receipt), "document": b"1"}
        saved = msgspec.msgpack.decode(await peer.call("save_state", "acme", "jobs", None, state))
        part = answers.read_part(await peer.call("read_part", "acme", "jobs", None, delivery.receipt, 0, 1))
        [result] = await peer.settle(["release", delivery.receipt])
        [stale] = await peer.settle(["ack", delivery.receipt])
        place = {"id": str(enqueued.snowflake)}
        found = msgspec.msgpack.decode(await peer.call("get", "acme", "jobs", None, place))
        removed = msgspec.msgpack.decode(await peer.call("remove", "acme", "jobs", None, place))
    about = [enqueued, delivery, part, result, stale]
    assert [each.correlation_id for each in about] == ["message"] * 5
    assert [each["correlation_id"] for each in (saved, found, removed)] == ["message"] * 3


@pytest.mark.spec("1.5")
async def test_every_answer_about_a_message_over_capnp_has_its_correlation_id(clock: ManualClock) -> None:
    async with serve_capnp(clock) as server:
        stream = await capnp.AsyncIoStream.create_connection(host="127.0.0.1", port=server.port)
        client = capnp.TwoPartyClient(stream)
        queues = client.bootstrap().cast_as(SCHEMA.Queues)

        async def operate(name: str, **arguments: Any) -> dict[str, Any]:
            answer = await queues.operate(operation=name, arguments=msgspec.json.encode(arguments))
            assert not answer.error.code, answer.error.message
            document: dict[str, Any] = msgspec.json.decode(answer.answer)
            return document

        added = await queues.add(items=[b"1"], context={"correlationId": "message"})
        [message] = (await queues.poll(leaseMs=60_000)).messages
        part = await queues.readPart(receipt=message.receipt, offset=0, limit=1)
        saved = await operate("save_state", receipt=message.receipt, document=1)
        [result] = (await queues.release(receipt=message.receipt)).results
        [stale] = (await queues.ack(receipt=message.receipt)).results
        place = {"id": str(UUID(bytes=bytes(message.id)))}
        found, removed = await operate("get", **place), await operate("remove", **place)
        stream.close()
    assert list(added.correlationIds) == ["message"]
    assert [each.correlationId for each in (message, part, result, stale)] == ["message"] * 4
    assert [each["correlation_id"] for each in (saved, found, removed)] == ["message"] * 3


@pytest.mark.spec("1.5")
async def test_the_python_client_says_the_same_correlation_ids_as_the_header(server: Server) -> None:
    async with holdfast.open_async(server.url) as hf:
        queue = hf.queue("jobs", tenant="acme")
        [id] = await queue.enqueue(1, correlation_id="message")
        [message] = await queue.claim(lease=60)
        [released] = await queue.release([message])
        [stale] = await queue.ack([message])
        found = await queue.get(id)
    said = {each.correlation_id for each in (id, message, released, stale, found)}
    assert said == {header(await server.get(f"{QUEUE}/messages/{id}", headers=HEADER))} == {"message"}
