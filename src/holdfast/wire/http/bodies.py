"""The HTTP documents of enqueue, claim, settle, state and ledger calls, and of errors.

Clients send `…In` and `…Request`; servers send `…Out` and `…Answer`. Times are whole milliseconds; ids are strings.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from holdfast.model.message import MAX_BATCH, MAX_PART, MAX_RETRIES
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.requests import Progress

# Values out of these bounds are refused by field name when a body is decoded. The model checks names and texts.
Whole = Annotated[int, Meta(ge=0, le=MAX_MS)]
Positive = Annotated[int, Meta(ge=1, le=MAX_MS)]
Priority = Annotated[int, Meta(ge=0, le=255)]
Limit = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
PartSize = Annotated[int, Meta(ge=1, le=MAX_PART)]
Retries = Annotated[int, Meta(ge=0, le=MAX_RETRIES)]


# The response header with the length of the whole payload when the body is a part of it.
PAYLOAD_BYTES = "X-Payload-Bytes"


class QueueRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The fields of every request about a queue.

    An unknown field is refused by name, because a misspelt option must not be silently ignored. Fields that have their
    default value are not sent.
    """

    tenant: str | None = None
    queue: str | None = None


class MessageIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A message to enqueue. Its payload is either `payload` (JSON) or `payload_base64`."""

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
    """The part `meta` of a multipart enqueue: one message without its payload, and its queue."""

    tenant: str | None = None
    queue: str | None = None


class EnqueueRequest(QueueRequest, frozen=True, kw_only=True):
    """Enqueue messages into a queue, all or none."""

    messages: list[MessageIn]


class EnqueuedOut(Struct, frozen=True, kw_only=True, gc=False):
    """An enqueued message, or the earlier one that it is a duplicate of."""

    id: str
    snowflake: str
    correlation_id: str
    duplicate: bool


class EnqueueAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """The enqueued messages, in the order of the request."""

    messages: list[EnqueuedOut]


class VerdictIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A verdict on an earlier delivery, sent with a dequeue."""

    receipt: str
    verdict: str
    error: str | None = None
    delay_ms: Whole | None = None
    defer: bool = False
    final: bool = False
    # With `final`: the caller has used up its own retries, so the reason of the dead letter is `retries`.
    exhausted: bool = False


class DequeueRequest(QueueRequest, frozen=True, kw_only=True):
    """Claim up to `limit` messages under a lease, and settle earlier deliveries."""

    limit: Limit = 1
    # Null: wait until the caller disconnects.
    wait_ms: Whole | None = 0
    lease_ms: Positive | None = None
    owner: str | None = None
    verdicts: list[VerdictIn] | None = None
    # Omit large payloads; the caller reads them with `PayloadRequest`.
    payloads_apart: bool = False


class ExchangeRequest(DequeueRequest, frozen=True, kw_only=True):
    """A dequeue with required verdicts. The wait for messages begins once the verdicts are settled."""

    verdicts: list[VerdictIn]


class SubscribeRequest(QueueRequest, frozen=True, kw_only=True):
    """Claim messages as they become ready. At most `prefetch` messages are unsettled at a time."""

    prefetch: Limit = 32
    limit: Limit | None = None
    wait_ms: Whole | None = None
    lease_ms: Positive | None = None
    owner: str | None = None
    release_on_leave: bool = False
    verdicts: list[VerdictIn] | None = None
    payloads_apart: bool = False


class PayloadRequest(QueueRequest, frozen=True, kw_only=True):
    """Read `limit` bytes, from `offset`, of the payload of the message that the receipt holds."""

    receipt: str
    offset: Whole = 0
    limit: PartSize = 1 << 20


class StateOut(Struct, frozen=True, kw_only=True, gc=False):
    """The state document and the progress of a message."""

    # `null` before the first save, as is `etag`.
    document: Raw
    etag: str | None
    progress: Progress | UnsetType = UNSET


class DeliveryOut(Struct, frozen=True, kw_only=True, gc=False):
    """A claimed message."""

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
    # Set for an omitted payload: its length, the CRC-32 of the whole payload, and whether it was enqueued as JSON.
    payload_bytes: int | UnsetType = UNSET
    payload_crc32: int | UnsetType = UNSET
    payload_is_json: bool | UnsetType = UNSET


class ResultOut(Struct, frozen=True, kw_only=True, gc=False):
    """The result of one verdict. `error` is an error code."""

    id: str
    ok: bool
    correlation_id: str | None
    error: str | UnsetType = UNSET
    state: str | UnsetType = UNSET
    retry_at: int | UnsetType | None = UNSET
    lease_expires_at: int | UnsetType | None = UNSET


class DequeueAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """The claimed messages, and the results of the verdicts."""

    messages: list[DeliveryOut]
    results: list[ResultOut] | UnsetType = UNSET


class ReceiptIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A receipt with options of its own."""

    receipt: str
    error: str | None = None
    delay_ms: Whole | None = None
    defer: bool = False
    final: bool = False
    exhausted: bool = False
    lease_ms: Positive | None = None


class SettleRequest(QueueRequest, frozen=True, kw_only=True):
    """Settle messages. A receipt that needs options is given as an object."""

    receipts: list[str | ReceiptIn]


class ReleaseRequest(SettleRequest, frozen=True, kw_only=True):
    """Release messages.

    `unseen` marks deliveries that no caller received, such as a response that arrived after its caller had given up.
    They return to the queue as if they had never been claimed: no attempt is counted.
    """

    unseen: bool = False


class NackRequest(QueueRequest, frozen=True, kw_only=True):
    """Nack messages. The options hold for all receipts, unless a receipt gives its own."""

    receipts: list[str | ReceiptIn]
    error: str | None = None
    delay_ms: Whole | None = None
    defer: bool = False
    final: bool = False
    exhausted: bool = False


class ExtendRequest(QueueRequest, frozen=True, kw_only=True):
    """Extend leases to `lease_ms` from now, by default to the queue's lease."""

    receipts: list[str | ReceiptIn]
    lease_ms: Positive | None = None


class ErrorOut(Struct, frozen=True, kw_only=True):
    """An error's code and message. The error's facts are further fields of the document."""

    code: str
    message: str
    retry_after_ms: int | UnsetType = UNSET


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    """The body of an error response."""

    error: ErrorOut


class SettleAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """The results of verdicts, in the order of the receipts."""

    results: list[ResultOut]
    # Set if any verdict failed (status 409 for stale receipts, otherwise 503).
    error: dict[str, Any] | UnsetType = UNSET


class ProgressIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The progress of a handler."""

    percent: Annotated[float, Meta(ge=0, le=100)]
    text: str = ""


class StateAnswer(Struct, frozen=True, kw_only=True):
    """The new ETag of a state document."""

    etag: str | None


class LedgerClaimRequest(DequeueRequest, frozen=True, kw_only=True):
    """Claim messages under a consumer's number. An open number returns the same claim again."""

    consumer: str
    number: Whole
    with_state: bool = False


class LedgerEntryOut(Struct, frozen=True, kw_only=True):
    """An open claim. `lost` is the number of its messages that the consumer no longer holds."""

    number: int
    claimed_at: int
    messages: list[DeliveryOut]
    lost: int


class LedgerAnswer(Struct, frozen=True, kw_only=True):
    """The open claims of a consumer."""

    claims: list[LedgerEntryOut]


encode = msgspec.json.Encoder().encode
