"""The life cycle of a message (SPEC 2), with a function for each transition.

`transitions.py` has the table of the allowed transitions. Each function here makes one of them: it takes the `Life` of
a message and the time, and returns the `Change`. Stores save the change; they decide nothing.
"""

from collections.abc import Sequence
from hmac import compare_digest
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.model.errors import Internal
from holdfast.model.events import Event
from holdfast.model.message import DEFAULT_PRIORITY, MAX_ERROR, Draft, Envelope, Receipt, State
from holdfast.model.policy import OnTtl, QueuePolicy
from holdfast.model.rules.retry import backoff_ms
from holdfast.model.rules.transitions import TRANSITIONS, Cause, find_step

# Python 3.11 is slow to look a member up in its enum class, and every message takes these steps. So they are looked up
# once.
_CLAIM, _ACK = Cause.CLAIM, Cause.ACK
_READY, _IN_FLIGHT, _SUCCEEDED = State.READY, State.IN_FLIGHT, State.SUCCEEDED
_CLAIMED, _ACKED = TRANSITIONS[_READY, _CLAIM], TRANSITIONS[_IN_FLIGHT, _ACK]


class Lease(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The lease of a message in flight."""

    token: bytes
    claimed_at: int
    expires_at: int
    # The latest end of the lease, however often it is extended (`max_lease_ms`).
    ends_at: int
    owner: str | None = None
    # The consumer and the number of the claim, if it is in a claim ledger.
    ledger: tuple[str, int] | None = None


class Life(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The part of a stored message that its transitions change."""

    state: State = State.READY
    priority: int = DEFAULT_PRIORITY
    # The instant from which a ready message can be claimed. A claim keeps it, so that a release returns the message to
    # its former position in the queue.
    visible_at: int = 0
    # The end of the TTL; None: never.
    expires_at: int | None = None
    attempt: int = 0
    failures: int = 0
    expiries: int = 0
    releases: int = 0
    version: int = 0
    lease: Lease | None = None
    error: str | None = None
    reason: str | None = None
    # The instant at which the message succeeded or failed.
    settled_at: int | None = None
    # The instant at which the record of a succeeded message is removed; None: at once.
    keep_until: int | None = None

    @property
    def is_gone(self) -> bool:
        """Return whether the message succeeded and its record is not kept."""
        return self.state is _SUCCEEDED and self.keep_until is None


class Change(NamedTuple):
    """One transition of a message: its new life (None: the message is removed) and the fields of the journal event."""

    life: Life | None
    event: Event | None
    reason: str | None = None
    error: str | None = None


# Makes a `Change` in half the time of calling the class.
_change = tuple.__new__


def holds(life: Life, receipt: Receipt, now_ms: int) -> bool:
    """Return whether a receipt is that of the current lease, and the lease has not expired. This is the fencing rule.

    The token is compared in constant time, so that response times do not help to guess it.
    """
    lease = life.lease
    return (
        lease is not None
        and now_ms < lease.expires_at
        and life.version == receipt.version
        and compare_digest(lease.token, receipt.token)
    )


def is_over(life: Life, now_ms: int) -> bool:
    """Return whether the TTL of the message has ended."""
    return life.expires_at is not None and life.expires_at <= now_ms


def first_life(draft: Draft, default_ttl_ms: int | None, now_ms: int) -> Life:
    """Return the life of a new message. `default_ttl_ms` is that of the queue, for a draft without a TTL."""
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
    """Claim one ready message.

    The new version is above `version_floor`. A store that may have lost claims in a crash gives a floor above the
    versions of those claims.
    """
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
    """Claim several messages for one caller, each with a token and a version floor of its own."""
    ends_at = now_ms + policy.max_lease_ms
    expires_at = now_ms + (policy.lease_ms if lease_ms is None else lease_ms)
    if expires_at > ends_at:
        expires_at = ends_at
    changes: list[Change] = []
    for life, token, floor in zip(lives, tokens, floors, strict=True):
        state, event = _CLAIMED if life.state is _READY else find_step(life.state, _CLAIM)
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
    """Set the expiry of the lease to now plus `lease_ms`, which may shorten it, but not beyond `Lease.ends_at`."""
    lease = _lease_of(life)
    expires_at = min(now_ms + (policy.lease_ms if lease_ms is None else lease_ms), lease.ends_at)
    return _to(life, Cause.EXTEND, lease=replace(lease, expires_at=expires_at))


def ack(life: Life, policy: QueuePolicy, now_ms: int) -> Change:
    """Finish a message. Its record is kept for look-ups if the policy says so."""
    step = _ACKED if life.state is _IN_FLIGHT else find_step(life.state, _ACK)
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
    """Fail one attempt: the message is retried later, or becomes a dead letter.

    Args:
        delay_ms: The delay before the retry; None: exponential with jitter.
        final: Do not retry.
        exhausted: Do not retry, because the caller's own retries are used up.
        roll: A random number in [0, 1), for the jitter.
    """
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
    """Return a message to the queue for later, without using up a retry."""
    error = error[:MAX_ERROR] if error else life.error
    if is_over(life, now_ms):
        return _end_by_ttl(life, policy, now_ms, error=error)
    return _to(life, Cause.DEFER, reason="defer", lease=None, error=error, visible_at=now_ms + (delay_ms or 0))


def release(life: Life, policy: QueuePolicy, now_ms: int) -> Change:
    """Return a message to its former position in the queue, without using up a retry."""
    if is_over(life, now_ms):
        return _end_by_ttl(life, policy, now_ms, releases=life.releases + 1, error=life.error)
    return _to(life, Cause.RELEASE, lease=None, releases=life.releases + 1)


def unsend(life: Life, policy: QueuePolicy, now_ms: int) -> Change:
    """Undo a claim whose caller left before the delivery was sent. The version stays, because it never decreases."""
    if is_over(life, now_ms):
        return _end_by_ttl(life, policy, now_ms, attempt=life.attempt - 1, error=life.error)
    return _to(life, Cause.UNSENT, reason="unsent", lease=None, attempt=life.attempt - 1)


def expire(life: Life, envelope: Envelope, policy: QueuePolicy, now_ms: int) -> Change:
    """End an expired lease. The message is ready as of the expiry, unless its retries or its TTL are used up."""
    lease = _lease_of(life)
    expiries = life.expiries + 1
    if is_over(life, now_ms):
        return _end_by_ttl(life, policy, now_ms, expiries=expiries, error=life.error)
    if life.failures + expiries > budget(envelope, policy):
        return _to(life, Cause.EXPIRE_LAST, expiries=expiries, **_dead(now_ms, "lease_expired", life.error))
    return _to(life, Cause.EXPIRE, lease=None, expiries=expiries, visible_at=lease.expires_at)


def end_by_ttl(life: Life, policy: QueuePolicy, now_ms: int) -> Change:
    """End a ready message whose TTL has ended. The policy says whether it becomes a dead letter or is removed."""
    return _end_by_ttl(life, policy, now_ms, error=life.error)


def redrive(life: Life, envelope: Envelope, default_ttl_ms: int | None, now_ms: int) -> Change:
    """Make a dead letter ready again with new retries and a new TTL. The attempt and the version continue."""
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
    """Move a message to another queue; its life stays the same."""
    return _to(life, Cause.MOVE, reason=life.reason)


def reprioritise(life: Life, priority: int) -> Change:
    """Give a ready message another priority."""
    return _to(life, Cause.REPRIORITISE, priority=priority)


def remove(life: Life, reason: str) -> Change:
    """Remove a message. `reason` is for the journal."""
    step = find_step(life.state, Cause.REMOVE)
    return Change(None, step.event, reason)


def budget(envelope: Envelope, policy: QueuePolicy) -> int:
    """Return the number of retries that a message may use."""
    return policy.max_retries if envelope.max_retries is None else envelope.max_retries


def _end_by_ttl(life: Life, policy: QueuePolicy, now_ms: int, error: str | None, **counted: Any) -> Change:
    if policy.on_ttl is OnTtl.DROP:
        return Change(None, find_step(life.state, Cause.TTL_DROP).event, "ttl", error)
    return _to(life, Cause.TTL, **counted, **_dead(now_ms, "ttl", error))


def _dead(now_ms: int, reason: str, error: str | None) -> dict[str, Any]:
    return {"lease": None, "settled_at": now_ms, "reason": reason, "error": error}


def _to(life: Life, cause: Cause, reason: str | None = None, **changes: Any) -> Change:
    step = find_step(life.state, cause)
    after = replace(life, state=step.state, reason=reason, **changes)
    return Change(after, step.event, reason, changes.get("error"))


def _lease_of(life: Life) -> Lease:
    if life.lease is None:
        raise Internal(f"a {life.state} message has no lease")
    return life.lease
