"""What a queue answers."""

from collections.abc import Iterable
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
    duplicate: bool = False


class Delivery(AboutMessage, frozen=True, kw_only=True, gc=False):
    """A message in the hands of the caller that claimed it."""

    receipt: Receipt
    payload: bytes
    # Where the payload is, for a claim that asked to read it bit by bit: `payload` is then empty.
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
        return len(self.payload) if self.pieces is None else self.pieces.size


class Result(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of one verdict. `error` is a code; the other fields are of the message after it."""

    snowflake: int
    ok: bool
    given_correlation_id: str | None = None
    # False: the message is gone, and its correlation id with it.
    is_known: bool = True
    error: str | None = None
    state: State | None = None
    retry_at: int | None = None
    lease_expires_at: int | None = None
    # Refused as stale, but an earlier try of the same call went unanswered and may have been what settled it.
    is_unsure: bool = False

    @property
    def id(self) -> str:
        return to_uuid(self.snowflake)

    @property
    def correlation_id(self) -> str | None:
        return (self.given_correlation_id or self.id) if self.is_known else None

    @property
    def is_stale(self) -> bool:
        """The receipt no longer holds the message: no repetition of the verdict can succeed."""
        return self.error == StaleLease.code

    @property
    def is_retryable(self) -> bool:
        """The verdict could not be carried out, but its lease stands: sending it again may succeed."""
        return self.error is not None and issubclass(ERRORS_BY_CODE.get(self.error, Internal), Unavailable)

    def failure(self, **facts: object) -> HoldfastError:
        """Return the error of a verdict that was not carried out, as the class that its code names."""
        if not self.is_stale:
            kind = ERRORS_BY_CODE.get(self.error or "", Internal)
            advice = "; the lease still stands, so try again" if self.is_retryable else ""
            return kind(f"the verdict on {self.id} was not carried out ({self.error}){advice}", id=self.id, **facts)
        first_try = " (perhaps by the first try of this very call, which went unanswered)" if self.is_unsure else ""
        return StaleLease(
            f"the lease on {self.id} is no longer held by this receipt: it ran out, or the message was settled"
            f"{first_try}, claimed again or removed",
            id=self.id,
            is_unsure=self.is_unsure,
            **facts,
        )


class Exchanged(NamedTuple):
    """What became of the verdicts that rode on a claim, and what the claim took."""

    results: list[Result]
    deliveries: list[Delivery]


class PayloadPart(NamedTuple):
    """Some bytes of a payload, of `total` in all."""

    data: bytes
    total: int
    correlation_id: str


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """A message looked up: everything but the receipt; the payload where it was asked for."""

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
    # When the current lease began: extending it does not change this. None from a server that is older.
    claimed_at: int | None = None
    settled_at: int | None
    expires_at: int | None
    progress: Progress | None
    payload: bytes | None
    is_json: bool = False
    bytes: int


class Found(msgspec.Struct, frozen=True):
    """A stored message as inspection reads it. A payload that lies in pieces is left there."""

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

    @classmethod
    def total(cls, every: Iterable["Counts"]) -> "Counts":
        """The counts of several queues together."""
        each = list(every)
        return cls(
            ready=sum(counts.ready for counts in each),
            delayed=sum(counts.delayed for counts in each),
            in_flight=sum(counts.in_flight for counts in each),
            failed=sum(counts.failed for counts in each),
            bytes=sum(counts.bytes for counts in each),
            oldest_ready_at=min((c.oldest_ready_at for c in each if c.oldest_ready_at is not None), default=None),
        )

    def oldest_ready_age_ms(self, now_ms: int) -> int:
        return 0 if self.oldest_ready_at is None else max(0, now_ms - self.oldest_ready_at)


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    ready: int
    delayed: int
    in_flight: int
    failed: int
    bytes: int
    oldest_ready_age_ms: int
    waiters: int
    paused: bool
    draining: bool


class QueueSummary(Stats, frozen=True, kw_only=True):
    queue: str


class TenantSummary(TenantConfig, frozen=True, kw_only=True):
    tenant: str


class BulkResult(msgspec.Struct, frozen=True):
    """What a bulk verb did: how many it meant, how many it changed."""

    matched: int
    changed: int

    @property
    def redriven(self) -> int:
        return self.changed


class QueueDetail(NamedTuple):
    """A queue looked up: its counts and its policy."""

    stats: Stats
    policy: QueuePolicy


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The ETag of a state document after a save; None while there is no document."""

    etag: str | None


class Page(list[T], Generic[T]):
    """One page of a listing; `cursor` asks for the next, None at the end."""

    cursor: str | None = None


class JournalEvents(list[JournalEvent]):
    """Journal events in order; `next` is the position after them, to ask for more."""

    next: str = ""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One numbered claim of a consumer that is still open."""

    number: int
    claimed_at: int
    deliveries: list[Delivery]
    # Claimed under this number, but their leases are no longer held by it.
    lost: int = 0
