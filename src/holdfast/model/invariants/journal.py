"""The invariants of the journal (SPEC 2.2, 9.1): the order of a message's events, and its state after the last one."""

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.model.events import Event
from holdfast.model.invariants.damage import DamageKind, Problem
from holdfast.model.message import State
from holdfast.model.rules.transitions import TRANSITIONS

# The states that a message may be in after its last event; None: it may be gone.
STATES_AFTER: dict[Event, frozenset[State | None]] = {
    Event.ENQUEUED: frozenset({State.READY}),
    Event.CLAIMED: frozenset({State.IN_FLIGHT}),
    Event.EXTENDED: frozenset({State.IN_FLIGHT}),
    Event.RETRIED: frozenset({State.READY}),
    Event.EXPIRED: frozenset({State.READY}),
    Event.RELEASED: frozenset({State.READY}),
    Event.REDRIVEN: frozenset({State.READY}),
    Event.MOVED: frozenset({State.READY, State.FAILED}),
    Event.FAILED: frozenset({State.FAILED}),
    Event.SUCCEEDED: frozenset({State.SUCCEEDED, None}),
    Event.REMOVED: frozenset({None}),
}

# The events that may follow, by state. None: the message does not exist.
_FOLLOWING: dict[State | None, frozenset[Event]] = {
    state: frozenset(step.event for (of, _), step in TRANSITIONS.items() if of is state and step.event is not None)
    for state in (None, *State)
}
# The releases that undo the claim's attempt.
_UNCOUNTED = frozenset({"unsent", "ttl"})


class EventStep(NamedTuple):
    """The fields of an event that the order of events is judged by."""

    event: Event
    attempt: int
    version: int
    reason: str | None = None


def check_last_event(event: Event, version: int, state: State | None, stored_version: int) -> Iterator[Problem]:
    """Check a stored message against its last event. `state` is None if the message does not exist."""
    after = STATES_AFTER[event]
    if state is None:
        if None not in after:
            yield Problem(DamageKind.MESSAGE_LOST, f"its last event in the journal is {event}, but it does not exist")
    elif state not in after:
        yield Problem(DamageKind.JOURNAL_STATE, f"its last event in the journal is {event}, but it is {state}")
    elif stored_version != version:
        yield Problem(
            DamageKind.JOURNAL_VERSION,
            f"its last event in the journal is of version {version}, but it has version {stored_version}",
        )


def check_next_event(before: EventStep, after: EventStep) -> Iterator[Problem]:
    """Check an event against the previous one of the same message: the transition, the version and the attempt.

    Both are of the same queue, and no move lies between them. The audit checks the same on Spark.
    """
    if after.event is Event.ENQUEUED:
        yield Problem(DamageKind.JOURNAL_ORDER, f"was enqueued again, after {before.event}")
        return
    states = STATES_AFTER[before.event]
    if not any(after.event in _FOLLOWING[state] for state in states):
        shown = " or ".join("gone" if state is None else state for state in sorted(states, key=str))
        yield Problem(DamageKind.JOURNAL_ORDER, f"{after.event} after {before.event}, when it was {shown}")
        return
    is_claim = after.event is Event.CLAIMED
    if after.version <= before.version if is_claim else after.version != before.version:
        yield Problem(
            DamageKind.JOURNAL_ORDER, f"{after.event} of version {after.version} after version {before.version}"
        )
    counted = before.attempt + is_claim
    if after.attempt != counted and not (after.reason in _UNCOUNTED and after.attempt == counted - 1):
        yield Problem(
            DamageKind.JOURNAL_ORDER, f"{after.event} counts attempt {after.attempt} after attempt {before.attempt}"
        )
