"""The checker is itself checked: a good history passes, and each rule catches a history that breaks it."""

from pathlib import Path

from tests.history.histories import Q, claim, delivered, enqueue, rules_broken, settle
from tests.machinery.history import (
    Claim,
    Claimed,
    Counted,
    DeadLetter,
    Enqueue,
    Enqueued,
    Item,
    Journalled,
    Line,
    Opened,
    Redrive,
    Redriven,
    Refused,
    Settle,
    Settled,
    check,
    encode_line,
    read_history,
)


def test_a_good_history_breaks_no_rule() -> None:
    assert not rules_broken(
        [Opened(session=0)],
        enqueue(1, [1, 2], max_retries=3),
        claim(2, 10, delivered(1, 1), delivered(2, 1)),
        settle(3, 11, "extend", (1, 1), until=50),
        settle(4, 12, "ack", (2, 1)),
        claim(5, 50, delivered(1, 2)),
        settle(6, 51, "ack", (1, 1), ok=False),
        settle(7, 51, "final", (1, 2)),
        [Counted(queue=Q, counted={"failed": 1}, scanned={"failed": 1}), DeadLetter(id=1, queue=Q, payload="p1")],
        [Journalled(id=id, event="enqueued") for id in (1, 2)],
        [Journalled(id=id, event="claimed") for id in (1, 1, 2)],
        [Journalled(id=2, event="succeeded")],
    )


def test_a_call_without_an_answer_may_have_happened_or_not() -> None:
    cut_off_enqueue: list[Line] = [Enqueue(n=1, queue=Q, items=[Item(payload="p1"), Item(payload="p2")])]
    assert not rules_broken(cut_off_enqueue, [Opened(session=1)])
    both_there = claim(2, 10, delivered(1, 1), delivered(2, 1)) + settle(3, 11, "ack", (1, 1), (2, 1))
    assert not rules_broken(cut_off_enqueue, [Opened(session=1)], both_there)
    cut_off_ack: list[Line] = [Settle(n=3, at=11, queue=Q, verb="ack", leases=[(1, 1)])]
    held = enqueue(1, [1]) + claim(2, 10, delivered(1, 1)) + cut_off_ack
    assert not rules_broken(held, [Opened(session=1)])
    again = claim(4, 200, delivered(1, 2, 900)) + settle(5, 201, "ack", (1, 2))
    assert not rules_broken(held, [Opened(session=1)], again)


def test_an_acknowledged_enqueue_that_is_gone_is_lost() -> None:
    assert rules_broken(enqueue(1, [1])) == {"lost"}


def test_a_delivered_message_that_is_gone_is_lost() -> None:
    cut_off: list[Line] = [Enqueue(n=1, queue=Q, items=[Item(payload="p1")])]
    assert rules_broken(cut_off, claim(2, 10, delivered(1, 1)), settle(3, 11, "nack", (1, 1))) == {"lost"}


def test_a_refused_ack_excuses_no_loss() -> None:
    assert rules_broken(enqueue(1, [1]), claim(2, 10, delivered(1, 1)), settle(3, 200, "ack", (1, 1), ok=False)) == {
        "lost"
    }


def test_a_history_that_ends_before_the_drain_is_stuck() -> None:
    lines = enqueue(1, [1]) + claim(2, 10, delivered(1, 1)) + settle(3, 11, "ack", (1, 1))
    assert {violation.rule for violation in check(lines).violations} == {"stuck"}


def test_an_acked_message_in_a_later_delivery_is_resurrected() -> None:
    acked = enqueue(1, [1]) + claim(2, 10, delivered(1, 1)) + settle(3, 11, "ack", (1, 1))
    assert rules_broken(acked, claim(4, 200, delivered(1, 2))) == {"resurrected"}
    assert rules_broken(acked, [DeadLetter(id=1, queue=Q, payload="p1")]) == {"resurrected"}


def test_a_delivery_that_began_before_the_acks_answer_is_no_resurrection() -> None:
    assert not rules_broken(
        enqueue(1, [1]),
        [Claim(n=4, queue=Q)],
        claim(2, 200, delivered(1, 2, 900)),
        settle(3, 201, "ack", (1, 2)),
        # Served first, and slow to say so.
        [Claimed(n=4, at=202, deliveries=[delivered(1, 1)])],
    )


def test_versions_that_do_not_grow_are_caught() -> None:
    first = enqueue(1, [1]) + claim(2, 10, delivered(1, 5, attempt=1))
    done = settle(9, 201, "ack", (1, 6))
    assert not rules_broken(first, claim(3, 200, delivered(1, 6, 900, attempt=2)), done)
    assert "version" in rules_broken(first, claim(3, 200, delivered(1, 5, 900, attempt=2)))
    assert "version" in rules_broken(first, [Opened(session=1)], claim(3, 200, delivered(1, 4, 900, attempt=2)))


def test_attempts_that_do_not_grow_are_caught() -> None:
    first = enqueue(1, [1]) + claim(2, 10, delivered(1, 1, attempt=1))
    again = claim(3, 200, delivered(1, 2, 900, attempt=1)) + settle(4, 201, "ack", (1, 2))
    assert rules_broken(first, again) == {"attempt"}


def test_two_leases_that_hold_at_once_are_caught() -> None:
    first = enqueue(1, [1]) + claim(2, 10, delivered(1, 1, 100))
    done = settle(9, 110, "ack", (1, 2))
    assert rules_broken(first, claim(3, 99, delivered(1, 2, 190)), done) == {"double-lease"}
    assert not rules_broken(first, claim(3, 100, delivered(1, 2, 190)), done)
    released = settle(4, 50, "release", (1, 1))
    assert not rules_broken(first, released, claim(3, 99, delivered(1, 2, 190)), done)
    extended = settle(4, 50, "extend", (1, 1), until=105)
    assert rules_broken(first, extended, claim(3, 104, delivered(1, 2, 190)), done) == {"double-lease"}


def test_an_extension_beside_a_release_holds_nothing() -> None:
    release = Settle(n=3, at=11, queue=Q, verb="release", leases=[(1, 1)])
    extended = settle(4, 11, "extend", (1, 1), until=500)
    assert not rules_broken(
        enqueue(1, [1]),
        claim(2, 10, delivered(1, 1)),
        [release, *extended, Settled(n=3, ok=[True])],
        claim(5, 99, delivered(1, 2, 190)),
        settle(6, 100, "ack", (1, 2)),
    )


def test_a_receipt_of_an_older_lease_that_is_accepted_is_caught() -> None:
    two = enqueue(1, [1]) + claim(2, 10, delivered(1, 1)) + claim(3, 200, delivered(1, 2, 300))
    for verb in ("ack", "nack", "extend", "release"):
        accepted = settle(4, 210, verb, (1, 1), until=400)
        assert "stale-accepted" in rules_broken(two, accepted, settle(5, 211, "ack", (1, 2)))


def test_a_receipt_that_is_accepted_after_its_lease_ended_is_caught() -> None:
    held = enqueue(1, [1]) + claim(2, 10, delivered(1, 1, 100))
    assert not rules_broken(held, settle(3, 99, "ack", (1, 1)))
    assert rules_broken(held, settle(3, 100, "ack", (1, 1))) == {"stale-accepted"}


def test_a_receipt_that_is_accepted_twice_is_caught() -> None:
    released = enqueue(1, [1]) + claim(2, 10, delivered(1, 1)) + settle(3, 11, "release", (1, 1))
    assert rules_broken(released, settle(4, 12, "ack", (1, 1))) == {"stale-accepted"}


def test_a_payload_that_nobody_sent_is_corrupt() -> None:
    wrong = claim(2, 10, delivered(1, 1, payload="other"))
    assert "corrupt" in rules_broken(enqueue(1, [1]), wrong)


def test_the_payload_of_another_message_is_corrupt() -> None:
    assert "corrupt" in rules_broken(enqueue(1, [1, 2]), claim(2, 10, delivered(1, 1, payload="p2")))


def test_a_message_in_another_queue_is_leaked() -> None:
    assert "leaked" in rules_broken(enqueue(1, [1]), claim(2, 10, delivered(1, 1), queue="zeta/mail"))


def test_a_message_that_is_there_under_two_ids_is_duplicated() -> None:
    acked = claim(2, 10, delivered(1, 1)) + settle(3, 11, "ack", (1, 1))
    twin = claim(4, 10, delivered(7, 1, payload="p1")) + settle(5, 11, "ack", (7, 1))
    assert "duplicated" in rules_broken(enqueue(1, [1]), acked, twin)


def test_a_key_that_made_two_messages_is_duplicated() -> None:
    def keyed(n: int, id: int) -> list[Line]:
        return [Enqueue(n=n, queue=Q, items=[Item(payload="pk", key="k")]), Enqueued(n=n, ids=[id])]

    def take(n: int, id: int) -> list[Line]:
        return claim(n, 10, delivered(id, 1, payload="pk")) + settle(n + 1, 11, "ack", (id, 1))

    assert not rules_broken(keyed(1, 1), take(3, 1), keyed(2, 1))
    assert rules_broken(keyed(1, 1), take(3, 1), keyed(2, 2), take(5, 2)) == {"duplicated"}


def test_a_cut_off_batch_of_which_a_part_is_there_is_torn() -> None:
    cut_off: list[Line] = [Enqueue(n=1, queue=Q, items=[Item(payload="p1"), Item(payload="p2")])]
    assert rules_broken(cut_off, claim(2, 10, delivered(1, 1)), settle(3, 11, "ack", (1, 1))) == {"torn"}


def test_a_group_that_is_delivered_out_of_order_is_caught() -> None:
    sent = enqueue(1, [1, 2], group="g")
    done = settle(9, 60, "ack", (1, 1), (2, 1))
    assert not rules_broken(sent, claim(2, 10, delivered(1, 1), delivered(2, 1)), done)
    assert rules_broken(sent, claim(2, 10, delivered(2, 1), delivered(1, 1)), done) == {"group-order"}
    second_first = claim(2, 10, delivered(2, 1)) + settle(3, 11, "ack", (2, 1))
    assert rules_broken(sent, second_first, claim(4, 12, delivered(1, 1)), settle(5, 13, "ack", (1, 1))) == {
        "group-order"
    }


def test_a_group_with_two_batches_in_flight_is_caught() -> None:
    first = enqueue(1, [1, 2], group="g") + claim(2, 10, delivered(1, 1), delivered(2, 1))
    back = settle(3, 11, "release", (1, 1))
    done = settle(9, 60, "ack", (1, 2), (2, 1))
    assert rules_broken(first, back, claim(4, 12, delivered(1, 2)), done) == {"group-order"}
    whole_batch_back = back + settle(5, 11, "ack", (2, 1))
    assert not rules_broken(first, whole_batch_back, claim(4, 12, delivered(1, 2)), settle(6, 13, "ack", (1, 2)))


def test_a_head_that_may_have_failed_does_not_hold_its_group() -> None:
    sent = enqueue(1, [1, 2], group="g")
    failed = claim(2, 10, delivered(1, 1)) + settle(3, 11, "final", (1, 1))
    later = claim(4, 12, delivered(2, 1)) + settle(5, 13, "ack", (2, 1))
    assert not rules_broken(sent, failed, later, [DeadLetter(id=1, queue=Q, payload="p1")])


def test_more_deliveries_than_the_budget_allows_are_caught() -> None:
    sent = enqueue(1, [1], max_retries=1)
    twice = claim(2, 10, delivered(1, 1)) + claim(3, 200, delivered(1, 2, 300))
    third = claim(4, 400, delivered(1, 3, 500)) + settle(5, 401, "ack", (1, 3))
    assert rules_broken(sent, twice, third) == {"over-budget"}
    redriven: list[Line] = [Redrive(n=6, queue=Q), Redriven(n=6, changed=1)]
    assert not rules_broken(sent, twice, redriven, third)


def test_counters_that_differ_from_a_listing_are_caught() -> None:
    assert rules_broken([Counted(queue=Q, counted={"ready": 2}, scanned={"ready": 1})]) == {"miscounted"}


def test_a_journal_with_other_events_is_caught() -> None:
    acked = enqueue(1, [1]) + claim(2, 10, delivered(1, 1)) + settle(3, 11, "ack", (1, 1))
    story: list[Line] = [Journalled(id=1, event=event) for event in ("enqueued", "claimed", "succeeded")]
    assert not rules_broken(acked, story)
    for missing in range(3):
        assert rules_broken(acked, story[:missing] + story[missing + 1 :]) == {"journal"}
    for twice in (0, 2):
        assert rules_broken(acked, [*story, story[twice]]) == {"journal"}


def test_a_call_that_raises_is_caught() -> None:
    assert rules_broken([Claim(n=1, queue=Q), Refused(n=1, error="internal")]) == {"refused"}


def test_a_torn_last_line_was_never_said(tmp_path: Path) -> None:
    path = tmp_path / "history"
    whole = encode_line(Opened(session=3)) + b"\n"
    path.write_bytes(whole + encode_line(Opened(session=4))[:-4] + b"\n" + whole)
    assert read_history(path) == [Opened(session=3), Opened(session=3)]
