"""The bodies of the documents: messages, idempotency keys, groups, ledgers, node numbers, quotas, steps, journal
segments.

A schedule is stored as the `Schedule` of `holdfast.model.schedules`.

How to change this format: add a field with a default at the end of its struct, and with the same name and a new number
to its message in `objects.proto`; then run `python -m tests.stores.objects.documents.generate`, which generates
`objects_pb2.py`. Processes of both versions can then read each other's documents; a version that does not know a field
drops it when it rewrites the document. Never reuse a number. The order of the fields here is that of format 1, which
older stores still have.
"""

import msgspec

from holdfast.model.events import JournalEvent
from holdfast.model.message import Envelope, Pieces, State
from holdfast.model.names import QueueRef
from holdfast.model.rules.lifecycle import Life
from holdfast.model.schedules import Schedule

__all__ = [
    "MAX_INLINE_BYTES",
    "GroupBody",
    "KeyBody",
    "LedgerBody",
    "MessageBody",
    "NodeBody",
    "OutboxEvent",
    "QuotaGuardBody",
    "Schedule",
    "SegmentBody",
    "StepBody",
    "is_small",
]


# Largest payload in bytes that is stored inside the metadata.
MAX_INLINE_BYTES = 16 << 10


def is_small(size: int) -> bool:
    """Return whether a payload of this size in bytes is stored inside the metadata. An empty one needs no storage."""
    return 0 < size <= MAX_INLINE_BYTES


class OutboxEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event that is not in the journal yet. `number` counts the events of its message; `order` sorts the events of
    one process."""

    number: int
    order: int
    event: JournalEvent


class MessageBody(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A message without its payload and its state document."""

    id: int
    tenant: str
    queue: str
    enqueued_at: int
    size: int
    checksum: int
    life: Life
    content_type: str
    is_json: bool = False
    headers: dict[str, str] = {}
    ttl_ms: int | None = None
    group: str | None = None
    given_correlation_id: str | None = None
    max_retries: int | None = None
    # The process that granted the lease. Its clock determines when the lease ends.
    granter: str | None = None
    # Number of events so far, and the events that are not in the journal yet.
    event_count: int = 0
    outbox: list[OutboxEvent] = []
    has_state: bool = False
    # The message has ended; it is deleted once its events are in the journal.
    is_gone: bool = False
    # Set in a stub: the key that the message was moved to.
    moved_to: str | None = None
    # Keys of the stubs that the message left behind; they are deleted with it.
    stubs: list[str] = []
    # Keys of payload and state, if not derived from the key of the metadata.
    payload_key: str | None = None
    state_key: str | None = None
    # The state document has been written, so a missing one is lost. Older versions did not record this.
    is_state_written: bool = False
    # The payload is in `payload`. An ended message and a stub do not have it any more.
    is_inline: bool = False
    payload: bytes = b""

    def envelope(self, payload: bytes | None = None) -> Envelope:
        """Return the message's envelope. Without a payload, it refers to the stored one."""
        return Envelope(
            id=self.id,
            enqueued_at=self.enqueued_at,
            payload=payload or b"",
            pieces=Pieces(self.id, self.size, self.checksum) if payload is None else None,
            content_type=self.content_type,
            headers=self.headers,
            ttl_ms=self.ttl_ms,
            group=self.group,
            given_correlation_id=self.given_correlation_id,
            max_retries=self.max_retries,
            is_json=self.is_json,
        )

    @property
    def ref(self) -> QueueRef:
        """The queue of the message."""
        return QueueRef(self.tenant, self.queue)

    @property
    def has_payload_object(self) -> bool:
        """True if the payload is an object of its own."""
        return self.size > 0 and not self.is_inline

    @property
    def is_message(self) -> bool:
        """True unless this is a stub or the message has ended."""
        return self.moved_to is None and not self.is_gone

    @property
    def is_dead_letter(self) -> bool:
        """True if the message has failed."""
        return self.is_message and self.life.state is State.FAILED

    # Last, because the name hides the type `bytes` from here on.
    @property
    def bytes(self) -> int:
        """The size of payload and headers, as quotas count it."""
        return self.envelope().bytes


class KeyBody(msgspec.Struct, frozen=True, array_like=True):
    """An idempotency key: its first message, and the end of its deduplication window."""

    id: int
    given_correlation_id: str | None
    ends_at: int


class GroupBody(msgspec.Struct, frozen=True, array_like=True):
    """The ids of a group's messages that may be in flight."""

    ids: list[int]


class LedgerBody(msgspec.Struct, frozen=True, array_like=True):
    """A consumer's claim ledger."""

    consumer: str
    closed_upto: int = -1
    # Open claims by number: the time of the claim, and the receipts.
    open: dict[int, tuple[int, list[tuple[int, bytes, int]]]] = {}


class NodeBody(msgspec.Struct, frozen=True, array_like=True):
    """The lease of a node number. `holder` is None once it was released; `highest_id` is the highest id made with
    it."""

    holder: str | None
    ends_at: int
    highest_id: int


class QuotaGuardBody(msgspec.Struct, frozen=True, array_like=True):
    """Messages and bytes of a tenant when its quotas were last checked."""

    messages: int
    bytes: int


class StepBody(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of a multi-document step, and the keys that it wrote."""

    is_committed: bool
    keys: list[str]


class SegmentBody(msgspec.Struct, frozen=True, array_like=True):
    """A segment of the journal."""

    events: list[JournalEvent]
    # The metadata keys whose outboxes these events came from, each with the number of its last event here.
    emptied: list[tuple[str, int]]
