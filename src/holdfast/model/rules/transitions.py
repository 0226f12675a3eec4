"""The transition table of messages (SPEC 2.2): the causes, the states before and after, and the journal events."""

from enum import StrEnum
from typing import NamedTuple

from holdfast.model.errors import Internal
from holdfast.model.events import Event
from holdfast.model.message import State


class Cause(StrEnum):
    """The reason for a transition."""

    # `Enum.__hash__` is written in Python. The members are dictionary keys on the hot path, where `str`'s is faster.
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
    """The outcome of a transition."""

    state: State | None  # None: the message is removed
    event: Event | None  # None: the journal gets no event, because the state stays the same


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


_STEPS: dict[Cause, dict[State | None, Step]] = {
    cause: {state: step for (state, of), step in TRANSITIONS.items() if of is cause} for cause in Cause
}


def find_step(state: State | None, cause: Cause) -> Step:
    """Return the outcome of a transition. Raise `Internal`, which means a bug, if it is not allowed."""
    step = _STEPS[cause].get(state)
    if step is None:
        raise Internal(f"no transition from {state} by {cause.value}")
    return step
