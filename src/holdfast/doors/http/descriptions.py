"""What each route takes and answers, for the OpenAPI document: one row each, of the types the handlers use."""

from typing import Any, NamedTuple

from holdfast.model.answers import Stats
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.wire import compatible as compatible_wire
from holdfast.wire import http as wire

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
PARTS = "multipart/mixed"
SSE = "text/event-stream"
TEXT = "text/plain"
BYTES = "application/octet-stream"


class Described(NamedTuple):
    summary: str
    # What a success carries as JSON; None: nothing but the `streams`.
    answer: Any = None
    body: Any = None
    is_body_optional: bool = False
    query: tuple[str, ...] = ()
    # Statuses of its own, besides those every call may meet.
    refusals: tuple[int, ...] = ()
    # Media types it may answer besides, or instead of, JSON, and what a piece of each is.
    streams: tuple[tuple[str, Any], ...] = ()
    status: int = 200
    answer_headers: tuple[str, ...] = ()
    takes_parts: bool = False


_STALE = (404, 409)
_CLAIMED = Described(
    "",
    wire.DequeueAnswer,
    wire.DequeueRequest,
    refusals=_STALE,
    streams=((PARTS, wire.DeliveryOut),),
)
_STREAMED = Described(
    "",
    body=wire.SubscribeRequest,
    refusals=_STALE,
    streams=((NDJSON, wire.DeliveryOut), (PARTS, wire.DeliveryOut)),
)
_CHANGED = Described("", wire.ChangedAnswer, refusals=_STALE)
_QUEUE = "/v1/tenants/{tenant}/queues/{queue}"
_REF = ("tenant", "queue")

DESCRIPTIONS: dict[tuple[str, str], Described] = {
    ("POST", "/v1/queue/enqueue"): Described(
        "Add messages, all or none", wire.EnqueueAnswer, wire.EnqueueRequest, refusals=_STALE, takes_parts=True
    ),
    ("POST", "/v1/queue/dequeue"): _CLAIMED._replace(summary="Claim messages under a lease"),
    ("POST", "/v1/queue/dequeueWithState"): _CLAIMED._replace(summary="Claim messages with their state documents"),
    ("POST", "/v1/queue/subscribe"): _STREAMED._replace(summary="Claim messages as they come, until the caller leaves"),
    ("POST", "/v1/queue/subscribeWithState"): _STREAMED._replace(summary="Subscribe, with state documents"),
    ("POST", "/v1/queue/ack"): Described("Finish messages", wire.SettleAnswer, wire.SettleRequest, refusals=_STALE),
    ("POST", "/v1/queue/nack"): Described(
        "Give messages back as failed", wire.SettleAnswer, wire.NackRequest, refusals=_STALE
    ),
    ("POST", "/v1/queue/extend"): Described(
        "Hold messages longer", wire.SettleAnswer, wire.ExtendRequest, refusals=_STALE
    ),
    ("POST", "/v1/queue/release"): Described(
        "Give messages back uncounted", wire.SettleAnswer, wire.ReleaseRequest, refusals=_STALE
    ),
    ("POST", "/v1/queue/remove"): Described(
        "Remove messages that the caller holds", wire.SettleAnswer, wire.SettleRequest, refusals=_STALE
    ),
    ("PUT", "/v1/queue/state"): Described(
        "Save a message's state document, or its progress",
        wire.StateAnswer,
        wire.StateRequest,
        refusals=(*_STALE, 412),
    ),
    ("POST", "/v1/queue/payload"): Described(
        "Read a part of the payload of a message that the caller holds",
        body=wire.PayloadRequest,
        refusals=_STALE,
        streams=((BYTES, None),),
        answer_headers=(wire.PAYLOAD_BYTES,),
    ),
    ("GET", "/v1/queue/stats"): Described("Counts of a queue", Stats, query=_REF, refusals=(404,)),
    ("GET", "/v1/queue/watch"): Described(
        "Hear when messages become available", query=_REF, refusals=(404,), streams=((SSE, wire.AvailableEvent),)
    ),
    ("GET", "/v1/tenants"): Described("The tenants that the caller may see", wire.TenantsAnswer),
    ("GET", "/v1/tenants/{tenant}"): Described("A tenant's limits, quotas and counts", wire.TenantAnswer),
    ("PUT", "/v1/tenants/{tenant}"): Described(
        "Change a tenant: what is given changes, the rest stays",
        wire.TenantAnswer,
        TenantConfig,
        is_body_optional=True,
    ),
    ("GET", "/v1/tenants/{tenant}/queues"): Described("A tenant's queues", wire.QueuesAnswer),
    ("GET", _QUEUE): Described("A queue's counts and policy", wire.QueueAnswer, refusals=(404,)),
    ("PUT", _QUEUE): Described(
        "Create a queue or change its policy: what is given changes, the rest stays",
        QueuePolicy,
        QueuePolicy,
        is_body_optional=True,
        refusals=_STALE,
    ),
    ("DELETE", _QUEUE): Described(
        "Delete a queue: it drains from now on",
        wire.DrainingAnswer,
        query=("force_after_ms",),
        refusals=_STALE,
        status=202,
    ),
    ("POST", _QUEUE + "/pause"): Described(
        "Let claims find nothing", wire.PausedAnswer, wire.Nothing, is_body_optional=True, refusals=_STALE
    ),
    ("POST", _QUEUE + "/resume"): Described(
        "Let claims find messages again", wire.PausedAnswer, wire.Nothing, is_body_optional=True, refusals=_STALE
    ),
    ("POST", _QUEUE + "/purge"): _CHANGED._replace(
        summary="Remove what is ready, or what failed", body=wire.PurgeRequest, is_body_optional=True
    ),
    ("POST", _QUEUE + "/redrive"): Described(
        "Bring failed messages back", wire.RedriveAnswer, wire.RedriveRequest, is_body_optional=True, refusals=_STALE
    ),
    ("POST", _QUEUE + "/move"): _CHANGED._replace(summary="Move messages to another queue", body=wire.MoveRequest),
    ("POST", _QUEUE + "/cancel"): _CHANGED._replace(
        summary="Remove what is ready and matches", body=wire.CancelRequest, is_body_optional=True
    ),
    ("POST", _QUEUE + "/reprioritise"): _CHANGED._replace(
        summary="Give messages another priority", body=wire.ReprioritiseRequest
    ),
    ("GET", _QUEUE + "/messages"): Described(
        "Browse messages by id",
        wire.MessagesAnswer,
        query=("state", "cursor", "limit", "payload", "filter"),
        refusals=(404,),
    ),
    ("GET", _QUEUE + "/peek"): Described(
        "What would be claimed next, with payloads", wire.PeekAnswer, query=("limit",), refusals=(404,)
    ),
    ("GET", _QUEUE + "/messages/{id}"): Described(
        "Look a message up", wire.InfoOut, query=("payload",), refusals=(404,)
    ),
    ("DELETE", _QUEUE + "/messages/{id}"): Described("Remove a message", wire.Nothing, refusals=_STALE),
    ("GET", _QUEUE + "/schedules"): Described(
        "A queue's schedules by name, without payloads", wire.SchedulesAnswer, refusals=(404,)
    ),
    ("GET", _QUEUE + "/schedules/{name}"): Described(
        "Look a schedule up", wire.ScheduleOut, query=("payload",), refusals=(404,)
    ),
    ("PUT", _QUEUE + "/schedules/{name}"): Described(
        "Enqueue a message at every tick of a cron line or an interval: what is given changes, the rest stays",
        wire.ScheduleOut,
        wire.ScheduleRequest,
        refusals=_STALE,
    ),
    ("DELETE", _QUEUE + "/schedules/{name}"): Described("Delete a schedule", wire.Nothing, refusals=_STALE),
    ("GET", "/v1/journal"): Described(
        "Events in order, behind a position, and with `until` up to another; with `count=1` only how many",
        query=("after", "limit", "wait_ms", "tenant", "until", "count"),
        streams=((NDJSON, wire.JournalEventOut), (ARROW, None)),
        answer_headers=("X-Journal-Next", "X-Journal-Count"),
    ),
    ("POST", "/v1/queue/ledger/claim"): _CLAIMED._replace(
        summary="Claim under a number, or read that claim again", body=wire.LedgerClaimRequest
    ),
    ("POST", "/v1/queue/ledger/extend"): Described(
        "Hold all open claims of a consumer longer", wire.SettleAnswer, wire.LedgerExtendRequest, refusals=_STALE
    ),
    ("POST", "/v1/queue/ledger/ack"): Described(
        "Finish what the claims up to a number still hold", wire.SettleAnswer, wire.LedgerAckRequest, refusals=_STALE
    ),
    ("GET", "/v1/queue/ledger"): Described(
        "A consumer's open claims", wire.LedgerAnswer, query=(*_REF, "consumer", "number"), refusals=(404,)
    ),
    ("POST", "/enqueue"): Described(
        "Compatible door: add items, of one or several queues",
        list[int],
        list[compatible_wire.Item],
        refusals=_STALE,
    ),
    ("GET", "/dequeue"): Described(
        "Compatible door: lease items",
        list[compatible_wire.LeasedItem],
        query=("namespace", "topic", "limit"),
        refusals=_STALE,
    ),
    ("POST", "/dequeue"): Described(
        "Compatible door: lease items",
        list[compatible_wire.LeasedItem],
        compatible_wire.DequeueIn,
        is_body_optional=True,
        query=("namespace", "topic", "limit"),
        refusals=_STALE,
    ),
    ("POST", "/ack"): Described(
        "Compatible door: finish an item", wire.Nothing, compatible_wire.AckIn, refusals=_STALE
    ),
    ("POST", "/nack"): Described(
        "Compatible door: give an item back as failed", wire.Nothing, compatible_wire.NackIn, refusals=_STALE
    ),
    ("GET", "/metrics"): Described("The server's figures, for Prometheus", streams=((TEXT, None),)),
}

# Paths that need no credential.
OPEN_DESCRIPTIONS: dict[str, Described] = {
    "/healthz": Described("Whether the server lives", wire.HealthAnswer),
    "/readyz": Described("Whether it takes calls", wire.HealthAnswer),
    "/openapi.json": Described("This document", dict[str, Any]),
}
