"""The documents of the HTTP door, shared with the client. Times are whole milliseconds; ids are strings."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from holdfast.model.answers import QueueSummary, Stats, TenantSummary
from holdfast.model.message import MAX_BATCH, MAX_PART, MAX_RETRIES
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.policy import QueuePolicy
from holdfast.model.requests import Progress

# Refused while they are read, by the name of their field. Names and texts are the model's to check.
Whole = Annotated[int, Meta(ge=0, le=MAX_MS)]
Positive = Annotated[int, Meta(ge=1, le=MAX_MS)]
Priority = Annotated[int, Meta(ge=0, le=255)]
Limit = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
PartSize = Annotated[int, Meta(ge=1, le=MAX_PART)]
Retries = Annotated[int, Meta(ge=0, le=MAX_RETRIES)]


# The header that says how long the payload is of which a part is answered.
PAYLOAD_BYTES = "X-Payload-Bytes"


class QueueRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A field nobody knows is refused by its name: a misspelt option must not be silently ignored. What is as usual is
    left out on the way."""

    tenant: str | None = None
    queue: str | None = None


class MessageIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    content_type: str | None = None
    headers: dict[str, str] | None = None
    priority: Priority | None = None
    delay_ms: Whole | None = None
    deliver_at: Whole | None = None
    ttl_ms: Positive | None = None
    idempotency_key: str | None = None
    group: str | None = None
    correlation_id: str | None = None
    max_retries: Retries | None = None


class MetaIn(MessageIn, frozen=True, kw_only=True):
    """The part `meta` of a multipart enqueue: one message without its payload, and where it goes."""

    tenant: str | None = None
    queue: str | None = None


class EnqueueRequest(QueueRequest, frozen=True, kw_only=True):
    messages: list[MessageIn]


class EnqueuedOut(Struct, frozen=True, kw_only=True, gc=False):
    id: str
    snowflake: str
    correlation_id: str
    duplicate: bool


class EnqueueAnswer(Struct, frozen=True, kw_only=True, gc=False):
    messages: list[EnqueuedOut]


class VerdictIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A verdict that rides on a dequeue."""

    receipt: str
    verdict: str
    error: str | None = None
    delay_ms: Whole | None = None
    defer: bool = False
    final: bool = False
    # With final: the caller's own retries are used up, so the dead letter's reason is `retries`.
    exhausted: bool = False


class DequeueRequest(QueueRequest, frozen=True, kw_only=True):
    limit: Limit = 1
    # Null: until the caller leaves.
    wait_ms: Whole | None = 0
    lease_ms: Positive | None = None
    owner: str | None = None
    verdicts: list[VerdictIn] | None = None
    # Large payloads are left out, for `PayloadRequest` to read.
    payloads_apart: bool = False


class ExchangeRequest(DequeueRequest, frozen=True, kw_only=True):
    """As a dequeue, with verdicts. The wait begins once they are settled."""

    verdicts: list[VerdictIn]


class SubscribeRequest(QueueRequest, frozen=True, kw_only=True):
    prefetch: Limit = 32
    limit: Limit | None = None
    wait_ms: Whole | None = None
    lease_ms: Positive | None = None
    owner: str | None = None
    release_on_leave: bool = False
    verdicts: list[VerdictIn] | None = None
    payloads_apart: bool = False


class PayloadRequest(QueueRequest, frozen=True, kw_only=True):
    """Some bytes of the payload of a message that the receipt holds."""

    receipt: str
    offset: Whole = 0
    limit: PartSize = 1 << 20


class StateOut(Struct, frozen=True, kw_only=True, gc=False):
    # `null` before the first save, when there is no `etag` either.
    document: Raw
    etag: str | None
    progress: Progress | UnsetType = UNSET


class DeliveryOut(Struct, frozen=True, kw_only=True, gc=False):
    id: str
    snowflake: str
    receipt: str
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    content_type: str
    headers: dict[str, str]
    priority: int
    attempt: int
    version: int
    enqueued_at: int
    lease_expires_at: int
    correlation_id: str
    group: str | None
    state: StateOut | UnsetType = UNSET
    # Of a payload that was left out: its length, and the CRC-32 of all of it.
    payload_bytes: int | UnsetType = UNSET
    payload_crc32: int | UnsetType = UNSET
    # Whether it came in as JSON.
    payload_is_json: bool | UnsetType = UNSET


class ResultOut(Struct, frozen=True, kw_only=True, gc=False):
    """`error` is a code."""

    id: str
    ok: bool
    correlation_id: str | None
    error: str | UnsetType = UNSET
    state: str | UnsetType = UNSET
    retry_at: int | UnsetType | None = UNSET
    lease_expires_at: int | UnsetType | None = UNSET


class DequeueAnswer(Struct, frozen=True, kw_only=True, gc=False):
    messages: list[DeliveryOut]
    results: list[ResultOut] | UnsetType = UNSET


class ReceiptIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    receipt: str
    error: str | None = None
    delay_ms: Whole | None = None
    defer: bool = False
    final: bool = False
    exhausted: bool = False
    lease_ms: Positive | None = None


class SettleRequest(QueueRequest, frozen=True, kw_only=True):
    """ack, release and remove: the receipts alone. What a nack says may stand with each receipt."""

    receipts: list[str | ReceiptIn]


class ReleaseRequest(SettleRequest, frozen=True, kw_only=True):
    """`unseen`: deliveries that reached nobody, such as an answer that came after its caller had left. They go back as
    if they had not been claimed, and count as no attempt."""

    unseen: bool = False


class NackRequest(QueueRequest, frozen=True, kw_only=True):
    """Said once for all receipts, or with each."""

    receipts: list[str | ReceiptIn]
    error: str | None = None
    delay_ms: Whole | None = None
    defer: bool = False
    final: bool = False
    exhausted: bool = False


class ExtendRequest(QueueRequest, frozen=True, kw_only=True):
    receipts: list[str | ReceiptIn]
    lease_ms: Positive | None = None


class ErrorOut(Struct, frozen=True, kw_only=True):
    """Plus the error's own facts."""

    code: str
    message: str
    retry_after_ms: int | UnsetType = UNSET


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    error: ErrorOut


class SettleAnswer(Struct, frozen=True, kw_only=True, gc=False):
    results: list[ResultOut]
    # Set when any verdict was not carried out (status 503, or 409 for stale receipts).
    error: dict[str, Any] | UnsetType = UNSET


class ProgressIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    percent: Annotated[float, Meta(ge=0, le=100)]
    text: str = ""


class StateAnswer(Struct, frozen=True, kw_only=True):
    etag: str | None


class LedgerClaimRequest(DequeueRequest, frozen=True, kw_only=True):
    consumer: str
    number: Whole
    with_state: bool = False


class LedgerEntryOut(Struct, frozen=True, kw_only=True):
    number: int
    claimed_at: int
    messages: list[DeliveryOut]
    lost: int


class LedgerAnswer(Struct, frozen=True, kw_only=True):
    claims: list[LedgerEntryOut]


class InfoOut(Struct, frozen=True, kw_only=True):
    """A message looked up. Never its receipt; its payload only where it was asked for."""

    id: str
    snowflake: str
    state: str
    priority: int
    attempt: int
    failures: int
    expiries: int
    releases: int
    version: int
    enqueued_at: int
    visible_at: int
    lease_expires_at: int | None
    last_error: str | None
    reason: str | None
    correlation_id: str
    headers: dict[str, str]
    bytes: int
    content_type: str
    group: str | None
    owner: str | None
    claimed_at: int | None = None
    settled_at: int | None
    expires_at: int | None
    progress: Progress | None
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class MessagesAnswer(Struct, frozen=True, kw_only=True):
    messages: list[InfoOut]
    cursor: str | None


class FilterIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    ids: list[str] | None = None
    error_contains: str | None = None
    older_than_ms: Whole | None = None
    headers: dict[str, str] | None = None
    priority: Priority | None = None
    owner: str | None = None
    held_for_ms: Whole | None = None
    delayed: bool | None = None


class TargetIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue: str
    tenant: str | None = None


class EditIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class ChangedAnswer(Struct, frozen=True, kw_only=True):
    matched: int
    changed: int


class RedriveAnswer(Struct, frozen=True, kw_only=True):
    matched: int
    redriven: int


class ScheduledIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each tick of a schedule enqueues: a message without a delay, for the ticks say when, and without a key."""

    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    content_type: str | None = None
    headers: dict[str, str] | None = None
    priority: Priority | None = None
    ttl_ms: Positive | None = None
    group: str | None = None
    correlation_id: str | None = None
    max_retries: Retries | None = None


class ScheduledOut(Struct, frozen=True, kw_only=True):
    """Its payload only where it was asked for."""

    content_type: str
    is_json: bool
    headers: dict[str, str]
    priority: int
    ttl_ms: int | None
    group: str | None
    correlation_id: str | None
    max_retries: int | None
    bytes: int
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class ScheduleOut(Struct, frozen=True, kw_only=True):
    name: str
    cron: str | None
    every_ms: int | None
    timezone: str
    message: ScheduledOut
    paused: bool
    next_at: int | None
    last_at: int | None
    last_id: str | None
    last_error: str | None


class SchedulesAnswer(Struct, frozen=True, kw_only=True):
    schedules: list[ScheduleOut]


class JournalEventOut(Struct, frozen=True, kw_only=True, gc=False):
    seq: int
    shard: int
    at: int
    event: str
    tenant: str
    queue: str
    id: str
    attempt: int
    version: int
    priority: int
    enqueued_at: int
    claimed_at: int | None
    bytes: int
    error: str | None
    reason: str | None
    correlation_id: str


class TenantAnswer(TenantSummary, frozen=True, kw_only=True):
    # The counts of all its queues together, where it was looked up.
    stats: Stats | UnsetType = UNSET


class TenantsAnswer(Struct, frozen=True, kw_only=True):
    tenants: list[TenantSummary]


class QueuesAnswer(Struct, frozen=True, kw_only=True):
    queues: list[QueueSummary]


class QueueAnswer(QueueSummary, frozen=True, kw_only=True):
    tenant: str
    policy: QueuePolicy


class PausedAnswer(Struct, frozen=True, kw_only=True):
    tenant: str
    queue: str
    paused: bool


class DrainingAnswer(Struct, frozen=True, kw_only=True):
    """A queue that is being deleted."""

    tenant: str
    queue: str
    draining: bool


class PeekAnswer(Struct, frozen=True, kw_only=True):
    messages: list[InfoOut]


class AvailableEvent(Struct, frozen=True, kw_only=True):
    """The data of the event `available` of a watch."""

    tenant: str
    queue: str
    ready: int


class HealthAnswer(Struct, frozen=True, kw_only=True):
    status: str
    # Why it is not ready.
    reason: str | UnsetType = UNSET
    # The port of the framed protocol, if it has one of its own, and whether this one can be upgraded to it.
    framed_port: int | UnsetType = UNSET
    framed_upgrade: bool | UnsetType = UNSET


encode = msgspec.json.Encoder().encode
