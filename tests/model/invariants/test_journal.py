"""The events that the transitions write may follow one another, and others may not."""

import pytest

from holdfast.model.events import Event
from holdfast.model.invariants.damage import DamageKind
from holdfast.model.invariants.journal import STATES_AFTER, EventStep, check_last_event, check_next_event
from holdfast.model.message import State
from holdfast.model.rules.transitions import TRANSITIONS


def test_each_transition_may_follow_each_event_that_leads_to_its_state() -> None:
    for before, states in STATES_AFTER.items():
        for (state, _), step in TRANSITIONS.items():
            if step.event is None or state is None or state not in states:
                continue
            version = 2 if step.event is Event.CLAIMED else 1
            after = EventStep(step.event, version, version)
            assert list(check_next_event(EventStep(before, 1, 1), after)) == []


def test_the_states_after_an_event_are_those_of_the_transitions() -> None:
    for event, states in STATES_AFTER.items():
        reached = {step.state for step in TRANSITIONS.values() if step.event is event}
        # A success is there only while its queue keeps it.
        assert states == reached | ({None} if event is Event.SUCCEEDED else set())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (EventStep(Event.ENQUEUED, 0, 0), EventStep(Event.SUCCEEDED, 1, 1)),
        (EventStep(Event.CLAIMED, 1, 1), EventStep(Event.CLAIMED, 2, 2)),
        (EventStep(Event.REMOVED, 0, 0), EventStep(Event.CLAIMED, 1, 1)),
        (EventStep(Event.SUCCEEDED, 1, 1), EventStep(Event.RETRIED, 1, 1)),
        (EventStep(Event.RETRIED, 1, 1), EventStep(Event.ENQUEUED, 0, 0)),
        (EventStep(Event.RETRIED, 1, 1), EventStep(Event.CLAIMED, 2, 1)),
        (EventStep(Event.CLAIMED, 1, 1), EventStep(Event.SUCCEEDED, 1, 2)),
        (EventStep(Event.CLAIMED, 1, 1), EventStep(Event.SUCCEEDED, 2, 1)),
        (EventStep(Event.CLAIMED, 1, 1), EventStep(Event.RELEASED, 0, 1)),
    ],
)
def test_an_impossible_order_is_named(before: EventStep, after: EventStep) -> None:
    assert [each.damage for each in check_next_event(before, after)] == [DamageKind.JOURNAL_ORDER]


def test_a_delivery_that_was_not_sent_takes_its_attempt_back() -> None:
    unsent = EventStep(Event.RELEASED, 0, 1, "unsent")
    assert list(check_next_event(EventStep(Event.CLAIMED, 1, 1), unsent)) == []


@pytest.mark.parametrize(
    ("event", "version", "state", "stored", "kind"),
    [
        (Event.ENQUEUED, 0, None, 0, DamageKind.MESSAGE_LOST),
        (Event.FAILED, 1, State.READY, 1, DamageKind.JOURNAL_STATE),
        (Event.REMOVED, 1, State.READY, 1, DamageKind.JOURNAL_STATE),
        (Event.CLAIMED, 1, State.IN_FLIGHT, 2, DamageKind.JOURNAL_VERSION),
    ],
)
def test_a_message_that_disagrees_with_its_last_event_is_named(
    event: Event, version: int, state: State | None, stored: int, kind: DamageKind
) -> None:
    assert [each.damage for each in check_last_event(event, version, state, stored)] == [kind]


def test_a_success_may_be_gone() -> None:
    assert list(check_last_event(Event.SUCCEEDED, 1, None, 0)) == []
