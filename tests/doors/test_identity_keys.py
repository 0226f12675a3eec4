import asyncio
import base64
import json
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.doors.identity import Identity, Open, TokenIdentity, TokenOrCertificate, make_identity, sources
from holdfast.doors.identity.keys import MAX_KEYS
from holdfast.doors.identity.sources import (
    FIRST_KEYS_RETRY_MS,
    KEYS_REFRESH_MS,
    KEYS_TTL_MS,
    MAX_DOCUMENT_BYTES,
    RENEWAL_MS,
)
from holdfast.model.errors import InvalidArgument, Unauthenticated
from holdfast.service.access import ANYONE
from holdfast.testing.clock import ManualClock
from tests.doors.credentials import (
    CANARY,
    NOW_S,
    Authority,
    bearer,
    jwks,
    private_key,
    private_pem,
    public_der,
    public_jwk,
    public_pem,
    public_ssh,
    token,
)

HOUR_S = 3_600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def es_token(number: int = 0, kid: str | None = None, **changes: Any) -> dict[bytes, bytes]:
    header = {} if kid is None else {"kid": kid}
    return bearer(token(private_key("ES256", number), "ES256", header, exp=NOW_S + 24 * HOUR_S, **changes))


def es_jwk(number: int = 0, kid: str | None = None, **more: Any) -> dict[str, Any]:
    return public_jwk(private_key("ES256", number), **({} if kid is None else {"kid": kid}), **more)


async def is_accepted(identity: Identity, headers: dict[bytes, bytes]) -> bool:
    try:
        await identity.caller_of(headers, None)
    except Unauthenticated:
        return False
    return True


# ---- settings


async def test_with_nothing_configured_anyone_may_call(clock: ManualClock) -> None:
    identity = make_identity(clock=clock)
    assert isinstance(identity, Open)
    assert await identity.caller_of({b"authorization": b"Bearer rubbish"}, None) is ANYONE


def test_what_is_configured_is_what_is_asked_for(clock: ManualClock) -> None:
    assert isinstance(make_identity(clock=clock, jwt_secret=CANARY), TokenIdentity)
    both = make_identity(clock=clock, jwt_secret=CANARY, mtls_tenants="a.example=acme")
    assert isinstance(both, TokenOrCertificate)


key = private_key("RS256")

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an empty secret": ({"jwt_secret": ""}, "jwt_secret"),
    "a short secret": ({"jwt_secret": "x" * 31}, "jwt_secret"),
    "a secret that is a PEM key": ({"jwt_secret": public_pem(key).decode()}, "jwt_secret"),
    "a secret that is an indented PEM key": ({"jwt_secret": "\n  " + public_pem(key).decode()}, "jwt_secret"),
    "a secret that is a PEM private key": ({"jwt_secret": private_pem(key).decode()}, "jwt_secret"),
    "a secret that is a JWK": ({"jwt_secret": json.dumps(public_jwk(key))}, "jwt_secret"),
    "a secret that is a JWKS": ({"jwt_secret": jwks(public_jwk(key)).decode()}, "jwt_secret"),
    "a secret that is an SSH line": ({"jwt_secret": public_ssh(key).decode()}, "jwt_secret"),
    "a secret that is an SSH line of EC": ({"jwt_secret": public_ssh(private_key("ES256")).decode()}, "jwt_secret"),
    "a secret that is bare base64 of a key": (
        {"jwt_secret": base64.b64encode(public_der(key)).decode()},
        "jwt_secret",
    ),
    "a secret and keys": ({"jwt_secret": CANARY, "jwt_keys": public_pem(key).decode()}, "jwt_keys"),
    "empty keys": ({"jwt_keys": ""}, "jwt_keys"),
    "blank keys": ({"jwt_keys": "  "}, "jwt_keys"),
    "keys in a file that is missing": ({"jwt_keys": "/nowhere/keys.pem"}, "jwt_keys"),
    "keys in a folder": ({"jwt_keys": "/"}, "jwt_keys"),
    "a NUL in the file's name": ({"jwt_keys": "a\0b"}, "jwt_keys"),
    "a private key": ({"jwt_keys": private_pem(key).decode()}, "jwt_keys"),
    "a private key beside a public one": ({"jwt_keys": (public_pem(key) + private_pem(key)).decode()}, "jwt_keys"),
    "a PEM block that is garbage": (
        {"jwt_keys": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"},
        "jwt_keys",
    ),
    "a PEM block without its end": ({"jwt_keys": "-----BEGIN PUBLIC KEY-----\nAAAA"}, "jwt_keys"),
    "an RSA key of 1,024 bits": ({"jwt_keys": public_pem(private_key("RSA-1024")).decode()}, "jwt_keys"),
    "a key on another curve": ({"jwt_keys": public_pem(private_key("ES256K")).decode()}, "jwt_keys"),
    "a JWKS without keys": ({"jwt_keys": '{"keys": []}'}, "jwt_keys"),
    "a JWKS of secrets": ({"jwt_keys": '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'}, "jwt_keys"),
    "a JWKS that is none": ({"jwt_keys": '{"keys": {}}'}, "jwt_keys"),
    "a JWKS of too many keys": ({"jwt_keys": jwks(*[es_jwk()] * (MAX_KEYS + 1)).decode()}, "jwt_keys"),
    "JSON that ends early": ({"jwt_keys": '{"keys": ['}, "jwt_keys"),
    "a URL without a host": ({"jwt_keys": "https:///keys"}, "jwt_keys"),
    "a URL with a password": ({"jwt_keys": "https://a:b@host/keys"}, "jwt_keys"),
    "a URL with a port of letters": ({"jwt_keys": "https://host:abc/keys"}, "jwt_keys"),
    "a URL with a line break": ({"jwt_keys": "https://host/keys\r\nX: y"}, "jwt_keys"),
    "an issuer without keys": ({"jwt_issuer": "https://issuer.example"}, "jwt_issuer"),
    "an empty issuer": ({"jwt_secret": CANARY, "jwt_issuer": ""}, "jwt_issuer"),
    "an empty audience": ({"jwt_secret": CANARY, "jwt_audience": " "}, "jwt_audience"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_refused_by_its_name(clock: ManualClock, name: str) -> None:
    given, setting = WRONG[name]
    with pytest.raises(InvalidArgument) as raised:
        make_identity(clock=clock, **given)
    assert raised.value.facts == {"setting": setting}
    assert setting in str(raised.value)


@pytest.mark.parametrize(
    "secret", ["x" * 32, "ü" * 16, "sk-" + "x" * 40, base64.b64encode(b"MI" * 20).decode(), "1" * 64]
)
def test_any_long_text_may_be_a_secret(clock: ManualClock, secret: str) -> None:
    make_identity(clock=clock, jwt_secret=secret)


# ---- documents


async def test_several_pem_keys_and_certificates_count_each(clock: ManualClock, tmp_path: Path) -> None:
    authority = Authority()
    issued, issued_key = authority.issue()
    pem = public_pem(private_key("RS256")) + b"comment\n" + public_pem(private_key("EdDSA"))
    file = tmp_path / "keys.pem"
    file.write_bytes(pem + issued.public_bytes(Encoding.PEM))
    identity = make_identity(clock=clock, jwt_keys=str(file))
    for signer, algorithm in (
        (private_key("RS256"), "RS256"),
        (private_key("EdDSA"), "EdDSA"),
        (issued_key, "ES256"),
    ):
        assert await is_accepted(identity, bearer(token(signer, algorithm)))
    assert not await is_accepted(identity, bearer(token(private_key("EdDSA", 1), "EdDSA")))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512", "EdDSA"])
async def test_a_jwks_file_serves_each_kind_of_key(clock: ManualClock, tmp_path: Path, algorithm: str) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks(es_jwk(9, "other"), public_jwk(private_key(algorithm), kid="a")))
    identity = make_identity(clock=clock, jwt_keys=str(file))
    assert await is_accepted(identity, bearer(token(private_key(algorithm), algorithm, {"kid": "a"})))
    assert await is_accepted(identity, bearer(token(private_key(algorithm), algorithm)))
    assert not await is_accepted(identity, bearer(token(private_key(algorithm), algorithm, {"kid": "other"})))


async def test_a_single_jwk_is_a_set_of_one(clock: ManualClock) -> None:
    identity = make_identity(clock=clock, jwt_keys=json.dumps(es_jwk(0, "a")))
    assert await is_accepted(identity, es_token(0, "a"))


async def test_an_edwards_448_key_signs_tokens_too(clock: ManualClock) -> None:
    identity = make_identity(
        clock=clock, jwt_keys=jwks(public_jwk(private_key("Ed448"), kid="a", alg="Ed448")).decode()
    )
    assert await is_accepted(identity, bearer(token(private_key("Ed448"), "EdDSA", {"kid": "a"})))


UNUSABLE_JWKS: dict[str, Any] = {
    "for encryption": es_jwk(1, "x", use="enc"),
    "not to verify": es_jwk(1, "x", key_ops=["sign"]),
    "with its private part": es_jwk(1, "x", d="AAAA"),
    "on no curve": es_jwk(1, "x", crv="P-999"),
    "off its curve": es_jwk(1, "x", y=es_jwk(2)["y"]),
    "of another algorithm": es_jwk(1, "x", alg="RS256"),
    "of a curve that is not its algorithm's": es_jwk(1, "x", alg="ES384"),
    "for HMAC": {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlYw", "kid": "x", "alg": "HS256"},
    "of 1,024 bits": public_jwk(private_key("RSA-1024"), kid="x"),
    "with numbers for text": {"kty": "RSA", "n": 1, "e": 2, "kid": "x"},
    "with a huge exponent": {**public_jwk(key, kid="x"), "e": "A" * 4_000},
    "without a kind": {"kid": "x"},
    "with a list for a kid": es_jwk(1) | {"kid": ["x"]},
    "with a number for an algorithm": es_jwk(1, "x", alg=5),
    "with a number for operations": es_jwk(1, "x", key_ops="sign"),
    "a text": "key",
    "a list": [],
    "nothing": None,
}


@pytest.mark.parametrize("name", UNUSABLE_JWKS)
async def test_an_unusable_key_is_passed_over_and_the_others_count(clock: ManualClock, name: str) -> None:
    identity = make_identity(clock=clock, jwt_keys=jwks(UNUSABLE_JWKS[name], es_jwk(0, "a")).decode())
    assert await is_accepted(identity, es_token(0, "a"))
    assert not await is_accepted(identity, es_token(1, "x"))
    assert not await is_accepted(identity, es_token(1))


# ---- a file that changes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(es_jwk(0, "a")))
    return path


async def test_a_changed_file_is_read_again_within_a_second(clock: ManualClock, file: Path) -> None:
    identity = make_identity(clock=clock, jwt_keys=str(file))
    assert await is_accepted(identity, es_token(0, "a"))
    file.write_bytes(jwks(es_jwk(1, "b")))
    # A token that names a key not seen before makes it look at once.
    assert await is_accepted(identity, es_token(1, "b"))
    assert not await is_accepted(identity, es_token(0, "a"))
    file.write_bytes(jwks(es_jwk(0, "a"), es_jwk(2, "c")))
    clock.advance(1_000)
    assert not await is_accepted(identity, es_token(1, "b"))
    assert await is_accepted(identity, es_token(0, "a"))


async def test_a_token_remembered_under_a_withdrawn_key_is_forgotten(clock: ManualClock, file: Path) -> None:
    identity = make_identity(clock=clock, jwt_keys=str(file))
    given = es_token(0, "a")
    assert await identity.caller_of(given, None) is await identity.caller_of(given, None)
    # Put in its place, as a deployment does it.
    other = file.with_suffix(".new")
    other.write_bytes(jwks(es_jwk(1, "b")))
    os.replace(other, file)
    clock.advance(1_000)
    assert not await is_accepted(identity, given)


@pytest.mark.parametrize("garbage", [b"", b"{", b'{"keys": 5}', b"\xff" * 100, b"[" * 100_000, b" " * 300_000, None])
async def test_a_file_that_is_garbage_or_gone_leaves_the_keys_and_is_logged_once(
    clock: ManualClock, file: Path, garbage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    identity = make_identity(clock=clock, jwt_keys=str(file))
    if garbage is None:
        file.unlink()
    else:
        file.write_bytes(garbage)
    with caplog.at_level(logging.WARNING, "holdfast"):
        for _ in range(3):
            clock.advance(1_000)
            assert await is_accepted(identity, es_token(0, "a"))
    assert len([record for record in caplog.records if "jwt_keys" in record.message]) == 1
    file.write_bytes(jwks(es_jwk(1, "b")))
    clock.advance(1_000)
    assert await is_accepted(identity, es_token(1, "b"))
    assert not await is_accepted(identity, es_token(0, "a"))


async def test_an_emptied_set_in_a_file_withdraws_every_key(clock: ManualClock, file: Path) -> None:
    identity = make_identity(clock=clock, jwt_keys=str(file))
    file.write_bytes(jwks())
    clock.advance(1_000)
    assert not await is_accepted(identity, es_token(0, "a"))


# ---- a URL


class KeyServer:
    """Publishes what it is given to publish; counts who asks."""

    def __init__(self) -> None:
        self.answer: Callable[[BaseHTTPRequestHandler], None] = self.document(jwks(es_jwk(0, "a")))
        self.asked: list[str] = []
        keys = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                keys.asked.append(self.path)
                keys.answer(self)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/jwks.json"

    @staticmethod
    def document(content: bytes, status: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(content)

        return answer

    def publish(self, *entries: Any) -> None:
        self.answer = self.document(jwks(*entries))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyServer]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    keys = KeyServer()
    yield keys
    keys.close()


@pytest.fixture
async def identity(clock: ManualClock, server: KeyServer) -> AsyncIterator[Identity]:
    made = make_identity(clock=clock, jwt_keys=server.url)
    await made.start()
    yield made
    await made.close()


async def until(is_so: Callable[[], bool]) -> None:
    """For what another thread does."""
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.002)


async def settled(source: Identity) -> None:
    """Let a fetch in the background come to its end."""
    while (flight := source._source._flight) is not None:  # type: ignore[attr-defined]
        await asyncio.wait([flight])


async def test_keys_are_fetched_at_the_start_and_kept(identity: Identity, server: KeyServer) -> None:
    for _ in range(100):
        assert await is_accepted(identity, es_token(0, "a"))
    assert server.asked == ["/jwks.json"]


async def test_keys_are_fetched_by_the_first_call_where_nothing_was_started(
    clock: ManualClock, server: KeyServer
) -> None:
    identity = make_identity(clock=clock, jwt_keys=server.url)
    answers = await asyncio.gather(*(is_accepted(identity, es_token(0, "a")) for _ in range(20)))
    assert all(answers)
    assert len(server.asked) == 1


async def test_a_new_key_is_known_at_its_first_token(identity: Identity, server: KeyServer) -> None:
    server.publish(es_jwk(0, "a"), es_jwk(1, "b"))
    answers = await asyncio.gather(
        *(is_accepted(identity, es_token(number % 2, "ab"[number % 2])) for number in range(50))
    )
    assert all(answers)
    assert len(server.asked) == 2


async def test_a_withdrawn_key_is_refused_once_its_time_is_over(
    identity: Identity, server: KeyServer, clock: ManualClock
) -> None:
    given = es_token(0, "a")
    assert await is_accepted(identity, given)
    server.publish(es_jwk(1, "b"))
    clock.advance(KEYS_TTL_MS)
    # The very first call after that waits for the new set.
    assert not await is_accepted(identity, given)
    assert await is_accepted(identity, es_token(1, "b"))


async def test_keys_are_renewed_in_the_background_before_their_time_is_over(
    identity: Identity, server: KeyServer, clock: ManualClock
) -> None:
    server.publish(es_jwk(1, "b"))
    clock.advance(KEYS_REFRESH_MS)
    assert await is_accepted(identity, es_token(0, "a"))
    await settled(identity)
    assert len(server.asked) == 2
    assert not await is_accepted(identity, es_token(0, "a"))


async def test_the_same_document_again_leaves_what_is_remembered(
    identity: Identity, server: KeyServer, clock: ManualClock
) -> None:
    given = es_token(0, "a")
    caller = await identity.caller_of(given, None)
    clock.advance(KEYS_TTL_MS)
    assert await identity.caller_of(given, None) is caller
    assert len(server.asked) == 2


async def test_rotation_under_load_refuses_no_valid_token(
    identity: Identity, server: KeyServer, clock: ManualClock
) -> None:
    refused: list[int] = []
    current = 0
    is_over = False

    async def call() -> None:
        while not is_over:
            number = current
            if not await is_accepted(identity, es_token(number, f"k{number}")):
                refused.append(number)
            await asyncio.sleep(0)

    server.publish(es_jwk(0, "k0"))
    callers = [asyncio.create_task(call()) for _ in range(8)]
    for number in range(1, 6):
        # The next key is published before it signs; the last one stays for one round.
        server.publish(es_jwk(number - 1, f"k{number - 1}"), es_jwk(number, f"k{number}"))
        current = number
        for _ in range(20):
            await asyncio.sleep(0.005)
        clock.advance(KEYS_REFRESH_MS)
        for _ in range(20):
            await asyncio.sleep(0.005)
    is_over = True
    await asyncio.gather(*callers)
    assert refused == []
    clock.advance(KEYS_TTL_MS)
    assert not await is_accepted(identity, es_token(0, "k0"))
    # At the start; for each round one at the new key and one in its time; one after the rounds, one for the old key.
    assert len(server.asked) <= 1 + 5 * 2 + 1 + 1


async def test_ten_thousand_unknown_kids_cause_one_fetch_a_minute(
    identity: Identity, server: KeyServer, clock: ManualClock
) -> None:
    forged = token(private_key("EdDSA"), "EdDSA").split(b".")[1:]

    async def flood(names: range) -> None:
        for start in range(names.start, names.stop, 500):
            answers = await asyncio.gather(
                *(
                    is_accepted(identity, bearer(b".".join([_header(f"k{number}"), *forged])))
                    for number in range(start, start + 500)
                )
            )
            assert not any(answers)

    await flood(range(10_000))
    assert len(server.asked) == 1 + 1
    clock.advance(RENEWAL_MS - 1)
    await flood(range(10_000, 11_000))
    assert len(server.asked) == 1 + 1
    clock.advance(1)
    await flood(range(11_000, 12_000))
    assert len(server.asked) == 1 + 2
    assert await is_accepted(identity, es_token(0, "a"))


async def test_a_token_of_the_wrong_kind_causes_no_fetch(identity: Identity, server: KeyServer) -> None:
    for algorithm in ("HS256", "none", "ES256K", ""):
        forged = _header("x", algorithm) + b".e30." + b"YWJj"
        assert not await is_accepted(identity, bearer(forged))
    # Nor does a bad signature by a key that is known.
    assert not await is_accepted(identity, es_token(1, "a"))
    assert len(server.asked) == 1


OUTAGES: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {
    "status 503": KeyServer.document(b"down", 503),
    "status 404": KeyServer.document(b"{}", 404),
    "a page": KeyServer.document(b"<html>sign in</html>"),
    "no keys": KeyServer.document(b'{"keys": null}'),
    "nothing": KeyServer.document(b""),
    "deep nesting": KeyServer.document(b"[" * 100_000),
    "a huge document": KeyServer.document(b" " * (MAX_DOCUMENT_BYTES + 1)),
    "too many keys": KeyServer.document(jwks(*[es_jwk(1)] * (MAX_KEYS + 1))),
    "half a document": KeyServer.document(b'{"keys": [', **{"Content-Length": "5000"}),
    "not UTF-8": KeyServer.document(b"\xff\xfe\x00"),
    "not HTTP": lambda handler: handler.connection.sendall(b"SSH-2.0-x\r\n\r\n"),
}


@pytest.mark.parametrize("name", OUTAGES)
async def test_while_the_server_fails_the_last_keys_stay_in_force(
    identity: Identity, server: KeyServer, clock: ManualClock, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer = OUTAGES[name]
    with caplog.at_level(logging.WARNING, "holdfast"):
        clock.advance(KEYS_TTL_MS)
        assert await is_accepted(identity, es_token(0, "a"))
    assert "the last ones stay in force" in caplog.text
    assert len(server.asked) == 2
    # It is asked again after a minute, behind the back of calls, and believed again.
    server.publish(es_jwk(1, "b"))
    clock.advance(RENEWAL_MS - 1)
    assert await is_accepted(identity, es_token(0, "a"))
    assert len(server.asked) == 2
    clock.advance(1)
    assert await is_accepted(identity, es_token(0, "a"))
    await settled(identity)
    assert len(server.asked) == 3
    assert not await is_accepted(identity, es_token(0, "a"))
    assert await is_accepted(identity, es_token(1, "b"))


async def test_a_server_that_is_gone_keeps_nobody_from_calling(
    identity: Identity, server: KeyServer, clock: ManualClock
) -> None:
    server.close()
    for _ in range(5):
        clock.advance(KEYS_TTL_MS)
        assert await is_accepted(identity, es_token(0, "a"))
    server._server.server_close()


async def test_an_emptied_set_withdraws_every_key(identity: Identity, server: KeyServer, clock: ManualClock) -> None:
    server.publish()
    clock.advance(KEYS_TTL_MS)
    assert not await is_accepted(identity, es_token(0, "a"))


async def test_a_server_that_is_down_at_the_start_is_asked_again_soon(clock: ManualClock, server: KeyServer) -> None:
    working, server.answer = server.answer, OUTAGES["status 503"]
    identity = make_identity(clock=clock, jwt_keys=server.url)
    await identity.start()
    assert not await is_accepted(identity, es_token(0, "a"))
    server.answer = working
    clock.advance(FIRST_KEYS_RETRY_MS)
    assert await is_accepted(identity, es_token(0, "a"))
    await identity.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(clock: ManualClock, server: KeyServer, status: int) -> None:
    elsewhere = KeyServer()
    server.answer = KeyServer.document(b"", status, Location=elsewhere.url)
    identity = make_identity(clock=clock, jwt_keys=server.url)
    await identity.start()
    assert not await is_accepted(identity, es_token(0, "a"))
    assert elsewhere.asked == []
    await identity.close()
    elsewhere.close()


async def test_a_server_that_never_answers_is_given_up(
    identity: Identity, server: KeyServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FETCH_S", 0.2)
    monkeypatch.setattr(sources, "FETCH_STEP_S", 0.1)
    release = threading.Event()
    server.answer = lambda handler: release.wait(30) and None
    clock.advance(KEYS_TTL_MS)
    try:
        assert await is_accepted(identity, es_token(0, "a"))
    finally:
        release.set()


async def test_a_server_that_trickles_is_given_up(
    identity: Identity, server: KeyServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FETCH_S", 0.2)
    is_left = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while not is_left.wait(0.02):
                handler.wfile.write(b" ")
        except OSError:
            is_left.set()

    server.answer = trickle
    clock.advance(KEYS_TTL_MS)
    assert await is_accepted(identity, es_token(0, "a"))
    # The thread leaves too, so that the next fetch can begin.
    assert await asyncio.to_thread(is_left.wait, 5)
    server.publish(es_jwk(1, "b"))
    await until(identity._source._fetched.done)  # type: ignore[attr-defined]
    clock.advance(RENEWAL_MS)
    await is_accepted(identity, es_token(0, "a"))
    await settled(identity)
    assert await is_accepted(identity, es_token(1, "b"))


async def test_a_caller_that_leaves_does_not_end_the_fetch_of_others(identity: Identity, server: KeyServer) -> None:
    may_answer = threading.Event()
    publish = KeyServer.document(jwks(es_jwk(1, "b")))

    def answer(handler: BaseHTTPRequestHandler) -> None:
        may_answer.wait(5)
        publish(handler)

    server.answer = answer
    leaving = asyncio.create_task(is_accepted(identity, es_token(1, "b")))
    staying = asyncio.create_task(is_accepted(identity, es_token(1, "b")))
    await until(lambda: len(server.asked) == 2)
    leaving.cancel()
    may_answer.set()
    assert await staying
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_closing_ends_a_fetch_under_way(clock: ManualClock, server: KeyServer) -> None:
    release = threading.Event()
    server.answer = lambda handler: release.wait(30) and None
    identity = make_identity(clock=clock, jwt_keys=server.url)
    starting = asyncio.create_task(identity.start())
    await until(lambda: bool(server.asked))
    await identity.close()
    with pytest.raises(asyncio.CancelledError):
        await starting
    release.set()


def _header(kid: str, algorithm: str = "EdDSA") -> bytes:
    return base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "kid": kid}).encode()).rstrip(b"=")
