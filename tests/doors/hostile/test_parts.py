"""Bodies in parts that are no messages: `multipart/form-data` from those who mean no good."""

import asyncio
import json
import tracemalloc
from typing import Any

import pytest

from tests.doors.raw import head, once, wire
from tests.doors.serving import Answer, Server

ENQUEUE = "/v1/queue/enqueue"
TYPE = "multipart/form-data; boundary=b"
META = json.dumps({"tenant": "acme", "queue": "jobs"}).encode()
MAX_PAYLOAD = 1 << 20


def part(name: str, body: bytes, more: bytes = b"") -> bytes:
    return b'--b\r\nContent-Disposition: form-data; name="%b"\r\n%b\r\n%b\r\n' % (name.encode(), more, body)


END = b"--b--\r\n"
GOOD = part("meta", META) + part("payload", b"abc") + END


async def send(server: Server, body: bytes, content_type: str = TYPE) -> Answer:
    return await once(server, "POST", ENQUEUE, body, **{"Content-Type": content_type})


async def is_empty(server: Server) -> bool:
    return bool((await server.get("/v1/tenants")).json == {"tenants": []})


async def test_a_message_in_two_parts_is_enqueued_as_it_is(server: Server) -> None:
    payload = bytes(range(256)) + b"\r\n--c\r\n--b-\r\n"
    for content_type in (TYPE, 'Multipart/Form-Data; Boundary="b"'):
        answer = await send(server, part("meta", META) + part("payload", payload) + END, content_type)
        assert answer.status == 200, answer
    # In the other order too: both are whole before either counts.
    assert (await send(server, part("payload", payload) + part("meta", META) + END)).status == 200
    held = await server.dequeue(3)
    assert {each["payload_base64"] for each in held} == {held[0]["payload_base64"]}


MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "no part": END,
    "text": b"hello",
    "another boundary": GOOD.replace(b"--b", b"--c"),
    "no meta": part("payload", b"abc") + END,
    "no payload": part("meta", META) + END,
    "meta twice": part("meta", META) * 2 + part("payload", b"abc") + END,
    "payload twice": part("meta", META) + part("payload", b"abc") * 2 + END,
    "another part": part("meta", META) + part("payload", b"abc") + part("more", b"x") + END,
    "a part without a name": b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END,
    "a part without headers": b"--b\r\n\r\nx\r\n" + END,
    "meta that is no JSON": part("meta", b"tenant=acme") + part("payload", b"abc") + END,
    "meta with a payload": part("meta", b'{"payload":1}') + part("payload", b"abc") + END,
    "meta with a payload in base64": part("meta", b'{"payload_base64":"YQ=="}') + part("payload", b"abc") + END,
    "meta with an unknown field": part("meta", b'{"tennant":"acme"}') + part("payload", b"abc") + END,
    "meta with a wrong type": part("meta", b'{"priority":"high"}') + part("payload", b"abc") + END,
    "meta in UTF-16": part("meta", META.decode().encode("utf-16")) + part("payload", b"abc") + END,
    "meta nested": part("meta", b'{"headers":' + b"[" * 50_000) + part("payload", b"abc") + END,
    "cut off in a header": GOOD[:20],
    "cut off in the payload": GOOD[: -len(END) - 4],
    "cut off before the end": GOOD[: -len(END)],
    "cut off in the end": GOOD[:-4],
    "a header without a colon": GOOD.replace(b"form-data; name", b"form-data\r\nnonsense\r\nname", 1),
    "NUL in a header": GOOD.replace(b"form-data;", b"form\x00data\x01;", 1).replace(b"Content-D", b"Content\x00D"),
    "bare line feeds": GOOD.replace(b"\r\n", b"\n"),
    "hostile tenant": part("meta", b'{"tenant":"../x"}') + part("payload", b"abc") + END,
    "hostile queue": part("meta", b'{"queue":"a/b"}') + part("payload", b"abc") + END,
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_parts_that_are_no_message_are_refused_and_nothing_is_created(server: Server, name: str) -> None:
    answer = await send(server, MALFORMED[name])
    expected = "invalid_name" if name.startswith("hostile") else "invalid_argument"
    assert (answer.status, answer.code) == (400, expected), answer
    assert len(answer.body) < 1_000
    assert await is_empty(server)


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary=""',
        "multipart/form-data; boundary=" + "b" * 30_000,
        "multipart/form-data; boundary=\xff\xfe",
        "multipart/form-data;;;;=;boundary",
        "multipart/form-data; boundary*=utf-8''%ff",
        "multipart/form-data" + "; a=b" * 5_000,
    ],
    ids=range(8),
)
async def test_a_boundary_that_is_none_is_refused(server: Server, content_type: str) -> None:
    answer = await send(server, GOOD, content_type)
    assert (answer.status, answer.code) == (400, "invalid_argument"), answer
    assert await is_empty(server)


async def endless(server: Server, start: bytes, piece: bytes, most: int) -> Answer:
    """Sends on and on, until it is answered."""
    async with wire(server) as connection:
        connection.write(
            head("POST", ENQUEUE, {"Host": "localhost", "Transfer-Encoding": "chunked", "Content-Type": TYPE})
        )
        connection.write(b"%x\r\n%b\r\n" % (len(start), start))
        answering = asyncio.ensure_future(connection.answer())
        sent = 0
        while not answering.done():
            connection.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            sent += len(piece)
            assert sent < most, "nobody stopped it"
            await connection.writer.drain()
            await asyncio.sleep(0)
        return await answering


BOMBS: dict[str, tuple[bytes, bytes, int, int]] = {
    "a payload": (part("meta", META) + part("payload", b"")[:-2], b"x" * 65_536, 413, 8 << 20),
    "a meta": (part("meta", b"")[:-2], b" " * 65_536, 413, 8 << 20),
    "parts": (part("meta", META), part("payload", b""), 400, 8 << 20),
    "empty parts": (b"--b\r\n\r\n\r\n", b"--b\r\n\r\n\r\n" * 1_000, 400, 8 << 20),
    "headers of a part": (b"--b\r\n", b"a: b\r\n" * 10_000, 400, 8 << 20),
    "a header's name": (b"--b\r\n", b"a" * 65_536, 400, 8 << 20),
    "a header's value": (b"--b\r\na: ", b"a" * 65_536, 400, 8 << 20),
    "a preamble": (b"\r\n", b"x" * 65_536, 400, 8 << 20),
    "an epilogue": (GOOD, b"x" * 65_536, 413, 8 << 20),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_without_end_it_is_refused_at_a_limit_and_memory_stays_flat(server: Server, name: str) -> None:
    start, piece, status, most = BOMBS[name]
    tracemalloc.start()
    try:
        answer = await endless(server, start, piece, most)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.status in (status, 413), answer
    assert answer.code in ("payload_too_large", "invalid_argument")
    assert peak < 8 * MAX_PAYLOAD
    assert await is_empty(server)


async def test_a_payload_over_the_limit_is_refused_by_its_length_and_by_its_bytes(server: Server) -> None:
    body = part("meta", META) + part("payload", b"x" * (MAX_PAYLOAD + 1)) + END
    answer = await send(server, body)
    assert (answer.status, answer.code) == (413, "payload_too_large")
    async with wire(server) as connection:
        connection.write(
            head("POST", ENQUEUE, {"Host": "localhost", "Content-Type": TYPE, "Content-Length": str(2 << 20)})
        )
        assert (await connection.answer()).code == "payload_too_large"
    assert await is_empty(server)
    exact = part("meta", META) + part("payload", b"x" * MAX_PAYLOAD) + END
    assert (await send(server, exact)).status == 200


@pytest.mark.parametrize("step", [1, 7, 64])
async def test_parts_may_come_in_pieces_of_any_size(server: Server, step: int) -> None:
    async with wire(server) as connection:
        connection.write(
            head("POST", ENQUEUE, {"Host": "localhost", "Content-Type": TYPE, "Content-Length": str(len(GOOD))})
        )
        for start in range(0, len(GOOD), step):
            connection.write(GOOD[start : start + step])
            await connection.writer.drain()
            await asyncio.sleep(0)
        assert (await connection.answer()).status == 200
    [message] = await server.dequeue()
    assert message["payload_base64"] == "YWJj"


async def test_what_is_enqueued_cannot_forge_a_part_of_the_answer(server: Server) -> None:
    """Content types and headers of a message stand in parts and documents of another's answer."""
    meta: dict[str, Any] = {"tenant": "acme", "queue": "jobs"}
    for forged in ("text/plain\r\nX-Forged: 1", "text/plain\nX: 1", "a\x00b", "\u2028", "x" * 300):
        answer = await send(
            server, part("meta", json.dumps({**meta, "content_type": forged}).encode()) + part("payload", b"x") + END
        )
        assert (answer.status, answer.code) == (400, "invalid_argument")
    meta |= {"content_type": "text/ünusual; a=\u4e2d", "headers": {"a\r\nb": "c\r\n\r\nd"}}
    assert (
        await send(server, part("meta", json.dumps(meta).encode()) + part("payload", b"--b--\r\n") + END)
    ).status == 200
    own = {"tenant": "acme", "queue": "jobs"}
    answer = await server.post("/v1/queue/dequeue", own, headers={"Accept": "multipart/mixed"})
    boundary = answer.headers["Content-Type"].partition("boundary=")[2].encode()
    _, described, payload, end = answer.body.split(b"--" + boundary)
    assert json.loads(described.partition(b"\r\n\r\n")[2])["headers"] == {"a\r\nb": "c\r\n\r\nd"}
    assert payload.partition(b"\r\n\r\n")[2] == b"--b--\r\n\r\n"
    assert payload.count(b"Content-Type") == 1
    assert end == b"--\r\n"
