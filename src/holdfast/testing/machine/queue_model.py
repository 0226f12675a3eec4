"""A model of a queue: SPEC 2 and 3 in the simplest form, with dicts and lists.

It is slow and serves one caller. It shares no code with the stores or with the transition table, so that a mistake
there is not repeated here. `holdfast.testing.machine` compares every store with it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

Ref = tuple[str, str]

DEFAULT_POLICY: dict[str, Any] = {
    "lease_ms": 5_000,
    "max_lease_ms": 12 * 3_600_000,
    "max_retries": 3,
    "backoff_base_ms": 500,
    "backoff_cap_ms": 30_000,
    "ttl_ms": None,
    "on_ttl": "dead_letter",
    "dedup_window_ms": 24 * 3_600_000,
    "keep_succeeded_ms": 0,
}


@dataclass(slots=True)
class ModelMessage:
    """A stored message of the model."""

    id: int
    ref: Ref
    payload: bytes
    enqueued_at: int
    visible_at: int
    priority: int = 100
    headers: dict[str, str] = field(default_factory=dict)
    group: str | None = None
    correlation_id: str | None = None
    ttl_ms: int | None = None
    max_retries: int | None = None
    expires_at: int | None = None
    state: str = "ready"
    attempt: int = 0
    failures: int = 0
    expiries: int = 0
    releases: int = 0
    version: int = 0
    error: str | None = None
    reason: str | None = None
    settled_at: int | None = None
    kept_until: int | None = None
    # The current lease, if the message is in flight.
    receipt: str | None = None
    lease_expires_at: int = 0
    lease_ends_at: int = 0
    document: Any = None
    etag: str | None = None
    progress: float | None = None

    @property
    def bytes(self) -> int:
        return len(self.payload) + sum(len(name) + len(value) for name, value in self.headers.items())

    def is_over(self, now: int) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def is_expired(self, now: int) -> bool:
        return self.state == "in_flight" and now >= self.lease_expires_at


class ModelOutcome(NamedTuple):
    """The result of a verdict in the model."""

    ok: bool
    state: str | None = None
    retry_at: int | None = None
    lease_expires_at: int | None = None


class QueueModel:
    """A model of all queues of all tenants. `roll` is the random number, from 0 to 1, that scales every backoff."""

    def __init__(self, refs: Iterable[Ref], roll: float) -> None:
        self.roll = roll
        self.policies = {ref: dict(DEFAULT_POLICY) for ref in refs}
        self.paused: set[Ref] = set()
        self.records: dict[int, ModelMessage] = {}
        # By (queue, key): the id of the first message, and the end of the deduplication window.
        self.keys: dict[tuple[Ref, str], tuple[int, int]] = {}
        self.correlation_ids: dict[int, str | None] = {}
        # By the id of every message seen so far: (event, queue, time, attempt, reason if it failed).
        self.events: dict[int, list[tuple[str, Ref, int, int, str | None]]] = {}

    def messages_of(self, ref: Ref, state: str | None = None) -> list[ModelMessage]:
        return [r for _, r in sorted(self.records.items()) if r.ref == ref and state in (None, r.state)]

    def instants(self, now: int) -> list[int]:
        """Return the later instants at which something changes only because time passes, in order."""
        every = [ends_at for _, ends_at in self.keys.values()]
        for r in self.records.values():
            every += [r.visible_at, r.lease_expires_at, r.expires_at or 0, r.kept_until or 0]
        return sorted({at for at in every if at > now})

    # --- Enqueue and claim ---------------------------------------------------------------------------------------

    def first_of(self, ref: Ref, key: str | None, now: int) -> int | None:
        """Return the id of the message that has this key, or None if an enqueue with it creates a message."""
        id, ends_at = self.keys.get((ref, key), (None, 0)) if key is not None else (None, 0)
        return id if now < ends_at else None

    def enqueue(self, ref: Ref, id: int, given: dict[str, Any], now: int) -> None:
        options = dict(given)
        key, delay_ms = options.pop("key", None), options.pop("delay_ms", 0)
        record = ModelMessage(id=id, ref=ref, enqueued_at=now, visible_at=now + delay_ms, **options)
        self._start_ttl(record, now)
        self.records[id] = record
        self.correlation_ids[id] = record.correlation_id
        self.events[id] = []
        self._log(record, "enqueued", now)
        if key is not None:
            self.keys[ref, key] = (id, now + self.policies[ref]["dedup_window_ms"])

    def due(self, ref: Ref, now: int) -> list[ModelMessage]:
        """Return the messages that claims would take, in order. Messages past their TTL are left out, swept or not."""
        ready = [r for r in self.messages_of(ref, "ready") if not r.is_over(now)]
        batches = [[r] for r in ready if r.group is None]
        busy = {r.group for r in self.messages_of(ref, "in_flight")}
        waiting = {r.group for r in ready} - busy - {None}
        batches += [[r for r in ready if r.group == group] for group in waiting]
        batches = [list(takewhile(lambda r: r.visible_at <= now, batch)) for batch in batches]
        # The first message of a group's batch decides the position of the batch.
        batches = sorted((b for b in batches if b), key=lambda b: (b[0].priority, b[0].visible_at, b[0].id))
        return [r for batch in batches for r in batch]

    def claim(self, ref: Ref, limit: int, lease_ms: int | None, now: int) -> list[ModelMessage]:
        self._return_expired(ref, now)
        taken = [] if ref in self.paused else self.due(ref, now)[:limit]
        policy = self.policies[ref]
        for r in taken:
            r.state, r.reason = "in_flight", None
            r.attempt += 1
            r.version += 1
            r.lease_ends_at = now + policy["max_lease_ms"]
            r.lease_expires_at = min(now + (lease_ms or policy["lease_ms"]), r.lease_ends_at)
            self._log(r, "claimed", now)
        return taken

    # --- Verdicts ------------------------------------------------------------------------------------------------

    def held_by(self, ref: Ref, receipt: str, now: int) -> ModelMessage | None:
        for r in self.records.values():
            if r.receipt == receipt and r.ref == ref and r.state == "in_flight" and now < r.lease_expires_at:
                return r
        return None

    def ack(self, r: ModelMessage, now: int) -> ModelOutcome:
        self._leave(r, "succeeded")
        self._log(r, "succeeded", now)
        r.settled_at = now
        r.kept_until = now + self.policies[r.ref]["keep_succeeded_ms"]
        if r.kept_until == now:
            del self.records[r.id]
        return ModelOutcome(True, "succeeded")

    def nack(self, r: ModelMessage, now: int, error: str | None, delay_ms: int | None, final: bool) -> ModelOutcome:
        r.failures += 1
        r.error = error
        if final:
            return self._fail(r, "final", now)
        if r.is_over(now):
            return self.end_by_ttl(r, now)
        if self._budget_left(r) < 0:
            return self._fail(r, "retries", now)
        if delay_ms is None:
            policy, retry = self.policies[r.ref], r.failures + r.expiries - 1
            delay_ms = int(self.roll * min(policy["backoff_base_ms"] * 2**retry, policy["backoff_cap_ms"]))
        return self._return(r, "retried", now + delay_ms, now)

    def defer(self, r: ModelMessage, now: int, error: str | None, delay_ms: int | None) -> ModelOutcome:
        r.error = error or r.error
        return self.end_by_ttl(r, now) if r.is_over(now) else self._return(r, "released", now + (delay_ms or 0), now)

    def release(self, r: ModelMessage, now: int) -> ModelOutcome:
        r.releases += 1
        return self.end_by_ttl(r, now) if r.is_over(now) else self._return(r, "released", r.visible_at, now)

    def extend(self, r: ModelMessage, now: int, lease_ms: int | None) -> ModelOutcome:
        r.lease_expires_at = min(now + (lease_ms or self.policies[r.ref]["lease_ms"]), r.lease_ends_at)
        self._log(r, "extended", now)
        return ModelOutcome(True, "in_flight", lease_expires_at=r.lease_expires_at)

    # --- Time ----------------------------------------------------------------------------------------------------

    def sweep(self, now: int) -> None:
        for ref in self.policies:
            self._return_expired(ref, now)
        for r in list(self.records.values()):
            if r.state == "ready" and r.is_over(now):
                self.end_by_ttl(r, now)
            elif r.state == "succeeded" and r.kept_until is not None and now >= r.kept_until:
                del self.records[r.id]

    def end_by_ttl(self, r: ModelMessage, now: int) -> ModelOutcome:
        if self.policies[r.ref]["on_ttl"] == "drop":
            self.remove(r, now)
            return ModelOutcome(True, None)
        return self._fail(r, "ttl", now)

    def _return_expired(self, ref: Ref, now: int) -> None:
        for r in self.messages_of(ref, "in_flight"):
            if not r.is_expired(now):
                continue
            r.expiries += 1
            if r.is_over(now):
                self.end_by_ttl(r, now)
            elif self._budget_left(r) < 0:
                self._fail(r, "lease_expired", now)
            else:
                self._return(r, "expired", r.lease_expires_at, now)

    # --- Operators -----------------------------------------------------------------------------------------------

    def select(self, ref: Ref, state: str, which: dict[str, Any], now: int) -> list[ModelMessage]:
        return [
            r
            for r in self.messages_of(ref, state)
            if r.id in which.get("ids", {r.id})
            and which.get("error_contains", "") in (r.error or "")
            and now - r.enqueued_at >= which.get("older_than_ms", 0)
            and which.get("priority", r.priority) == r.priority
            and which.get("headers", {}).items() <= r.headers.items()
        ]

    def remove(self, r: ModelMessage, now: int) -> None:
        self._log(r, "removed", now)
        del self.records[r.id]

    def move(self, r: ModelMessage, to: Ref, now: int) -> None:
        self._log(r, "moved", now)
        r.ref = to
        self._log(r, "moved", now)

    def redrive(self, r: ModelMessage, now: int) -> None:
        r.failures = r.expiries = 0
        r.settled_at = None
        self._start_ttl(r, now)
        self._return(r, "redriven", now, now)

    # --- Steps ---------------------------------------------------------------------------------------------------

    def _start_ttl(self, r: ModelMessage, now: int) -> None:
        ttl_ms = self.policies[r.ref]["ttl_ms"] if r.ttl_ms is None else r.ttl_ms
        r.expires_at = None if ttl_ms is None else now + ttl_ms

    def _budget_left(self, r: ModelMessage) -> int:
        allowed: int = self.policies[r.ref]["max_retries"] if r.max_retries is None else r.max_retries
        return allowed - r.failures - r.expiries

    def _return(self, r: ModelMessage, event: str, visible_at: int, now: int) -> ModelOutcome:
        self._leave(r, "ready")
        r.visible_at = visible_at
        self._log(r, event, now)
        return ModelOutcome(True, "ready", retry_at=visible_at)

    def _fail(self, r: ModelMessage, reason: str, now: int) -> ModelOutcome:
        self._leave(r, "failed")
        r.reason, r.settled_at = reason, now
        self._log(r, "failed", now)
        return ModelOutcome(True, "failed")

    def _leave(self, r: ModelMessage, state: str) -> None:
        r.state, r.reason, r.receipt, r.lease_expires_at = state, None, None, 0

    def _log(self, r: ModelMessage, event: str, now: int) -> None:
        self.events[r.id].append((event, r.ref, now, r.attempt, r.reason))
