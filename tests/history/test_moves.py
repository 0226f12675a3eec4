"""Histories with moves: a moved message is in one of the two queues, never in both and never in none."""

from tests.history.histories import Q, broken, claim, delivered, enqueue, rules_broken, settle
from tests.machinery.history import (
    DeadLetter,
    Journalled,
    Line,
    Move,
    Moved,
    Opened,
    Redrive,
    Redriven,
    Refused,
    Remove,
    Removed,
    Unknown,
)

THERE = "acme/pay"


def move(n: int, *ids: int, changed: int | None = None, queue: str = Q, to: str = THERE) -> list[Line]:
    changed = len(ids) if changed is None else changed
    return [Move(n=n, queue=queue, to=to, ids=list(ids)), Moved(n=n, changed=changed)]


def cut_off(n: int, *ids: int) -> list[Line]:
    return [Move(n=n, queue=Q, to=THERE, ids=list(ids)), Opened(session=1)]


def ended_in(queue: str, n: int, id: int = 1, version: int = 1) -> list[Line]:
    at = 1_000 * n
    return claim(n, at, delivered(id, version, at + 100), queue=queue) + settle(n + 1, at + 1, "ack", (id, version))


def test_a_moved_message_is_in_the_queue_it_was_moved_to_and_nowhere_else() -> None:
    moved = enqueue(1, [1]) + move(2, 1)
    assert not rules_broken(moved, ended_in(THERE, 3))
    assert rules_broken(moved, ended_in(Q, 3)) == {"leaked"}
    back = move(3, 1, queue=THERE, to=Q)
    assert not rules_broken(moved, back, ended_in(Q, 4))
    assert rules_broken(moved, back, ended_in(THERE, 4)) == {"leaked"}


def test_a_move_that_changed_nothing_leaves_the_message_where_it_was() -> None:
    stayed = enqueue(1, [1]) + move(2, 1, changed=0)
    assert not rules_broken(stayed, ended_in(Q, 3))
    assert rules_broken(stayed, ended_in(THERE, 3)) == {"leaked"}
    refused: list[Line] = [Move(n=2, queue=Q, to=THERE, ids=[1]), Refused(n=2, error="full")]
    assert not broken(enqueue(1, [1]), refused, ended_in(Q, 3))
    assert broken(enqueue(1, [1]), refused, ended_in(THERE, 3)) == {"leaked"}


def test_a_message_whose_move_was_not_answered_is_in_either_queue() -> None:
    for queue in (Q, THERE):
        assert not rules_broken(enqueue(1, [1]), cut_off(2, 1), ended_in(queue, 3))
        unknown: list[Line] = [Move(n=2, queue=Q, to=THERE, ids=[1]), Unknown(n=2, error="stopped")]
        assert not broken(enqueue(1, [1]), unknown, ended_in(queue, 3))
    assert rules_broken(enqueue(1, [1]), cut_off(2, 1), ended_in("acme/late", 3)) == {"leaked"}


def test_a_message_whose_move_was_not_answered_and_is_in_neither_queue_is_lost() -> None:
    assert rules_broken(enqueue(1, [1]), cut_off(2, 1)) == {"lost"}
    assert rules_broken(enqueue(1, [1]), move(2, 1)) == {"lost"}


def test_a_message_that_is_in_both_queues_is_found() -> None:
    torn = enqueue(1, [1], max_retries=0) + cut_off(2, 1)
    assert rules_broken(torn, ended_in(Q, 3), ended_in(THERE, 5, version=2)) == {"resurrected"}
    assert rules_broken(torn, ended_in(Q, 3), [DeadLetter(id=1, queue=THERE, payload="p1")]) == {"resurrected"}
    dead: list[Line] = [DeadLetter(id=1, queue=queue, payload="p1") for queue in (Q, THERE)]
    assert rules_broken(torn, dead) == {"duplicated"}


def test_only_a_removal_from_the_queue_it_was_in_at_that_time_excuses_a_moved_message() -> None:
    def purge(n: int, queue: str) -> list[Line]:
        return [Remove(n=n, queue=queue, verb="purge"), Removed(n=n, changed=1)]

    assert not rules_broken(enqueue(1, [1]), move(2, 1), purge(3, THERE))
    assert rules_broken(enqueue(1, [1]), move(2, 1), purge(3, Q)) == {"lost"}
    assert rules_broken(enqueue(1, [1]), purge(2, THERE), move(3, 1)) == {"lost"}


def test_a_moved_message_has_the_redrives_of_all_its_queues() -> None:
    redrive: list[Line] = [Redrive(n=5, queue=THERE), Redriven(n=5, changed=1)]
    lines = enqueue(1, [1], max_retries=0) + move(2, 1) + claim(3, 10, delivered(1, 1, 20), queue=THERE)
    assert not rules_broken(lines, redrive, ended_in(THERE, 6, version=2))
    assert rules_broken(lines, ended_in(THERE, 6, version=2)) == {"over-budget"}


def test_both_queues_have_events_of_a_move_in_the_journal() -> None:
    events: list[Line] = [Journalled(id=1, event=event) for event in ("enqueued", "claimed", "succeeded")]
    told: list[Line] = [Journalled(id=1, event="moved")]
    moved = enqueue(1, [1]) + move(2, 1) + ended_in(THERE, 3) + events
    assert not rules_broken(moved, told * 2)
    assert rules_broken(moved, told) == {"journal"}
    assert rules_broken(moved) == {"journal"}
    assert rules_broken(moved, told * 4) == {"journal"}
    half = enqueue(1, [1]) + cut_off(2, 1) + ended_in(Q, 3) + events
    assert not rules_broken(half)
    assert rules_broken(half, told) == {"journal"}


def test_a_message_that_was_moved_away_holds_up_no_group() -> None:
    group = enqueue(1, [1, 2], group="g")
    second = claim(3, 10, delivered(2, 1)) + settle(4, 11, "ack", (2, 1))
    assert rules_broken(group, second, ended_in(Q, 5)) == {"group-order"}
    assert not rules_broken(group, move(2, 1), second, ended_in(THERE, 5))


def test_a_key_may_be_answered_with_a_message_that_was_moved_away() -> None:
    again = enqueue(3, [1], key="k")
    assert not rules_broken(enqueue(1, [1], key="k"), move(2, 1), again, ended_in(THERE, 4))
    assert not rules_broken(enqueue(1, [1], key="k")[:1], move(2, 1), again, ended_in(THERE, 4))


def test_the_items_of_a_call_that_was_cut_off_may_be_moved_before_anybody_knows_them() -> None:
    sent: list[Line] = [enqueue(1, [1])[0]]
    assert not rules_broken(sent, move(2, 1), ended_in(THERE, 3))
