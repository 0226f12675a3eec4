"""Correlation ids and error documents: what every answer carries, and what none may carry."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdfast.doors.http.calls import error_answer
from holdfast.doors.identity import make_identity
from holdfast.model.errors import ERRORS_BY_CODE, HoldfastError
from holdfast.testing import ManualClock
from holdfast.wire.errors import STATUS_BY_CODE, to_wire_code
from tests.doors.access_rows import ROWS, TOKENS, Place, ask, furnish
from tests.doors.credentials import token
from tests.doors.raw import head, once, wire
from tests.doors.serving import Answer, Server, Tokens, serve

ENQUEUE = "/v1/queue/enqueue"
OWN = {"tenant": "acme", "queue": "jobs"}
ONE = {**OWN, "messages": [{"payload": 1}]}
QUEUE = "/v1/tenants/acme/queues/jobs"


# --- Correlation ids -------------------------------------------------------------------------------------------

KEPT = {"as it is": "order-7", "trimmed": "  order-7\t", "every visible sign": "!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~"}
KEPT["128 of them"] = "x" * 128
REPLACED = {"nothing": "", "blank": "   ", "129 of them": "x" * 129, "a gap": "a b", "a tab within": "a\tb"}
REPLACED |= {"latin-1": "\xfcber", "a delete": "a\x7f"}


@pytest.mark.parametrize("name", KEPT)
async def test_a_correlation_id_is_kept_trimmed(server: Server, name: str) -> None:
    header = {"X-Correlation-Id": KEPT[name]}
    for method, path, body in (("POST", ENQUEUE, ONE), ("GET", "/v1/tenants", None), ("GET", "/nothing", None)):
        answer = await once(server, method, path, body, **header)
        assert answer.headers["x-correlation-id"] == KEPT[name].strip()
    answer = await once(server, "POST", "/v1/queue/dequeue", OWN, **header)
    assert answer.json["messages"][0]["correlation_id"] == KEPT[name].strip()


@pytest.mark.parametrize("name", REPLACED)
async def test_what_is_no_correlation_id_is_replaced_and_shown_nowhere(server: Server, name: str) -> None:
    for method, path, body in (("POST", ENQUEUE, ONE), ("GET", "/v1/tenants", None), ("GET", "/nothing", None)):
        answer = await once(server, method, path, body, **{"X-Correlation-Id": REPLACED[name]})
        if answer.status == 400:
            # No sign that HTTP allows in a header.
            assert name == "a delete"
            continue
        minted = answer.headers["x-correlation-id"]
        assert 1 <= len(minted) <= 128
        assert minted != REPLACED[name].strip()
    own = {**OWN, "messages": [{"payload": 1, "correlation_id": REPLACED[name]}]}
    answer = await server.post(ENQUEUE, own)
    assert answer.json["messages"][0]["correlation_id"] == answer.json["messages"][0]["id"]


async def test_two_calls_are_never_given_the_same_correlation_id(server: Server) -> None:
    answers = [await server.get("/v1/tenants") for _ in range(20)] + [await server.get("/nothing") for _ in range(20)]
    assert len({each.headers["X-Correlation-Id"] for each in answers}) == 40


@pytest.mark.spec("1.5")
async def test_an_answer_of_one_message_carries_its_id_and_one_of_many_the_calls(server: Server) -> None:
    header = {"X-Correlation-Id": "call-1"}
    await server.enqueue(1, correlation_id="message-1")
    await server.enqueue(2, correlation_id="message-2")
    answer = await server.post("/v1/queue/dequeue", {**OWN, "limit": 2, "lease_ms": 60_000}, headers=header)
    assert answer.headers["X-Correlation-Id"] == "call-1"
    first, second = answer.json["messages"]
    assert [first["correlation_id"], second["correlation_id"]] == ["message-1", "message-2"]
    state = {**OWN, "receipt": first["receipt"], "document": 1}
    assert (await server.put("/v1/queue/state", state, headers=header)).headers["X-Correlation-Id"] == "message-1"
    looked_up = await server.get(f"{QUEUE}/messages/{second['id']}", headers=header)
    assert looked_up.headers["X-Correlation-Id"] == "message-2"
    both = {**OWN, "receipts": [first["receipt"], second["receipt"]]}
    settled = await server.post("/v1/queue/ack", both, headers=header)
    assert settled.headers["X-Correlation-Id"] == "call-1"
    assert [each["correlation_id"] for each in settled.json["results"]] == ["message-1", "message-2"]


INJECTIONS = ["x\r\nX-Forged: 1", "x\nX-Forged: 1", "x\rX-Forged: 1", "x\r\n\r\nHTTP/1.1 200 OK", "x\x00y", "x\u2028y"]


@pytest.mark.parametrize("text", INJECTIONS)
async def test_nothing_a_caller_says_splits_an_answer(server: Server, text: str) -> None:
    messages = [{"payload": text, "correlation_id": text, "headers": {"a": text}}]
    answer = await server.post(ENQUEUE, {**OWN, "messages": messages})
    id = answer.json["messages"][0]["id"]
    for each in (
        answer,
        await server.get(f"{QUEUE}/messages/{id}", payload=1),
        await server.post("/v1/queue/dequeue", OWN),
        await server.post("/v1/queue/dequeue", {**OWN, "queue": text}),
        await server.get("/v1/queue/stats", queue=text),
        await server.get("/v1/journal", after=text),
        await server.get(f"{QUEUE}/messages", state=text),
        await server.get("/v1/queue/stats", **{text: "1"}),
    ):
        assert "X-Forged" not in each.headers
        assert len(each.headers["X-Correlation-Id"]) <= 128
    # As a header of the request itself it is another header, or none at all.
    async with wire(server) as connection:
        headers = {"Host": "localhost", "Connection": "close", "X-Correlation-Id": text.replace("\u2028", "?")}
        connection.write(head("GET", "/v1/tenants", headers))
        answers = await connection.rest()
        assert b"x-forged" not in answers.lower()
        assert answers.count(b"HTTP/1.1 ") <= 1


@pytest.fixture
async def guarded_world(clock: ManualClock) -> AsyncIterator[tuple[Server, Place]]:
    async with serve(clock, identity=Tokens(TOKENS)) as server:
        yield server, await furnish(server.with_token("operator-admin"), "acme")


async def test_every_refusal_carries_the_correlation_id_of_its_call(guarded_world: tuple[Server, Place]) -> None:
    server, place = guarded_world
    for row in ROWS:
        request = row.request(place)
        for api, status in ((server, 401), (server.with_token("acme-none"), 403)):
            sent = request._replace(headers={**request.headers, "X-Correlation-Id": f"call-{status}"})
            answer = await ask(api, sent)
            assert (answer.status, answer.headers["X-Correlation-Id"]) == (status, f"call-{status}"), row
            assert set(answer.json) == {"error"}
    for raw, status in (
        (head("GET", "/x" * 40_000, {"Host": "localhost"}), 431),
        (head("GET", "/", {"Host": "localhost", "X-Correlation-Id": "call-1", "A": "x" * 70_000}), 431),
        ("nonsense\r\n\r\n", 400),
    ):
        async with wire(server) as connection:
            connection.write(raw)
            answer = await connection.answer()
            assert (answer.status, answer.code) == (status, "invalid_argument")
            assert answer.headers["x-correlation-id"]
            if "call-1" in raw:
                assert answer.headers["x-correlation-id"] == "call-1"


# --- Errors ----------------------------------------------------------------------------------------------------

# Said once more, as API.md has it.
STATUSES = {
    "invalid_name": 400, "invalid_argument": 400, "unauthenticated": 401, "forbidden": 403, "queue_not_found": 404,
    "message_not_found": 404, "stale_lease": 409, "already_exists": 409, "draining": 409, "conflict": 412,
    "payload_too_large": 413, "over_quota": 429, "rate_limited": 429, "internal": 500, "store_unavailable": 503,
}  # fmt: skip


@pytest.mark.spec("3.11")
def test_every_error_has_its_status() -> None:
    assert STATUS_BY_CODE == STATUSES
    assert set(ERRORS_BY_CODE) == set(STATUSES)


@pytest.mark.parametrize("code", STATUSES)
def test_every_error_is_one_document(code: str) -> None:
    status, body, headers = error_answer(ERRORS_BY_CODE[code]("say it", n=1), "c-1")
    document = json.loads(body)
    assert status == STATUSES[code]
    assert set(document) == {"error"}
    error = document["error"]
    assert (error["code"], error["message"], error["n"]) == (to_wire_code(code), "say it", 1)
    named = dict(headers)
    assert named[b"x-correlation-id"] == b"c-1"
    assert (b"retry-after" in named) == ("retry_after_ms" in error) == (status in (429, 503))
    assert (b"www-authenticate" in named) == (status == 401)


Reach = Callable[[Server], Awaitable[Answer]]


async def _no_message(server: Server) -> Answer:
    await server.enqueue(1)
    return await server.get(f"{QUEUE}/messages/1")


async def _conflict(server: Server) -> Answer:
    await server.enqueue(1)
    [held] = await server.dequeue()
    state = {**OWN, "receipt": held["receipt"], "document": 1}
    await server.put("/v1/queue/state", state)
    return await server.put("/v1/queue/state", state)


async def _draining(server: Server) -> Answer:
    await server.enqueue(1)
    await server.dequeue(lease_ms=60_000)
    await server.delete(QUEUE)
    return await server.post(ENQUEUE, ONE)


async def _over_quota(server: Server) -> Answer:
    await server.put("/v1/tenants/acme", {"quotas": {"max_messages": 0}})
    return await server.post(ENQUEUE, ONE)


async def _rate_limited(server: Server) -> Answer:
    await server.put("/v1/tenants/acme", {"limits": {"write_ops_per_s": 0}})
    return await server.post(ENQUEUE, ONE)


async def _stale(server: Server) -> Answer:
    await server.enqueue(1)
    [held] = await server.dequeue()
    for _ in range(2):
        answer = await server.post("/v1/queue/ack", {**OWN, "receipts": [held["receipt"]]})
    return answer


async def _internal(server: Server) -> Answer:
    async def broken(*args: object) -> object:
        raise ZeroDivisionError(SECRET)

    server.core.store.directory.find_queue = broken
    return await server.get("/v1/queue/stats", **OWN)


async def _unavailable(server: Server) -> Answer:
    server.drain.is_draining = True
    return await server.get("/v1/tenants")


SECRET = "a secret that no answer may show"
REACHED: dict[str, Reach] = {
    "invalid_name": lambda server: server.get("/v1/queue/stats", queue="a/b"),
    "invalid_argument": lambda server: server.post(ENQUEUE, {**ONE, "x": 1}),
    "queue_not_found": lambda server: server.get("/v1/queue/stats", **OWN),
    "message_not_found": _no_message,
    "stale_lease": _stale,
    "draining": _draining,
    "conflict": _conflict,
    "payload_too_large": lambda server: server.post(ENQUEUE, {**OWN, "messages": [{"payload": "x" * (1 << 20)}]}),
    "over_quota": _over_quota,
    "rate_limited": _rate_limited,
    "internal": _internal,
    "store_unavailable": _unavailable,
}
# The first two are the matrix's (test_access_matrix.py); nothing over HTTP can exist already.
REACHED_ELSEWHERE = {"unauthenticated", "forbidden", "already_exists"}


@pytest.mark.spec("3.11")
def test_every_error_is_reached() -> None:
    assert set(REACHED) | REACHED_ELSEWHERE == set(STATUSES)


@pytest.mark.spec("3.11")
@pytest.mark.parametrize("code", REACHED)
async def test_every_error_comes_with_its_code_its_message_and_its_status(server: Server, code: str) -> None:
    answer = await REACHED[code](server)
    assert (answer.status, answer.code) == (STATUSES[code], to_wire_code(code))
    assert answer.json["error"]["message"]
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Correlation-Id"]
    assert ("Retry-After" in answer.headers) == (answer.status in (429, 503))
    assert SECRET not in answer.body.decode()
    assert "Traceback" not in answer.body.decode()


async def test_an_internal_error_is_logged_with_the_correlation_id_that_its_caller_has(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await _internal(server)
    [record] = [each for each in caplog.records if each.name == "holdfast"]
    assert record.__dict__["correlation_id"] == answer.headers["X-Correlation-Id"]
    assert answer.json["error"]["correlation_id"] == answer.headers["X-Correlation-Id"]


def test_an_error_of_no_kind_is_internal() -> None:
    class Odd(HoldfastError):
        pass

    assert error_answer(Odd("x"), "c")[0] == 500


# --- Secrets ---------------------------------------------------------------------------------------------------


async def test_no_secret_is_in_a_log_or_in_another_callers_answer(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    secret = secrets.token_hex(32)
    identity = make_identity(clock=clock, jwt_secret=secret)
    tokens = {
        name: token(secret.encode(), "HS256", tenant=tenant, scope=scope).decode()
        for name, tenant, scope in (("acme", "acme", "admin"), ("other", "other", "admin"), ("expired", "acme", "read"))
    }
    tokens["expired"] = token(secret.encode(), "HS256", exp=1, iat=0).decode()
    tokens["forged"] = token(b"another secret of enough bytes for it", "HS256").decode()
    seen: list[bytes] = []
    async with serve(clock, identity=identity) as server:
        acme, other = server.with_token(tokens["acme"]), server.with_token(tokens["other"])
        place = await furnish(acme, "acme")
        for row in ROWS:
            for api in (server, other, server.with_token(tokens["expired"]), server.with_token(tokens["forged"])):
                answer = await ask(api, row.request(place))
                seen += [answer.body, repr(dict(answer.headers)).encode()]
        for bad in ("Basic " + tokens["acme"], tokens["acme"], "Bearer " + tokens["acme"] + "x", "Bearer"):
            refused = await once(server, "GET", "/v1/tenants", Authorization=bad)
            assert refused.status == 401
            seen.append(refused.body)
        server.core.store.directory.find_queue = None
        assert (await acme.get("/v1/queue/stats", **OWN)).status == 500
        async with asyncio.timeout(60):
            async with wire(server) as connection:
                connection.write(f"GARBAGE {tokens['acme']}\r\n\r\n")
                seen.append((await connection.answer()).body)
    everything = b"".join(seen).decode() + caplog.text + repr([each.__dict__ for each in caplog.records])
    assert "call_failed" in caplog.text
    for canary in (secret, place.receipt, *tokens.values(), *(each.rsplit(".", 1)[1] for each in tokens.values())):
        assert canary not in everything
    assert secret not in repr(identity)
