"""Every operation, declared once: its request, its result, the required scope and its HTTP routes.

Access checks, HTTP routes, the OpenAPI document, the operations that Cap'n Proto and the framed protocol carry by name,
the transports of the remote clients and the test matrices derive from this table. To add an operation, add a row here,
a service method of the same name that takes the queue and the request, and a public client method.
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
    HotQueue,
    Info,
    JournalEvents,
    LedgerEntry,
    NumberedTenant,
    Page,
    PayloadPart,
    QueueDetail,
    QueueSummary,
    Removed,
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
from holdfast.wire.http import admin_bodies as admin
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
# Doors and clients have hand-written code for these operations, because every message passes through them.

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


# Routes of the compatible door. Its dequeue may also be a GET.
_ADD_ITEMS = _post(
    "/enqueue",
    document(list[int]),
    summary="Compatible door: enqueue items into one or more queues",
    measured_as="enqueue",
    body=list[compatible.CompatibleItem],
)
_LEASE_ITEMS = _post(
    "/dequeue",
    document(list[compatible.LeasedItem]),
    summary="Compatible door: claim items under a lease",
    body=compatible.DequeueIn,
    is_body_optional=True,
    query=("namespace", "topic", "limit"),
)
_LEASE_ITEMS_BY_GET = replace(_LEASE_ITEMS, method="GET", body=None)
_ACK_ITEM = _post(
    "/ack", answers.DONE, summary="Compatible door: acknowledge an item", measured_as="ack", body=compatible.AckIn
)
_NACK_ITEM = _post(
    "/nack",
    answers.DONE,
    summary="Compatible door: report an item as failed",
    measured_as="nack",
    body=compatible.NackIn,
)

# The formatter would break up the rows of the table.
# fmt: off

ENQUEUE = _operation(
    "enqueue", list[Draft], list[Enqueued], _WRITE, "Enqueue messages into a queue, all or none",
    _post("/v1/queue/enqueue", document(http.EnqueueAnswer), body=http.EnqueueRequest, takes_parts=True),
    is_repeatable=lambda drafts: all(draft.key is not None for draft in drafts), **_HOT)
ENQUEUE_EACH = _operation(
    "enqueue_each", list[Draft], list[Enqueued], _WRITE, "Enqueue messages into several queues",
    _ADD_ITEMS,
    **_HOT)
UPLOAD = _operation("upload", Draft, Enqueued, _WRITE, "Enqueue a message whose payload is sent in parts", **_HOT)
CLAIM = _operation(
    "claim", ClaimRequest, list[Delivery], _READ, "Claim messages under a lease",
    _claims("/v1/queue/dequeue"),
    _claims("/v1/queue/dequeueWithState", "Claim messages together with their state documents"),
    _claims("/v1/queue/ledger/claim", "Claim messages under a claim number, or return that claim again",
            http.LedgerClaimRequest),
    _LEASE_ITEMS,
    _LEASE_ITEMS_BY_GET,
    **_HOT)
EXCHANGE = _operation(
    "exchange", list[Verdict], Exchanged, _READ, "Settle earlier deliveries and claim messages in one call",
    _claims("/v1/queue/exchange", body=http.ExchangeRequest),
    **_HOT)
SUBSCRIBE = _operation(
    "subscribe", ClaimRequest, list[Delivery], _READ,
    "Stream messages under leases as they become ready, until the caller disconnects",
    _subscribes("/v1/queue/subscribe"),
    _subscribes("/v1/queue/subscribeWithState",
                "Stream messages with their state documents, until the caller disconnects"),
    **_HOT)
SETTLE = _operation(
    "settle", list[Verdict], list[Result], _READ, "Settle messages that the caller holds",
    _settles("ack", "Acknowledge messages as succeeded"),
    _settles("nack", "Report messages as failed, to be retried or dead-lettered", http.NackRequest),
    _settles("extend", "Extend the leases of messages", http.ExtendRequest),
    _settles("release", "Return messages to the queue without counting a failure", http.ReleaseRequest),
    _settles("remove", "Remove messages that the caller holds", measured_as="remove_held"),
    _ACK_ITEM,
    _NACK_ITEM,
    **_HOT)
HELD_BY = _operation(
    "held_by", Receipt, Receipt, _READ, "Find the receipt of a message that the caller holds",
    **_HOT)
READ_PAYLOAD = _operation("read_payload", Delivery, bytes, _READ, "Read the payload of a delivery", **_HOT)
READ_PART = _operation(
    "read_part", Receipt, PayloadPart, _READ, "Read part of the payload of a message that the caller holds",
    _post("/v1/queue/payload", None, body=http.PayloadRequest, streams=((BYTES, None),),
          answer_headers=(http.PAYLOAD_BYTES,)),
    **_HOT)
WATCH = _operation(
    "watch", req.Nothing, Stats, _READ, "Stream an event whenever messages become available",
    _get("/v1/queue/watch", None, query=_REF, streams=((SSE, admin.AvailableEvent),)),
    **_HOT)
SAVE_STATE = _operation(
    "save_state", req.StateRequest, Saved, _READ, "Save the state document or the progress of a message",
    _put("/v1/queue/state", answers.SAVED, (*_STALE, 412)),
    # Saving a document again would conflict with the ETag that the first request wrote.
    is_repeatable=lambda request: request.document is msgspec.UNSET)

# --- Inspection ------------------------------------------------------------------------------------------------------

STATS = _operation(
    "stats", req.Nothing, Stats, _READ, "Return the message counts of a queue",
    _get("/v1/queue/stats", answers.STATS),
    is_by_name=False)
BROWSE = _operation(
    "browse", req.BrowseRequest, Page[Info], _READ, "List the messages of a queue, ordered by id",
    _get(_QUEUE + "/messages", answers.PAGE))
PEEK = _operation(
    "peek", req.PeekRequest, list[Info], _READ,
    "Return the messages that would be claimed next, with payloads, without claiming them",
    _get(_QUEUE + "/peek", answers.PEEKED))
GET = _operation(
    "get", req.GetRequest, Info, _READ, "Return one message",
    _get(_QUEUE + "/messages/{id}", answers.INFO))
JOURNAL = _operation(
    "journal", req.JournalRequest, JournalEvents, _READ,
    "Return journal events in order, after a position and up to another (`until`); with `count=1`, only their number",
    _get("/v1/journal", None, (), query=("after", "limit", "wait_ms", "tenant", "until", "count"),
         streams=((NDJSON, admin.JournalEventOut), (ARROW, None)),
         answer_headers=("X-Journal-Next", "X-Journal-Count")),
    target=Target.SERVER)
METRICS = _operation(
    "metrics", req.Nothing, bytes, _READ, "Return the server's metrics in the Prometheus text format",
    _get("/metrics", None, (), streams=((TEXT, None),)),
    target=Target.SERVER, is_operators_only=True, **_HOT)

# --- The claim ledger ------------------------------------------------------------------------------------------------

LEDGER = _operation(
    "ledger", req.LedgerRequest, list[LedgerEntry], _READ, "List the open claims of a consumer",
    _get("/v1/queue/ledger", answers.LEDGER))
LEDGER_ACK = _operation(
    "ledger_ack", req.LedgerAckRequest, list[Result], _READ,
    "Acknowledge all messages still held by a consumer's claims up to a number",
    _post("/v1/queue/ledger/ack", answers.ACKED))
LEDGER_EXTEND = _operation(
    "ledger_extend", req.LedgerExtendRequest, list[Result], _READ, "Extend the leases of all open claims of a consumer",
    _post("/v1/queue/ledger/extend", answers.EXTENDED))

# --- Tenants and queues ----------------------------------------------------------------------------------------------

TENANTS = _operation(
    "tenants", req.Nothing, list[TenantSummary], _READ, "List the tenants that the caller may see",
    _get("/v1/tenants", answers.TENANTS, ()),
    target=Target.SERVER)
NAMES = _operation(
    "names", req.NamesRequest, list[NumberedTenant], _READ,
    "Return the numbers of the tenants and queues that the caller may see, as logs and metrics show them",
    _get("/v1/names", answers.NAMES, ()),
    target=Target.SERVER)
HOT_QUEUES = _operation(
    "hot_queues", req.Nothing, list[HotQueue], _READ,
    "Return the queues with the largest shares of the recent reads and writes of each column family of the store",
    _get("/v1/hot", answers.HOT_QUEUES, ()),
    target=Target.SERVER, is_operators_only=True)
TENANT = _operation(
    "tenant", req.Nothing, TenantConfig, _READ, "Return the limits, quotas and message counts of a tenant",
    _get(_TENANT, answers.TENANT, ()),
    target=Target.TENANT)
TENANT_STATS = _operation(
    "tenant_stats", req.Nothing, Stats, _READ, "Return the total message counts of a tenant",
    _get(_TENANT, answers.STATS_OF_TENANT, (), is_view=True),
    target=Target.TENANT)
SET_TENANT = _operation(
    "set_tenant", req.ConfigureRequest, TenantConfig, _ADMIN,
    "Create or change a tenant; omitted fields keep their values",
    _put(_TENANT, answers.TENANT, (), body_is="changes", body_type=TenantConfig, is_body_optional=True),
    target=Target.TENANT, is_operators_only=True)
QUEUES = _operation(
    "queues", req.Nothing, list[QueueSummary], _READ, "List the queues of a tenant",
    _get(_TENANT + "/queues", answers.QUEUES, ()),
    target=Target.TENANT, is_by_name=False)
QUEUE = _operation(
    "queue", req.Nothing, QueueDetail, _READ, "Return the message counts and the policy of a queue",
    _get(_QUEUE, answers.QUEUE),
    is_by_name=False)
POLICY = _operation(
    "policy", req.Nothing, QueuePolicy, _READ, "Return the policy of a queue",
    _get(_QUEUE, answers.POLICY_OF_QUEUE, is_view=True))
SET_POLICY = _operation(
    "set_policy", req.ConfigureRequest, QueuePolicy, _ADMIN,
    "Create a queue or change its policy; omitted fields keep their values",
    _put(_QUEUE, answers.POLICY, body_is="changes", body_type=QueuePolicy, is_body_optional=True))
PAUSE = _operation(
    "pause", req.PauseRequest, type(None), _ADMIN, "Pause a queue: claims return no messages until it is resumed",
    _post(_QUEUE + "/pause", answers.PAUSED, fixed={"paused": True}, is_body_optional=True),
    _post(_QUEUE + "/resume", answers.PAUSED, fixed={"paused": False}, is_body_optional=True,
          summary="Resume a paused queue", measured_as="resume"))
DELETE = _operation(
    "delete", req.DeleteRequest, type(None), _ADMIN,
    "Start deleting a queue: it is removed once its leases have ended or `force_after_ms` has passed",
    _delete(_QUEUE, answers.DRAINING, status=202),
    # Sent again, it could delete a new queue of the same name.
    is_repeatable=False, done_if=("queue_not_found", "draining"), is_by_name=False)
BACKUP = _operation(
    "backup", req.BackupRequest, type(None), _ADMIN, "Copy the whole store into a new directory",
    target=Target.SERVER, is_operators_only=True, is_by_name=False)

# --- Bulk operations -------------------------------------------------------------------------------------------------

# A repeated request would also match messages that arrived since the first one, so the operator must decide.
_BULK: dict[str, Any] = {"is_repeatable": False, "is_long": True}

PURGE = _operation(
    "purge", req.PurgeRequest, BulkResult, _ADMIN, "Remove all ready or all failed messages of a queue",
    _post(_QUEUE + "/purge", answers.CHANGED, is_body_optional=True),
    **_BULK)
CANCEL = _operation(
    "cancel", req.CancelRequest, BulkResult, _ADMIN, "Remove the ready messages that match a filter",
    _post(_QUEUE + "/cancel", answers.CHANGED, is_body_optional=True),
    **_BULK)
REPRIORITISE = _operation(
    "reprioritise", req.ReprioritiseRequest, BulkResult, _ADMIN,
    "Change the priority of the messages that match a filter",
    _post(_QUEUE + "/reprioritise", answers.CHANGED),
    **_BULK)
MOVE = _operation(
    "move", req.MoveRequest, BulkResult, _ADMIN, "Move the messages that match a filter to another queue",
    _post(_QUEUE + "/move", answers.CHANGED),
    **_BULK)
REDRIVE = _operation(
    "redrive", req.RedriveRequest, BulkResult, _ADMIN, "Return failed messages to the queue, optionally at a rate",
    _post(_QUEUE + "/redrive", answers.REDRIVEN, is_body_optional=True, ends_with_caller=True),
    is_repeatable=lambda request: request.dry_run, is_long=True)
REMOVE = _operation(
    "remove", req.RemoveRequest, Removed, _ADMIN, "Remove one message",
    _delete(_QUEUE + "/messages/{id}", answers.REMOVED),
    is_repeatable=False, done_if=("message_not_found",))

# --- Schedules -------------------------------------------------------------------------------------------------------

SCHEDULES = _operation(
    "schedules", req.Nothing, list[ScheduleInfo], _READ, "List the schedules of a queue by name, without payloads",
    _get(_QUEUE + "/schedules", answers.SCHEDULES))
SCHEDULE = _operation(
    "schedule", req.ScheduleNameRequest, ScheduleInfo, _READ, "Return one schedule",
    _get(_SCHEDULE, answers.SCHEDULE))
SET_SCHEDULE = _operation(
    "set_schedule", req.ScheduleRequest, ScheduleInfo, _ADMIN,
    "Create or change a schedule, which enqueues a message by a cron expression or at an interval; omitted fields keep "
    "their values",
    _put(_SCHEDULE, answers.SCHEDULE))
DELETE_SCHEDULE = _operation(
    "delete_schedule", req.ScheduleNameRequest, type(None), _ADMIN, "Delete a schedule",
    _delete(_SCHEDULE, answers.DONE),
    is_repeatable=False, done_if=("message_not_found",))

# fmt: on

OPERATIONS: Mapping[str, Operation[Any, Any]] = {
    each.name: each for each in list(globals().values()) if isinstance(each, Operation)
}
