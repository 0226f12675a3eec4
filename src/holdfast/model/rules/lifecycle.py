"""The rules of a leased message (SPEC 2): the transition table as data, and the arithmetic around it.

`TRANSITIONS` is the whole of what may happen. Each function below takes one step along it: it is given the
message's `Life`, the time and the dice, and answers the `Change`. Stores keep the answer; they decide nothing.
"""

from collections.abc import Sequence
from enum import StrEnum
from hmac import compare_digest
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.model.errors import Internal
from holdfast.model.events import Event
from holdfast.model.message import DEFAULT_PRIORITY, MAX_ERROR, Draft, Envelope, Receipt, State
from holdfast.model.policy import OnTtl, QueuePolicy
from holdfast.model.rules.retry import backoff_ms


class Cause(StrEnum):
    """Why a message changes."""

    # The text's own: Enum's is written in Python, and these are keys on the hot path.
    __hash__ = str.__hash__

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    EXTEND = "extend"
    ACK = "ack"
    NACK = "nack, retries left"
    NACK_LAST = "nack, none left"
    NACK_FINAL = "nack, final"
    DEFER = "defer"
    RELEASE = "release"
    UNSENT = "claimed for a caller that left"
    EXPIRE = "lease ran out, retries left"
    EXPIRE_LAST = "lease ran out, none left"
    TTL = "TTL ran out"
    TTL_DROP = "TTL ran out, policy drops"
    REDRIVE = "redrive"
    MOVE = "move"
    REPRIORITISE = "reprioritise"
    REMOVE = "remove, cancel, purge"


class Step(NamedTuple):
    state: State | None  # None: gone
    event: Event | None  # None: no transition, so nothing for the journal


TRANSITIONS: dict[tuple[State | None, Cause], Step] = {
    (None, Cause.ENQUEUE): Step(State.READY, Event.ENQUEUED),
    (State.READY, Cause.CLAIM): Step(State.IN_FLIGHT, Event.CLAIMED),
    (State.READY, Cause.TTL): Step(State.FAILED, Event.FAILED),
    (State.READY, Cause.TTL_DROP): Step(None, Event.REMOVED),
    (State.READY, Cause.MOVE): Step(State.READY, Event.MOVED),
    (State.READY, Cause.REPRIORITISE): Step(State.READY, None),
    (State.READY, Cause.REMOVE): Step(None, Event.REMOVED),
    (State.IN_FLIGHT, Cause.EXTEND): Step(State.IN_FLIGHT, Event.EXTENDED),
    (State.IN_FLIGHT, Cause.ACK): Step(State.SUCCEEDED, Event.SUCCEEDED),
    (State.IN_FLIGHT, Cause.NACK): Step(State.READY, Event.RETRIED),
    (State.IN_FLIGHT, Cause.NACK_LAST): Step(State.FAILED, Event.FAILED),
    (State.IN_FLIGHT, Cause.NACK_FINAL): Step(State.FAILED, Event.FAILED),
    (State.IN_FLIGHT, Cause.DEFER): Step(State.READY, Event.RELEASED),
    (State.IN_FLIGHT, Cause.RELEASE): Step(State.READY, Event.RELEASED),
    (State.IN_FLIGHT, Cause.UNSENT): Step(State.READY, Event.RELEASED),
    (State.IN_FLIGHT, Cause.EXPIRE): Step(State.READY, Event.EXPIRED),
    (State.IN_FLIGHT, Cause.EXPIRE_LAST): Step(State.FAILED, Event.FAILED),
    (State.IN_FLIGHT, Cause.TTL): Step(State.FAILED, Event.FAILED),
    (State.IN_FLIGHT, Cause.TTL_DROP): Step(None, Event.REMOVED),
    (State.IN_FLIGHT, Cause.REMOVE): Step(None, Event.REMOVED),
    (State.FAILED, Cause.REDRIVE): Step(State.READY, Event.REDRIVEN),
    (State.FAILED, Cause.MOVE): Step(State.FAILED, Event.MOVED),
    (State.FAILED, Cause.REMOVE): Step(None, Event.REMOVED),
    (State.SUCCEEDED, Cause.REMOVE): Step(None, Event.REMOVED),
}


# Read once for the steps of every message: Python 3.11 finds a member in its class by a slow way, and it shows.
_CLAIM, _ACK = Cause.CLAIM, Cause.ACK
_READY, _IN_FLIGHT, _SUCCEEDED = State.READY, State.IN_FLIGHT, State.SUCCEEDED
_CLAIMED, _ACKED = TRANSITIONS[_READY, _CLAIM], TRANSITIONS[_IN_FLIGHT, _ACK]


class Lease(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    token: bytes
    claimed_at: int
    expires_at: int
    # However often it is extended, the lease ends here (max_lease).
    ends_at: int
    owner: str | None = None
    # Set when the claim stands in a consumer's ledger: (consumer, number).
    ledger: tuple[str, int] | None = None


class Life(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What of a message changes."""

    state: State = State.READY
    priority: int = DEFAULT_PRIORITY
    # Of a Ready message: claimable from then on. In flight it is kept, so that a release keeps its place.
    visible_at: int = 0
    # The TTL's end; None: never.
    expires_at: int | None = None
    attempt: int = 0
    failures: int = 0
    expiries: int = 0
    releases: int = 0
    version: int = 0
    lease: Lease | None = None
    error: str | None = None
    reason: str | None = None
    # When it entered Succeeded or Failed.
    settled_at: int | None = None
    # Of a Succeeded message: when its record goes; None: at once.
    keep_until: int | None = None

    @property
    def is_gone(self) -> bool:
        """Succeeded, and nothing of it is kept."""
        return self.state is _SUCCEEDED and self.keep_until is None


class Change(NamedTuple):
    """One step of a message: its life after it (None: gone) and what the journal says of it."""

    life: Life | None
    event: Event | None
    reason: str | None = None
    error: str | None = None


# Makes a `Change` in half the time of a call of the class.
_change = tuple.__new__


def holds(life: Life, receipt: Receipt, now_ms: int) -> bool:
    """The fencing rule: this receipt is of the message's current lease, and that has not run out."""
    lease = life.lease
    return (
        lease is not None
        and now_ms < lease.expires_at
        and life.version == receipt.version
        and compare_digest(lease.token, receipt.token)
    )


def is_over(life: Life, now_ms: int) -> bool:
    """Its TTL has run out."""
    return life.expires_at is not None and life.expires_at <= now_ms


def first_life(draft: Draft, default_ttl_ms: int | None, now_ms: int) -> Life:
    ttl_ms = default_ttl_ms if draft.ttl_ms is None else draft.ttl_ms
    return Life(
        state=State.READY,
        priority=draft.priority,
        visible_at=now_ms + draft.delay_ms if draft.deliver_at is None else max(now_ms, draft.deliver_at),
        expires_at=None if ttl_ms is None else now_ms + ttl_ms,
    )


def claim(
    life: Life,
    policy: QueuePolicy,
    now_ms: int,
    *,
    token: bytes,
    lease_ms: int | None,
    owner: str | None = None,
    ledger: tuple[str, int] | None = None,
    version_floor: int = 0,
) -> Change:
    """`version_floor` is for a store that may have lost claims in a crash: the new version is above it."""
    [change] = claim_all(
        [life], policy, now_ms, tokens=[token], lease_ms=lease_ms, owner=owner, ledger=ledger, floors=[version_floor]
    )
    return change


def claim_all(
    lives: Sequence[Life],
    policy: QueuePolicy,
    now_ms: int,
    *,
    tokens: Sequence[bytes],
    lease_ms: int | None,
    owner: str | None,
    ledger: tuple[str, int] | None,
    floors: Sequence[int],
) -> list[Change]:
    """Claim several messages for one caller. `floors` are the version floors, as `claim` has one."""
    ends_at = now_ms + policy.max_lease_ms
    expires_at = now_ms + (policy.lease_ms if lease_ms is None else lease_ms)
    if expires_at > ends_at:
        expires_at = ends_at
    changes: list[Change] = []
    for life, token, floor in zip(lives, tokens, floors, strict=True):
        state, event = _CLAIMED if life.state is _READY else _step(life.state, _CLAIM)
        lease = Lease(
            token=token, claimed_at=now_ms, expires_at=expires_at, ends_at=ends_at, owner=owner, ledger=ledger
        )
        version = life.version
        after = replace(
            life,
            state=state,
            reason=None,
            lease=lease,
            attempt=life.attempt + 1,
            version=(version if version > floor else floor) + 1,
        )
        changes.append(_change(Change, (after, event, None, None)))
    return changes


def extend(life: Life, policy: QueuePolicy, now_ms: int, lease_ms: int | None) -> Change:
    """Expiry = now + lease, which may shorten it; never past what max_lease allows in all."""
    lease = _lease_of(life)
    expires_at = min(now_ms + (policy.lease_ms if lease_ms is None else lease_ms), lease.ends_at)
    return _to(life, Cause.EXTEND, lease=replace(lease, expires_at=expires_at))


def ack(life: Life, policy: QueuePolicy, now_ms: int) -> Change:
    """Succeeded, and kept for look-up where the policy says so."""
    step = _ACKED if life.state is _IN_FLIGHT else _step(life.state, _ACK)
    keep_ms = policy.keep_succeeded_ms
    keep_until = now_ms + keep_ms if keep_ms else None
    after = replace(life, state=step.state, reason=None, lease=None, settled_at=now_ms, keep_until=keep_until)
    return _change(Change, (after, step.event, None, None))


def nack(
    life: Life,
    envelope: Envelope,
    policy: QueuePolicy,
    now_ms: int,
    *,
    error: str | None,
    delay_ms: int | None,
    final: bool,
    exhausted: bool = False,
    roll: float,
) -> Change:
    error = error[:MAX_ERROR] if error else None
    failures = life.failures + 1
    if exhausted:
        return _to(life, Cause.NACK_LAST, failures=failures, **_dead(now_ms, "retries", error))
    if final:
        return _to(life, Cause.NACK_FINAL, failures=failures, **_dead(now_ms, "final", error))
    if is_over(life, now_ms):
        return _end_by_ttl(life, policy, now_ms, failures=failures, error=error)
    used = failures + life.expiries
    if used > budget(envelope, policy):
        return _to(life, Cause.NACK_LAST, failures=failures, **_dead(now_ms, "retries", error))
    if delay_ms is None:
        delay_ms = backoff_ms(used - 1, policy.backoff_base_ms, policy.backoff_cap_ms, roll)
    return _to(life, Cause.NACK, lease=None, failures=failures, error=error, visible_at=now_ms + delay_ms)


def defer(life: Life, policy: QueuePolicy, now_ms: int, *, error: str | None, delay_ms: int | None) -> Change:
    """Given back for later without using the retry budget."""
    error = error[:MAX_ERROR] if error else life.error
    if is_over(life, now_ms):
        return _end_by_ttl(life, policy, now_ms, error=error)
    return _to(life, Cause.DEFER, reason="defer", lease=None, error=error, visible_at=now_ms + (delay_ms or 0))


def release(life: Life, policy: QueuePolicy, now_ms: int) -> Change:
    """Given back uncounted, in its old place."""
    if is_over(life, now_ms):
        return _end_by_ttl(life, policy, now_ms, releases=life.releases + 1, error=life.error)
    return _to(life, Cause.RELEASE, lease=None, releases=life.releases + 1)


def unsend(life: Life, policy: QueuePolicy, now_ms: int) -> Change:
    """A claim whose caller left before it was told: as if it had not been, but the version never goes back."""
    if is_over(life, now_ms):
        return _end_by_ttl(life, policy, now_ms, attempt=life.attempt - 1, error=life.error)
    return _to(life, Cause.UNSENT, reason="unsent", lease=None, attempt=life.attempt - 1)


def expire(life: Life, envelope: Envelope, policy: QueuePolicy, now_ms: int) -> Change:
    """The lease ran out: claimable again as of its expiry, unless the retry budget or the TTL is used up."""
    lease = _lease_of(life)
    expiries = life.expiries + 1
    if is_over(life, now_ms):
        return _end_by_ttl(life, policy, now_ms, expiries=expiries, error=life.error)
    if life.failures + expiries > budget(envelope, policy):
        return _to(life, Cause.EXPIRE_LAST, expiries=expiries, **_dead(now_ms, "lease_expired", life.error))
    return _to(life, Cause.EXPIRE, lease=None, expiries=expiries, visible_at=lease.expires_at)


def end_by_ttl(life: Life, policy: QueuePolicy, now_ms: int) -> Change:
    """A Ready message's TTL ran out: to the dead letters, or dropped where the policy says so."""
    return _end_by_ttl(life, policy, now_ms, error=life.error)


def redrive(life: Life, envelope: Envelope, default_ttl_ms: int | None, now_ms: int) -> Change:
    """Out of the dead letters with a fresh retry budget and TTL; attempt and version go on."""
    ttl_ms = default_ttl_ms if envelope.ttl_ms is None else envelope.ttl_ms
    return _to(
        life,
        Cause.REDRIVE,
        visible_at=now_ms,
        expires_at=None if ttl_ms is None else now_ms + ttl_ms,
        failures=0,
        expiries=0,
        settled_at=None,
    )


def move(life: Life) -> Change:
    return _to(life, Cause.MOVE, reason=life.reason)


def reprioritise(life: Life, priority: int) -> Change:
    return _to(life, Cause.REPRIORITISE, priority=priority)


def remove(life: Life, reason: str) -> Change:
    step = _step(life.state, Cause.REMOVE)
    return Change(None, step.event, reason)


def budget(envelope: Envelope, policy: QueuePolicy) -> int:
    return policy.max_retries if envelope.max_retries is None else envelope.max_retries


def _end_by_ttl(life: Life, policy: QueuePolicy, now_ms: int, error: str | None, **counted: Any) -> Change:
    if policy.on_ttl is OnTtl.DROP:
        return Change(None, _step(life.state, Cause.TTL_DROP).event, "ttl", error)
    return _to(life, Cause.TTL, **counted, **_dead(now_ms, "ttl", error))


def _dead(now_ms: int, reason: str, error: str | None) -> dict[str, Any]:
    return {"lease": None, "settled_at": now_ms, "reason": reason, "error": error}


def _to(life: Life, cause: Cause, reason: str | None = None, **changes: Any) -> Change:
    step = _step(life.state, cause)
    after = replace(life, state=step.state, reason=reason, **changes)
    return Change(after, step.event, reason, changes.get("error"))


_STEPS: dict[Cause, dict[State | None, Step]] = {
    cause: {state: step for (state, of), step in TRANSITIONS.items() if of is cause} for cause in Cause
}


def _step(state: State | None, cause: Cause) -> Step:
    step = _STEPS[cause].get(state)
    if step is None:
        raise Internal(f"no transition from {state} by {cause.value}")
    return step


def _lease_of(life: Life) -> Lease:
    if life.lease is None:
        raise Internal(f"a {life.state} message has no lease")
    return life.lease
