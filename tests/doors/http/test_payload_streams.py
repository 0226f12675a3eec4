"""Payloads as parts: in and out bit by bit where the store can, and the same to callers where it cannot."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from email.parser import BytesParser
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import aiohttp
import pytest

from holdfast.stores.rocks import RocksStore, keys
from holdfast.testing import ManualClock
from tests.doors.serving import Answer, Server, serve
from tests.waiting import until

MAX_PAYLOAD = 16 << 20
PIECE = 256 << 10
PAYLOAD = Random(0).randbytes((3 << 20) + 12_345)
QUEUE = {"tenant": "acme", "queue": "jobs"}
PARTS = {"Accept": "multipart/mixed"}
BOUNDARY = b"4f1c"


@pytest.fixture(params=["memory", "rocks"])
async def stored(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Server]:
    store = "memory://" if request.param == "memory" else str(tmp_path / "data")
    async with serve(clock, store=store, durability="os", max_payload=MAX_PAYLOAD) as serving:
        yield serving


@pytest.fixture
async def rocks(clock: ManualClock, tmp_path: Path) -> AsyncIterator[Server]:
    async with serve(clock, store=str(tmp_path / "data"), durability="os", max_payload=MAX_PAYLOAD) as serving:
        yield serving


def part(name: str, body: bytes) -> bytes:
    head = b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n' % (BOUNDARY, name.encode())
    return head + body + b"\r\n"


END = b"--%b--\r\n" % BOUNDARY


def form(payload: bytes, **meta: Any) -> bytes:
    return part("meta", json.dumps({**QUEUE, **meta}).encode()) + part("payload", payload) + END


async def send(server: Server, body: bytes | AsyncIterator[bytes]) -> tuple[int, Any]:
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
    data = io.BytesIO(body) if isinstance(body, bytes) else body
    answer = await server.post("/v1/queue/enqueue", data=data, headers=headers)
    return answer.status, answer.json


def parts_of(content_type: str, body: bytes) -> list[tuple[dict[str, str], bytes]]:
    whole = BytesParser().parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    parts = whole.get_payload()
    if not isinstance(parts, list):
        return []  # an answer without messages
    return [(dict(each.items()), each.get_payload(decode=True)) for each in parts]


async def dequeue(server: Server, **options: Any) -> list[tuple[Any, bytes]]:
    """Each message's description, and its payload."""
    answer = await server.post("/v1/queue/dequeue", {**QUEUE, **options}, headers=PARTS)
    assert answer.status == 200, answer
    parts = parts_of(answer.headers["Content-Type"], answer.body)
    described, payloads = parts[::2], parts[1::2]
    for headers, payload in payloads:
        assert int(headers["Content-Length"]) == len(payload)
    return [(json.loads(each), payload) for (_, each), (_, payload) in zip(described, payloads, strict=True)]


def rocks_of(server: Server) -> RocksStore:
    store = server.core.store
    assert isinstance(store, RocksStore)
    return store


def kept(server: Server) -> int:
    """Keys of payloads on disk."""
    engine = rocks_of(server)._engine
    engine.write()
    spaces = (keys.PIECES, keys.STAGES)
    return sum(1 for space in spaces for _ in engine.database.scan(keys.INDEXES, space, keys.after(space)))


async def until_kept(server: Server, clock: ManualClock, number: int) -> None:
    async with asyncio.timeout(60):
        while kept(server) != number:
            clock.advance(100)
            await asyncio.sleep(0.01)


class Caller:
    """A connection that can be cut at any moment."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, server: Server) -> "Caller":
        host, port = server.url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1 << 16))

    def begin(self, path: str, length: int, **headers: str) -> None:
        every = {"Host": "localhost", "Content-Length": str(length), **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in every.items())
        self.writer.write(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode())

    def leave(self) -> None:
        self.writer.transport.abort()


# --- In and out ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("3.10")
@pytest.mark.parametrize("size", [0, 10, 1 << 20, (1 << 20) + 1, len(PAYLOAD)])
async def test_a_payload_goes_in_and_out_as_it_is(stored: Server, size: int) -> None:
    status, answer = await send(stored, form(PAYLOAD[:size], headers={"kind": "any"}, content_type="image/png"))
    assert status == 200, answer
    [(message, payload)] = await dequeue(stored)
    assert payload == PAYLOAD[:size]
    assert (message["id"], message["headers"]) == (answer["messages"][0]["id"], {"kind": "any"})
    assert message["content_type"] == "image/png"


async def test_a_payload_may_come_in_chunks_of_any_size(stored: Server) -> None:
    body = form(PAYLOAD)
    sizes = Random(1)

    async def chunks() -> AsyncIterator[bytes]:
        start = 0
        while start < len(body):
            size = sizes.choice((1, 17, 4_096, 65_536, 300_000))
            yield body[start : start + size]
            start += size

    status, answer = await send(stored, chunks())
    assert status == 200, answer
    [(_, payload)] = await dequeue(stored)
    assert payload == PAYLOAD


async def test_large_and_small_payloads_go_out_in_one_answer(stored: Server) -> None:
    payloads = [b"small", PAYLOAD, b"", PAYLOAD[::-1]]
    for each in payloads:
        assert (await send(stored, form(each)))[0] == 200
    assert [payload for _, payload in await dequeue(stored, limit=10)] == payloads


async def test_a_large_payload_goes_out_in_json_too(stored: Server) -> None:
    await send(stored, form(PAYLOAD))
    [message] = await stored.dequeue()
    assert len(message["payload_base64"]) > len(PAYLOAD)


async def test_a_subscriber_is_sent_large_payloads_as_parts(stored: Server) -> None:
    await send(stored, form(PAYLOAD))
    answer = await stored.post("/v1/queue/subscribe", {**QUEUE, "prefetch": 2, "wait_ms": 0}, headers=PARTS)
    [_, (_, payload)] = parts_of(answer.headers["Content-Type"], answer.body)
    assert payload == PAYLOAD


async def test_a_payload_that_is_edited_or_looked_up_is_whole(stored: Server) -> None:
    _, answer = await send(stored, form(PAYLOAD))
    id = answer["messages"][0]["id"]
    found = await stored.get(f"/v1/tenants/acme/queues/jobs/messages/{id}?payload=1")
    assert (found.status, found.json["bytes"]) == (200, len(PAYLOAD))
    assert len(found.json["payload_base64"]) > len(PAYLOAD)


async def test_small_calls_are_answered_while_a_large_payload_comes_and_goes(stored: Server) -> None:
    async def others() -> int:
        answered = 0
        while True:
            try:
                await stored.enqueue("x", queue="small")
            except asyncio.CancelledError:
                return answered
            answered += 1

    for work in (send(stored, form(bytes(MAX_PAYLOAD))), dequeue(stored)):
        beside = asyncio.ensure_future(others())
        await work
        beside.cancel()
        assert await beside >= 5


# --- Apart -----------------------------------------------------------------------------------------------------------


async def claim_apart(server: Server, **options: Any) -> Any:
    [message] = await server.dequeue(payloads_apart=True, **options)
    return message


async def read(server: Server, receipt: str, **options: Any) -> Answer:
    return await server.post("/v1/queue/payload", {**QUEUE, "receipt": receipt, **options})


async def test_a_large_payload_is_left_out_where_the_caller_asks_for_that(rocks: Server) -> None:
    await send(rocks, form(PAYLOAD, correlation_id="c-1"))
    message = await claim_apart(rocks)
    assert not {"payload", "payload_base64"} & set(message)
    assert (message["payload_bytes"], message["payload_crc32"]) == (len(PAYLOAD), crc32(PAYLOAD))
    assert message["payload_is_json"] is False
    first = await read(rocks, message["receipt"])
    assert (first.status, first.body) == (200, PAYLOAD[: 1 << 20])
    assert first.headers["Content-Type"] == "application/octet-stream"
    assert (first.headers["X-Payload-Bytes"], first.headers["X-Correlation-Id"]) == (str(len(PAYLOAD)), "c-1")


async def test_small_payloads_come_along_also_where_large_ones_are_left_out(stored: Server) -> None:
    await stored.enqueue({"n": 1})
    message = await claim_apart(stored)
    assert message["payload"] == {"n": 1}
    assert not {"payload_bytes", "payload_crc32", "payload_is_json"} & set(message)
    part = await read(stored, message["receipt"], offset=1, limit=3)
    assert (part.body, part.headers["X-Payload-Bytes"]) == (b'"n"', "8")


@pytest.mark.parametrize("offset", [0, 1, PIECE - 1, PIECE, 3 * PIECE + 5, len(PAYLOAD) - 1, len(PAYLOAD), 1 << 40])
@pytest.mark.parametrize("limit", [1, PIECE, PIECE + 7, 4 << 20])
async def test_any_part_of_a_payload_can_be_read(stored: Server, offset: int, limit: int) -> None:
    await send(stored, form(PAYLOAD))
    message = await claim_apart(stored)
    part = await read(stored, message["receipt"], offset=offset, limit=limit)
    assert (part.status, part.body) == (200, PAYLOAD[offset : offset + limit])


@pytest.mark.parametrize(
    ("options", "field"),
    [({"offset": -1}, "offset"), ({"limit": 0}, "limit"), ({"limit": (4 << 20) + 1}, "limit"), ({"length": 1}, "body")],
)
async def test_a_part_that_cannot_be_is_refused_by_its_name(
    stored: Server, options: dict[str, int], field: str
) -> None:
    await send(stored, form(PAYLOAD))
    message = await claim_apart(stored)
    answer = await read(stored, message["receipt"], **options)
    assert (answer.status, answer.json["error"]["field"]) == (400, field)


async def test_a_payload_is_given_to_its_holder_alone(stored: Server, clock: ManualClock) -> None:
    await send(stored, form(PAYLOAD))
    first = await claim_apart(stored, lease_ms=1_000)
    clock.advance(1_000)
    second = await claim_apart(stored, lease_ms=1_000)
    stale = await read(stored, first["receipt"])
    assert (stale.status, stale.json["error"]["code"]) == (409, "queue_message_lease_mismatch")
    assert (await read(stored, second["receipt"])).status == 200
    await stored.post("/v1/queue/ack", {**QUEUE, "receipts": [second["receipt"]]})
    assert (await read(stored, second["receipt"])).status == 409
    elsewhere = {"tenant": "acme", "queue": "nobody", "receipt": second["receipt"]}
    assert (await stored.post("/v1/queue/payload", elsewhere)).status == 409
    assert (await read(stored, "x" * 54)).status == 400


async def test_a_subscriber_may_have_large_payloads_left_out(rocks: Server) -> None:
    await send(rocks, form(PAYLOAD))
    asked = {**QUEUE, "prefetch": 2, "wait_ms": 0, "payloads_apart": True}
    answer = await rocks.post("/v1/queue/subscribe", asked)
    [message] = [json.loads(line) for line in answer.body.splitlines()]
    assert message["payload_bytes"] == len(PAYLOAD)
    assert (await read(rocks, message["receipt"], limit=5)).body == PAYLOAD[:5]


async def test_parts_have_their_payloads_with_them_whatever_else_is_asked(rocks: Server) -> None:
    await send(rocks, form(PAYLOAD))
    [(message, payload)] = await dequeue(rocks, payloads_apart=True)
    assert payload == PAYLOAD
    assert "payload_bytes" not in message


# --- Refusals --------------------------------------------------------------------------------------------------------


async def test_a_payload_beyond_the_limit_is_refused_by_its_length(stored: Server) -> None:
    status, answer = await send(stored, form(bytes(MAX_PAYLOAD + (1 << 20))))
    assert (status, answer["error"]["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize("more", [1, 3 << 20])
async def test_a_payload_of_unknown_length_is_refused_once_it_is_too_long(
    stored: Server, clock: ManualClock, more: int
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield form(b"")[: -len(END) - 2]
        for _ in range(MAX_PAYLOAD >> 20):
            yield bytes(1 << 20)
        yield bytes(more)
        yield b"\r\n" + END

    status, answer = await send(stored, chunks())
    assert (status, answer["error"]["code"]) == (413, "payload_too_large")
    assert await stored.dequeue() == []
    if stored.core.store.capabilities.is_durable:
        await until_kept(stored, clock, 0)


async def test_a_tenant_over_its_quota_is_refused_and_nothing_is_left(stored: Server, clock: ManualClock) -> None:
    await stored.put("/v1/tenants/acme", {"quotas": {"max_bytes": len(PAYLOAD)}})
    status, answer = await send(stored, form(PAYLOAD + b"!"))
    assert (status, answer["error"]["code"]) == (429, "over_quota")
    assert (await send(stored, form(PAYLOAD)))[0] == 200
    if stored.core.store.capabilities.is_durable:
        await until_kept(stored, clock, len(PAYLOAD) // PIECE + 1)


async def test_a_large_payload_must_come_behind_its_meta(stored: Server) -> None:
    meta = part("meta", json.dumps(QUEUE).encode())
    status, _ = await send(stored, part("payload", b"small") + meta + END)
    assert status == 200
    status, answer = await send(stored, part("payload", PAYLOAD) + meta + END)
    assert (status, answer["error"]["field"]) == (400, "meta")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (form(PAYLOAD)[: -len(END)], "body"),
        (part("meta", b"{}") + END, "payload"),
        (part("payload", b"x") + END, "meta"),
        (part("meta", b"{}") + part("other", b"x") + END, "other"),
        (part("meta", b'{"payload": 1}') + part("payload", b"x") + END, "meta.payload"),
        (form(PAYLOAD, priority=256), "priority"),
    ],
    ids=["no end", "no payload", "no meta", "another part", "two payloads", "a wrong field"],
)
async def test_half_a_form_is_refused_and_leaves_nothing(
    stored: Server, clock: ManualClock, body: bytes, field: str
) -> None:
    status, answer = await send(stored, body)
    assert (status, answer["error"]["field"]) == (400, field)
    if stored.core.store.capabilities.is_durable:
        await until_kept(stored, clock, 0)


async def test_a_caller_without_the_right_to_write_sends_nothing_to_the_disk(guarded: Server) -> None:
    body = form(b"x")
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
    answer = await guarded.with_token("acme-reader").post("/v1/queue/enqueue", data=body, headers=headers)
    assert (answer.status, answer.code) == (403, "forbidden")


# --- Callers that leave ----------------------------------------------------------------------------------------------


async def test_a_caller_that_leaves_while_it_sends_leaves_nothing(rocks: Server, clock: ManualClock) -> None:
    body = form(PAYLOAD)
    caller = await Caller.connect(rocks)
    caller.begin(
        "/v1/queue/enqueue", len(body), **{"Content-Type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
    )
    caller.writer.write(body[: len(body) // 2])
    await until(lambda: kept(rocks))
    caller.leave()
    await until_kept(rocks, clock, 0)
    assert await rocks.dequeue() == []


async def test_a_caller_that_leaves_while_it_is_sent_a_payload_gives_it_back(rocks: Server) -> None:
    _, answer = await send(rocks, form(bytes(MAX_PAYLOAD)))
    caller = await Caller.connect(rocks)
    asked = json.dumps(QUEUE).encode()
    caller.begin("/v1/queue/dequeue", len(asked), **PARTS)
    caller.writer.write(asked)
    await caller.reader.readexactly(100_000)
    assert await rocks.dequeue() == []
    caller.leave()
    async with asyncio.timeout(60):
        while not (found := await dequeue(rocks)):
            await asyncio.sleep(0.01)
    [(message, payload)] = found
    assert (message["id"], message["attempt"]) == (answer["messages"][0]["id"], 1)
    assert payload == bytes(MAX_PAYLOAD)


async def test_an_answer_whose_message_is_removed_is_cut_off(rocks: Server) -> None:
    _, answer = await send(rocks, form(bytes(MAX_PAYLOAD)))
    async with rocks.http.post(rocks.url + "/v1/queue/dequeue", json=QUEUE, headers=PARTS) as response:
        await response.content.readexactly(1_000)
        removed = await rocks.delete(f"/v1/tenants/acme/queues/jobs/messages/{answer['messages'][0]['id']}")
        assert removed.status in (200, 204), removed
        with contextlib.suppress(aiohttp.ClientPayloadError):
            raise AssertionError(f"it came to an end, after {len(await response.read())} bytes")
    assert kept(rocks) == 0
