"""The rules that the journal of every store must satisfy (SPEC 2), by the names that violations have."""

from enum import StrEnum

from holdfast.model.events import Event
from holdfast.model.message import State
from holdfast.model.rules.transitions import TRANSITIONS


class Rule(StrEnum):
    """The name of a rule, with the section of SPEC that it checks."""

    # 1.2: an invalid name of a tenant or a queue.
    NAME = "name"
    # 1.4: an id that enqueue cannot have created.
    ID = "id"
    # 1.5: the enqueue time or the correlation id of a message changed.
    CHANGED = "changed"
    # 2.1: an unknown kind of event.
    UNKNOWN_EVENT = "unknown-event"
    # 2.2: enqueued twice, or the first event is not an enqueue.
    ENQUEUED_ONCE = "enqueued-once"
    # 2.2: a transition that is not in the transition table.
    TRANSITION = "transition"
    # 2.4: claimed while another lease held it.
    DOUBLE_LEASE = "double-lease"
    # 2.5: a claim that did not increase the version, or an event with another version than the lease.
    VERSION = "version"
    # 2.6: a verdict on a message without a lease.
    STALE_ACCEPTED = "stale-accepted"
    # 2.6: a verdict with the time of another claim.
    CLAIMED_AT = "claimed-at"
    # 2.7: an attempt that was not counted, or counted twice.
    ATTEMPT = "attempt"
    # 2.8: more failures and expiries than retries.
    BUDGET = "budget"
    # 2.10: an event after the end of the message.
    AFTER_END = "after-end"
    # 2.11: a dead letter without a reason.
    REASON = "reason"
    # 1.1: in another tenant or queue than before, without a move.
    CROSSED = "crossed"
    # 9.1: the same event twice.
    DOUBLED_EVENT = "doubled-event"
    # 4.8: a message is in the journal and not in the store, or the reverse, or its states differ.
    LOST = "lost"
    UNRECORDED = "unrecorded"
    OTHER_STATE = "other-state"
    # 4.1: an index, a counter or a payload of the store disagrees with its messages.
    STORE = "store"


# The state of a message after an event. A move changes only the queue.
AFTER: dict[Event, State] = {
    step.event: step.state
    for step in TRANSITIONS.values()
    if step.event is not None and step.event is not Event.MOVED and step.state is not None
}
# Stands in the column of states for a message that no longer exists.
GONE = "gone"
AFTER_NAMES: dict[str, str] = {**{event.value: state.value for event, state in AFTER.items()}, Event.REMOVED: GONE}

# The events that may follow, by state.
NEXT: dict[str, tuple[str, ...]] = {
    state.value: tuple(
        sorted({step.event.value for (of, _), step in TRANSITIONS.items() if of is state and step.event is not None})
    )
    for state in State
}

# The events that require a lease.
OF_A_LEASE = (Event.EXTENDED, Event.SUCCEEDED, Event.RETRIED, Event.RELEASED, Event.EXPIRED)
ENDED = (State.SUCCEEDED.value, GONE)
