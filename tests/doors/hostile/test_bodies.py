"""Bodies that are too large, compressed, nested, cut off, or nothing at all."""

import asyncio
import base64
import gzip
import json
import tracemalloc
import zlib
from typing import Any

import pytest

from holdfast.doors.http.request_bodies import limits_for
from holdfast.model.message import MAX_BATCH
from tests.doors.access_rows import everything
from tests.doors.raw import head, once, wire
from tests.doors.serving import Server

ENQUEUE = "/v1/queue/enqueue"
OWN = {"tenant": "acme", "queue": "jobs"}
ONE = {**OWN, "messages": [{"payload": 1}]}
MAX_BYTES = limits_for(1 << 20).max_bytes
NOTHING = {"tenants": []}


async def is_empty(server: Server) -> bool:
    return bool((await server.get("/v1/tenants")).json == NOTHING)


# --- Size ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [MAX_BYTES + 1, 10 << 30, 10**30])
async def test_a_body_said_to_be_too_large_is_refused_before_any_of_it_is_read(server: Server, size: int) -> None:
    for path in (ENQUEUE, "/enqueue", "/v1/queue/ack", "/v1/tenants/acme/queues/jobs/move"):
        async with wire(server) as connection:
            connection.write(head("POST", path, {"Host": "localhost", "Content-Length": str(size)}))
            answer = await connection.answer()
            assert answer.status in (400, 413)
            assert answer.code == ("payload_too_large" if answer.status == 413 else "invalid_argument")
            # A number that is none of HTTP's is refused as such.
            assert answer.status == 413 or size == 10**30
            assert await connection.rest() == b""
    assert await is_empty(server)


@pytest.mark.parametrize("path", [ENQUEUE, "/enqueue", "/v1/queue/ack", "/v1/tenants/acme/queues/jobs/purge"])
async def test_a_body_without_end_is_refused_at_the_limit_and_takes_no_more_memory_than_that(
    server: Server, path: str
) -> None:
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    tracemalloc.start()
    try:
        async with wire(server) as connection:
            connection.write(head("POST", path, {"Host": "localhost", "Transfer-Encoding": "chunked"}))
            answering = asyncio.ensure_future(connection.answer())
            sent = 0
            while not answering.done():
                connection.write(chunk)
                await connection.writer.drain()
                sent += 1
                assert sent < 100
                await asyncio.sleep(0)
            answer = await answering
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (answer.status, answer.code) == (413, "payload_too_large")
    assert answer.json["error"]["limit"] == MAX_BYTES
    # What came, and once more to put it together.
    assert peak < 3 * MAX_BYTES
    assert await is_empty(server)


async def test_a_payload_over_the_limit_is_refused_in_whatever_form_it_comes(server: Server) -> None:
    text = "x" * (1 << 20)
    raw = base64.b64encode(b"x" * ((1 << 20) + 1)).decode()
    receipt = await _receipt(server)
    before = await everything(server)
    for answer in (
        await server.post(ENQUEUE, {**OWN, "messages": [{"payload": 1}, {"payload": text}]}),
        await server.post(ENQUEUE, {**OWN, "messages": [{"payload_base64": raw}]}),
        await server.post("/enqueue", [{"payload": raw, "namespace": "acme", "topic": "jobs"}]),
        await server.put("/v1/queue/state", {**OWN, "receipt": receipt, "document": text}),
        await server.post(
            "/v1/tenants/acme/queues/jobs/redrive",
            {"edit": {"id": "0197780d-0000-7000-8000-000000000000", "payload": text}},
        ),
    ):
        assert (answer.status, answer.code) == (413, "payload_too_large")
        assert answer.json["error"]["limit"] == 1 << 20
    assert await everything(server) == before
    # A text's quotes are part of its payload: exactly the limit is taken.
    assert (await server.post(ENQUEUE, {**OWN, "messages": [{"payload": text[2:]}]})).status == 200


async def _receipt(server: Server) -> str:
    await server.enqueue("work")
    [held] = await server.dequeue()
    return str(held["receipt"])


# --- Compression -----------------------------------------------------------------------------------------------


def deflated(times: int) -> bytes:
    body = b" " * (1 << 20)
    for _ in range(times):
        body = zlib.compress(body)
    return body


BOMBS = {
    "gzip": gzip.compress(b" " * (50 << 20)),
    "deflate": deflated(1),
    "deflate, deflate": deflated(2),
    "br": b"\xce\xff\xff\x07" + b"\x00" * 50,
    "zstd": b"\x28\xb5\x2f\xfd" + b"\x00" * 50,
    "x-unheard-of": b"{}",
    "gzip, identity": b"{}",
    "": b"{}",
}


@pytest.mark.parametrize("encoding", BOMBS)
async def test_a_compressed_body_is_refused_by_name_and_never_decompressed(server: Server, encoding: str) -> None:
    tracemalloc.start()
    for path, content_type in (
        (ENQUEUE, "application/json"),
        (ENQUEUE, "multipart/form-data; boundary=b"),
        ("/enqueue", "application/json"),
        ("/v1/queue/dequeue", "application/json"),
    ):
        answer = await once(
            server,
            "POST",
            path,
            BOMBS[encoding],
            **{"Content-Encoding": encoding, "Content-Type": content_type},
        )
        assert (answer.status, answer.code) == (400, "invalid_argument")
        assert answer.json["error"]["field"] == "Content-Encoding"
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()
    assert await is_empty(server)


async def test_a_body_as_it_is_may_say_so(server: Server) -> None:
    answer = await once(server, "POST", ENQUEUE, ONE, **{"Content-Encoding": " Identity "})
    assert answer.status == 200


# --- What is not a document ------------------------------------------------------------------------------------

WHOLE = json.dumps(ONE).encode()
BODIES: dict[str, bytes] = {
    "empty": b"",
    "blank": b"  \n ",
    "text": b"hello",
    "html": b"<html></html>",
    "xml": b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
    "form": b"tenant=acme&queue=jobs",
    "a number": b"7",
    "null": b"null",
    "a list": b"[]",
    "a list of lists": b"[[]]",
    "cut off": WHOLE[:-5],
    "two of them": WHOLE + WHOLE,
    "more behind it": WHOLE + b"x",
    "single quotes": WHOLE.replace(b'"', b"'"),
    "a trailing comma": WHOLE[:-1] + b",}",
    "NUL before it": b"\x00" + WHOLE,
    "NUL behind it": WHOLE + b"\x00",
    "UTF-8 with a mark": b"\xef\xbb\xbf" + WHOLE,
    "UTF-16": json.dumps(ONE).encode("utf-16"),
    "UTF-16 without a mark": json.dumps(ONE).encode("utf-16-le"),
    "UTF-32": json.dumps(ONE).encode("utf-32"),
    "latin-1": json.dumps({**ONE, "queue": "ü"}, ensure_ascii=False).encode("latin-1"),
    "bytes in a payload": b'{"tenant":"acme","queue":"jobs","messages":[{"payload":"\xff\xfe"}]}',
    "bytes in a payload's name": b'{"tenant":"acme","queue":"jobs","messages":[{"payload":{"\xc3\x28":1}}]}',
    "an overlong NUL": b'{"tenant":"acme","queue":"jobs","messages":[{"payload":"\xc0\x80"}]}',
    "a surrogate in UTF-8": b'{"tenant":"acme","queue":"jobs","messages":[{"payload":"\xed\xa0\x80"}]}',
    "half a surrogate in a header": b'{"tenant":"acme","messages":[{"payload":1,"headers":{"a":"\\ud800"}}]}',
    "half a surrogate in a key": b'{"tenant":"acme","messages":[{"payload":1,"idempotency_key":"\\udc00"}]}',
    "a comment": b"/* */" + WHOLE,
    "pickled": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.",
    "deep in the payload": b'{"messages":[{"payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
    "deep in the headers": b'{"messages":[{"payload":1,"headers":' + b'{"a":' * 100_000,
    "deep": b"[" * 1_000_000,
    "deep in an unknown field": b'{"unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_is_no_document_is_refused_and_the_connection_can_be_used(server: Server, name: str) -> None:
    async with wire(server) as connection:
        for path in (ENQUEUE, "/enqueue", "/v1/queue/ack", "/v1/queue/ledger/claim"):
            connection.ask("POST", path, BODIES[name])
            answer = await connection.answer()
            if path == "/enqueue" and name == "a list":
                assert answer.json == []
                continue
            assert (answer.status, answer.code) == (400, "invalid_argument"), path
            assert len(answer.body) < 1_000
        connection.ask("GET", "/v1/tenants")
        assert (await connection.answer()).json == NOTHING


async def test_filters_in_a_query_are_documents_too(server: Server) -> None:
    await server.enqueue(1)
    for text in ("", "7", "{", "[]", '{"ids":7}', '{"ids":["x"]}', '{"priority":-1}', '{"a":1}', "[" * 20_000, "NaN"):
        answer = await server.get("/v1/tenants/acme/queues/jobs/messages", filter=text)
        assert (answer.status, answer.code) == (400, "invalid_argument"), text[:20]
    deep = {"filter": {"headers": json.loads("[" * 100 + "]" * 100)}}
    answer = await server.post("/v1/tenants/acme/queues/jobs/cancel", deep)
    assert (answer.status, answer.code) == (400, "invalid_argument")


async def test_of_a_name_that_comes_twice_the_last_counts(server: Server) -> None:
    body = b'{"tenant":"acme","tenant":"other","queue":"jobs","messages":[{"payload":1,"payload":2}]}'
    assert (await server.call("POST", ENQUEUE, data=body)).status == 200
    tenants = (await server.get("/v1/tenants")).json["tenants"]
    assert [each["tenant"] for each in tenants] == ["other"]
    [message] = await server.dequeue(tenant="other")
    assert message["payload"] == 2


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("text/plain", 200),
        ("application/x-www-form-urlencoded", 200),
        ("application/json; charset=utf-16", 200),
        ("multipart/form-data", 400),
        ("Multipart/Form-Data; boundary=b", 400),
        ("multipart/form-data; boundary=", 400),
        ("multipart/mixed; boundary=b", 200),
        ("\x80\xff", 200),
    ],
)
async def test_a_body_is_read_as_json_unless_it_says_it_comes_in_parts(
    server: Server, content_type: str, status: int
) -> None:
    answer = await once(server, "POST", ENQUEUE, ONE, **{"Content-Type": content_type})
    assert answer.status == status
    if status == 400:
        assert answer.code == "invalid_argument"
        assert await is_empty(server)


# --- Numbers of things -----------------------------------------------------------------------------------------


async def test_no_messages_are_enqueued_as_none(server: Server) -> None:
    answer = await server.post(ENQUEUE, {**OWN, "messages": []})
    assert (answer.status, answer.json) == (200, {"messages": []})
    assert await is_empty(server)


async def test_one_too_many_messages_or_receipts_are_refused_whole(server: Server) -> None:
    receipt = await _receipt(server)
    before = await everything(server)
    many: list[Any] = [{"payload": 1}] * (MAX_BATCH + 1)
    items = [{"payload": "YQ==", "namespace": "acme", "topic": f"t{number % 2}"} for number in range(MAX_BATCH + 1)]
    verdict = {"receipt": receipt, "verdict": "ack"}
    for answer in (
        await server.post(ENQUEUE, {**OWN, "messages": many}),
        await server.post("/enqueue", items),
        await server.post("/v1/queue/ack", {**OWN, "receipts": [receipt] * (MAX_BATCH + 1)}),
        await server.post("/v1/queue/dequeue", {**OWN, "verdicts": [verdict] * (MAX_BATCH + 1)}),
    ):
        assert (answer.status, answer.code) == (400, "invalid_argument")
    assert await everything(server) == before
    assert (await server.post(ENQUEUE, {**OWN, "messages": many[1:]})).status == 200
