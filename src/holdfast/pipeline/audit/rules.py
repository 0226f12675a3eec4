"""What the journal of any store must keep (SPEC 2), each rule by the name that a violation bears."""

from enum import StrEnum

from holdfast.model.events import Event
from holdfast.model.message import State
from holdfast.model.rules.transitions import TRANSITIONS


class Rule(StrEnum):
    # 1.2: a tenant's or a queue's name that no door would have let in.
    NAME = "name"
    # 1.4: an id that is not of our making.
    ID = "id"
    # 1.5: enqueue time and correlation id stay with a message for its life.
    CHANGED = "changed"
    # 2.1: an event of no known kind.
    UNKNOWN_EVENT = "unknown-event"
    # 2.2: enqueued twice, or its life begins with something else.
    ENQUEUED_ONCE = "enqueued-once"
    # 2.2: a step that the transition table does not have.
    TRANSITION = "transition"
    # 2.4: claimed while another lease held it.
    DOUBLE_LEASE = "double-lease"
    # 2.5: a claim that did not raise the lease version, or an event of another version than the lease's.
    VERSION = "version"
    # 2.6: a verdict on a message that nobody held.
    STALE_ACCEPTED = "stale-accepted"
    # 2.6: a verdict that names another claim's time than the lease it settles.
    CLAIMED_AT = "claimed-at"
    # 2.7: an attempt that was not counted, or counted twice.
    ATTEMPT = "attempt"
    # 2.8: more failures and expiries than the retry budget has.
    BUDGET = "budget"
    # 2.10: an event after the message was over.
    AFTER_END = "after-end"
    # 2.11: in the dead letters, and nobody said why.
    REASON = "reason"
    # 1.1: in another tenant or queue than before, without having been moved there.
    CROSSED = "crossed"
    # 9.1: one event twice.
    DOUBLED_EVENT = "doubled-event"
    # 4.8: what the journal says is there is not, or is otherwise; and the reverse.
    LOST = "lost"
    UNRECORDED = "unrecorded"
    OTHER_STATE = "other-state"
    # 4.1: an index, a counter or a payload of the store disagrees with its messages.
    STORE = "store"


# The state a message is in after an event; a move changes nothing but the queue.
AFTER: dict[Event, State] = {
    step.event: step.state
    for step in TRANSITIONS.values()
    if step.event is not None and step.event is not Event.MOVED and step.state is not None
}
# The words for a message that is gone, in the same column as the states'.
GONE = "gone"
AFTER_NAMES: dict[str, str] = {**{event.value: state.value for event, state in AFTER.items()}, Event.REMOVED: GONE}

# The events that may come next, by state.
NEXT: dict[str, tuple[str, ...]] = {
    state.value: tuple(
        sorted({step.event.value for (of, _), step in TRANSITIONS.items() if of is state and step.event is not None})
    )
    for state in State
}

# Verdicts: only the holder of a lease gives one.
OF_A_LEASE = (Event.EXTENDED, Event.SUCCEEDED, Event.RETRIED, Event.RELEASED, Event.EXPIRED)
ENDED = (State.SUCCEEDED.value, GONE)
