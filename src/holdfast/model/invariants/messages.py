"""The invariants of one message (SPEC 2): its id, its life with its lease and counts, and its options."""

from collections.abc import Iterator

from holdfast.model.ids import EPOCH_MS, MAX_ID
from holdfast.model.invariants.damage import DamageKind, Problem
from holdfast.model.message import MAX_RETRIES, State, normalise_correlation_id
from holdfast.model.rules.lifecycle import Lease, Life

TOKEN_BYTES = 16
# Ids may be ahead of the clock: it was set back, or many ids were taken in one millisecond. By more than this, no node
# has given them.
AHEAD_MS = 86_400_000


def check_id(id: int, now_ms: int) -> Iterator[Problem]:
    """Check that a node can have given this id by now."""
    if not 0 <= id <= MAX_ID or (id >> 22) + EPOCH_MS > now_ms + AHEAD_MS:
        yield Problem(DamageKind.ID_INVALID, f"its id {id} is above any that was given until now")


def check_life(life: Life) -> Iterator[Problem]:
    """Check the state of a message against its lease, its counts and its times."""
    if life.state is State.IN_FLIGHT and life.lease is None:
        yield Problem(DamageKind.LEASE_MISSING, "is in_flight, but has no lease")
    if life.lease is not None:
        if life.state is not State.IN_FLIGHT:
            yield Problem(DamageKind.LEASE_UNEXPECTED, f"is {life.state}, but has a lease")
        yield from check_lease(life.lease)
    yield from _check_counts(life)
    if not 0 <= life.priority <= 255:
        yield Problem(DamageKind.OPTION_INVALID, f"its priority is {life.priority}, which is not from 0 to 255")
    match life.state:
        case State.FAILED:
            if not life.reason:
                yield Problem(DamageKind.DEAD_LETTER_INVALID, "has failed without a reason")
            if life.settled_at is None:
                yield Problem(DamageKind.DEAD_LETTER_INVALID, "has failed, but not at any time")
        case State.SUCCEEDED:
            if life.keep_until is None:
                yield Problem(DamageKind.KEPT_INVALID, "has succeeded and must not be kept, but exists")
            if life.settled_at is None:
                yield Problem(DamageKind.KEPT_INVALID, "has succeeded, but not at any time")
        case State.READY | State.IN_FLIGHT:
            if life.keep_until is not None:
                yield Problem(DamageKind.KEPT_INVALID, f"is {life.state}, but would be removed as a kept success")


def check_lease(lease: Lease) -> Iterator[Problem]:
    """Check the token and the times of a lease. Its end may lie before its claim, because clocks are set back."""
    if len(lease.token) != TOKEN_BYTES:
        yield Problem(
            DamageKind.LEASE_INVALID, f"its lease has an invalid token: {len(lease.token)} bytes, not {TOKEN_BYTES}"
        )
    if lease.expires_at > lease.ends_at:
        yield Problem(
            DamageKind.LEASE_INVALID,
            f"its lease ends at {lease.expires_at}, after the latest end that it was granted, {lease.ends_at}",
        )


def _check_counts(life: Life) -> Iterator[Problem]:
    counts = (life.attempt, life.failures, life.expiries, life.releases, life.version)
    if min(counts) < 0:
        yield Problem(DamageKind.ATTEMPTS_INVALID, f"has a negative count: {counts}")
    if life.attempt > life.version:
        yield Problem(DamageKind.ATTEMPTS_INVALID, f"was claimed {life.attempt} times, but has version {life.version}")
    ended = life.failures + life.expiries + life.releases
    claimed = life.attempt - (life.state is State.IN_FLIGHT)
    if ended > claimed:
        yield Problem(
            DamageKind.ATTEMPTS_INVALID,
            f"{ended} attempts failed, expired or were released, but it was claimed only {life.attempt} times",
        )
    if life.state is State.IN_FLIGHT and not life.attempt:
        yield Problem(DamageKind.ATTEMPTS_INVALID, "is in_flight, but was never claimed")


def check_options(given: str | None, retries: int | None) -> Iterator[Problem]:
    """Check the options that a message was enqueued with: its correlation id and its maximum of retries."""
    if given is not None and normalise_correlation_id(given) != given:
        yield Problem(
            DamageKind.OPTION_INVALID, f"its correlation id {given[:80]!r} is not 1 to 128 visible characters"
        )
    if retries is not None and not 0 <= retries <= MAX_RETRIES:
        yield Problem(DamageKind.OPTION_INVALID, f"its max_retries is {retries}, which is not from 0 to {MAX_RETRIES}")
