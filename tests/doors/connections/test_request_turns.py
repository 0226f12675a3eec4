"""Connections that wait for their turn, on transports that a test looks into and a loop that it moves by hand."""

import asyncio
import re

import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.doors.http.connections.connection import HttpConnection
from holdfast.doors.http.connections.connections import HttpConnections
from holdfast.doors.http.connections.exchange import Exchange
from holdfast.service.limits.request_turns import MAX_AT_ONCE, MAX_BUSY_TURNS, UNIDENTIFIED, RequestTurns
from tests.doors.capnp_serving import serve_capnp
from tests.doors.connections.connections import App
from tests.doors.connections.hand_loop import HandLoop
from tests.doors.connections.test_connection import RecordedTransport, settled
from tests.doors.serving import Tokens, caller, serve


class TenantApp(App):
    """Answers a hot call with its body, which names its tenant; keeps the tenants in the order of their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        self.hot_calls = {b"/hot": self._echo}

    async def _echo(self, exchange: Exchange) -> None:
        body = exchange.take_body()
        assert body is not None
        tenant = body.decode().strip("x")
        self.read.append(tenant)
        exchange.connection.note_tenant(tenant, exchange.head.headers.get(b"authorization"))
        if not self.may_answer.is_set():
            await self.may_answer.wait()
        assert exchange.answer_json("id", b'"%b"' % body)


class Serving:
    def __init__(self) -> None:
        self.loop = HandLoop()
        self.app = TenantApp()
        self.turns = RequestTurns(lambda tenant: 1, self.loop.as_loop, now_s=lambda: 0.0)
        self.group = HttpConnections(self.app, self.app.hot_calls, turns=self.turns)

    def connect(self) -> tuple[HttpConnection, RecordedTransport]:
        connection, transport = self.group.make(), RecordedTransport()
        connection.connection_made(transport)
        return connection, transport

    def contend(self) -> None:
        """Let many tenants call, and use up what is read at once in this round."""
        connection, _ = self.connect()
        for number in range(MAX_AT_ONCE + 2):
            connection.note_tenant(f"t{number}")
            connection.data_received(post(f"t{number}"))
        assert self.turns.is_contended
        assert not self.turns.may_go_on("any")
        self.app.read.clear()
        self.close(connection)

    def close(self, *connections: HttpConnection) -> None:
        for each in connections:
            each.connection_lost(None)


def post(tenant: str, *headers: str, size: int = 0) -> bytes:
    body = tenant.ljust(size, "x").encode()
    lines = ["POST /hot HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def answers_in(transport: RecordedTransport) -> list[str]:
    return re.findall(r'\r\n\r\n"(\w*)"', b"".join(transport.writes).decode())


async def test_a_quiet_tenant_s_request_is_read_after_a_bounded_number_of_a_flood_s() -> None:
    serving = Serving()
    flood = [serving.connect() for _ in range(64)]
    quiet, written = serving.connect()
    for connection, _ in flood:
        connection.note_tenant("flood")
    quiet.note_tenant("quiet")
    serving.contend()
    for number in range(50):
        for connection, transport in flood:  # each sends as soon as it is answered
            if number == 0 or transport.writes:
                transport.writes.clear()
                connection.data_received(post("flood"))
        serving.loop.run_round()
        serving.app.read.clear()
        if number % 2:
            serving.contend()  # else it is read at once
        quiet.data_received(post("quiet"))
        serving.loop.run_round()
        assert serving.app.read.index("quiet") <= 1, number
        assert len(serving.app.read) <= MAX_BUSY_TURNS + 1
    assert answers_in(written) == ["quiet"] * 50
    serving.close(quiet, *(each for each, _ in flood))


async def test_a_tenant_over_its_share_waits_at_the_socket_and_loses_nothing() -> None:
    serving = Serving()
    connection, transport = serving.connect()
    serving.contend()
    connection.data_received(post("flood") * 3)
    assert (serving.app.read, transport.is_reading_paused) == ([], False)
    connection.data_received(post("flood") * 2 + post("flood")[:-2])
    assert (serving.app.read, transport.is_reading_paused) == ([], True)
    serving.loop.run()
    await settled()
    assert not transport.is_reading_paused
    connection.data_received(post("flood")[-2:])
    serving.loop.run()
    await settled()
    assert answers_in(transport)[:5] == ["flood"] * 5
    serving.close(connection)


async def test_requests_that_wait_for_a_turn_are_as_many_as_fit_and_answered_in_their_order() -> None:
    """More than may be sent ahead of an answer: they wait as bytes, not as requests."""
    serving = Serving()
    connection, transport = serving.connect()
    serving.contend()
    tenants = [f"t{number}" for number in range(500)]
    connection.data_received(b"".join(post(tenant) for tenant in tenants))
    serving.loop.run()
    assert answers_in(transport) == tenants
    serving.close(connection)


async def test_what_is_held_back_stays_behind_a_call_that_waits() -> None:
    serving = Serving()
    connection, transport = serving.connect()
    serving.contend()
    serving.app.may_answer.clear()
    connection.data_received(post("a") + post("b") + post("c") + post("d"))
    serving.loop.run()
    assert serving.app.read == ["a"]
    assert transport.is_reading_paused
    serving.app.may_answer.set()
    for _ in range(5):
        await settled()
        serving.loop.run()
    assert answers_in(transport) == ["a", "b", "c", "d"]
    assert not transport.is_reading_paused
    serving.close(connection)


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_request_that_is_cut_by_turns_is_read_whole(size: int) -> None:
    serving = Serving()
    connection, transport = serving.connect()
    whole = post("a", size=size)
    for cut in (1, 30, len(whole) - 5):
        serving.contend()
        connection.data_received(whole[:cut])
        connection.data_received(whole[cut:])
        for _ in range(40):
            serving.loop.run()
            await settled()
    written = b"".join(transport.writes)
    assert written.count(b"HTTP/1.1 200 OK") == 3
    serving.close(connection)


async def test_a_connection_of_many_tenants_waits_as_the_one_whose_credential_it_sends() -> None:
    """On a proxy's connection, one tenant's requests do not use up the turns of another."""
    serving = Serving()
    proxied, _ = serving.connect()
    proxied.data_received(post("flood", "Authorization: Bearer f"))
    proxied.data_received(post("quiet", "Authorization: Bearer q"))
    proxied.data_received(post("flood", "Authorization: Bearer f"))
    flood = [serving.connect()[0] for _ in range(64)]
    serving.contend()
    for connection in flood:
        connection.data_received(post("flood", "X-Correlation-Id: new", "authorization:Bearer f "))
    proxied.data_received(post("quiet", "Authorization: Bearer q"))
    serving.loop.run_round()
    assert serving.app.read.index("quiet") <= 1
    serving.close(proxied, *flood)


async def test_a_connection_that_is_lost_while_it_waits_is_forgotten() -> None:
    serving = Serving()
    connection, transport = serving.connect()
    serving.contend()
    connection.data_received(post("a"))
    connection.connection_lost(None)
    serving.loop.run()
    assert (serving.app.read, transport.writes, serving.turns.waiting) == ([], [], 0)


async def test_a_connection_that_waits_for_its_turn_is_not_closed_before() -> None:
    serving = Serving()
    connection, transport = serving.connect()
    serving.contend()
    connection.data_received(post("a"))
    connection.timeouts.lose_patience()
    connection.shut_down()
    assert not transport.is_closed
    serving.loop.run()
    assert answers_in(transport) == ["a"]
    serving.close(connection)


async def test_nothing_behind_a_refused_request_is_read_when_its_turn_comes() -> None:
    serving = Serving()
    connection, transport = serving.connect()
    serving.contend()
    connection.data_received(post("a") + b"rubbish\r\n\r\n" + post("b"))
    serving.loop.run()
    await asyncio.sleep(0)
    assert serving.app.read == ["a"]
    assert b"HTTP/1.1 400 " in b"".join(transport.writes)
    serving.close(connection)


# --- Whose a request is --------------------------------------------------------------------------------------------


async def test_a_request_counts_for_the_tenant_of_its_credential_whatever_tenant_it_names() -> None:
    turns = RequestTurns(lambda tenant: 1)
    tokens = Tokens({"a": caller("acme", "write"), "op": caller("*", "write")})
    async with serve(SystemClock(), identity=tokens, turns=turns) as server:
        asked = {"tenant": "other", "queue": "jobs", "messages": [{"payload": "x"}]}
        assert (await server.with_token("a").post("/v1/queue/enqueue", asked)).status == 403
        assert turns.tenant == turns.tenant_of(b"Bearer a") == "acme"
        assert (await server.with_token("op").post("/v1/queue/enqueue", asked)).status == 200
        assert turns.tenant == "other"
        assert turns.tenant_of(b"Bearer op") is None  # it is for any tenant
        assert (await server.with_token("wrong").post("/v1/queue/enqueue", asked)).status == 401
        assert turns.tenant == UNIDENTIFIED
        assert turns.tenant_of(b"Bearer wrong") is None


async def test_a_call_by_cap_n_proto_waits_for_its_turn_and_arrives_whole() -> None:
    loop = HandLoop()
    turns = RequestTurns(lambda tenant: 1, loop.as_loop, now_s=lambda: 0.0)
    async with (
        asyncio.timeout(60),
        serve_capnp(SystemClock(), turns=turns) as server,
        holdfast.open_async(server.url) as client,
    ):
        queue = client.queue("jobs", tenant="acme")
        await queue.enqueue("first")
        assert turns.tenant == "acme"
        turns.note("other")
        while turns.may_go_on("acme"):
            pass
        payload = "x" * 300_000  # more than one read brings
        adding = asyncio.create_task(queue.enqueue(payload))
        while not turns.waiting:
            assert not adding.done()
            await asyncio.sleep(0)
        [connection] = server.door.connections
        while not connection.stream.is_read_paused:  # one read ahead of its turn, and no more
            await asyncio.sleep(0)
        assert not adding.done()
        while not adding.done():
            loop.run()
            await asyncio.sleep(0)
        await adding
        while turns.waiting:
            loop.run()
        assert not connection.stream.is_read_paused
        turns.is_contended = False
        claimed = await queue.claim(2)
        assert [message.payload for message in claimed] == [b'"first"', b'"%b"' % payload.encode()]
