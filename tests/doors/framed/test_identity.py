"""A caller is identified by the token of the latest HELLO or by its certificate, checked for each call."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from holdfast.doors.identity import make_identity
from holdfast.model.message import Receipt
from holdfast.testing import ManualClock
from holdfast.wire.framed import greetings
from holdfast.wire.framed.calls import HOT_CALLS, NAMED, operation_of
from holdfast.wire.framed.frames import CONNECTION, FrameKind, write_frame
from holdfast.wire.operation import Target
from holdfast.wire.operations import OPERATIONS
from tests.doors.access_rows import SCOPES, TOKENS
from tests.doors.credentials import CANARY, NOW_S, Authority, token, write_pair
from tests.doors.framed.frames_by_hand import Peer, ask, connected, greeted
from tests.doors.framed.serving import FramedServer, serve_framed
from tests.doors.serving import Tokens

RECEIPT = Receipt(7, b"t" * 16, 3)

# The least that each operation must be given. What it answers beyond the access check does not matter here.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "enqueue": ([],),
    "claim": (ask(),),
    "exchange": (ask(), []),
    "settle": ([],),
    "subscribe": (ask(), 1, 0),
    "upload": ([b""],),
    "read_part": (RECEIPT, 0, 1),
    "get": ({"id": "7"},),
    "remove": ({"id": "7"},),
    "save_state": ({"receipt": str(RECEIPT), "progress": {"percent": 1}},),
    "ledger": ({"consumer": "c"},),
    "ledger_ack": ({"consumer": "c", "upto": 0},),
    "ledger_extend": ({"consumer": "c"},),
    "reprioritise": ({"priority": 1},),
    "move": ({"queue": "elsewhere"},),
    "schedule": ({"name": "s"},),
    "set_schedule": ({"name": "s", "every_ms": 60_000, "message": {"payload": b""}},),
    "delete_schedule": ({"name": "s"},),
}
NAMES = sorted([*NAMED, *(operation_of(each) for each in HOT_CALLS)])


@pytest.fixture
async def guarded(clock: ManualClock) -> AsyncIterator[FramedServer]:
    async with serve_framed(clock, identity=Tokens(TOKENS)) as server:
        yield server


async def code_of(peer: Peer, name: str, tenant: str | None = "acme") -> str:
    call = peer.open(name, tenant, "jobs", None, *ARGUMENTS.get(name, ()))
    if name == "upload":
        peer.write(FrameKind.END, call)
    kind, _, body = await peer.next_of(call)
    return greetings.read_error(body).code if kind == FrameKind.ERROR else "ok"


# --- Tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
async def test_without_a_credential_every_call_is_unauthenticated(guarded: FramedServer, name: str) -> None:
    async with greeted(guarded.port) as nobody, greeted(guarded.port, "made up") as stranger:
        assert await code_of(nobody, name) == "unauthenticated"
        assert await code_of(stranger, name) == "unauthenticated"


@pytest.mark.spec("8.15")
@pytest.mark.parametrize("name", NAMES)
async def test_a_scope_opens_what_the_table_says_and_nothing_else(guarded: FramedServer, name: str) -> None:
    operation = OPERATIONS[name]
    for scope in SCOPES:
        for who in ("acme", "other", "operator"):
            is_allowed = (
                scope in (operation.scope, "admin")
                and (who != "other" or operation.target is Target.SERVER)
                and (who == "operator" or not operation.is_operators_only)
            )
            async with greeted(guarded.port, f"{who}-{scope}") as peer:
                code = await code_of(peer, name)
            assert (code != "forbidden") == is_allowed, (who, scope, code)


async def test_another_tenant_is_forbidden_in_the_same_words_whether_it_exists_or_not(guarded: FramedServer) -> None:
    async with greeted(guarded.port, "acme-admin") as acme, greeted(guarded.port, "other-admin") as mallory:
        await acme.enqueue(b"x")
        for name in NAMES:
            if OPERATIONS[name].target is Target.SERVER:
                continue
            there = await mallory.refusal(name, "acme", "jobs", None, *ARGUMENTS.get(name, ()))
            nowhere = await mallory.refusal(name, "acmf", "jobs", None, *ARGUMENTS.get(name, ()))
            assert (there.code, there.message) == ("forbidden", nowhere.message.replace("acmf", "acme"))


async def test_a_move_needs_both_tenants(guarded: FramedServer) -> None:
    async with greeted(guarded.port, "acme-admin") as peer:
        error = await peer.refusal("move", "acme", "jobs", None, {"queue": "jobs", "tenant": "other"})
        assert error.code == "forbidden"


@pytest.mark.spec("1.1")
async def test_a_tenant_that_is_left_out_is_the_credentials_own(guarded: FramedServer) -> None:
    async with greeted(guarded.port, "acme-admin") as peer, greeted(guarded.port, "operator-admin") as operator:
        await peer.enqueue(b"mine", tenant=None, queue=None)
        assert [each.payload for each in await peer.claim(tenant="acme", queue="default")] == [b"mine"]
        await operator.enqueue(b"theirs", tenant=None, queue=None)
        assert [each.payload for each in await operator.claim(tenant="default", queue="default")] == [b"theirs"]


async def test_a_lease_belongs_to_the_credentials_subject(guarded: FramedServer) -> None:
    async with greeted(guarded.port, "acme-admin") as peer:
        await peer.enqueue(b"x")
        await peer.claim()
        body = await peer.call("browse", "acme", "jobs", None)
        assert [each["owner"] for each in msgspec.msgpack.decode(body)["messages"]] == ["ann"]


async def test_a_later_hello_changes_the_caller_of_later_calls_alone(guarded: FramedServer) -> None:
    async with greeted(guarded.port, "acme-read") as peer:
        first = peer.open("enqueue", "acme", "jobs", None, [[b"x"]])
        peer.greet("acme-write")
        second = peer.open("enqueue", "acme", "jobs", None, [[b"x"]])
        peer.greet(None)
        third = peer.open("enqueue", "acme", "jobs", None, [[b"x"]])
        kinds = [(await peer.next_of(call))[0] for call in (first, second, third)]
        assert kinds == [FrameKind.ERROR, FrameKind.RESULT, FrameKind.ERROR]


async def test_a_token_ends_on_a_connection_too(clock: ManualClock) -> None:
    identity = make_identity(clock=clock, jwt_secret=CANARY)
    given = token(CANARY.encode(), "HS256", exp=NOW_S + 60).decode()
    async with serve_framed(clock, identity=identity) as server, greeted(server.port, given) as peer:
        await peer.enqueue(b"x")
        clock.advance(600_000)
        error = await peer.refusal("stats", "acme", "jobs", None)
        assert (error.code, error.facts["reason"]) == ("unauthenticated", "expired")
        peer.greet(token(CANARY.encode(), "HS256", exp=NOW_S + 1_200).decode())
        assert (await peer.stats())["ready"] == 1


async def test_a_large_frame_is_not_read_for_a_caller_without_a_good_credential(guarded: FramedServer) -> None:
    async with greeted(guarded.port, "made up") as peer:
        [connection] = guarded.door.connections
        peer.writer.write(write_frame(FrameKind.CALL, 1, b"x" * (8 << 20)))
        kind, number, body = (await peer.end())[-1]
        assert (kind, number, greetings.read_error(body).code) == (FrameKind.ERROR, CONNECTION, "unauthenticated")
        assert connection.reader.held < 1 << 20


async def test_a_large_frame_is_read_once_its_callers_credential_was_checked(guarded: FramedServer) -> None:
    async with connected(guarded.port) as peer:
        peer.greet("acme-write")
        await peer.enqueue(*[b"x" * 100_000] * 20)


async def test_nothing_is_measured_of_a_queue_that_the_caller_may_not_see(guarded: FramedServer) -> None:
    async with greeted(guarded.port, "other-admin") as peer:
        await peer.refusal("stats", "acme", "jobs", None)
        assert guarded.requests.seen == [("stats", None, "forbidden")]


# --- Certificates ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def contexts(folder: Path, authority: Authority, name: str | None) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a server that takes client certificates, and of a client with this name."""
    ca, _ = write_pair(folder, "ca", (authority.certificate, authority.key))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*write_pair(folder, "server", authority.issue_server()))
    server.load_verify_locations(ca)
    server.verify_mode = ssl.CERT_OPTIONAL
    client = ssl.create_default_context(cafile=ca)
    if name is not None:
        client.load_cert_chain(*write_pair(folder, "client", authority.issue(x509.DNSName(name))))
    return server, client


@pytest.mark.spec("8.15")
@pytest.mark.parametrize(
    ("name", "tenant", "code"),
    [
        ("worker.acme.com", "acme", "ok"),
        ("worker.acme.com", "other", "forbidden"),
        ("worker.else.com", "acme", "unauthenticated"),
        (None, "acme", "unauthenticated"),
    ],
)
async def test_a_client_certificate_says_who_calls(
    clock: ManualClock, tmp_path: Path, authority: Authority, name: str | None, tenant: str, code: str
) -> None:
    server_tls, client_tls = contexts(tmp_path, authority, name)
    identity = make_identity(clock=clock, mtls_tenants={"worker.acme.com": "acme:read+write"})
    async with (
        serve_framed(clock, identity=identity, tls=server_tls) as server,
        connected(server.port, client_tls, server_hostname="localhost") as peer,
    ):
        await peer.hello()
        assert await code_of(peer, "enqueue", tenant) == code


@pytest.mark.spec("8.15")
async def test_large_payloads_cross_tls_both_ways(clock: ManualClock, tmp_path: Path, authority: Authority) -> None:
    server_tls, client_tls = contexts(tmp_path, authority, None)
    payload = bytes(range(256)) * (16 << 10)
    async with (
        serve_framed(clock, tls=server_tls, max_payload=8 << 20) as server,
        connected(server.port, client_tls, server_hostname="localhost") as peer,
    ):
        await peer.hello()
        await peer.enqueue(payload)
        assert [each.payload for each in await peer.claim()] == [payload]
