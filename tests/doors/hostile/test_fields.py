"""Every field of every request with what it cannot hold: generated from the wire's own types.

A request type, or a field of one, that has no sample here fails.
"""

import copy
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec import Raw, Struct

from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.wire.http import admin_bodies, compatible
from holdfast.wire.http import bodies as wire_types
from holdfast.wire.http.routes import bound
from tests.doors.access_rows import ROWS, Place, everything, furnish
from tests.doors.serving import Answer, Server

FILTER = {
    "ids": ["READY"],
    "error_contains": "e",
    "older_than_ms": 0,
    "headers": {"a": "b"},
    "priority": 100,
    "owner": "worker-1",
    "held_for_ms": 0,
    "delayed": False,
}
OWN = {"tenant": "acme", "queue": "jobs"}
MESSAGE = {
    "payload": {"n": 1},
    "content_type": "text/plain",
    "headers": {"a": "b"},
    "priority": 5,
    "delay_ms": 0,
    "ttl_ms": 1_000,
    "idempotency_key": "key",
    "group": "g",
    "correlation_id": "c",
    "max_retries": 3,
}
# The ticks say when, and each is its own message.
SCHEDULED = {name: value for name, value in MESSAGE.items() if name not in ("delay_ms", "idempotency_key")}
VERDICT = {"receipt": "RECEIPT", "error": "e", "delay_ms": 5, "defer": False, "final": False, "exhausted": False}
NACK = {**VERDICT, "lease_ms": 5}
CLAIM = {
    **OWN,
    "limit": 1,
    "wait_ms": 0,
    "lease_ms": 1_000,
    "owner": "o",
    "verdicts": [{**VERDICT, "verdict": "ack"}],
    "payloads_apart": True,
}
SUBSCRIBE = {**CLAIM, "prefetch": 100, "release_on_leave": True}
QUEUE = "/v1/tenants/acme/queues/jobs"
WHERE = {"namespace": "acme", "topic": "jobs"}
LIMITS = {
    "write_ops_per_s": 1e6,
    "write_bytes_per_s": 1e9,
    "read_ops_per_s": 1e6,
    "read_bytes_per_s": 1e9,
    "burst_s": 1,
}
POLICY = {
    "lease_ms": 1_000,
    "max_lease_ms": 1_000,
    "max_retries": 1,
    "backoff_base_ms": 1,
    "backoff_cap_ms": 1,
    "ttl_ms": 1_000_000,
    "on_ttl": "drop",
    "dedup_window_ms": 1,
    "keep_succeeded_ms": 1,
    "max_claims": 100,
    "max_enqueues": 100,
    "limits": LIMITS,
}
QUOTAS = {"max_messages": 9, "max_bytes": 9, "max_message_bytes": 9, "max_queues": 9, "default_ttl_ms": 9}
TENANT = {"weight": 1, "limits": LIMITS, "quotas": QUOTAS, "journal_retention_ms": 1_000}


class Sample(NamedTuple):
    """A whole document of a type, and where it is sent. Words in capitals stand for what is there."""

    kind: Any
    method: str
    path: str
    document: Any

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def body(operation: str) -> Any:
    return bound(operation).body_type


SAMPLES = (
    Sample(wire_types.EnqueueRequest, "POST", "/v1/queue/enqueue", {**OWN, "messages": [MESSAGE]}),
    Sample(
        wire_types.EnqueueRequest,
        "POST",
        "/v1/queue/enqueue",
        {**OWN, "messages": [{"payload_base64": "YQ==", "deliver_at": 5}]},
    ),
    Sample(wire_types.DequeueRequest, "POST", "/v1/queue/dequeue", CLAIM),
    Sample(wire_types.DequeueRequest, "POST", "/v1/queue/dequeueWithState", CLAIM),
    Sample(wire_types.ExchangeRequest, "POST", "/v1/queue/exchange", CLAIM),
    Sample(wire_types.SubscribeRequest, "POST", "/v1/queue/subscribe", SUBSCRIBE),
    Sample(wire_types.SubscribeRequest, "POST", "/v1/queue/subscribeWithState", SUBSCRIBE),
    Sample(wire_types.SettleRequest, "POST", "/v1/queue/ack", {**OWN, "receipts": [NACK]}),
    Sample(wire_types.ReleaseRequest, "POST", "/v1/queue/release", {**OWN, "receipts": [NACK], "unseen": True}),
    Sample(wire_types.SettleRequest, "POST", "/v1/queue/remove", {**OWN, "receipts": ["RECEIPT"]}),
    Sample(
        wire_types.NackRequest,
        "POST",
        "/v1/queue/nack",
        {**OWN, "receipts": [NACK], "error": "e", "delay_ms": 5, "defer": False, "final": False, "exhausted": False},
    ),
    Sample(wire_types.ExtendRequest, "POST", "/v1/queue/extend", {**OWN, "receipts": [NACK], "lease_ms": 5}),
    Sample(
        body("save_state"),
        "PUT",
        "/v1/queue/state",
        {**OWN, "receipt": "RECEIPT", "document": 1, "etag": None, "progress": {"percent": 5, "text": "t"}},
    ),
    Sample(
        wire_types.PayloadRequest, "POST", "/v1/queue/payload", {**OWN, "receipt": "RECEIPT", "offset": 0, "limit": 9}
    ),
    Sample(
        wire_types.LedgerClaimRequest,
        "POST",
        "/v1/queue/ledger/claim",
        {**CLAIM, "consumer": "c", "number": 1, "with_state": True},
    ),
    Sample(body("ledger_ack"), "POST", "/v1/queue/ledger/ack", {**OWN, "consumer": "c", "upto": 1}),
    Sample(body("ledger_extend"), "POST", "/v1/queue/ledger/extend", {**OWN, "consumer": "c", "lease_ms": 5}),
    Sample(body("pause"), "POST", QUEUE + "/pause", {}),
    Sample(body("pause"), "POST", QUEUE + "/resume", {}),
    Sample(body("purge"), "POST", QUEUE + "/purge", {"state": "failed"}),
    Sample(body("cancel"), "POST", QUEUE + "/cancel", {"filter": FILTER}),
    Sample(body("reprioritise"), "POST", QUEUE + "/reprioritise", {"filter": FILTER, "priority": 5}),
    Sample(
        body("move"),
        "POST",
        QUEUE + "/move",
        {"to": {"queue": "moved", "tenant": "acme"}, "filter": FILTER, "state": "failed"},
    ),
    Sample(
        body("redrive"),
        "POST",
        QUEUE + "/redrive",
        {"filter": FILTER, "rate_per_s": 1e6, "dry_run": True, "edit": {"id": "FAILED", "payload": 1}},
    ),
    Sample(body("redrive"), "POST", QUEUE + "/redrive", {"edit": {"id": "FAILED", "payload_base64": "YQ=="}}),
    Sample(
        body("set_schedule"),
        "PUT",
        QUEUE + "/schedules/nightly",
        {"cron": "0 3 * * *", "timezone": "UTC", "message": SCHEDULED, "paused": False},
    ),
    Sample(
        body("set_schedule"),
        "PUT",
        QUEUE + "/schedules/nightly",
        {"every_ms": 60_000, "message": {"payload_base64": "YQ=="}},
    ),
    Sample(QueuePolicy, "PUT", QUEUE, POLICY),
    Sample(TenantConfig, "PUT", "/v1/tenants/acme", TENANT),
    Sample(
        list[compatible.CompatibleItem],
        "POST",
        "/enqueue",
        [{**WHERE, "payload": "YQ==", "priority": 1, "deliver_after": "2030-01-01T00:00:00Z", "idempotency_key": "k"}],
    ),
    Sample(compatible.DequeueIn, "POST", "/dequeue", {**WHERE, "limit": 1}),
    Sample(compatible.AckIn, "POST", "/ack", {**WHERE, "id": "READY", "receipt": "RECEIPT"}),
    Sample(compatible.NackIn, "POST", "/nack", {**WHERE, "id": "READY", "receipt": "RECEIPT", "error": "e"}),
)
# Of a body in parts: test_hostile_parts.py.
ELSEWHERE = {wire_types.MetaIn, wire_types.QueueRequest}

# Of each JSON type, and numbers beyond every range.
VALUES: tuple[Any, ...] = (
    True, 0, -1, 1.5, 256, 2**31, 2**63, -(2**63) - 1, 2**64, 10**30, 1e300, "", "text", "\x00", "x" * 300, [], {},
    ["text"], {"a": 1}, {"a": {}}, [[]], [1], None,
)  # fmt: skip
# No JSON at all, or more than anybody should read.
BROKEN: tuple[bytes, ...] = (
    b"NaN", b"Infinity", b"-Infinity", b"01", b"+1", b".5", b"1.", b"0x10", b"'text'", b'"\xff\xfe"', b'"a\nb"',
    b'"\\x"', b'"\\ud8"', b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000, b"tru", b"/**/1",
)  # fmt: skip


def structs_of(kind: Any) -> Iterator[type[Struct]]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind
        for each in typing.get_type_hints(kind, include_extras=True).values():
            yield from structs_of(each)
    for each in typing.get_args(kind):
        yield from structs_of(each)


def places(kind: Any, document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path and the type of every field of a document."""
    yield at, kind
    inner = [each for each in (kind, *typing.get_args(kind)) if isinstance(each, type) and issubclass(each, Struct)]
    if isinstance(document, dict) and inner:
        hints = typing.get_type_hints(inner[0], include_extras=True)
        for name, value in document.items():
            yield from places(hints[name], value, (*at, name))
    elif isinstance(document, list) and document:
        items = [each for each in (kind, *typing.get_args(kind)) if typing.get_origin(each) is list]
        yield from places(typing.get_args(items[0])[0], document[0], (*at, 0))


def put(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    changed = copy.deepcopy(document)
    target = changed
    for step in at[:-1]:
        target = target[step]
    target[at[-1]] = value
    return changed


def is_possible(kind: Any, value: Any) -> bool:
    try:
        msgspec.json.decode(msgspec.json.encode(value), type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return False
    return True


def waits(sample: Sample, document: Any) -> bool:
    """The clock stands still: a waiting claim waits for ever."""
    if "subscribe" in sample.path:
        return bool(document.get("wait_ms") != 0 or document.get("prefetch", 0) < 100)
    return isinstance(document, dict) and document.get("wait_ms") != 0 and "wait_ms" in document


def fill(document: Any, place: Place) -> Any:
    """With what is there."""
    text = msgspec.json.encode(document)
    for word, real in (("READY", place.ready), ("FAILED", place.failed), ("RECEIPT", place.receipt)):
        text = text.replace(f'"{word}"'.encode(), f'"{real}"'.encode())
    return msgspec.json.decode(text)


def test_every_request_type_and_every_field_of_it_has_a_sample() -> None:
    requests = {
        each
        for module in (wire_types, admin_bodies, compatible)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Struct) and each.__struct_config__.forbid_unknown_fields
        if not each.__name__.endswith(("Answer", "Summary"))
    }
    sampled = {each for sample in SAMPLES for each in structs_of(sample.kind)}
    assert requests - ELSEWHERE <= sampled
    for kind in {sample.kind for sample in SAMPLES}:
        shown: dict[Any, set[str]] = {}
        for sample in SAMPLES:
            if sample.kind is kind or sample.kind == kind:
                for at, _ in places(kind, sample.document):
                    shown.setdefault(tuple(step for step in at[:-1] if step != 0), set()).update(
                        [at[-1]] if at and at[-1] != 0 else []
                    )
        for struct in structs_of(kind):
            fields = set(struct.__struct_fields__)
            assert any(fields <= names for names in shown.values()), (kind, struct, shown)


def test_every_way_in_that_takes_a_document_has_a_sample() -> None:
    place = Place("acme", "jobs", "1", "1", "1", 1, "A" * 54, "1", "nightly", "1")
    requests = [row.request(place) for row in ROWS]
    taking = {(each.method, each.path) for each in requests if each.document is not None}
    assert taking <= {(sample.method, sample.path) for sample in SAMPLES}


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_a_wrong_type_in_any_field_is_refused_by_its_name_and_changes_nothing(
    server: Server, sample: Sample
) -> None:
    place = await furnish(server, "acme")
    document = fill(sample.document, place)
    before = await everything(server)
    possible = []
    for at, kind in places(sample.kind, document):
        for value in VALUES:
            changed = put(document, at, value)
            if is_possible(kind, value):
                if not waits(sample, changed):
                    possible.append(changed)
                continue
            answer = await send(server, sample, msgspec.json.encode(changed))
            assert (answer.status, answer.code) == (400, "invalid_argument"), (at, value, answer)
            names = [step for step in at if isinstance(step, str)]
            if names:
                assert names[-1] in answer.json["error"]["field"] + answer.json["error"]["message"], (at, value, answer)
    assert await everything(server) == before
    for changed in possible:
        answer = await send(server, sample, msgspec.json.encode(changed))
        assert answer.status < 500, (changed, answer)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_what_is_not_json_in_any_field_is_refused_and_changes_nothing(server: Server, sample: Sample) -> None:
    place = await furnish(server, "acme")
    document = fill(sample.document, place)
    before = await everything(server)
    for at, _ in places(sample.kind, document):
        for broken in BROKEN:
            body = msgspec.json.encode(put(document, at, Raw(broken)))
            answer = await send(server, sample, body)
            assert (answer.status, answer.code) == (400, "invalid_argument"), (at, broken[:20], answer)
            assert len(answer.body) < 1_000
    assert await everything(server) == before


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_a_number_of_a_million_digits_is_never_read(server: Server, sample: Sample) -> None:
    document = fill(sample.document, await furnish(server, "acme"))
    digits = b"1" * 1_000_000
    for at, kind in places(sample.kind, document):
        for number in (digits, b"-" + digits, b"1." + digits, b"1e" + digits):
            answer = await send(server, sample, msgspec.json.encode(put(document, at, Raw(number))))
            if not {Raw, float} & {kind, *typing.get_args(kind), *_args_of_args(kind)}:
                assert answer.status == 400, (at, number[:5], answer)
            assert answer.status < 500
            assert len(answer.body) < 1_000


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_a_field_that_nobody_knows_is_refused_by_its_name(server: Server, sample: Sample) -> None:
    document = fill(sample.document, await furnish(server, "acme"))
    before = await everything(server)
    for at, kind in places(sample.kind, document):
        if not any(isinstance(each, type) and issubclass(each, Struct) for each in (kind, *typing.get_args(kind))):
            continue
        inner = document
        for step in at:
            inner = inner[step]
        if not isinstance(inner, dict):
            continue
        for name in ("surprise", "x" * 1_000_000, "a\nb\x1b[31m\u202e", ""):
            answer = await send(server, sample, msgspec.json.encode(put(document, (*at, name), 1)))
            assert (answer.status, answer.code) == (400, "invalid_argument"), (at, answer)
            assert name[:40] in answer.json["error"]["message"].encode().decode("unicode_escape") or not name.isascii()
            assert len(answer.body) < 2_000
            assert not set(answer.json["error"]["message"]) & set("\n\x1b\u202e")
    assert await everything(server) == before


def _args_of_args(kind: Any) -> set[Any]:
    return {inner for each in typing.get_args(kind) for inner in typing.get_args(each)}


async def test_verdicts_that_ride_on_a_refused_claim_are_not_settled(server: Server) -> None:
    place = await furnish(server, "acme")
    before = await everything(server)
    riding = {**OWN, "verdicts": [{"receipt": place.receipt, "verdict": "ack"}]}
    for path, wrong in (
        ("/v1/queue/dequeue", {"owner": "a\nb"}),
        ("/v1/queue/dequeueWithState", {"owner": ""}),
        ("/v1/queue/subscribe", {"owner": "x" * 300, "wait_ms": 0}),
        ("/v1/queue/ledger/claim", {"consumer": "", "number": 1}),
    ):
        answer = await server.post(path, {**riding, **wrong})
        assert (answer.status, answer.code) == (400, "invalid_argument"), path
    assert await everything(server) == before


async def send(server: Server, sample: Sample, body: bytes) -> Answer:
    return await server.call(sample.method, sample.path, data=body)
