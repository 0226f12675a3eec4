"""Every operation, declared once: its request, its answer, who may ask for it, and its routes.

Access checks, HTTP routes, the OpenAPI document, Cap'n Proto's operations by name, the transports of both remote
clients and the test matrices derive from this table. To add an operation, add a row here, a service method of the same
name that is given the queue and the request, and a public method of the client.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.model.answers import (
    BulkResult,
    Delivery,
    Enqueued,
    Exchanged,
    Info,
    JournalEvents,
    LedgerEntry,
    Page,
    PayloadPart,
    QueueDetail,
    QueueSummary,
    Result,
    Saved,
    Stats,
    TenantSummary,
)
from holdfast.model.message import Draft, Receipt
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import ClaimRequest, Verdict
from holdfast.model.schedules import ScheduleInfo
from holdfast.model.scopes import Scope
from holdfast.wire import requests as req
from holdfast.wire.http import answers, compatible
from holdfast.wire.http import bodies as http
from holdfast.wire.http.answers import AnswerShape, document
from holdfast.wire.operation import Operation, Route, Target

R = TypeVar("R")
A = TypeVar("A")

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
PARTS = "multipart/mixed"
SSE = "text/event-stream"
TEXT = "text/plain"
BYTES = "application/octet-stream"


_READ, _WRITE, _ADMIN = Scope.READ, Scope.WRITE, Scope.ADMIN
_TENANT = "/v1/tenants/{tenant}"
_QUEUE = _TENANT + "/queues/{queue}"
_SCHEDULE = _QUEUE + "/schedules/{name}"
_REF = ("tenant", "queue")
_NOT_FOUND = (404,)
_STALE = (404, 409)


def _operation(
    name: str, request: type[R], answer: type[A], scope: Scope, summary: str, *routes: Route, **more: Any
) -> Operation[R, A]:
    return Operation(name=name, request=request, answer=answer, scope=scope, summary=summary, routes=routes, **more)


def _get(path: str, answer: AnswerShape | None, refusals: tuple[int, ...] = _NOT_FOUND, **more: Any) -> Route:
    return Route(method="GET", path=path, answer=answer, refusals=refusals, **more)


def _post(path: str, answer: AnswerShape | None, **more: Any) -> Route:
    return Route(method="POST", path=path, answer=answer, refusals=_STALE, **more)


def _put(path: str, answer: AnswerShape, refusals: tuple[int, ...] = _STALE, **more: Any) -> Route:
    return Route(method="PUT", path=path, answer=answer, refusals=refusals, **more)


def _delete(path: str, answer: AnswerShape, **more: Any) -> Route:
    return Route(method="DELETE", path=path, answer=answer, refusals=_STALE, **more)


# --- Messages --------------------------------------------------------------------------------------------------------
# Their doors and clients have hand-written paths: these are the calls that every message goes through.

_HOT: dict[str, Any] = {"is_hot": True, "is_by_name": False}


def _claims(path: str, summary: str = "", body: Any = http.DequeueRequest) -> Route:
    parts = ((PARTS, http.DeliveryOut),)
    return _post(path, document(http.DequeueAnswer), summary=summary, body=body, streams=parts)


def _subscribes(path: str, summary: str = "") -> Route:
    streams = ((NDJSON, http.DeliveryOut), (PARTS, http.DeliveryOut))
    return _post(path, None, summary=summary, body=http.SubscribeRequest, streams=streams)


def _settles(verb: str, summary: str, body: Any = http.SettleRequest, measured_as: str = "") -> Route:
    answer, measured_as = document(http.SettleAnswer), measured_as or verb
    return _post(f"/v1/queue/{verb}", answer, summary=summary, measured_as=measured_as, body=body)


# Routes of the compatible door. A dequeue there may be a GET.
_ADD_ITEMS = _post(
    "/enqueue",
    document(list[int]),
    summary="Compatible door: add items, of one or several queues",
    measured_as="enqueue",
    body=list[compatible.CompatibleItem],
)
_LEASE_ITEMS = _post(
    "/dequeue",
    document(list[compatible.LeasedItem]),
    summary="Compatible door: lease items",
    body=compatible.DequeueIn,
    is_body_optional=True,
    query=("namespace", "topic", "limit"),
)
_LEASE_ITEMS_BY_GET = replace(_LEASE_ITEMS, method="GET", body=None)
_ACK_ITEM = _post(
    "/ack", answers.DONE, summary="Compatible door: finish an item", measured_as="ack", body=compatible.AckIn
)
_NACK_ITEM = _post(
    "/nack",
    answers.DONE,
    summary="Compatible door: give an item back as failed",
    measured_as="nack",
    body=compatible.NackIn,
)

# A table is read by its rows.
# fmt: off

ENQUEUE = _operation(
    "enqueue", list[Draft], list[Enqueued], _WRITE, "Add messages, all or none",
    _post("/v1/queue/enqueue", document(http.EnqueueAnswer), body=http.EnqueueRequest, takes_parts=True),
    is_repeatable=lambda drafts: all(draft.key is not None for draft in drafts), **_HOT)
ENQUEUE_EACH = _operation(
    "enqueue_each", list[Draft], list[Enqueued], _WRITE, "Add messages to several queues",
    _ADD_ITEMS,
    **_HOT)
UPLOAD = _operation("upload", Draft, Enqueued, _WRITE, "Add a message whose payload comes in parts", **_HOT)
CLAIM = _operation(
    "claim", ClaimRequest, list[Delivery], _READ, "Claim messages under a lease",
    _claims("/v1/queue/dequeue"),
    _claims("/v1/queue/dequeueWithState", "Claim messages with their state documents"),
    _claims("/v1/queue/ledger/claim", "Claim under a number, or read that claim again", http.LedgerClaimRequest),
    _LEASE_ITEMS,
    _LEASE_ITEMS_BY_GET,
    **_HOT)
EXCHANGE = _operation(
    "exchange", list[Verdict], Exchanged, _READ, "Settle earlier deliveries and claim messages, in one call",
    _claims("/v1/queue/exchange", body=http.ExchangeRequest),
    **_HOT)
SUBSCRIBE = _operation(
    "subscribe", ClaimRequest, list[Delivery], _READ, "Claim messages as they come, until the caller leaves",
    _subscribes("/v1/queue/subscribe"),
    _subscribes("/v1/queue/subscribeWithState", "Subscribe, with state documents"),
    **_HOT)
SETTLE = _operation(
    "settle", list[Verdict], list[Result], _READ, "Settle messages that the caller holds",
    _settles("ack", "Finish messages"),
    _settles("nack", "Give messages back as failed", http.NackRequest),
    _settles("extend", "Hold messages longer", http.ExtendRequest),
    _settles("release", "Give messages back uncounted", http.ReleaseRequest),
    _settles("remove", "Remove messages that the caller holds", measured_as="remove_held"),
    _ACK_ITEM,
    _NACK_ITEM,
    **_HOT)
HELD_BY = _operation(
    "held_by", Receipt, Receipt, _READ, "Find the receipt of a message that the caller holds",
    **_HOT)
READ_PAYLOAD = _operation("read_payload", Delivery, bytes, _READ, "Read a payload as it is delivered", **_HOT)
READ_PART = _operation(
    "read_part", Receipt, PayloadPart, _READ, "Read a part of the payload of a message that the caller holds",
    _post("/v1/queue/payload", None, body=http.PayloadRequest, streams=((BYTES, None),),
          answer_headers=(http.PAYLOAD_BYTES,)),
    **_HOT)
WATCH = _operation(
    "watch", req.Nothing, Stats, _READ, "Hear when messages become available",
    _get("/v1/queue/watch", None, query=_REF, streams=((SSE, http.AvailableEvent),)),
    **_HOT)
SAVE_STATE = _operation(
    "save_state", req.StateRequest, Saved, _READ, "Save a message's state document, or its progress",
    _put("/v1/queue/state", answers.SAVED, (*_STALE, 412)),
    # A document saved twice would meet the ETag of its own first try.
    is_repeatable=lambda request: request.document is msgspec.UNSET)

# --- Inspection ------------------------------------------------------------------------------------------------------

STATS = _operation(
    "stats", req.Nothing, Stats, _READ, "Counts of a queue",
    _get("/v1/queue/stats", answers.STATS),
    is_by_name=False)
BROWSE = _operation(
    "browse", req.BrowseRequest, Page[Info], _READ, "Browse messages by id",
    _get(_QUEUE + "/messages", answers.PAGE))
PEEK = _operation(
    "peek", req.PeekRequest, list[Info], _READ, "What would be claimed next, with payloads",
    _get(_QUEUE + "/peek", answers.PEEKED))
GET = _operation(
    "get", req.GetRequest, Info, _READ, "Look a message up",
    _get(_QUEUE + "/messages/{id}", answers.INFO))
JOURNAL = _operation(
    "journal", req.JournalRequest, JournalEvents, _READ,
    "Events in order, behind a position, and with `until` up to another; with `count=1` only how many",
    _get("/v1/journal", None, (), query=("after", "limit", "wait_ms", "tenant", "until", "count"),
         streams=((NDJSON, http.JournalEventOut), (ARROW, None)),
         answer_headers=("X-Journal-Next", "X-Journal-Count")),
    target=Target.SERVER)
METRICS = _operation(
    "metrics", req.Nothing, bytes, _READ, "The server's figures, for Prometheus",
    _get("/metrics", None, (), streams=((TEXT, None),)),
    target=Target.SERVER, of_operators_only=True, **_HOT)

# --- The claim ledger ------------------------------------------------------------------------------------------------

LEDGER = _operation(
    "ledger", req.LedgerRequest, list[LedgerEntry], _READ, "A consumer's open claims",
    _get("/v1/queue/ledger", answers.LEDGER))
LEDGER_ACK = _operation(
    "ledger_ack", req.LedgerAckRequest, list[Result], _READ, "Finish what the claims up to a number still hold",
    _post("/v1/queue/ledger/ack", answers.ACKED))
LEDGER_EXTEND = _operation(
    "ledger_extend", req.LedgerExtendRequest, list[Result], _READ, "Hold all open claims of a consumer longer",
    _post("/v1/queue/ledger/extend", answers.EXTENDED))

# --- Tenants and queues ----------------------------------------------------------------------------------------------

TENANTS = _operation(
    "tenants", req.Nothing, list[TenantSummary], _READ, "The tenants that the caller may see",
    _get("/v1/tenants", answers.TENANTS, ()),
    target=Target.SERVER)
TENANT = _operation(
    "tenant", req.Nothing, TenantConfig, _READ, "A tenant's limits, quotas and counts",
    _get(_TENANT, answers.TENANT, ()),
    target=Target.TENANT)
TENANT_STATS = _operation(
    "tenant_stats", req.Nothing, Stats, _READ, "The counts of all queues of a tenant together",
    _get(_TENANT, answers.STATS_OF_TENANT, (), is_view=True),
    target=Target.TENANT)
SET_TENANT = _operation(
    "set_tenant", req.ConfigureRequest, TenantConfig, _ADMIN, "Change a tenant: what is given changes, the rest stays",
    _put(_TENANT, answers.TENANT, (), body_is="changes", body_type=TenantConfig, is_body_optional=True),
    target=Target.TENANT, of_operators_only=True)
QUEUES = _operation(
    "queues", req.Nothing, list[QueueSummary], _READ, "A tenant's queues",
    _get(_TENANT + "/queues", answers.QUEUES, ()),
    target=Target.TENANT, is_by_name=False)
QUEUE = _operation(
    "queue", req.Nothing, QueueDetail, _READ, "A queue's counts and policy",
    _get(_QUEUE, answers.QUEUE),
    is_by_name=False)
POLICY = _operation(
    "policy", req.Nothing, QueuePolicy, _READ, "A queue's policy",
    _get(_QUEUE, answers.POLICY_OF_QUEUE, is_view=True))
SET_POLICY = _operation(
    "set_policy", req.ConfigureRequest, QueuePolicy, _ADMIN,
    "Create a queue or change its policy: what is given changes, the rest stays",
    _put(_QUEUE, answers.POLICY, body_is="changes", body_type=QueuePolicy, is_body_optional=True))
PAUSE = _operation(
    "pause", req.PauseRequest, type(None), _ADMIN, "Let claims find nothing",
    _post(_QUEUE + "/pause", answers.PAUSED, fixed={"paused": True}, is_body_optional=True),
    _post(_QUEUE + "/resume", answers.PAUSED, fixed={"paused": False}, is_body_optional=True,
          summary="Let claims find messages again", measured_as="resume"))
DELETE = _operation(
    "delete", req.DeleteRequest, type(None), _ADMIN, "Delete a queue: it drains from now on",
    _delete(_QUEUE, answers.DRAINING, status=202),
    # Sent again, it could meet a queue that was made in its place.
    is_repeatable=False, done_if=("queue_not_found", "draining"), is_by_name=False)
BACKUP = _operation(
    "backup", req.BackupRequest, type(None), _ADMIN, "Copy the whole store into a new directory",
    target=Target.SERVER, of_operators_only=True, is_by_name=False)

# --- Verbs over many messages ----------------------------------------------------------------------------------------

# Sent again after no answer they would mean messages that came since: that is for the operator to decide.
_BULK: dict[str, Any] = {"is_repeatable": False, "is_long": True}

PURGE = _operation(
    "purge", req.PurgeRequest, BulkResult, _ADMIN, "Remove what is ready, or what failed",
    _post(_QUEUE + "/purge", answers.CHANGED, is_body_optional=True),
    **_BULK)
CANCEL = _operation(
    "cancel", req.CancelRequest, BulkResult, _ADMIN, "Remove what is ready and matches",
    _post(_QUEUE + "/cancel", answers.CHANGED, is_body_optional=True),
    **_BULK)
REPRIORITISE = _operation(
    "reprioritise", req.ReprioritiseRequest, BulkResult, _ADMIN, "Give messages another priority",
    _post(_QUEUE + "/reprioritise", answers.CHANGED),
    **_BULK)
MOVE = _operation(
    "move", req.MoveRequest, BulkResult, _ADMIN, "Move messages to another queue",
    _post(_QUEUE + "/move", answers.CHANGED),
    **_BULK)
REDRIVE = _operation(
    "redrive", req.RedriveRequest, BulkResult, _ADMIN, "Bring failed messages back",
    # At a rate it takes as long as it takes.
    _post(_QUEUE + "/redrive", answers.REDRIVEN, is_body_optional=True, ends_with_caller=True),
    is_repeatable=lambda request: request.dry_run, is_long=True)
REMOVE = _operation(
    "remove", req.RemoveRequest, type(None), _ADMIN, "Remove a message",
    _delete(_QUEUE + "/messages/{id}", answers.DONE),
    is_repeatable=False, done_if=("message_not_found",))

# --- Schedules -------------------------------------------------------------------------------------------------------

SCHEDULES = _operation(
    "schedules", req.Nothing, list[ScheduleInfo], _READ, "A queue's schedules by name, without payloads",
    _get(_QUEUE + "/schedules", answers.SCHEDULES))
SCHEDULE = _operation(
    "schedule", req.ScheduleNameRequest, ScheduleInfo, _READ, "Look a schedule up",
    _get(_SCHEDULE, answers.SCHEDULE))
SET_SCHEDULE = _operation(
    "set_schedule", req.ScheduleRequest, ScheduleInfo, _ADMIN,
    "Enqueue a message at every tick of a cron line or an interval: what is given changes, the rest stays",
    _put(_SCHEDULE, answers.SCHEDULE))
DELETE_SCHEDULE = _operation(
    "delete_schedule", req.ScheduleNameRequest, type(None), _ADMIN, "Delete a schedule",
    _delete(_SCHEDULE, answers.DONE),
    is_repeatable=False, done_if=("message_not_found",))

# fmt: on

OPERATIONS: Mapping[str, Operation[Any, Any]] = {
    each.name: each for each in list(globals().values()) if isinstance(each, Operation)
}
