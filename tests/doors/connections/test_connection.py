"""A connection on a transport that a test looks into: what is written when, and what is carried out without a task."""

import asyncio
import gc
import json
import re
import weakref
from typing import Any

import pytest

from holdfast.doors.http.calls import send_body
from holdfast.doors.http.connections.connection import HttpConnection
from holdfast.doors.http.connections.connections import HttpConnections
from holdfast.doors.http.connections.exchange import Exchange
from holdfast.doors.sockets import response_writer
from tests.doors.connections.connections import App


class RecordedTransport(asyncio.Transport):
    """Takes everything at once, and keeps it write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_reading_paused = False
        self.is_closed = False
        self.is_aborted = False
        self.unsent_bytes = 0

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False


class EchoApp(App):
    """Answers a hot call with its body; keeps the bodies in the order in which their calls began."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self.hot_calls = {b"/hot": self._echo}

    async def _echo(self, exchange: Exchange) -> None:
        body = exchange.take_body()
        assert body is not None
        self.bodies.append(body)
        if not self.may_answer.is_set():
            await self.may_answer.wait()
        answer = json.dumps(body.decode()).encode()
        if not exchange.answer_json("id", answer):
            await send_body(exchange.events().send, 200, answer, [])


def post(body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST /hot HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", body])


def connected(
    app: App, group: HttpConnections | None = None
) -> tuple[HttpConnection, RecordedTransport, HttpConnections]:
    group = group or HttpConnections(app, app.hot_calls)
    connection, transport = group.make(), RecordedTransport()
    connection.connection_made(transport)
    return connection, transport, group


def bodies_in(written: bytes) -> list[str]:
    return re.findall(r'"(\w*)"', written.decode())


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


# --- Writes ------------------------------------------------------------------------------------------------------


async def test_hot_requests_of_one_read_are_answered_by_one_write() -> None:
    connection, transport, _ = connected(EchoApp())
    for _ in range(2):  # the second time the heads are known
        connection.data_received(post(b"a") + post(b"bc") + post(b"d"))
        [written] = transport.writes
        assert written.count(b"HTTP/1.1 200 OK\r\n") == 3
        assert bodies_in(written) == ["a", "bc", "d"]
        transport.writes.clear()
    connection.connection_lost(None)


async def test_requests_that_waited_for_their_turn_are_answered_by_one_write() -> None:
    app = EchoApp()
    connection, transport, _ = connected(app)
    app.may_answer.clear()
    connection.data_received(post(b"a") + post(b"b") + post(b"c"))
    assert (app.bodies, transport.writes) == ([b"a"], [])
    assert transport.is_reading_paused
    app.may_answer.set()
    await settled()
    assert [bodies_in(each) for each in transport.writes] == [["a"], ["b", "c"]]
    assert not transport.is_reading_paused
    connection.connection_lost(None)


async def test_what_is_ready_is_written_before_the_connection_is_refused() -> None:
    connection, transport, _ = connected(EchoApp())
    connection.data_received(post(b"a") + b"rubbish\r\n\r\n")
    assert bodies_in(transport.writes[0]) == ["a"]
    assert transport.writes[1].startswith(b"HTTP/1.1 400 ")
    connection.connection_lost(None)


async def test_hot_calls_wait_for_a_caller_that_does_not_read() -> None:
    app = EchoApp()
    connection, transport, _ = connected(app)
    connection.pause_writing()
    connection.data_received(post(b"a") + post(b"b"))
    await settled()
    assert (app.bodies, transport.writes) == ([b"a"], [])
    connection.resume_writing()
    await settled()
    assert bodies_in(b"".join(transport.writes)) == ["a", "b"]
    connection.connection_lost(None)


async def test_a_caller_that_reads_nothing_of_its_last_response_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_writer, "UNREAD_PATIENCE_S", 0)
    connection, transport, _ = connected(EchoApp())
    transport.unsent_bytes = 100
    connection.data_received(post(b"a", b"Connection: close"))
    assert transport.is_closed
    assert not transport.is_aborted
    transport.unsent_bytes = 50  # it has read some of it
    await asyncio.sleep(0)
    assert not transport.is_aborted
    await settled()
    assert transport.is_aborted
    connection.connection_lost(None)


async def test_a_caller_that_stops_reading_in_the_middle_of_a_response_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(response_writer, "UNREAD_PATIENCE_S", 0)
    has_ended = False

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal has_ended
        await send(START)
        await send({**BODY, "body": b"x", "more_body": True})
        connection.pause_writing()
        await send({**BODY, "body": b"y", "more_body": True})
        has_ended = True

    group = HttpConnections(app, {})
    connection, transport = group.make(), RecordedTransport()
    connection.connection_made(transport)
    transport.unsent_bytes = 100
    connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(0)
    for transport.unsent_bytes in (90, 80, 70):  # slow, but it reads
        await asyncio.sleep(0)
        assert not transport.is_aborted
    await settled()
    assert transport.is_aborted
    assert not has_ended
    connection.connection_lost(None)
    await settled()
    assert (has_ended, group.tasks) == (True, set())


async def test_a_caller_that_reads_again_has_all_its_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, transport, _ = connected(EchoApp())
    monkeypatch.setattr(response_writer, "UNREAD_PATIENCE_S", 0)
    for _ in range(5):
        transport.unsent_bytes = 100
        connection.pause_writing()
        connection.resume_writing()
        await settled()
    assert not transport.is_aborted
    connection.connection_lost(None)


# --- Refusals ----------------------------------------------------------------------------------------------------


async def test_a_hot_request_whose_body_is_no_http_is_refused_before_it_is_carried_out() -> None:
    app = EchoApp()
    connection, transport, _ = connected(app)
    head = b"POST /hot HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.data_received(head + b"2\r\nabc\r\n0\r\n\r\n")
    assert transport.writes[0].startswith(b"HTTP/1.1 400 ")
    assert (app.bodies, app.calls, connection.current) == ([], [], None)
    connection.connection_lost(None)


async def test_a_request_behind_a_refused_one_is_never_carried_out() -> None:
    app = EchoApp()
    connection, _, _ = connected(app)
    connection.data_received(post(b"a"))
    connection.data_received(b"rubbish\r\n\r\n" + post(b"a"))
    connection.data_received(post(b"a"))
    assert app.bodies == [b"a"]
    connection.connection_lost(None)


# --- Responses as events -------------------------------------------------------------------------------------------

START = {"type": "http.response.start", "status": 200}
SHORT = {**START, "headers": [(b"content-length", b"1")]}
BODY = {"type": "http.response.body"}
WRONG_EVENTS: dict[str, list[dict[str, Any]]] = {
    "no response": [],
    "a body before its head": [BODY],
    "two heads": [START, START],
    "a body longer than its length": [SHORT, {**BODY, "body": b"xy"}],
    "a body shorter than its length": [SHORT, BODY],
    "a response without an end": [START, {**BODY, "body": b"x", "more_body": True}],
    "a line break in a value": [{**START, "headers": [(b"x", b"a\r\nset-cookie: b")]}],
    "a colon in a name": [{**START, "headers": [(b"x: a", b"b")]}],
}


# A response to a HEAD states the length of a body that is not sent.
@pytest.mark.parametrize(
    ("method", "name"),
    [(b"GET", name) for name in WRONG_EVENTS] + [(b"HEAD", name) for name in WRONG_EVENTS if "length" not in name],
)
async def test_an_application_that_answers_wrongly_ends_its_connection(
    method: bytes, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for event in WRONG_EVENTS[name]:
            await send(event)

    group = HttpConnections(app, {})
    connection, transport = group.make(), RecordedTransport()
    connection.connection_made(transport)
    connection.data_received(method + b" / HTTP/1.1\r\nHost: x\r\n\r\n")
    await settled()
    assert transport.is_closed
    assert len([record for record in caplog.records if record.name == "holdfast"]) == 1
    written = b"".join(transport.writes)
    assert b"set-cookie" not in written
    assert not written.endswith(b"0\r\n\r\n")
    if method == b"GET":
        has_begun = WRONG_EVENTS[name][:1] in ([START], [SHORT])
        assert written.startswith(b"HTTP/1.1 200 " if has_begun else b"HTTP/1.1 500 ")
    connection.connection_lost(None)


async def test_a_response_at_once_has_no_header_that_ends_its_line(caplog: pytest.LogCaptureFixture) -> None:
    async def hot(exchange: Exchange) -> None:
        exchange.answer(200, [(b"content-type", b"a\r\nset-cookie: b")], b"")

    connection, transport, _ = connected(EchoApp(), HttpConnections(EchoApp(), {b"/hot": hot}))
    connection.data_received(post(b"a"))
    assert b"set-cookie" not in b"".join(transport.writes)
    assert transport.is_closed
    assert "call_aborted" in caplog.text
    connection.connection_lost(None)


async def test_calls_in_hand_are_described_in_one_line() -> None:
    app = App()
    connection, _, group = connected(app)
    app.may_answer.clear()
    connection.data_received(b"GET /a%0d%0ab" + b"c" * 1_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    await settled()
    described = group.describe_calls()
    assert described.startswith("1 GET /a%0d%0abccc")
    assert len(described) < 300
    app.may_answer.set()
    await settled()
    connection.connection_lost(None)


async def test_a_caller_by_http_1_0_is_told_nothing_before_its_response() -> None:
    connection, transport, _ = connected(App())
    head = b"POST /a HTTP/1.0\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
    connection.data_received(head)
    await settled()
    assert transport.writes == []
    connection.data_received(b"x")
    await settled()
    assert transport.writes[0].startswith(b"HTTP/1.1 200 ")
    connection.connection_lost(None)


async def test_calls_leave_nothing_to_the_garbage_collector() -> None:
    """The collector stops every call while it runs."""
    seen: list[weakref.ref[Any]] = []

    class Marked(dict[str, Any]):
        pass

    async def app(scope: Any, receive: Any, send: Any) -> None:
        mark = scope["state"]["mark"] = Marked()
        seen.append(weakref.ref(mark))
        await receive()
        await send(START)
        await send(BODY)

    async def hot(exchange: Exchange) -> None:
        await app(*exchange.events())

    group = HttpConnections(app, {b"/hot": hot})
    connection, transport = group.make(), RecordedTransport()
    connection.connection_made(transport)
    gc.disable()
    try:
        for request in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", post(b"a"), post(b"a")):
            connection.data_received(request)
            await settled()
        assert [mark() for mark in seen] == [None] * 3
    finally:
        gc.enable()
    assert len(transport.writes) == 3
    connection.connection_lost(None)


# --- Tasks -------------------------------------------------------------------------------------------------------


async def test_a_hot_call_that_need_not_wait_makes_no_task() -> None:
    connection, transport, group = connected(EchoApp())
    before = asyncio.all_tasks()
    connection.data_received(post(b"a"))
    assert len(transport.writes) == 1
    assert (asyncio.all_tasks(), group.tasks) == (before, set())
    connection.connection_lost(None)


async def test_a_hot_call_that_waits_for_a_future_makes_no_task() -> None:
    app = EchoApp()
    connection, transport, group = connected(app)
    before = asyncio.all_tasks()
    app.may_answer.clear()
    connection.data_received(post(b"a"))
    assert (asyncio.all_tasks(), group.tasks, transport.writes) == (before, set(), [])
    app.may_answer.set()
    await settled()
    assert len(transport.writes) == 1
    connection.connection_lost(None)


# --- Order -------------------------------------------------------------------------------------------------------


async def test_a_request_never_overtakes_one_that_was_sent_ahead_of_it() -> None:
    app = EchoApp()
    connection, transport, _ = connected(app)
    connection.data_received(post(b"0"))  # its head is known from now on
    app.may_answer.clear()
    connection.data_received(post(b"1") + post(b"2"))
    app.may_answer.set()
    await asyncio.sleep(0)  # the first is answered, the second has not begun
    connection.data_received(post(b"3"))
    await settled()
    assert app.bodies == [b"0", b"1", b"2", b"3"]
    assert bodies_in(b"".join(transport.writes)) == ["0", "1", "2", "3"]
    connection.connection_lost(None)


async def test_nothing_behind_the_last_request_of_a_connection_is_carried_out() -> None:
    for ahead in (b"", post(b"known")):
        app = EchoApp()
        connection, transport, _ = connected(app)
        if ahead:
            connection.data_received(ahead)
        connection.data_received(post(b"last", b"Connection: close") + post(b"known"))
        connection.data_received(post(b"known"))
        assert app.bodies[-1] == b"last"
        assert transport.is_closed
        connection.connection_lost(None)


# --- Heads that were read before -----------------------------------------------------------------------------------


async def test_a_head_that_was_read_before_is_looked_up_and_its_body_is_its_own() -> None:
    app = EchoApp()
    connection, _, group = connected(app)
    connection.data_received(post(b"one"))
    assert len(group.known_heads) == 1
    other, _, _ = connected(app, group)
    for each in (connection, other):
        each.data_received(post(b"two"))
        each.connection_lost(None)
    assert app.bodies == [b"one", b"two", b"two"]


async def test_the_body_of_a_request_is_never_taken_for_a_head_that_was_read_before() -> None:
    """Its second part, as it is read, begins with the very bytes of a known request."""
    app = EchoApp()
    connection, _, _ = connected(app)
    inner = post(b"in")
    connection.data_received(inner)
    outer = post(b"1234" + inner)
    connection.data_received(outer[: -len(inner)])
    connection.data_received(inner)
    await settled()
    assert app.bodies == [b"in"]
    [call] = app.calls
    assert dict(call["headers"])[b"content-length"] == b"%d" % (4 + len(inner))
    connection.connection_lost(None)


async def test_a_body_that_nobody_reads_and_half_a_head_are_never_taken_for_a_request_that_was_read_before() -> None:
    known = post(b"in")
    unread = b"POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(known)
    for begun in (unread, b"POST /other HTTP/1.1\r\nHost: x\r\nX-Value: "):
        app = EchoApp()
        connection, _, _ = connected(app)
        connection.data_received(known)
        connection.data_received(begun)
        await settled()  # what begins with `unread` is answered by now
        connection.data_received(known)
        await settled()
        assert app.bodies == [b"in"]
        connection.connection_lost(None)


async def test_a_known_head_whose_body_comes_later_waits_for_it() -> None:
    app = EchoApp()
    connection, transport, _ = connected(app)
    connection.data_received(post(b"abc"))
    transport.writes.clear()
    whole = post(b"xyz")
    connection.data_received(whole[:-1])
    await settled()
    assert transport.writes == []
    connection.data_received(whole[-1:])
    await settled()
    assert b'"xyz"' in b"".join(transport.writes)
    connection.connection_lost(None)


MANY = b"\r\n".join(b"X-%d: y" % number for number in range(31))


async def test_only_so_many_heads_are_kept_and_none_that_is_not_sent_again() -> None:
    app = EchoApp()
    connection, _, group = connected(app)
    for number in range(3_000):
        connection.data_received(post(b"a", b"X-Number: %d" % number))
    assert len(group.known_heads) <= 1_024
    group.known_heads.clear()
    for header in (b"X-Correlation-Id: a", b"Traceparent: b", b"X: " + b"v" * 5_000, b"Connection: close", MANY):
        connection, _, _ = connected(app, group)
        connection.data_received(post(b"a", header))
    chunked = b"POST /hot HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
    connection, _, _ = connected(app, group)
    connection.data_received(b"\r\n\r\n" + post(b"a"))
    connection.data_received(chunked)
    assert len(app.bodies) == 3_007
    assert group.known_heads == {}
