"""The results of a queue's operations: ids, deliveries, results of verdicts, counts and listings."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

import msgspec

from holdfast.model.errors import ERRORS_BY_CODE, HoldfastError, Internal, StaleLease, Unavailable
from holdfast.model.events import JournalEvent
from holdfast.model.ids import to_uuid
from holdfast.model.message import AboutMessage, Envelope, Pieces, Receipt, State
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import Progress, StateDocument
from holdfast.model.rules.lifecycle import Life

T = TypeVar("T")


class Enqueued(AboutMessage, frozen=True, kw_only=True, gc=False):
    """The result of enqueueing one message. For a duplicate, it identifies the first message with the key."""

    duplicate: bool = False


class Delivery(AboutMessage, frozen=True, kw_only=True, gc=False):
    """A message as its claim returns it, with the receipt of its lease."""

    receipt: Receipt
    payload: bytes
    # Set for a claim that reads payloads in parts; `payload` is then empty.
    pieces: Pieces | None = None
    content_type: str
    is_json: bool = False
    headers: dict[str, str]
    priority: int
    attempt: int
    enqueued_at: int
    lease_expires_at: int
    group: str | None = None
    state: StateDocument | None = None

    @property
    def bytes(self) -> int:
        """Return the size of the payload."""
        return len(self.payload) if self.pieces is None else self.pieces.size


class Result(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of one verdict. `error` is a code; the other fields describe the message after the verdict."""

    snowflake: int
    ok: bool
    given_correlation_id: str | None = None
    # False: the message is gone, so its correlation id is unknown.
    is_known: bool = True
    error: str | None = None
    state: State | None = None
    retry_at: int | None = None
    lease_expires_at: int | None = None
    # True: the receipt was stale, but an earlier attempt of the same call got no response and may have settled it.
    is_unsure: bool = False

    @property
    def id(self) -> str:
        """Return the message's id as UUID text."""
        return to_uuid(self.snowflake)

    @property
    def correlation_id(self) -> str | None:
        """Return the message's correlation id; None if the message is gone."""
        return (self.given_correlation_id or self.id) if self.is_known else None

    @property
    def is_stale(self) -> bool:
        """Return whether the receipt no longer held the message. Sending the verdict again cannot succeed."""
        return self.error == StaleLease.code

    @property
    def is_retryable(self) -> bool:
        """Return whether the verdict failed for a passing reason. The lease is still valid: send it again."""
        return self.error is not None and issubclass(ERRORS_BY_CODE.get(self.error, Internal), Unavailable)

    def failure(self, **facts: object) -> HoldfastError:
        """Return the error of a verdict that failed. Its class is that of the code."""
        if not self.is_stale:
            kind = ERRORS_BY_CODE.get(self.error or "", Internal)
            advice = "; the lease is still valid, so try again" if self.is_retryable else ""
            return kind(f"the verdict on {self.id} failed ({self.error}){advice}", id=self.id, **facts)
        attempt = " (perhaps by the first attempt of this call, which got no response)" if self.is_unsure else ""
        return StaleLease(
            f"this receipt no longer holds the lease on {self.id}: the lease expired, or the message was settled"
            f"{attempt}, claimed again or removed",
            id=self.id,
            is_unsure=self.is_unsure,
            **facts,
        )


class Exchanged(NamedTuple):
    """The result of an exchange: the results of its verdicts, and the deliveries of its claim."""

    results: list[Result]
    deliveries: list[Delivery]


class PayloadPart(NamedTuple):
    """A part of a payload that has `total` bytes in all."""

    data: bytes
    total: int
    correlation_id: str


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a look-up shows it, without its receipt. The payload is there if it was asked for."""

    id: str
    snowflake: int
    state: State
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
    content_type: str
    group: str | None
    owner: str | None
    # The start of the current lease; extending the lease does not change it. Older servers do not send it.
    claimed_at: int | None = None
    settled_at: int | None
    expires_at: int | None
    progress: Progress | None
    payload: bytes | None
    is_json: bool = False
    bytes: int


class Found(msgspec.Struct, frozen=True):
    """A stored message. A payload in pieces is not loaded."""

    envelope: Envelope
    life: Life
    state: StateDocument


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Exact counts of one queue, or of all queues of a tenant."""

    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    failed: int = 0
    bytes: int = 0
    oldest_ready_at: int | None = None
    # The number of these messages that are still to be moved from the legacy layout; None: there is nothing to move.
    legacy_left: int | None = None

    @classmethod
    def total(cls, every: Iterable["Counts"]) -> "Counts":
        """Return the sums of the counts of several queues."""
        each = list(every)
        return cls(
            ready=sum(counts.ready for counts in each),
            delayed=sum(counts.delayed for counts in each),
            in_flight=sum(counts.in_flight for counts in each),
            failed=sum(counts.failed for counts in each),
            bytes=sum(counts.bytes for counts in each),
            oldest_ready_at=min((c.oldest_ready_at for c in each if c.oldest_ready_at is not None), default=None),
            legacy_left=next((counts.legacy_left for counts in each if counts.legacy_left is not None), None),
        )

    def oldest_ready_age_ms(self, now_ms: int) -> int:
        """Return the age of the oldest ready message; 0 if there is none."""
        return 0 if self.oldest_ready_at is None else max(0, now_ms - self.oldest_ready_at)


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a queue, its waiting claims and its condition."""

    ready: int
    delayed: int
    in_flight: int
    failed: int
    bytes: int
    oldest_ready_age_ms: int
    waiters: int
    paused: bool
    draining: bool
    # The number of the ready and delayed messages that are still to be moved from the legacy layout. Present only while
    # there are any to move.
    legacy_left: int | msgspec.UnsetType = msgspec.UNSET


class QueueSummary(Stats, frozen=True, kw_only=True):
    """A queue in a listing."""

    queue: str


class TenantSummary(TenantConfig, frozen=True, kw_only=True):
    """A tenant in a listing."""

    tenant: str


class NumberedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The name and the number of a queue."""

    queue: str
    queue_id: int


class NumberedTenant(msgspec.Struct, frozen=True, kw_only=True):
    """The name and the number of a tenant, and those of its queues."""

    tenant: str
    tenant_id: int
    queues: list[NumberedQueue]


class Access(StrEnum):
    """The kinds of access to stored keys."""

    READ = "read"
    WRITE = "write"


class HotQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's share, from 0 to 1, of the recent reads or writes of one column family, estimated from samples."""

    family: str
    access: Access
    tenant: str
    queue: str
    share: float


class BulkResult(msgspec.Struct, frozen=True):
    """The result of a bulk verb: the number of messages that matched, and of those that it changed."""

    matched: int
    changed: int

    @property
    def redriven(self) -> int:
        """Return `changed`, under the name that a redrive has for it."""
        return self.changed


class QueueDetail(NamedTuple):
    """A queue as a look-up shows it: its counts and its policy."""

    stats: Stats
    policy: QueuePolicy


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The result of saving state: the ETag of the document, or None if there is no document."""

    etag: str | None
    # The message's correlation id. None: an older server, or one that is called over HTTP, does not say it in the body.
    correlation_id: str | None = None


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of removing one message: its correlation id, or None if it is not known."""

    correlation_id: str | None = None


class Page(list[T], Generic[T]):
    """One page of a listing. Give `cursor` to get the next page; it is None on the last one."""

    cursor: str | None = None


class JournalEvents(list[JournalEvent]):
    """Journal events in order. `next` is the position after them, from which to read on."""

    next: str = ""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One numbered claim of a consumer that is still open."""

    number: int
    claimed_at: int
    deliveries: list[Delivery]
    # The number of messages that were claimed under this number, but whose leases have been lost since.
    lost: int = 0
