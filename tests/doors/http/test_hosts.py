"""A server that does not ask who calls answers only by names that no other site controls (DNS rebinding)."""

import pytest

from holdfast.doors.http.hosts import Hosts
from holdfast.model.errors import Forbidden
from holdfast.server.doors.identities import hosts_of
from holdfast.server.kinds import Secret
from holdfast.server.settings import Settings
from holdfast.testing import ManualClock
from tests.doors.raw import head, once, wire
from tests.doors.serving import Server, Tokens, caller, serve
from tests.server.served import Served

QUEUE = {"tenant": "acme", "queue": "jobs"}
LOOPBACK = (
    "localhost",
    "LOCALHOST:7077",
    "localhost.",
    "127.0.0.1:7077",
    "127.8.8.8",
    "[::1]:7077",
    "[0:0:0:0:0:0:0:1]",
)
OTHERS = ("evil.example", "evil.example:7077", "192.168.1.7:7077", "localhost.evil.example", "127.0.0.1.evil.example")


@pytest.mark.spec("8.14")
@pytest.mark.parametrize("host", LOOPBACK)
async def test_a_server_without_auth_answers_by_loopback_names(server: Server, host: str) -> None:
    assert (await once(server, "GET", "/healthz", Host=host)).status == 200
    assert (await once(server, "POST", "/v1/queue/dequeue", QUEUE, Host=host)).status == 200


@pytest.mark.spec("8.14")
@pytest.mark.parametrize("host", OTHERS)
async def test_a_server_without_auth_refuses_any_other_name(server: Server, host: str) -> None:
    await server.enqueue(1)
    for method, path, body in (
        ("POST", "/v1/queue/dequeue", QUEUE),  # a hot call
        ("POST", "/v1/queue/subscribe", QUEUE),
        ("GET", "/dequeue?namespace=acme&topic=jobs", None),
        ("GET", "/metrics", None),
        ("GET", "/healthz", None),
        ("GET", "/readyz", None),
        ("GET", "/openapi.json", None),
        ("GET", "/nowhere", None),
        ("DELETE", "/v1/queue/dequeue", None),
    ):
        answer = await once(server, method, path, body, Host=host)
        assert (answer.status, answer.code) == (403, "forbidden"), path
        assert "allowed_hosts" in answer.json["error"]["message"]
        assert answer.headers["x-correlation-id"]
    assert (await server.get("/v1/queue/stats", **QUEUE)).json["ready"] == 1


async def test_an_accepted_name_does_not_let_the_next_one_in(server: Server) -> None:
    async with wire(server) as connection:
        for host, status in (("localhost", 200), ("127.0.0.1", 200), ("evil.example", 403)):
            connection.ask("POST", "/v1/queue/dequeue", QUEUE, Host=host)
            assert (await connection.answer()).status == status, host


async def test_a_server_that_asks_who_calls_answers_by_any_name(clock: ManualClock) -> None:
    identity = Tokens({"t": caller("acme", "read")})
    async with serve(clock, identity=identity) as server:
        answer = await once(server, "POST", "/v1/queue/dequeue", QUEUE, Host="queue.example", Authorization="Bearer t")
        assert answer.status == 200
        for request in (head("GET", "/healthz", {}), head("GET", "/healthz", {"Host": ""})):
            async with wire(server) as connection:
                connection.write(request)
                assert (await connection.answer()).status == 400


@pytest.mark.spec("8.14")
@pytest.mark.parametrize("path", ["/healthz", "/v1/queue/dequeue"])
async def test_an_http_1_1_request_without_host_is_400(server: Server, path: str) -> None:
    async with wire(server) as connection:
        connection.write(head("POST", path, {"Content-Length": "2"}), b"{}")
        answer = await connection.answer()
        assert (answer.status, answer.code) == (400, "invalid_argument")
        assert "Host" in answer.json["error"]["message"]
        assert await connection.rest() == b""


async def test_an_http_1_0_request_without_host_names_no_loopback_address(server: Server) -> None:
    async with wire(server) as connection:
        connection.write(head("GET", "/healthz", {}, "1.0"))
        assert (await connection.answer()).status == 403


@pytest.mark.parametrize(
    "host", ["", "a b", "a/b", "user@localhost", "localhost:port", "localhost:1:2", "[::1", "é", "a,b c"]
)
async def test_a_host_that_is_no_name_is_400(server: Server, host: str) -> None:
    async with wire(server) as connection:
        connection.write(head("GET", "/healthz", {"Host": host}))
        assert (await connection.answer()).status == 400


async def test_two_hosts_are_400(server: Server) -> None:
    async with wire(server) as connection:
        connection.write("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
        assert (await connection.answer()).status == 400


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost:7077/healthz", 200),
        ("http://LOCALHOST/healthz", 200),
        ("http://evil.example/healthz", 400),
        ("https://evil.example/healthz", 400),
        ("http://localhost@evil.example/healthz", 400),
    ],
)
async def test_a_target_at_another_name_than_the_host_is_400(server: Server, target: str, status: int) -> None:
    async with wire(server) as connection:
        connection.write(head("GET", target, {"Host": "localhost"}))
        assert (await connection.answer()).status == status


@pytest.mark.spec("8.14")
def test_names_are_allowed_by_the_setting() -> None:
    hosts = hosts_of(Settings(host="dev.internal", allowed_hosts=("Queue.Example.", "192.168.1.7", "fd00::1")))
    assert hosts is not None
    for host in (b"queue.example", b"QUEUE.example:80", b"192.168.1.7:7077", b"[FD00:0::1]", b"dev.internal", b"[::1]"):
        hosts.check({b"host": host})
    for host in (b"example", b"sub.queue.example", b"192.168.1.70", b"[fd00::2]", b""):
        with pytest.raises(Forbidden):
            hosts.check({b"host": host})


def test_identities_or_a_star_allow_any_name() -> None:
    secret = Secret("s" * 32)
    assert hosts_of(Settings(allowed_hosts=("*",))) is None
    assert hosts_of(Settings(jwt_secret=secret)) is None
    assert hosts_of(Settings(jwt_secret=secret, allowed_hosts=("queue.example",))) is not None
    assert hosts_of(Settings()) is not None


def test_accepted_names_take_a_bounded_amount_of_memory() -> None:
    hosts = Hosts()
    for port in range(1_000):
        hosts.check({b"host": b"localhost:%d" % port})
    assert len(hosts.accepted) <= 64


@pytest.mark.spec("8.14")
async def test_allowed_hosts_is_a_setting_of_serve() -> None:
    with Served("--store", "memory://", "--allowed-hosts", "queue.example") as server:
        for host, status in (("queue.example", 200), ("localhost", 200), ("evil.example", 403)):
            connection = await server.connect()
            connection.writer.write(head("GET", "/healthz", {"Host": host}).encode())
            assert (await connection.answer()).status == status, host
