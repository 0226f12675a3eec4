"""One row for each way in: how to call it properly, and what it asks of the caller.

The rows say it once more, apart from the tables they are checked against: a table that changes must be changed here.
"""

import io
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from holdfast.model.ids import to_uuid
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.wire.http.routes import bound
from holdfast.wire.operation import Operation
from holdfast.wire.operations import OPERATIONS
from tests.doors.serving import Api, caller

SCOPES = ("none", "read", "write", "admin")
# Each by one scope alone. All have the same subject: being called the same must open nothing.
TOKENS = {
    f"{who}-{scope}": caller(tenant, *([] if scope == "none" else [scope]), subject="ann")
    for who, tenant in (("acme", "acme"), ("other", "other"), ("operator", "*"))
    for scope in SCOPES
}


class Place(NamedTuple):
    """A tenant's queue and what is in it. `tenant` None: left out where it can be."""

    tenant: str | None
    queue: str
    ready: str
    failed: str
    held: str
    held_number: int
    receipt: str
    cursor: str
    consumer: str
    position: str


class Request(NamedTuple):
    method: str
    path: str
    query: Mapping[str, Any] = {}
    document: Any = None
    body: bytes | None = None
    headers: Mapping[str, str] = {}


class Row(NamedTuple):
    method: str
    path: str
    # The operations that a call of it goes through.
    operations: tuple[str, ...]
    scope: str
    request: Callable[[Place], Request]
    name: str = ""
    is_operators_only: bool = False
    # Whether the tenant is the caller's own where it is left out.
    tenant_optional: bool = False
    # Of no tenant at all: answers each caller what it may see.
    of_no_tenant: bool = False
    # Whether it names messages, receipts, cursors or consumers.
    names_things: bool = False
    changes: bool = False
    ok: int = 200

    @property
    def claims(self) -> bool:
        """Return whether a call may claim messages of the caller's own."""
        return not {"claim", "exchange"}.isdisjoint(self.operations)

    def __str__(self) -> str:
        return f"{self.method} {self.path}{' ' + self.name if self.name else ''}"


def _tenant(at: Place, name: str = "tenant") -> dict[str, str]:
    return {} if at.tenant is None else {name: at.tenant}


def _in_body(method: str, path: str, operations: tuple[str, ...], scope: str, more: Any, **options: Any) -> Row:
    """`tenant` and `queue` stand in the body, with what `more` makes of the place."""

    def request(at: Place) -> Request:
        return Request(method, path, document={**_tenant(at), "queue": at.queue, **more(at)})

    return Row(method, path, operations, scope, request, tenant_optional=True, **options)


def _in_query(path: str, operations: tuple[str, ...], more: Any, **options: Any) -> Row:
    def request(at: Place) -> Request:
        return Request("GET", path, query={**_tenant(at), "queue": at.queue, **more(at)})

    return Row("GET", path, operations, "read", request, tenant_optional=True, **options)


def _in_path(
    method: str, path: str, operations: tuple[str, ...], scope: str, document: Any = None, **options: Any
) -> Row:
    query = options.pop("query", lambda at: {})

    def request(at: Place) -> Request:
        filled = path.format(tenant=at.tenant, queue=at.queue, id=at.ready, name="nightly")
        return Request(method, filled, query=query(at), document=None if document is None else document(at))

    return Row(method, path, operations, scope, request, **options)


def _compatible(method: str, path: str, operations: tuple[str, ...], scope: str, more: Any, **options: Any) -> Row:
    def request(at: Place) -> Request:
        where = {**_tenant(at, "namespace"), "topic": at.queue}
        if path == "/enqueue":
            return Request(method, path, document=[{**where, **more(at)}])
        if method == "GET":
            return Request(method, path, query={**where, **more(at)})
        return Request(method, path, document={**where, **more(at)})

    return Row(method, path, operations, scope, request, tenant_optional=True, **options)


def _by_parts(at: Place) -> Request:
    meta = json.dumps({**_tenant(at), "queue": at.queue})
    body = (
        '--b\r\nContent-Disposition: form-data; name="meta"\r\n\r\n'
        f"{meta}\r\n"
        '--b\r\nContent-Disposition: form-data; name="payload"\r\n\r\n'
        "abc\r\n--b--\r\n"
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    return Request("POST", "/v1/queue/enqueue", body=body.encode(), headers=headers)


def _for_parts(at: Place) -> Request:
    document = {**_tenant(at), "queue": at.queue}
    return Request("POST", "/v1/queue/dequeue", document=document, headers={"Accept": "multipart/mixed"})


def _receipts(at: Place) -> dict[str, Any]:
    return {"receipts": [at.receipt]}


_CHANGES: dict[str, Any] = {"changes": True}
_SETTLES: dict[str, Any] = {"changes": True, "names_things": True}
_TENANT = "/v1/tenants/{tenant}"
_QUEUE = _TENANT + "/queues/{queue}"

_WRITTEN: tuple[Row, ...] = (
    _in_body(
        "POST", "/v1/queue/enqueue", ("enqueue",), "write", lambda at: {"messages": [{"payload": 1}]}, changes=True
    ),
    Row(
        "POST",
        "/v1/queue/enqueue",
        ("upload", "enqueue"),
        "write",
        _by_parts,
        "in parts",
        tenant_optional=True,
        changes=True,
    ),
    Row(
        "POST",
        "/v1/queue/dequeue",
        ("claim", "read_payload"),
        "read",
        _for_parts,
        "in parts",
        tenant_optional=True,
        changes=True,
    ),
    _in_body("POST", "/v1/queue/dequeue", ("claim",), "read", lambda at: {"limit": 1}, changes=True),
    _in_body(
        "POST",
        "/v1/queue/dequeue",
        ("exchange",),
        "read",
        lambda at: {"verdicts": [{"receipt": at.receipt, "verdict": "ack"}]},
        name="with verdicts",
        **_SETTLES,
    ),
    _in_body(
        "POST",
        "/v1/queue/exchange",
        ("exchange",),
        "read",
        lambda at: {"verdicts": [{"receipt": at.receipt, "verdict": "ack"}], "wait_ms": 0},
        **_SETTLES,
    ),
    _in_body("POST", "/v1/queue/dequeueWithState", ("claim",), "read", lambda at: {"limit": 1}, changes=True),
    _in_body(
        "POST",
        "/v1/queue/subscribe",
        ("subscribe", "claim"),
        "read",
        lambda at: {"wait_ms": 0, "prefetch": 100},
        changes=True,
    ),
    _in_body(
        "POST",
        "/v1/queue/subscribeWithState",
        ("subscribe", "claim"),
        "read",
        lambda at: {"wait_ms": 0, "prefetch": 100},
        changes=True,
    ),
    _in_body("POST", "/v1/queue/ack", ("settle",), "read", _receipts, **_SETTLES),
    _in_body("POST", "/v1/queue/nack", ("settle",), "read", lambda at: {**_receipts(at), "error": "e"}, **_SETTLES),
    _in_body("POST", "/v1/queue/extend", ("settle",), "read", lambda at: {**_receipts(at), "lease_ms": 9}, **_SETTLES),
    _in_body("POST", "/v1/queue/release", ("settle",), "read", _receipts, **_SETTLES),
    _in_body("POST", "/v1/queue/remove", ("settle",), "read", _receipts, **_SETTLES),
    _in_body(
        "PUT",
        "/v1/queue/state",
        ("save_state",),
        "read",
        lambda at: {"receipt": at.receipt, "document": {"n": 1}, "progress": {"percent": 5}},
        **_SETTLES,
    ),
    _in_body(
        "POST", "/v1/queue/payload", ("read_part",), "read", lambda at: {"receipt": at.receipt}, names_things=True
    ),
    _in_query("/v1/queue/stats", ("stats",), lambda at: {}),
    _in_query("/v1/queue/watch", ("watch", "stats"), lambda at: {}),
    Row("GET", "/v1/tenants", ("tenants",), "read", lambda at: Request("GET", "/v1/tenants"), of_no_tenant=True),
    Row("GET", "/v1/names", ("names",), "read", lambda at: Request("GET", "/v1/names"), of_no_tenant=True),
    _in_query("/v1/names", ("names",), lambda at: {}, name="of one queue"),
    Row(
        "GET",
        "/v1/hot",
        ("hot_queues",),
        "read",
        lambda at: Request("GET", "/v1/hot"),
        is_operators_only=True,
        of_no_tenant=True,
    ),
    _in_path("GET", _TENANT, ("tenant", "tenant_stats"), "read"),
    _in_path("PUT", _TENANT, ("set_tenant",), "admin", lambda at: {"weight": 2}, is_operators_only=True, changes=True),
    _in_path("GET", _TENANT + "/queues", ("queues",), "read"),
    _in_path("GET", _QUEUE, ("queue",), "read"),
    _in_path("PUT", _QUEUE, ("set_policy",), "admin", lambda at: {"max_retries": 7}, changes=True),
    _in_path("DELETE", _QUEUE, ("delete",), "admin", ok=202, changes=True),
    _in_path("POST", _QUEUE + "/pause", ("pause",), "admin", changes=True),
    _in_path("POST", _QUEUE + "/resume", ("pause",), "admin"),
    _in_path("POST", _QUEUE + "/purge", ("purge",), "admin", lambda at: {}, changes=True),
    _in_path(
        "POST", _QUEUE + "/redrive", ("redrive",), "admin", lambda at: {"filter": {"ids": [at.failed]}}, **_SETTLES
    ),
    _in_path("POST", _QUEUE + "/move", ("move",), "admin", lambda at: {"to": {"queue": "moved"}}, changes=True),
    _in_path("POST", _QUEUE + "/cancel", ("cancel",), "admin", lambda at: {"filter": {"ids": [at.ready]}}, **_SETTLES),
    _in_path(
        "POST",
        _QUEUE + "/reprioritise",
        ("reprioritise",),
        "admin",
        lambda at: {"filter": {"ids": [at.ready]}, "priority": 3},
        **_SETTLES,
    ),
    _in_path(
        "GET",
        _QUEUE + "/messages",
        ("browse",),
        "read",
        query=lambda at: {"cursor": at.cursor, "payload": 1},
    ),
    _in_path("GET", _QUEUE + "/peek", ("peek",), "read", query=lambda at: {"limit": 5}),
    _in_path("GET", _QUEUE + "/messages/{id}", ("get",), "read", query=lambda at: {"payload": 1}, names_things=True),
    _in_path("DELETE", _QUEUE + "/messages/{id}", ("remove",), "admin", **_SETTLES),
    _in_path("GET", _QUEUE + "/schedules", ("schedules",), "read"),
    _in_path("GET", _QUEUE + "/schedules/{name}", ("schedule",), "read", query=lambda at: {"payload": 1}),
    _in_path(
        "PUT", _QUEUE + "/schedules/{name}", ("set_schedule",), "admin", lambda at: {"every_ms": 5_000}, changes=True
    ),
    _in_path("DELETE", _QUEUE + "/schedules/{name}", ("delete_schedule",), "admin", changes=True),
    Row(
        "GET",
        "/v1/journal",
        ("journal",),
        "read",
        lambda at: Request("GET", "/v1/journal", query={**_tenant(at), "after": at.position}),
        tenant_optional=True,
    ),
    _in_body(
        "POST",
        "/v1/queue/ledger/claim",
        ("claim",),
        "read",
        lambda at: {"consumer": at.consumer, "number": 2},
        **_SETTLES,
    ),
    _in_body(
        "POST",
        "/v1/queue/ledger/extend",
        ("ledger_extend",),
        "read",
        lambda at: {"consumer": at.consumer},
        changes=True,
    ),
    _in_body(
        "POST",
        "/v1/queue/ledger/ack",
        ("ledger_ack",),
        "read",
        lambda at: {"consumer": at.consumer, "upto": 1},
        **_CHANGES,
    ),
    _in_query("/v1/queue/ledger", ("ledger",), lambda at: {"consumer": at.consumer, "number": 1}),
    _compatible("POST", "/enqueue", ("enqueue_each",), "write", lambda at: {"payload": "YQ=="}, changes=True),
    _compatible("GET", "/dequeue", ("claim",), "read", lambda at: {"limit": 1}, changes=True),
    _compatible("POST", "/dequeue", ("claim",), "read", lambda at: {"limit": 1}, changes=True),
    _compatible(
        "POST",
        "/ack",
        ("settle",),
        "read",
        lambda at: {"id": at.held_number, "receipt": at.receipt},
        name="with its receipt",
        **_SETTLES,
    ),
    _compatible("POST", "/ack", ("held_by", "settle"), "read", lambda at: {"id": at.held_number}, **_SETTLES),
    _compatible(
        "POST", "/nack", ("held_by", "settle"), "read", lambda at: {"id": at.held_number, "error": "e"}, **_SETTLES
    ),
    Row(
        "GET",
        "/metrics",
        ("metrics",),
        "read",
        lambda at: Request("GET", "/metrics"),
        is_operators_only=True,
        of_no_tenant=True,
    ),
)


def sample(operation: Operation[Any, Any], at: Place) -> Any:
    """Return a request of an operation with its required fields, by their names or else by their types."""
    named: dict[str, Callable[[], Any]] = {
        "id": lambda: at.ready,
        "name": lambda: "nightly",
        "consumer": lambda: at.consumer,
        "receipt": lambda: Receipt.parse(at.receipt),
        "to": lambda: QueueRef(at.tenant or "acme", "moved"),
    }
    typed = {str: "x", int: 1, float: 1.0, bool: True}
    required = [field for field in msgspec.structs.fields(operation.request) if field.required]
    return operation.request(
        **{each.name: named[each.name]() if each.name in named else typed.get(each.type, 1) for each in required}
    )


def _derived(operation: Operation[Any, Any], number: int) -> Row:
    binding = bound(operation.name, number)
    route = binding.route

    def request(at: Place) -> Request:
        path, body = binding.write(QueueRef(at.tenant or "acme", at.queue), sample(operation, at))
        path, _, query = path.partition("?")
        return Request(route.method, path, query=dict(parse_qsl(query)), body=body)

    is_admin = operation.scope == "admin"
    return Row(route.method, route.path, (operation.name,), str(operation.scope), request, changes=is_admin)


def _rows() -> Iterator[Row]:
    """The rows written by hand, and one for each further route of the table that is not hot."""
    yield from _WRITTEN
    written = {(row.method, row.path) for row in _WRITTEN}
    for operation in OPERATIONS.values():
        for number, route in enumerate(operation.routes):
            if not operation.is_hot and (route.method, route.path) not in written:
                yield _derived(operation, number)


ROWS: tuple[Row, ...] = tuple(_rows())

# No credential is asked for.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json"})
# No door calls these: embedded use and commands do.
OF_NO_ROUTE = frozenset({"policy", "backup"})


class Seen(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(api: Api, request: Request) -> Seen:
    """An answer that does not end by itself is left after its first part."""
    body = request.body
    if request.document is not None:
        body = json.dumps(request.document).encode()
    async with api.http.request(
        request.method,
        api.url + request.path,
        params=dict(request.query),
        data=None if body is None else io.BytesIO(body),
        headers={**api.headers, **request.headers},
    ) as response:
        if response.status == 200 and response.content_type == "text/event-stream":
            return Seen(200, response.headers, await response.content.readline())
        return Seen(response.status, response.headers, await response.read())


async def furnish(api: Api, tenant: str, queue: str = "jobs") -> Place:
    """A queue with messages in every state, by one who may."""
    own = {"tenant": tenant, "queue": queue}
    [failed] = await api.fail("failed", **own)
    await api.enqueue("held", **own)
    [held] = await api.dequeue(**own, lease_ms=3_600_000)
    await api.enqueue("numbered", **own)
    ledger = await api.post("/v1/queue/ledger/claim", {**own, "consumer": "nightly", "number": 1})
    assert len(ledger.json["messages"]) == 1
    [first, *_] = await api.enqueue("a", "b", "c", **own)
    schedule = {"cron": "0 3 * * *", "message": {"payload": f"of {tenant}"}}
    put = await api.put(f"/v1/tenants/{tenant}/queues/{queue}/schedules/nightly", schedule)
    assert put.status == 200, put
    page = await api.get(f"/v1/tenants/{tenant}/queues/{queue}/messages", limit=1)
    journal = await api.get("/v1/journal", tenant=tenant, limit=2)
    return Place(
        tenant=tenant,
        queue=queue,
        ready=first,
        failed=failed,
        held=held["id"],
        held_number=int(held["snowflake"]),
        receipt=held["receipt"],
        cursor=page.json["cursor"],
        consumer="nightly",
        position=journal.headers["X-Journal-Next"],
    )


def nowhere(like: Place) -> Place:
    """Return names and ids of the same form that do not exist."""
    receipt = Receipt.parse(like.receipt)
    number = receipt.id + (1 << 22)
    forged = Receipt(number, secrets.token_bytes(16), receipt.version)
    return Place(
        tenant="nobody",
        queue="nowhere",
        ready=to_uuid(number + 1),
        failed=to_uuid(number + 2),
        held=to_uuid(number),
        held_number=number,
        receipt=str(forged),
        cursor=str(number + 3),
        consumer="nobody",
        position=like.position,
    )


async def everything(api: Api) -> bytes:
    """All that there is, as an operator sees it."""
    found: list[Any] = []
    for tenant in (await api.get("/v1/tenants")).json["tenants"]:
        found.append(tenant)
        name = tenant["tenant"]
        found.append((await api.get("/v1/journal", tenant=name, limit=10_000)).lines)
        for queue in (await api.get(f"/v1/tenants/{name}/queues")).json["queues"]:
            base = f"/v1/tenants/{name}/queues/{queue['queue']}"
            found.append((await api.get(base)).json)
            found.append((await api.get(base + "/messages", payload=1, limit=10_000)).json)
            found.append((await api.get(base + "/schedules")).json)
            ledger = {"tenant": name, "queue": queue["queue"], "consumer": "nightly"}
            found.append((await api.get("/v1/queue/ledger", **ledger)).json)
    return msgspec.json.encode(found)
