"""Over real connections, on both event loops."""

import asyncio
import contextlib
import json
import logging

import pytest

from holdfast.doors.http.connections import timeouts
from holdfast.doors.http.connections.connection import MAX_PIPELINED
from holdfast.doors.http.connections.request_heads import MAX_HEAD_BYTES, MAX_HEADERS
from tests.doors.connections.connections import HELLO, App, Run, assert_refused, head_of, serving, talk

# ---- ordinary calls


def test_calls_on_one_connection_are_answered_in_turn(run: Run) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            post = b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
            chunked = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
            last = b"GET /d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            answer = await talk(port, HELLO + post + chunked + last)
            assert answer.count(b"HTTP/1.1 200 OK") == 4
            assert [call["path"] for call in app.calls] == ["/hello", "/b", "/c", "/d"]
            assert b'"hello"' in answer
            assert b'"hi"' in answer

    run(test())


def test_a_plain_connection_has_no_peer_and_tells_when_it_closes(run: Run) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            await talk(port, HELLO.replace(b"Host", b"Connection: close\r\nHost"))
            facts = app.calls[0]["extensions"]["holdfast"]
            assert facts.peer is None
            assert facts.transport.is_closing()

    run(test())


def test_a_head_may_come_byte_by_byte(run: Run) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            head = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for byte in head:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()

    run(test())


def test_a_large_body_is_no_large_head(run: Run) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            body = b"x" * (MAX_HEAD_BYTES * 8)
            request = b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
            answer = await talk(port, request, body[:10], body[10:])
            assert len(answer) > len(body)

    run(test())


def test_an_offer_to_upgrade_is_passed_over_and_the_body_is_read(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            offer = b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
            bodies = [
                b"POST /0 HTTP/1.1\r\n" + offer + b"Content-Length: 2\r\n\r\nok",
                b"POST /1 HTTP/1.1\r\n" + offer + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                b"GET /2 HTTP/1.1\r\n" + offer + b"\r\n",
                b"POST /3 HTTP/1.1\r\n" + offer + b"Content-Length: 0\r\n\r\n",
                HELLO,
            ]
            expected = [("/0", "ok"), ("/1", "ok"), ("/2", ""), ("/3", ""), ("/hello", "")]
            for sent in (bodies, [b"".join(bodies)], [bytes([byte]) for byte in b"".join(bodies)]):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                for part in sent:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                for path, body in expected:
                    answer = await reader.readuntil(b"}")
                    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"path": path, "body": body}
                writer.close()
        assert "websockets" not in caplog.text

    run(test())


# ---- heads that are too large


def test_a_head_of_64_kib_is_the_largest(run: Run) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            assert (await talk(port, head_of(MAX_HEAD_BYTES))).startswith(b"HTTP/1.1 200")
            assert len(app.calls) == 1
            assert_refused(await talk(port, head_of(MAX_HEAD_BYTES + 1)), 431)
            assert len(app.calls) == 1

    run(test())


BOMBS: dict[str, list[bytes]] = {
    "one header of 1 MiB": [b"GET / HTTP/1.1\r\nX: " + b"v" * (1 << 20) + b"\r\n\r\n"],
    "one header that never ends": [b"GET / HTTP/1.1\r\nX: ", *[b"v" * 20_000] * 8],
    "a header's name that never ends": [b"GET / HTTP/1.1\r\n", *[b"n" * 20_000] * 8],
    "a URL of 1 MiB": [b"GET /" + b"u" * (1 << 20) + b" HTTP/1.1\r\n\r\n"],
    "a URL that never ends": [b"GET /", *[b"u" * 20_000] * 8],
    "10,000 headers": [b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000 + b"\r\n"],
    "one header too many": [b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (MAX_HEADERS + 1) + b"\r\n"],
    "10,000 headers one by one": [b"GET / HTTP/1.1\r\n", *[b"X: y\r\n" * 500] * 20],
    "line breaks without end": [b"\r\n" * 20_000] * 4,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_head_without_measure_is_refused_and_nobody_called(run: Run, name: str) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            assert_refused(await talk(port, *BOMBS[name]), 431)
            assert app.calls == []
            assert (await talk(port, HELLO.replace(b"Host", b"Connection: close\r\nHost"))).startswith(b"HTTP/1.1 200")

    run(test())


def test_trailers_without_measure_are_refused_and_short_ones_passed_over(run: Run) -> None:
    async def test() -> None:
        app = App()
        begin = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\nx\r\n0\r\n"
        async with serving(app) as port:
            answer = await talk(port, begin + b"Authorization: Bearer x\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"authorization" not in dict(app.calls[0]["headers"])
            app.may_answer.clear()
            with contextlib.suppress(ConnectionError):
                assert await talk(port, begin + b"X: ", *[b"v" * 20_000] * 8) == b""
            assert app.calls[1]["extensions"]["holdfast"].transport.is_closing()

    run(test())


# ---- requests that can be read in two ways

BODY = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
SMUGGLED: dict[str, bytes] = {
    "TE and CL": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "CL and TE": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "CL 0 and TE": b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
    "TE in capitals and CL": b"TRANSFER-ENCODING: CHUNKED\r\nContent-Length: 5\r\n",
    "TE identity and CL": b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n",
    "TE of nothing and CL": b"Transfer-Encoding:\r\nContent-Length: 5\r\n",
    "TE with a vertical tab": b"Transfer-Encoding: \x0bchunked\r\nContent-Length: 5\r\n",
    "TE with a space before the colon": b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n",
    "TE twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "TE twice, one of them unknown": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
    "TE gzip, chunked": b"Transfer-Encoding: gzip, chunked\r\n",
    "TE chunked, identity": b"Transfer-Encoding: chunked, identity\r\n",
    "TE unknown": b"Transfer-Encoding: xchunked\r\n",
    "CL twice": b"Content-Length: 5\r\nContent-Length: 5\r\n",
    "CL twice, not the same": b"Content-Length: 5\r\nContent-Length: 6\r\n",
    "CL in a list": b"Content-Length: 5, 5\r\n",
    "CL with a sign": b"Content-Length: +5\r\n",
    "CL below zero": b"Content-Length: -5\r\n",
    "CL in hexadecimal": b"Content-Length: 0x5\r\n",
    "CL beyond all measure": b"Content-Length: 99999999999999999999999\r\n",
    "a folded header": b"X: a\r\n b\r\nContent-Length: 5\r\n",
    "a folded TE": b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n",
    "a NUL in a value": b"X: a\0b\r\nContent-Length: 5\r\n",
    "a bare CR in a value": b"X: a\rContent-Length: 5\r\n\r\n",
    "a header without a name": b": a\r\nContent-Length: 5\r\n",
    "two hosts": b"Host: y\r\nContent-Length: 5\r\n",
    "two tokens": b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_a_request_open_to_two_readings_is_refused(run: Run, name: str) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            answer = await talk(port, b"POST /a HTTP/1.1\r\nHost: x\r\n" + SMUGGLED[name] + b"\r\n" + BODY)
            assert_refused(answer, 400)
            assert answer.count(b"content-length") == 1
            assert app.calls == []

    run(test())


@pytest.mark.parametrize("version", [b"0.9", b"2.0"])
def test_a_version_whose_messages_are_framed_otherwise_is_refused(run: Run, version: bytes) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            chunked = b"\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            assert_refused(await talk(port, b"POST /a HTTP/" + version + chunked), 505)
            assert app.calls == []

    run(test())


@pytest.mark.parametrize("target", [b"http://y/a", b"https://y/a", b"ftp://y/a", b"ws://x/a"])
def test_a_target_that_names_another_host_or_protocol_is_refused(run: Run, target: bytes) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            assert_refused(await talk(port, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n"), 400)
            assert app.calls == []

    run(test())


@pytest.mark.parametrize("request_line", [b"GET / HTTP/1.0", b"GET / HTTP/1.1"])
def test_chunks_are_for_http_1_1(run: Run, request_line: bytes) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            answer = await talk(
                port, request_line + b"\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            )
            if request_line.endswith(b"1.0"):
                assert_refused(answer, 400)
            else:
                assert answer.startswith(b"HTTP/1.1 200")

    run(test())


BAD_CHUNKS: dict[str, bytes] = {
    "a size with a sign": b"+5\r\nhello\r\n",
    "a size below zero": b"-5\r\nhello\r\n",
    "a size with a prefix": b"0x5\r\nhello\r\n",
    "a size with an underscore": b"1_0\r\nhello\r\n",
    "a size that is no number": b"g\r\nhello\r\n",
    "a size beyond all measure": b"fffffffffffffffff\r\nhello\r\n",
    "no size": b"\r\nhello\r\n",
    "a space before the size": b" 5\r\nhello\r\n",
    "a space behind the size": b"5 \r\nhello\r\n",
    "a bare LF behind the size": b"5\nhello\r\n",
    "a bare CR behind the size": b"5\rhello\r\n",
    "a bare LF behind the data": b"5\r\nhello\n",
    "data longer than its size": b"5\r\nhello!\r\n",
    "a bare LF in an extension": b"5;a\nb\r\nhello\r\n",
    "an extension without measure": b"5;" + b"a" * (MAX_HEAD_BYTES * 2),
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
def test_a_bad_chunk_ends_its_connection_and_nothing_behind_it_is_read_as_a_request(run: Run, name: str) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            head = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            # The call has begun by then: a refusal could be taken for its response.
            with contextlib.suppress(ConnectionError):
                assert await talk(port, head, BAD_CHUNKS[name] + BODY) == b""
        assert [call["path"] for call in app.calls] == ["/a"]

    run(test())


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"hello\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\n\r\n",
    b"CONNECT host:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\nHost: x\n\n",
    b"GET / HTTP/1.1\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\rX: y\r\n\r\n",
]


@pytest.mark.parametrize("sent", GARBAGE)
def test_what_is_not_http_is_refused_and_logged_nowhere(
    run: Run, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            caplog.clear()
            assert_refused(await talk(port, sent), 400)
            assert app.calls == []
            assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    run(test())


def test_a_bad_request_behind_a_good_one_gets_no_answer_of_its_own(run: Run) -> None:
    async def test() -> None:
        app = App()
        app.may_answer.clear()
        async with serving(app) as port:
            answer = await talk(port, HELLO + b"rubbish\r\n\r\n")
            # An answer now would pass for the first one's.
            assert answer == b""

    run(test())


def test_only_so_many_requests_may_be_sent_ahead(run: Run) -> None:
    async def test() -> None:
        app = App()
        app.may_answer.clear()
        async with serving(app) as port:
            assert await talk(port, HELLO * (MAX_PIPELINED + 3)) == b""
            app.may_answer.set()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HELLO * MAX_PIPELINED)
            for _ in range(MAX_PIPELINED):
                await reader.readuntil(b"}")
            writer.close()

    run(test())


# ---- slow senders


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(timeouts, "HEAD_PATIENCE_S", 0.3)
    return 0.3


SLOW: dict[str, list[bytes]] = {
    "nothing": [],
    "half a request line": [b"GET / HT"],
    "headers without an end": [b"GET / HTTP/1.1\r\nHost: x\r\n", *[b"X: y\r\n"] * 200],
    "line breaks": [b"\r\n"] * 200,
}


@pytest.mark.parametrize("name", SLOW)
def test_a_connection_that_does_not_finish_its_head_is_closed(run: Run, name: str, impatient: float) -> None:
    async def test() -> None:
        app = App()
        async with serving(app) as port:
            loop = asyncio.get_running_loop()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            started = loop.time()

            async def trickle() -> None:
                for part in SLOW[name]:
                    writer.write(part)
                    await asyncio.sleep(0.02)

            sending = asyncio.create_task(trickle())
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            assert impatient * 0.8 <= loop.time() - started < impatient + 2
            assert app.calls == []
            sending.cancel()
            writer.close()

    run(test())


def test_the_next_request_of_a_connection_has_to_be_as_quick(run: Run, impatient: float) -> None:
    async def test() -> None:
        app = App()
        async with serving(app, keep_alive_s=60) as port:
            answer = await talk(port, HELLO, b"GET / HT")
            assert answer.count(b"HTTP/1.1 200") == 1

    run(test())


def test_an_idle_connection_between_requests_may_stay(run: Run, impatient: float) -> None:
    async def test() -> None:
        app = App()
        async with serving(app, keep_alive_s=60) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(HELLO)
                await reader.readuntil(b"}")
                await asyncio.sleep(impatient * 1.5)
            assert len(app.calls) == 2
            writer.close()

    run(test())


def test_line_breaks_do_not_keep_an_idle_connection_open(run: Run) -> None:
    async def test() -> None:
        app = App()
        async with serving(app, keep_alive_s=0.1) as port:
            assert (await talk(port, HELLO, b"\r\n")).count(b"HTTP/1.1 200") == 1

    run(test())


def test_a_call_that_waits_long_for_its_answer_is_left_alone(run: Run, impatient: float) -> None:
    async def test() -> None:
        app = App()
        app.may_answer.clear()
        async with serving(app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            # Line breaks after a request, as old clients send them, start no clock.
            writer.write(HELLO)
            await asyncio.sleep(0.05)
            writer.write(b"\r\n")
            await asyncio.sleep(impatient * 2)
            app.may_answer.set()
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            writer.close()

    run(test())


def test_a_body_that_nobody_reads_any_more_is_not_waited_for(run: Run, impatient: float) -> None:
    async def test() -> None:
        app = App()
        async with serving(app, keep_alive_s=60) as port:
            parts = [b"x"] * 10
            answer = await talk(port, b"POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n", *parts)
            assert answer.startswith(b"HTTP/1.1 200")

    run(test())
