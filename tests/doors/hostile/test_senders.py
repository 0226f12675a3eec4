"""Callers that send slowly, too early, too much, or in unusual ways; none of them costs another anything."""

import asyncio
import contextlib
import statistics
import time
from typing import Any

import pytest

from holdfast.doors.http import request_bodies
from holdfast.testing import ManualClock
from tests.doors.raw import Wire, head, once, wire
from tests.doors.serving import Server, Tokens, caller, serve
from tests.waiting import until

ENQUEUE = "/v1/queue/enqueue"
ONE = {"tenant": "acme", "queue": "jobs", "messages": [{"payload": 1}]}
STATS = "/v1/queue/stats?tenant=acme&queue=jobs"


async def ready(server: Server) -> int:
    answer = await server.get(STATS)
    return 0 if answer.status == 404 else int(answer.json["ready"])


# --- Slow ------------------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "BODY_PATIENCE_S", 0.3)


async def trickle(connection: Wire, every_s: float) -> None:
    """A body of which one byte comes now and then, for as long as anybody takes it."""
    connection.write(head("POST", ENQUEUE, {"Host": "localhost", "Content-Length": "100000"}))
    with contextlib.suppress(OSError):
        while not connection.writer.transport.is_closing():
            connection.write(b" ")
            await asyncio.sleep(every_s)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("every_s", [0.02, 30.0], ids=["trickling", "stalled"])
@pytest.mark.parametrize("kind", ["json", "chunked", "multipart", "get"])
async def test_a_body_that_does_not_arrive_is_refused_by_name(server: Server, every_s: float, kind: str) -> None:
    headers = {"Host": "localhost", "Content-Length": "100000"}
    method, path, byte = "POST", ENQUEUE, b" "
    if kind == "chunked":
        headers, byte = {"Host": "localhost", "Transfer-Encoding": "chunked"}, b"1\r\n \r\n"
    if kind == "multipart":
        headers["Content-Type"] = "multipart/form-data; boundary=b"
        byte = b"-"
    if kind == "get":
        method, path = "GET", "/v1/tenants"
    async with wire(server) as connection:
        connection.write(head(method, path, headers))
        answering = asyncio.ensure_future(connection.answer())
        while not answering.done():
            connection.write(byte)
            await asyncio.wait((answering,), timeout=every_s)
        answer = await answering
        assert (answer.status, answer.code) == (400, "invalid_argument")
        assert answer.headers["connection"] == "close"
        assert await connection.rest() == b""
    assert await ready(server) == 0


async def test_a_body_may_take_its_time_as_long_as_it_comes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "BODY_PATIENCE_S", 1.0)
    monkeypatch.setattr(request_bodies, "BODY_BYTES_PER_S", 100)
    body = b'{"tenant":"acme","queue":"jobs","messages":[{"payload":"' + b"x" * 2_000 + b'"}]}'
    async with wire(server) as connection:
        connection.write(head("POST", ENQUEUE, {"Host": "localhost", "Content-Length": str(len(body))}))
        for start in range(0, len(body), 100):
            connection.write(body[start : start + 100])
            await asyncio.sleep(0.06)
        assert (await connection.answer()).status == 200


async def test_slow_senders_do_not_slow_another_caller_and_are_all_gone_afterwards(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_bodies, "BODY_PATIENCE_S", 2.0)

    async def median_s() -> float:
        taken = []
        for _ in range(60):
            start = time.perf_counter()
            await server.enqueue(1)
            taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    await median_s()
    alone_s = await median_s()
    server.requests.seen.clear()
    async with contextlib.AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(wire(server)) for _ in range(200)]
        trickling = [asyncio.create_task(trickle(each, 0.5)) for each in slow]
        await asyncio.sleep(0.2)
        beside_s = await median_s()
        answers = await asyncio.gather(*(each.answer() for each in slow))
        assert {(each.status, each.code) for each in answers} == {(400, "invalid_argument")}
        for task in trickling:
            task.cancel()
        # Their connections are closed by the server, and their calls ended.
        assert {await each.rest() for each in slow} == {b""}
    outcomes = [outcome for operation, _, outcome in server.requests.seen if operation == "enqueue"]
    assert outcomes.count("invalid_argument") == 200
    assert beside_s < max(alone_s * 5, 0.05)


# --- Refused while it still sends --------------------------------------------------------------------------------


@pytest.mark.parametrize("megabytes", [1, 17, 40])
async def test_a_caller_that_is_refused_while_it_sends_hears_why(server: Server, megabytes: int) -> None:
    """It writes the whole body before it looks for an answer, as most clients do."""
    async with wire(server) as connection:
        size = megabytes << 20
        connection.write(head("PUT", "/v1/queue/state?no=field", {"Host": "localhost", "Content-Length": str(size)}))
        with contextlib.suppress(OSError):
            for _ in range(megabytes):
                connection.write(b"x" * (1 << 20))
                await connection.writer.drain()
        answer = await connection.answer()
        assert answer.status in (400, 413)
    assert await ready(server) == 0


async def test_an_oversized_body_is_refused_before_it_is_sent(server: Server) -> None:
    async with wire(server) as connection:
        connection.write(head("POST", ENQUEUE, {"Host": "localhost", "Content-Length": str(1 << 40)}))
        answer = await connection.answer()
        assert (answer.status, answer.code) == (413, "payload_too_large")
        assert await connection.rest() == b""


@pytest.fixture
async def closed(clock: ManualClock) -> Any:
    async with serve(clock, identity=Tokens({"good": caller("acme", "admin")})) as serving:
        yield serving


async def test_a_refused_body_is_never_taken_for_the_next_call(closed: Server) -> None:
    """The body is a request itself; the caller is refused before anybody reads it."""
    inner = head("GET", "/healthz", {"Host": "localhost"}).encode()
    for headers in ({}, {"Expect": "100-continue"}):
        async with wire(closed) as connection:
            connection.ask("POST", ENQUEUE, inner, **headers)
            assert (await connection.answer()).code == "unauthenticated"
            assert await connection.rest() == b""
    async with wire(closed) as connection:
        # Told to wait, it gives up the call and sends another: which would be the body of the first.
        connection.write(head("POST", ENQUEUE, {"Host": "localhost", "Content-Length": "40", "Expect": "100-continue"}))
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert await connection.rest() == b""


# --- Unusual, and fine -----------------------------------------------------------------------------------------


async def test_a_caller_that_expects_100_is_told_to_continue(server: Server) -> None:
    body = b'{"tenant":"acme","queue":"jobs","messages":[{"payload":1}]}'
    async with wire(server) as connection:
        connection.write(
            head("POST", ENQUEUE, {"Host": "localhost", "Content-Length": str(len(body)), "Expect": "100-continue"})
        )
        assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.write(body)
        assert (await connection.answer()).status == 200
    async with wire(server) as connection:
        connection.write(
            head("POST", ENQUEUE, {"Host": "localhost", "Content-Length": str(1 << 40), "Expect": "100-continue"})
        )
        assert (await connection.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413")


async def test_requests_sent_ahead_are_answered_in_their_order(server: Server) -> None:
    async with wire(server) as connection:
        connection.ask("POST", ENQUEUE, ONE)
        connection.ask("POST", ENQUEUE, {**ONE, "queue": "a/b"})
        connection.ask("POST", ENQUEUE, b"not json")
        connection.ask("GET", STATS)
        answers = [await connection.answer() for _ in range(4)]
    assert [each.status for each in answers] == [200, 400, 400, 200]
    assert answers[1].code == "invalid_name"
    assert answers[3].json["ready"] == 1


REFUSED: dict[str, tuple[str, str, Any, int]] = {
    "bad JSON": ("POST", ENQUEUE, b"{", 400),
    "bad name": ("POST", ENQUEUE, {**ONE, "queue": "../x"}, 400),
    "unknown field": ("POST", ENQUEUE, {**ONE, "q": 1}, 400),
    "too large a payload": ("POST", ENQUEUE, {**ONE, "messages": [{"payload": "x" * (1 << 20)}]}, 413),
    "stale receipt": ("POST", "/v1/queue/ack", {"receipts": ["A" * 54]}, 400),
    "no such queue": ("GET", "/v1/queue/stats?queue=none", None, 404),
    "no such message": ("GET", "/v1/tenants/t/queues/q/messages/1", None, 404),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_call_does_not_spoil_the_next_on_its_connection(server: Server, name: str) -> None:
    method, path, body, status = REFUSED[name]
    async with wire(server) as connection:
        for _ in range(3):
            connection.ask(method, path, body)
            assert (await connection.answer()).status == status
            connection.ask("POST", ENQUEUE, ONE)
            assert (await connection.answer()).status == 200
    assert await ready(server) == 3


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", ENQUEUE, 405),
        ("GET", "/nothing/here", 404),
        ("BREW", "/v1/tenants", 400),
        ("OPTIONS", "/v1/tenants", 405),
        ("CONNECT", "/v1/tenants", 405),
        ("TRACE", "/v1/tenants", 405),
        ("POST", "/healthz", 405),
    ],
)
async def test_a_path_or_method_that_is_not_there_is_named_and_closes_cleanly(
    server: Server, method: str, path: str, status: int
) -> None:
    async with wire(server) as connection:
        connection.ask(method, path, b"x" * 100)
        answer = await connection.answer()
        assert (answer.status, answer.code) == (status, "invalid_argument")
        assert await connection.rest() == b""


async def test_http_1_0_is_answered_without_chunks_and_closed(server: Server) -> None:
    body = b'{"tenant":"acme","queue":"jobs","messages":[{"payload":1},{"payload":2}]}'
    dequeue = b'{"tenant":"acme","queue":"jobs"}'
    async with wire(server) as connection:
        connection.write(head("POST", ENQUEUE, {"Host": "localhost", "Content-Length": str(len(body))}, "1.0"), body)
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await connection.rest() == b""
    async with wire(server) as connection:
        connection.write(
            head("POST", "/v1/queue/dequeue", {"Host": "localhost", "Content-Length": str(len(dequeue))}, "1.0"),
            dequeue,
        )
        assert len((await connection.answer()).json["messages"]) == 1
    # A large answer too: its length is known.
    await server.enqueue("x" * 200_000, queue="large")
    large = b'{"tenant":"acme","queue":"large"}'
    async with wire(server) as connection:
        connection.write(
            head("POST", "/v1/queue/dequeue", {"Host": "localhost", "Content-Length": str(len(large))}, "1.0"), large
        )
        assert len((await connection.answer()).body) > 200_000
    # What would have to come in chunks is refused, and nothing is held for it.
    for path, accept in (("/v1/queue/dequeue", "multipart/mixed"), ("/v1/queue/subscribe", "*/*")):
        async with wire(server) as connection:
            headers = {"Host": "localhost", "Content-Length": str(len(dequeue)), "Accept": accept}
            connection.write(head("POST", path, headers, "1.0"), dequeue)
            answer = await connection.answer()
            assert (answer.status, answer.code) == (400, "invalid_argument"), path
    async with wire(server) as connection:
        connection.write(head("GET", "/v1/queue/watch?tenant=acme&queue=jobs", {"Host": "localhost"}, "1.0"))
        assert (await connection.answer()).code == "invalid_argument"
    async with asyncio.timeout(60):
        while await ready(server) != 1:
            await asyncio.sleep(0.01)
    assert server.core.dispatcher.count_tenant_waiters("acme") == 0


async def test_head_answers_headers_alone(server: Server) -> None:
    async with wire(server) as connection:
        connection.ask("HEAD", "/healthz")
        answer = await connection.answer(is_head=True)
        assert (answer.status, answer.headers["content-length"]) == (200, "15")
        connection.ask("GET", "/healthz")
        assert (await connection.answer()).json == {"status": "ok"}
        connection.ask("HEAD", "/v1/tenants")
        assert (await connection.answer(is_head=True)).status == 405
        assert await connection.rest() == b""


async def test_a_body_of_a_get_is_read_and_forgotten(server: Server) -> None:
    async with wire(server) as connection:
        for body in (b"{}", b"x" * 100_000):
            connection.ask("GET", "/v1/tenants", body)
            assert (await connection.answer()).status == 200
        connection.write(
            head("GET", "/v1/tenants", {"Host": "localhost", "Transfer-Encoding": "chunked"}), b"0\r\n\r\n"
        )
        assert (await connection.answer()).status == 200


async def test_a_caller_that_leaves_in_the_middle_of_its_body_changes_nothing(server: Server) -> None:
    for cut_after in (0, 10, 50):
        body = b'{"tenant":"acme","queue":"jobs","messages":[{"payload":1}]}'
        async with wire(server) as connection:
            connection.write(
                head("POST", ENQUEUE, {"Host": "localhost", "Content-Length": str(len(body))}), body[:cut_after]
            )
            await asyncio.sleep(0.05)
    await until(lambda: [outcome for _, _, outcome in server.requests.seen].count("left") >= 3)
    assert (await once(server, "GET", "/v1/tenants")).json == {"tenants": []}
