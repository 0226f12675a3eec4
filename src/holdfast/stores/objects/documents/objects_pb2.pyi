from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Document(_message.Message):
    __slots__ = ("format", "checksum", "revision")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    format: int
    checksum: int
    revision: Revision
    def __init__(self, format: _Optional[int] = ..., checksum: _Optional[int] = ..., revision: _Optional[_Union[Revision, _Mapping]] = ...) -> None: ...

class Revision(_message.Message):
    __slots__ = ("nonce", "past", "step", "prior", "body")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PRIOR_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    past: _containers.RepeatedScalarFieldContainer[bytes]
    step: str
    prior: Body
    body: Body
    def __init__(self, nonce: _Optional[bytes] = ..., past: _Optional[_Iterable[bytes]] = ..., step: _Optional[str] = ..., prior: _Optional[_Union[Body, _Mapping]] = ..., body: _Optional[_Union[Body, _Mapping]] = ...) -> None: ...

class EncodedRevision(_message.Message):
    __slots__ = ("nonce", "past", "step", "prior", "body")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PRIOR_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    past: _containers.RepeatedScalarFieldContainer[bytes]
    step: str
    prior: bytes
    body: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., past: _Optional[_Iterable[bytes]] = ..., step: _Optional[str] = ..., prior: _Optional[bytes] = ..., body: _Optional[bytes] = ...) -> None: ...

class Body(_message.Message):
    __slots__ = ("message", "key", "group", "ledger", "schedule", "quota_guard", "node", "step", "segment")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    QUOTA_GUARD_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    message: Message
    key: IdempotencyKey
    group: GroupBatch
    ledger: ClaimLedger
    schedule: QueueSchedule
    quota_guard: QuotaGuard
    node: NodeNumber
    step: StepRecord
    segment: JournalSegment
    def __init__(self, message: _Optional[_Union[Message, _Mapping]] = ..., key: _Optional[_Union[IdempotencyKey, _Mapping]] = ..., group: _Optional[_Union[GroupBatch, _Mapping]] = ..., ledger: _Optional[_Union[ClaimLedger, _Mapping]] = ..., schedule: _Optional[_Union[QueueSchedule, _Mapping]] = ..., quota_guard: _Optional[_Union[QuotaGuard, _Mapping]] = ..., node: _Optional[_Union[NodeNumber, _Mapping]] = ..., step: _Optional[_Union[StepRecord, _Mapping]] = ..., segment: _Optional[_Union[JournalSegment, _Mapping]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("id", "tenant", "queue", "enqueued_at", "size", "checksum", "life", "content_type", "is_json", "headers", "ttl_ms", "group", "given_correlation_id", "max_retries", "granter", "event_count", "outbox", "has_state", "is_gone", "moved_to", "stubs", "payload_key", "state_key", "is_state_written", "is_inline", "payload")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    IS_JSON_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GIVEN_CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    GRANTER_FIELD_NUMBER: _ClassVar[int]
    EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    OUTBOX_FIELD_NUMBER: _ClassVar[int]
    HAS_STATE_FIELD_NUMBER: _ClassVar[int]
    IS_GONE_FIELD_NUMBER: _ClassVar[int]
    MOVED_TO_FIELD_NUMBER: _ClassVar[int]
    STUBS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_KEY_FIELD_NUMBER: _ClassVar[int]
    IS_STATE_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    IS_INLINE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    id: int
    tenant: str
    queue: str
    enqueued_at: int
    size: int
    checksum: int
    life: MessageLife
    content_type: str
    is_json: bool
    headers: _containers.ScalarMap[str, str]
    ttl_ms: int
    group: str
    given_correlation_id: str
    max_retries: int
    granter: str
    event_count: int
    outbox: _containers.RepeatedCompositeFieldContainer[OutboxNote]
    has_state: bool
    is_gone: bool
    moved_to: str
    stubs: _containers.RepeatedScalarFieldContainer[str]
    payload_key: str
    state_key: str
    is_state_written: bool
    is_inline: bool
    payload: bytes
    def __init__(self, id: _Optional[int] = ..., tenant: _Optional[str] = ..., queue: _Optional[str] = ..., enqueued_at: _Optional[int] = ..., size: _Optional[int] = ..., checksum: _Optional[int] = ..., life: _Optional[_Union[MessageLife, _Mapping]] = ..., content_type: _Optional[str] = ..., is_json: _Optional[bool] = ..., headers: _Optional[_Mapping[str, str]] = ..., ttl_ms: _Optional[int] = ..., group: _Optional[str] = ..., given_correlation_id: _Optional[str] = ..., max_retries: _Optional[int] = ..., granter: _Optional[str] = ..., event_count: _Optional[int] = ..., outbox: _Optional[_Iterable[_Union[OutboxNote, _Mapping]]] = ..., has_state: _Optional[bool] = ..., is_gone: _Optional[bool] = ..., moved_to: _Optional[str] = ..., stubs: _Optional[_Iterable[str]] = ..., payload_key: _Optional[str] = ..., state_key: _Optional[str] = ..., is_state_written: _Optional[bool] = ..., is_inline: _Optional[bool] = ..., payload: _Optional[bytes] = ...) -> None: ...

class MessageLife(_message.Message):
    __slots__ = ("state", "priority", "visible_at", "expires_at", "attempt", "failures", "expiries", "releases", "version", "lease", "error", "reason", "settled_at", "keep_until")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    EXPIRIES_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SETTLED_AT_FIELD_NUMBER: _ClassVar[int]
    KEEP_UNTIL_FIELD_NUMBER: _ClassVar[int]
    state: str
    priority: int
    visible_at: int
    expires_at: int
    attempt: int
    failures: int
    expiries: int
    releases: int
    version: int
    lease: MessageLease
    error: str
    reason: str
    settled_at: int
    keep_until: int
    def __init__(self, state: _Optional[str] = ..., priority: _Optional[int] = ..., visible_at: _Optional[int] = ..., expires_at: _Optional[int] = ..., attempt: _Optional[int] = ..., failures: _Optional[int] = ..., expiries: _Optional[int] = ..., releases: _Optional[int] = ..., version: _Optional[int] = ..., lease: _Optional[_Union[MessageLease, _Mapping]] = ..., error: _Optional[str] = ..., reason: _Optional[str] = ..., settled_at: _Optional[int] = ..., keep_until: _Optional[int] = ...) -> None: ...

class MessageLease(_message.Message):
    __slots__ = ("token", "claimed_at", "expires_at", "ends_at", "owner", "ledger")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    ENDS_AT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    claimed_at: int
    expires_at: int
    ends_at: int
    owner: str
    ledger: LedgerNumber
    def __init__(self, token: _Optional[bytes] = ..., claimed_at: _Optional[int] = ..., expires_at: _Optional[int] = ..., ends_at: _Optional[int] = ..., owner: _Optional[str] = ..., ledger: _Optional[_Union[LedgerNumber, _Mapping]] = ...) -> None: ...

class LedgerNumber(_message.Message):
    __slots__ = ("consumer", "number")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    number: int
    def __init__(self, consumer: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class OutboxNote(_message.Message):
    __slots__ = ("number", "order", "event")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    number: int
    order: int
    event: TransitionEvent
    def __init__(self, number: _Optional[int] = ..., order: _Optional[int] = ..., event: _Optional[_Union[TransitionEvent, _Mapping]] = ...) -> None: ...

class TransitionEvent(_message.Message):
    __slots__ = ("snowflake", "given_correlation_id", "seq", "shard", "at", "event", "tenant", "queue", "attempt", "version", "priority", "enqueued_at", "claimed_at", "bytes", "error", "reason")
    SNOWFLAKE_FIELD_NUMBER: _ClassVar[int]
    GIVEN_CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_AT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    snowflake: int
    given_correlation_id: str
    seq: int
    shard: int
    at: int
    event: str
    tenant: str
    queue: str
    attempt: int
    version: int
    priority: int
    enqueued_at: int
    claimed_at: int
    bytes: int
    error: str
    reason: str
    def __init__(self, snowflake: _Optional[int] = ..., given_correlation_id: _Optional[str] = ..., seq: _Optional[int] = ..., shard: _Optional[int] = ..., at: _Optional[int] = ..., event: _Optional[str] = ..., tenant: _Optional[str] = ..., queue: _Optional[str] = ..., attempt: _Optional[int] = ..., version: _Optional[int] = ..., priority: _Optional[int] = ..., enqueued_at: _Optional[int] = ..., claimed_at: _Optional[int] = ..., bytes: _Optional[int] = ..., error: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class IdempotencyKey(_message.Message):
    __slots__ = ("id", "given_correlation_id", "ends_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    GIVEN_CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ENDS_AT_FIELD_NUMBER: _ClassVar[int]
    id: int
    given_correlation_id: str
    ends_at: int
    def __init__(self, id: _Optional[int] = ..., given_correlation_id: _Optional[str] = ..., ends_at: _Optional[int] = ...) -> None: ...

class GroupBatch(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ClaimLedger(_message.Message):
    __slots__ = ("consumer", "closed_upto", "open")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    CLOSED_UPTO_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    closed_upto: int
    open: _containers.RepeatedCompositeFieldContainer[LedgerClaim]
    def __init__(self, consumer: _Optional[str] = ..., closed_upto: _Optional[int] = ..., open: _Optional[_Iterable[_Union[LedgerClaim, _Mapping]]] = ...) -> None: ...

class LedgerClaim(_message.Message):
    __slots__ = ("number", "claimed_at", "receipts")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_AT_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    claimed_at: int
    receipts: _containers.RepeatedCompositeFieldContainer[LeaseReceipt]
    def __init__(self, number: _Optional[int] = ..., claimed_at: _Optional[int] = ..., receipts: _Optional[_Iterable[_Union[LeaseReceipt, _Mapping]]] = ...) -> None: ...

class LeaseReceipt(_message.Message):
    __slots__ = ("id", "token", "version")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    id: int
    token: bytes
    version: int
    def __init__(self, id: _Optional[int] = ..., token: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class QueueSchedule(_message.Message):
    __slots__ = ("name", "message", "cron", "timezone", "every_ms", "anchor_at", "paused", "next_at", "last_at", "last_id", "last_error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    EVERY_MS_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_AT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    NEXT_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    message: DraftMessage
    cron: str
    timezone: str
    every_ms: int
    anchor_at: int
    paused: bool
    next_at: int
    last_at: int
    last_id: int
    last_error: str
    def __init__(self, name: _Optional[str] = ..., message: _Optional[_Union[DraftMessage, _Mapping]] = ..., cron: _Optional[str] = ..., timezone: _Optional[str] = ..., every_ms: _Optional[int] = ..., anchor_at: _Optional[int] = ..., paused: _Optional[bool] = ..., next_at: _Optional[int] = ..., last_at: _Optional[int] = ..., last_id: _Optional[int] = ..., last_error: _Optional[str] = ...) -> None: ...

class QuotaGuard(_message.Message):
    __slots__ = ("messages", "bytes")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    bytes: int
    def __init__(self, messages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class NodeNumber(_message.Message):
    __slots__ = ("holder", "ends_at", "highest_id")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ENDS_AT_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_ID_FIELD_NUMBER: _ClassVar[int]
    holder: str
    ends_at: int
    highest_id: int
    def __init__(self, holder: _Optional[str] = ..., ends_at: _Optional[int] = ..., highest_id: _Optional[int] = ...) -> None: ...

class StepRecord(_message.Message):
    __slots__ = ("is_committed", "keys")
    IS_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    is_committed: bool
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, is_committed: _Optional[bool] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class JournalSegment(_message.Message):
    __slots__ = ("events", "emptied")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    EMPTIED_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[TransitionEvent]
    emptied: _containers.RepeatedCompositeFieldContainer[EmptiedOutbox]
    def __init__(self, events: _Optional[_Iterable[_Union[TransitionEvent, _Mapping]]] = ..., emptied: _Optional[_Iterable[_Union[EmptiedOutbox, _Mapping]]] = ...) -> None: ...

class EmptiedOutbox(_message.Message):
    __slots__ = ("key", "upto")
    KEY_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    key: str
    upto: int
    def __init__(self, key: _Optional[str] = ..., upto: _Optional[int] = ...) -> None: ...

class DraftMessage(_message.Message):
    __slots__ = ("payload", "content_type", "headers", "priority", "delay_ms", "deliver_at", "ttl_ms", "key", "group", "correlation_id", "max_retries", "is_json", "pieces")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    IS_JSON_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    content_type: str
    headers: _containers.ScalarMap[str, str]
    priority: int
    delay_ms: int
    deliver_at: int
    ttl_ms: int
    key: str
    group: str
    correlation_id: str
    max_retries: int
    is_json: bool
    pieces: StagedPayload
    def __init__(self, payload: _Optional[bytes] = ..., content_type: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., priority: _Optional[int] = ..., delay_ms: _Optional[int] = ..., deliver_at: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., key: _Optional[str] = ..., group: _Optional[str] = ..., correlation_id: _Optional[str] = ..., max_retries: _Optional[int] = ..., is_json: _Optional[bool] = ..., pieces: _Optional[_Union[StagedPayload, _Mapping]] = ...) -> None: ...

class StagedPayload(_message.Message):
    __slots__ = ("blob_id", "size", "checksum")
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    blob_id: int
    size: int
    checksum: int
    def __init__(self, blob_id: _Optional[int] = ..., size: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...
