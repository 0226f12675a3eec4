"""Keys from a URL: fetched, renewed and withdrawn in their time, and the last ones kept while their server fails."""

import asyncio
import base64
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from holdfast.doors.identity import Identity, make_identity, sources
from holdfast.doors.identity.keys import MAX_KEYS
from holdfast.doors.identity.sources import (
    FIRST_KEYS_RETRY_MS,
    KEYS_REFRESH_MS,
    KEYS_TTL_MS,
    MAX_DOCUMENT_BYTES,
    RENEWAL_MS,
)
from holdfast.testing.clock import ManualClock
from tests.doors.credentials import bearer, es_jwk, es_token, is_accepted, jwks, private_key, token
from tests.doors.key_server import KeyServer
from tests.waiting import until


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


async def settled(source: Identity) -> None:
    """Let a fetch in the background come to its end."""
    while (flight := source._source._refresh) is not None:
        await asyncio.wait([flight])


@pytest.mark.spec("8.6")
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
    assert "the previous keys remain valid" in caplog.text
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
    await until(identity._source._fetched.done)
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
