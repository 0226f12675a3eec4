"""Hot calls that come whole in one read: answered without events or a task, and otherwise like the others."""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.doors.http.connections.exchange import Exchange
from tests.doors.connections.connections import HELLO, App, Run, serving, talk
from tests.waiting import until

Handler = Callable[[Exchange], Awaitable[None]]
JSON = [(b"content-type", b"application/json")]


class HotApp(App):
    """Has a hot call at `/short`; keeps its exchanges."""

    def __init__(self, handler: Handler | None = None) -> None:
        super().__init__()
        self.exchanges: list[Exchange] = []
        self._handler = handler or self._echo
        self.hot_calls = {b"/short": self._run}

    async def _run(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        await self._handler(exchange)

    async def _echo(self, exchange: Exchange) -> None:
        body = exchange.take_body() or b""
        if not self.may_answer.is_set():
            await self.may_answer.wait()
        answer = json.dumps({"path": "/short", "body": body.decode("latin-1")}).encode()
        assert exchange.answer(200, JSON, answer)


def post(
    body: bytes, path: bytes = b"/short", *headers: bytes, method: bytes = b"POST", version: bytes = b"1.1"
) -> bytes:
    lines = [b"%b %b HTTP/%b" % (method, path, version), b"Host: x", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", body])


CLOSE = b"Connection: close"


def test_a_call_whole_in_one_read_is_a_hot_call_and_answered_like_any_other(run: Run) -> None:
    async def test() -> None:
        app = HotApp()
        async with serving(app) as port:
            short = await talk(port, post(b"hello", b"/short", CLOSE))
            whole = post(b"hello", b"/short", CLOSE)
            long = await talk(port, whole[:-3], whole[-3:])
            assert (len(app.exchanges), len(app.calls)) == (1, 1)
            assert short.partition(b"\r\n\r\n")[2] == long.partition(b"\r\n\r\n")[2]
            assert short.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"connection: close\r\n" in short

    run(test())


def test_a_connection_continues_after_a_hot_call(run: Run) -> None:
    async def test() -> None:
        app = HotApp()
        async with serving(app) as port:
            answer = await talk(port, post(b"a"), post(b"b"), HELLO, post(b"c", b"/short", CLOSE))
            assert answer.count(b"HTTP/1.1 200 OK") == 4
            assert (len(app.exchanges), len(app.calls)) == (3, 1)

    run(test())


OTHERS: dict[str, bytes] = {
    "another path": post(b"x", b"/other", CLOSE),
    "a query": post(b"x", b"/short?a=b", CLOSE),
    "another method": post(b"x", b"/short", CLOSE, method=b"PUT"),
    "HTTP/1.0": post(b"x", b"/short", version=b"1.0"),
    "a wait for leave to send": post(b"x", b"/short", b"Expect: 100-continue", CLOSE),
    "parts": post(b"x", b"/short", b"Content-Type: Multipart/Form-Data; boundary=b", CLOSE),
    "an offer to upgrade": post(b"x", b"/short", b"Upgrade: h2c", b"Connection: upgrade, close"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_everything_else_is_called_with_events(run: Run, name: str) -> None:
    async def test() -> None:
        app = HotApp()
        async with serving(app) as port:
            answer = await talk(port, OTHERS[name])
            assert b"200 OK" in answer
            assert (len(app.exchanges), len(app.calls)) == (0, 1)

    run(test())


def test_calls_sent_ahead_are_answered_in_their_order(run: Run) -> None:
    async def test() -> None:
        app = HotApp()
        app.may_answer.clear()
        async with serving(app) as port:
            ahead = [post(b"%d" % number) for number in range(5)]
            asking = asyncio.create_task(talk(port, b"".join([*ahead, post(b"5", b"/short", CLOSE)])))
            while not app.exchanges:
                await asyncio.sleep(0)
            app.may_answer.set()
            assert re.findall(rb'"body": "(\d)"', await asking) == [b"%d" % number for number in range(6)]
            assert (len(app.exchanges), app.calls) == (6, []), "what was sent ahead waited for its turn"

    run(test())


def test_one_that_waits_is_in_hand_until_it_ends(run: Run) -> None:
    async def test() -> None:
        app = HotApp()
        app.may_answer.clear()
        async with serving(app) as port:
            asking = asyncio.create_task(talk(port, post(b"x", b"/short", CLOSE)))
            while not app.exchanges:
                await asyncio.sleep(0)
            ended = app.exchanges[0].ended()
            assert not ended.done()
            app.may_answer.set()
            await ended
            assert b"200 OK" in await asking
            assert app.exchanges[0].ended() is ended

    run(test())


def test_one_whose_caller_left_answers_nobody_and_knows(run: Run) -> None:
    async def test() -> None:
        app = HotApp()
        app.may_answer.clear()
        async with serving(app) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(b"x"))
            while not app.exchanges:
                await asyncio.sleep(0)
            writer.transport.abort()
            exchange = app.exchanges[0]
            await until(lambda: exchange.has_caller_left)
            app.may_answer.set()
            await exchange.ended()
            assert exchange.transport is not None
            assert exchange.transport.is_closing()

    run(test())


def test_one_that_needs_events_gets_them_with_its_body_and_continues_as_a_task(run: Run) -> None:
    async def handle(exchange: Exchange) -> None:
        events = exchange.events()
        assert (events.scope["method"], events.scope["path"]) == ("POST", "/short")
        assert (b"host", b"x") in events.scope["headers"]
        async with asyncio.timeout(60):  # needs a task
            received = await events.receive()
        assert not received["more_body"]
        await events.send({"type": "http.response.start", "status": 200, "headers": []})
        await events.send({"type": "http.response.body", "body": received["body"], "more_body": True})
        await asyncio.sleep(0.001)
        await events.send({"type": "http.response.body", "body": b" and more"})

    async def go_on_then_handle(exchange: Exchange) -> None:
        exchange.events()
        await asyncio.sleep(0)  # the first wait with events is where the task begins
        await handle(exchange)

    async def test() -> None:
        app = HotApp(go_on_then_handle)
        async with serving(app) as port:
            answer = await talk(port, post(b"hello"), post(b"hello", b"/short", CLOSE))
            assert answer.count(b"5\r\nhello\r\n") == 2
            assert answer.count(b"and more") == 2

    run(test())


def test_its_caller_s_leaving_is_received_once_it_has_events(run: Run) -> None:
    received: list[Any] = []

    async def handle(exchange: Exchange) -> None:
        exchange.take_body()
        received.append(await exchange.events().receive())

    async def test() -> None:
        app = HotApp(handle)
        async with serving(app) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(b"x"))
            while not app.exchanges:
                await asyncio.sleep(0)
            writer.transport.abort()
            await until(lambda: received)
            assert received == [{"type": "http.disconnect"}]

    run(test())


@pytest.mark.parametrize("when", ["at once", "after a wait", "with events"])
def test_one_that_breaks_off_is_logged_and_ends_its_connection_alone(
    run: Run, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(exchange: Exchange) -> None:
        if when == "with events":
            exchange.events()
        if when != "at once":
            await asyncio.sleep(0.001)
        raise RuntimeError("no idea what to do")

    async def test() -> None:
        app = HotApp(handle)
        async with serving(app) as port:
            assert await talk(port, post(b"x")) == b""
            assert b"200 OK" in await talk(port, HELLO.replace(b"Host", b"Connection: close\r\nHost"))

    with caplog.at_level(logging.ERROR):
        run(test())
    assert [record.message for record in caplog.records] == ["call_aborted"]
