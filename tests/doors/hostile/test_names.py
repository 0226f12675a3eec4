"""Every place where a name, a key or an id can stand, with what none of them may be."""

import itertools
import json
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.doors.access_rows import ROWS, Place, Request, Row, everything, furnish
from tests.doors.raw import once
from tests.doors.serving import Answer, Server

HOSTILE = {
    "the folder above": "../",
    "folders above": "../../etc/passwd",
    "an encoded folder": "..%2f",
    "encoded twice": "..%252f",
    "a slash": "a/b",
    "a backslash": "a\\b",
    "a colon": "a:b",
    "braces": "a{b}",
    "every": "*",
    "a pattern": "a?[b]",
    "NUL": "a\x00b",
    "a line break": "a\nb",
    "a header": "a\r\nX-Forged: 1",
    "a terminal's escape": "\x1b[31mred",
    "SQL": "'; drop table messages; --",
    "a quote": 'a"b',
    "space": "a b",
    "space around": " jobs ",
    "writing turned around": "jobs\u202esboj",
    "an unseen joiner": "jo\u200dbs",
    "a letter like another": "j\u043ebs",
    "an accent apart": "jo\u0301bs",
    "full width": "\uff4aobs",
    "a face": "\U0001f600",
    "dot": ".",
    "dots": "..",
    "a leading dot": ".jobs",
    "nothing": "",
    "too long": "x" * 129,
    "markup": "<img src=x onerror=alert(1)>",
    "a template": "${jndi:ldap://x}",
}
PLACE = Place("acme", "jobs", "1", "1", "1", 1, "A" * 54, "1", "nightly", "1")


def spelled(request: Request) -> tuple[str, bytes | None]:
    """Return the path and body of a request exactly as they are sent."""
    path = request.path
    if request.query:
        path += "?" + urlencode(request.query)
    body = request.body
    if request.document is not None:
        body = json.dumps(request.document).encode()
    return path, body


def with_name(row: Row, field: str, name: str) -> Request | None:
    """None: this row has no such field."""
    is_in_path = "{tenant}" in row.path
    request = row.request(PLACE._replace(**{field: quote(name, safe="") if is_in_path else name}))
    return None if request == row.request(PLACE) else request


async def send(server: Server, request: Request) -> Answer:
    path, body = spelled(request)
    return await once(server, request.method, path, body, **request.headers)


@pytest.mark.spec("1.2")
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_name_is_refused_as_a_name_wherever_it_stands(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    tried = 0
    for row, field in itertools.product(ROWS, ("tenant", "queue")):
        request = with_name(row, field, HOSTILE[name])
        if request is None:
            continue
        answer = await send(server, request)
        assert (answer.status, answer.code) == (400, "invalid_name"), (str(row), field, answer)
        assert answer.json["error"]["kind"] == field
        assert len(answer.body) < 600
        tried += 1
    for field in ("tenant", "queue"):
        to = {"queue": "there", field: HOSTILE[name]}
        answer = await server.post("/v1/tenants/acme/queues/jobs/move", {"to": to})
        assert (answer.status, answer.code) == (400, "invalid_name"), field
    assert tried > 70
    assert (await server.get("/v1/tenants")).json == {"tenants": []}
    logged = "".join(record.getMessage() for record in caplog.records)
    if HOSTILE[name] not in ("", ".", "..", "*"):
        assert HOSTILE[name] not in logged
    assert "\x1b" not in logged


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_name_of_a_schedule_is_refused_as_a_name(server: Server, name: str) -> None:
    await server.put("/v1/tenants/acme/queues/jobs", {})
    path = "/v1/tenants/acme/queues/jobs/schedules/" + quote(HOSTILE[name], safe="")
    for method, document in (("PUT", {"every_ms": 60_000, "message": {"payload": 1}}), ("GET", None), ("DELETE", None)):
        answer = await once(server, method, path, document)
        assert (answer.status, answer.code) == (400, "invalid_name"), (method, answer)
    assert (await server.get("/v1/tenants/acme/queues/jobs/schedules")).json == {"schedules": []}


async def test_a_name_of_a_megabyte_is_refused_and_shown_short(server: Server) -> None:
    long = "x" * (1 << 20)
    for row, field in itertools.product(ROWS, ("tenant", "queue")):
        request = with_name(row, field, long)
        if request is None:
            continue
        answer = await send(server, request)
        if len(spelled(request)[0]) > 1_000:
            assert (answer.status, answer.code) == (431, "invalid_argument")
        else:
            # Of a multipart body this is more than its meta may have.
            assert (answer.status, answer.code) in ((400, "invalid_name"), (413, "payload_too_large")), str(row)
        assert len(answer.body) < 600
    assert (await server.get("/v1/tenants")).json == {"tenants": []}


# --- Keys, groups, owners, consumers ---------------------------------------------------------------------------

TEXTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "owner": ("POST", "/v1/queue/dequeue", {"owner": ...}),
    "a subscriber's owner": ("POST", "/v1/queue/subscribe", {"owner": ..., "wait_ms": 0}),
    "idempotency_key": ("POST", "/v1/queue/enqueue", {"messages": [{"payload": 1, "idempotency_key": ...}]}),
    "group": ("POST", "/v1/queue/enqueue", {"messages": [{"payload": 1, "group": ...}]}),
    "content_type": ("POST", "/v1/queue/enqueue", {"messages": [{"payload": 1, "content_type": ...}]}),
    "consumer": ("POST", "/v1/queue/ledger/claim", {"consumer": ..., "number": 1}),
    "a consumer that acks": ("POST", "/v1/queue/ledger/ack", {"consumer": ..., "upto": 1}),
    "a consumer that extends": ("POST", "/v1/queue/ledger/extend", {"consumer": ...}),
}
UNSEEN = {
    name: HOSTILE[name]
    for name in ("NUL", "a line break", "a header", "a terminal's escape", "writing turned around", "an unseen joiner")
} | {"too long": "x" * 257, "a megabyte": "x" * (1 << 20), "half a surrogate": "\ud800", "a line separator": "a\u2028b"}


def filled(document: Any, text: str) -> Any:
    if document is ...:
        return text
    if isinstance(document, dict):
        return {name: filled(each, text) for name, each in document.items()}
    return [filled(each, text) for each in document] if isinstance(document, list) else document


@pytest.mark.parametrize("field", TEXTS)
async def test_a_text_with_unseen_characters_or_without_measure_is_refused(server: Server, field: str) -> None:
    await furnish(server, "acme")
    before = await everything(server)
    method, path, document = TEXTS[field]
    for text in UNSEEN.values():
        answer = await server.call(method, path, {"tenant": "acme", "queue": "jobs", **filled(document, text)})
        assert (answer.status, answer.code) == (400, "invalid_argument"), text[:20]
        assert len(answer.body) < 600
    assert await everything(server) == before


async def test_a_text_may_look_like_anything_and_means_itself_alone(stored: Server) -> None:
    """Two consumers, keys or groups are never taken for one another, whatever they are made of."""
    own = {"tenant": "acme", "queue": "jobs"}
    texts = ["a", "a/b", "a:b", "a{b}", "*", "..", "../", "%2f", "'; drop table messages; --", "ä", "\u4e2d", "A", "a "]
    await stored.enqueue(*texts)
    for text in texts:
        claim = {**own, "consumer": text, "number": 1}
        [message] = (await stored.post("/v1/queue/ledger/claim", claim)).json["messages"]
        assert message["payload"] == text
    for text in texts:
        [entry] = (await stored.get("/v1/queue/ledger", **own, consumer=text)).json["claims"]
        assert [each["payload"] for each in entry["messages"]] == [text]
    for _ in range(2):
        messages = [{"payload": text, "idempotency_key": text} for text in texts]
        answer = await stored.post("/v1/queue/enqueue", {"tenant": "acme", "queue": "keys", "messages": messages})
        assert len({each["id"] for each in answer.json["messages"]}) == len(texts)
    assert (await stored.get("/v1/queue/stats", tenant="acme", queue="keys")).json["ready"] == len(texts)


async def test_names_that_are_alike_are_different_queues(stored: Server) -> None:
    names = [
        "jobs",
        "Jobs",
        "JOBS",
        "jobs.",
        "jobs-",
        "jobs_",
        "job",
        "jobs1",
        "-jobs",
        "_jobs",
        "0",
        "00",
        "x" * 128,
        "CON",
    ]
    for tenant, queue in itertools.product(("acme", "Acme", "acme.", "acm"), names):
        await stored.enqueue(f"{tenant}/{queue}", tenant=tenant, queue=queue)
    for tenant, queue in itertools.product(("acme", "Acme", "acme.", "acm"), names):
        [message] = await stored.dequeue(5, tenant=tenant, queue=queue)
        assert message["payload"] == f"{tenant}/{queue}"


# --- Ids, cursors, positions, receipts -------------------------------------------------------------------------

IDS = (
    "x", "-1", "1.5", "1e3", "0x1", "٣", "9" * 19, "9" * 500, "%00", "..", "%2e%2e%2f", "null", "true", "{}", " 1",
    "1 ", "0197780d-0000-7000-8000-00000000000g", "0197780d-0000-1000-8000-000000000000", "a" * 1_000,
)  # fmt: skip


@pytest.mark.parametrize("id", IDS)
async def test_an_id_that_is_none_is_refused(server: Server, id: str) -> None:
    await server.enqueue(1)
    before = await everything(server)
    base = "/v1/tenants/acme/queues/jobs"
    encoded = quote(id, safe="%")
    for method, path, document in (
        ("GET", f"{base}/messages/{encoded}", None),
        ("DELETE", f"{base}/messages/{encoded}", None),
        ("GET", f"{base}/messages?cursor={encoded}", None),
        ("POST", f"{base}/cancel", {"filter": {"ids": [id]}}),
        ("POST", f"{base}/redrive", {"edit": {"id": id, "payload": 1}}),
        ("POST", "/ack", {"namespace": "acme", "topic": "jobs", "id": id}),
        ("POST", "/nack", {"namespace": "acme", "topic": "jobs", "id": id}),
    ):
        answer = await once(server, method, path, document)
        assert (answer.status, answer.code) == (400, "invalid_argument"), (method, path, answer)
        assert len(answer.body) < 600
    assert await everything(server) == before


@pytest.mark.parametrize("position", ["x", "-1", "1.5", "9" * 19, "9" * 400, "%00", "1-2", "1:2:3", "", "..", "٣"])
async def test_a_position_of_the_journal_that_is_none_is_refused_or_past_the_end(server: Server, position: str) -> None:
    await server.enqueue(1)
    answer = await once(server, "GET", f"/v1/journal?after={quote(position, safe='%')}")
    if answer.status == 200:
        assert answer.body == b""
        # Where it ends is told, and reading goes on from there.
        assert answer.headers["x-journal-next"].isprintable()
    else:
        assert (answer.status, answer.code) == (400, "invalid_argument")


@pytest.mark.parametrize(
    "receipt", ["", "x", "A" * 53, "A" * 54, "A" * 55, "=" * 54, "\u00e4" * 54, "../" * 18, "A" * (1 << 20)]
)
async def test_a_receipt_that_is_none_is_refused(server: Server, receipt: str) -> None:
    [id] = await server.enqueue(1)
    await server.dequeue()
    before = await everything(server)
    own = {"tenant": "acme", "queue": "jobs"}
    for method, path, document in (
        ("POST", "/v1/queue/ack", {**own, "receipts": [receipt]}),
        ("POST", "/v1/queue/nack", {**own, "receipts": [{"receipt": receipt}]}),
        ("POST", "/v1/queue/extend", {**own, "receipts": [receipt]}),
        ("POST", "/v1/queue/release", {**own, "receipts": [receipt]}),
        ("PUT", "/v1/queue/state", {**own, "receipt": receipt, "document": 1}),
        ("POST", "/v1/queue/dequeue", {**own, "verdicts": [{"receipt": receipt, "verdict": "ack"}]}),
        ("POST", "/ack", {"namespace": "acme", "topic": "jobs", "id": id, "receipt": receipt}),
    ):
        answer = await server.call(method, path, document)
        assert (answer.status, answer.code) in (
            (400, "invalid_argument"),
            (409, "queue_message_lease_mismatch"),
        ), (path, answer)
        assert len(answer.body) < 600
    assert await everything(server) == before
