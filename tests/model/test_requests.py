from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidArgument
from holdfast.model.ids import MessageId, to_uuid
from holdfast.model.message import MAX_BATCH, Envelope, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import (
    EVERYTHING,
    Cancel,
    ClaimRequest,
    Filter,
    Move,
    Progress,
    Purge,
    Redrive,
    Remove,
    Reprioritise,
    Settle,
    Verdict,
    check_claim_request,
    check_progress,
    check_verdict,
    check_verdicts,
    make_filter,
    parse_ids,
    states_of,
)
from holdfast.model.rules.lifecycle import Life

NOW_MS = 1_750_000_000_000
RECEIPT = Receipt(1, bytes(16), 1)


def envelope(id: int = 1, age_ms: int = 0, **headers: str) -> Envelope:
    return Envelope(id=id, enqueued_at=NOW_MS - age_ms, payload=b"", headers=headers)


# --- Filters -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 1 << 62), st.integers(0, 255), st.none() | st.text())
def test_a_filter_of_nothing_means_every_message(id: int, priority: int, error: str | None) -> None:
    assert EVERYTHING.matches(envelope(id), Life(priority=priority, error=error), NOW_MS)
    assert make_filter(None) == make_filter({}) == EVERYTHING


def test_a_filter_by_id_takes_either_spelling() -> None:
    which = make_filter({"ids": [to_uuid(5), 6, "7", MessageId(8)]})

    assert which.ids == frozenset({5, 6, 7, 8})
    assert which.matches(envelope(5), Life(), NOW_MS)
    assert not which.matches(envelope(9), Life(), NOW_MS)
    assert not make_filter({"ids": []}).matches(envelope(5), Life(), NOW_MS)


def test_a_filter_by_error_looks_for_a_part_of_the_text() -> None:
    which = make_filter({"error_contains": "time"})

    assert which.matches(envelope(), Life(error="a timeout"), NOW_MS)
    assert not which.matches(envelope(), Life(error="Time"), NOW_MS)
    assert not which.matches(envelope(), Life(), NOW_MS)


@pytest.mark.parametrize(("age_ms", "is_meant"), [(999, False), (1_000, True), (1_001, True)])
def test_a_filter_by_age_includes_what_is_exactly_that_old(age_ms: int, is_meant: bool) -> None:
    assert make_filter({"older_than_ms": 1_000}).matches(envelope(age_ms=age_ms), Life(), NOW_MS) == is_meant


def test_a_filter_by_headers_asks_for_each_of_them() -> None:
    which = make_filter({"headers": {"colour": "red", "size": "s"}})

    assert which.matches(envelope(colour="red", size="s", more="x"), Life(), NOW_MS)
    assert not which.matches(envelope(colour="red"), Life(), NOW_MS)
    assert not which.matches(envelope(colour="red", size="m"), Life(), NOW_MS)


def test_a_filter_by_priority_takes_the_priority_the_message_has_now() -> None:
    assert make_filter({"priority": 0}).matches(envelope(), Life(priority=0), NOW_MS)
    assert not make_filter({"priority": 0}).matches(envelope(), Life(priority=1), NOW_MS)


@given(st.lists(st.booleans(), min_size=5, max_size=5))
def test_every_field_that_is_given_must_match(right: list[bool]) -> None:
    given_filter = {
        "ids": [1 if right[0] else 2],
        "error_contains": "boom" if right[1] else "bang",
        "older_than_ms": 10 if right[2] else 11,
        "headers": {"colour": "red" if right[3] else "blue"},
        "priority": 100 if right[4] else 99,
    }
    which = make_filter(given_filter)
    assert which.matches(envelope(1, 10, colour="red"), Life(error="boom"), NOW_MS) == all(right)


def test_a_filter_already_made_is_taken_as_it_is() -> None:
    which = Filter(priority=5)
    assert make_filter(which) == which


@pytest.mark.parametrize("field", ["id", "Ids", "error", "queue", "", "__class__"])
def test_an_unknown_field_of_a_filter_is_refused_by_its_name(field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        make_filter({field: 1})
    assert refused.value.facts == {"field": f"filter.{field}"}


@pytest.mark.parametrize(
    "given_filter",
    [
        {"ids": "01977420-dc00-7000-8000-000000000000"}, {"ids": b"ab"}, {"ids": 5}, {"ids": {"a": 1}}, {"ids": [None]},
        {"ids": ["nonsense"]}, {"ids": [True]}, {"error_contains": 5}, {"error_contains": b"x"},
        {"older_than_ms": -1}, {"older_than_ms": 1.5}, {"older_than_ms": True}, {"older_than_ms": "5"},
        {"headers": {"a": 1}}, {"headers": [("a", "b")]}, {"headers": "ab"}, {"headers": {1: "a"}},
        {"priority": "5"}, {"priority": 1.5}, {"priority": True}, {1: 2}, [], "ids", 5,
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_filter_is_refused(given_filter: Any) -> None:
    with pytest.raises(InvalidArgument):
        make_filter(given_filter)


@pytest.mark.parametrize("field", ["ids", "error_contains", "older_than_ms", "headers", "priority"])
def test_a_field_of_a_filter_that_is_none_was_not_given(field: str) -> None:
    assert make_filter({field: None}) == EVERYTHING


def test_ids_are_any_iterable_of_ids_but_a_text() -> None:
    assert parse_ids(str(each) for each in range(3)) == [0, 1, 2]
    assert parse_ids(()) == []
    with pytest.raises(InvalidArgument):
        parse_ids("123")


# --- States of verbs ---------------------------------------------------------------------------------------------


def test_a_verb_means_messages_in_its_own_states_alone() -> None:
    to = QueueRef("acme", "mail")
    assert {
        "purge": states_of(Purge()),
        "purge failed": states_of(Purge(state=State.FAILED)),
        "cancel": states_of(Cancel()),
        "reprioritise": states_of(Reprioritise(priority=1)),
        "move": states_of(Move(to=to)),
        "move failed": states_of(Move(to=to, state=State.FAILED)),
        "redrive": states_of(Redrive()),
        "remove": states_of(Remove()),
    } == {
        "purge": {State.READY},
        "purge failed": {State.FAILED},
        "cancel": {State.READY},
        "reprioritise": {State.READY},
        "move": {State.READY},
        "move failed": {State.FAILED},
        "redrive": {State.FAILED},
        "remove": set(State),
    }


# --- Claims, verdicts, progress ----------------------------------------------------------------------------------


def test_a_claim_asks_for_one_message_unless_it_says_otherwise() -> None:
    assert check_claim_request(ClaimRequest()).limit == 1
    assert check_claim_request(ClaimRequest(limit=MAX_BATCH, lease_ms=1, owner="w", ledger=("c", 0))).limit == MAX_BATCH


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": 0}, {"limit": -1}, {"limit": MAX_BATCH + 1}, {"limit": 1.0}, {"limit": True}, {"limit": "1"},
        {"limit": None}, {"lease_ms": 0}, {"lease_ms": -1}, {"lease_ms": True}, {"owner": ""}, {"owner": "a\nb"},
        {"owner": 5}, {"owner": "x" * 257}, {"ledger": ("", 0)}, {"ledger": ("c", -1)}, {"ledger": ("c", True)},
        {"ledger": (5, 1)},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_claim_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        check_claim_request(ClaimRequest(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"delay_ms": -1}, {"delay_ms": 1.5}, {"delay_ms": True}, {"lease_ms": 0}, {"lease_ms": -1}, {"error": 5},
        {"error": b"boom"}, {"defer": True, "final": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_verdict_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        check_verdict(Verdict(settle=Settle.NACK, receipt=RECEIPT, **fields))


def test_a_verdict_within_the_rules_is_fine() -> None:
    for fields in ({}, {"error": "", "delay_ms": 0}, {"defer": True}, {"final": True}, {"lease_ms": 1}):
        verdict = Verdict(settle=Settle.NACK, receipt=RECEIPT, **fields)  # type: ignore[arg-type]  # fields of several types
        assert check_verdict(verdict) is verdict


@pytest.mark.parametrize("percent", [0, 0.5, 100, 100.0])
def test_progress_is_a_number_from_0_to_100_and_a_text(percent: float) -> None:
    assert check_progress(percent, "x" * 1_024) == Progress(percent=percent, text="x" * 1_024)


@pytest.mark.parametrize(
    ("percent", "text"),
    [(-1, ""), (100.1, ""), (float("nan"), ""), (float("inf"), ""), (True, ""), ("5", ""), (None, ""), (5, None),
     (5, "x" * 1_025), (5, b"")],
)  # fmt: skip
def test_any_other_progress_is_refused(percent: object, text: object) -> None:
    with pytest.raises(InvalidArgument):
        check_progress(percent, text)


@pytest.mark.parametrize("field", ["receipts", "verdicts"])
def test_a_call_settles_at_most_a_batch(field: str) -> None:
    ack = Verdict(settle=Settle.ACK, receipt=RECEIPT)
    check_verdicts([ack] * MAX_BATCH, field)
    words = f"a call settles at most {MAX_BATCH} messages, not {MAX_BATCH + 1}"
    with pytest.raises(InvalidArgument, match=words) as refused:
        check_verdicts([ack] * (MAX_BATCH + 1), field)
    assert refused.value.facts["field"] == field


def test_a_batch_with_one_malformed_verdict_is_refused() -> None:
    bad = Verdict(settle=Settle.NACK, receipt=RECEIPT, exhausted=True)
    with pytest.raises(InvalidArgument, match="only a final nack"):
        check_verdicts([Verdict(settle=Settle.ACK, receipt=RECEIPT), bad])
