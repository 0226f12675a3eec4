"""Histories with faults, operators and policies in them: what each excuses, and what it does not."""

import sys

from tests.history.histories import Q, broken, claim, delivered, enqueue, rules_broken, settle
from tests.machinery.history import (
    Claim,
    Claimed,
    DeadLetter,
    Drained,
    Enqueue,
    Enqueued,
    Item,
    Journalled,
    Line,
    Opened,
    PowerCut,
    Refused,
    Remove,
    Removed,
    Settle,
    Settled,
    Stepped,
    Stranded,
    Unknown,
    check,
)


def test_where_faults_are_allowed_a_call_may_raise() -> None:
    refused: list[Line] = [Claim(n=1, queue=Q), Refused(n=1, error="rate_limited"), Drained()]
    unknown: list[Line] = [Claim(n=1, queue=Q), Unknown(n=1, error="store_unavailable"), Drained()]
    assert {each.rule for each in check(unknown).violations} == {"refused"}
    assert not check(refused, allow_refusals=True).violations
    assert not check(unknown, allow_refusals=True).violations


def test_an_enqueue_of_unknown_outcome_is_there_once_or_never() -> None:
    unknown: list[Line] = [Enqueue(n=1, queue=Q, items=[Item(payload="p1")]), Unknown(n=1, error="cut")]
    once = claim(2, 10, delivered(1, 1)) + settle(3, 11, "ack", (1, 1))
    twice = claim(4, 10, delivered(7, 1, payload="p1")) + settle(5, 11, "ack", (7, 1))
    assert not broken(unknown)
    assert not broken(unknown, once)
    assert broken(unknown, once, twice) == {"duplicated"}


def test_a_refused_enqueue_that_is_there_is_a_phantom() -> None:
    refused: list[Line] = [Enqueue(n=1, queue=Q, items=[Item(payload="p1")]), Refused(n=1, error="over_quota")]
    assert not broken(refused)
    assert broken(refused, claim(2, 10, delivered(1, 1)), settle(3, 11, "ack", (1, 1))) == {"phantom"}


def test_an_ack_of_unknown_outcome_excuses_its_message_and_a_refused_one_does_not() -> None:
    held = enqueue(1, [1]) + claim(2, 10, delivered(1, 1))
    ack = Settle(n=3, at=11, queue=Q, verb="ack", leases=[(1, 1)])
    assert not broken(held, [ack, Unknown(n=3, error="cut")])
    assert broken(held, [ack, Refused(n=3, error="queue_not_found")]) == {"lost"}
    unsure = Settled(n=3, ok=[False], unsure=[True])
    assert not broken(held, [ack, unsure])


def test_a_journal_that_was_read_whole_has_the_effect_of_an_unanswered_ack() -> None:
    held = enqueue(1, [1]) + claim(2, 10, delivered(1, 1))
    held += [Settle(n=3, at=11, queue=Q, verb="ack", leases=[(1, 1)]), Unknown(n=3, error="cut")]
    story: list[Line] = [Journalled(id=1, event="enqueued"), Journalled(id=1, event="claimed")]
    assert not broken(held)
    assert broken(held, story) == {"lost"}
    assert not broken(held, story, [Journalled(id=1, event="succeeded")])
    assert not broken(held, story, [DeadLetter(id=1, queue=Q, payload="p1")])


def test_a_head_that_an_unseen_claim_may_have_used_up_does_not_hold_its_group() -> None:
    sent = enqueue(1, [1], group="g", max_retries=0) + enqueue(2, [2], group="g")
    later = claim(4, 12, delivered(2, 1)) + settle(5, 13, "ack", (2, 1))
    dead: list[Line] = [DeadLetter(id=1, queue=Q, payload="p1")]
    lost: list[Line] = [Claim(n=3, queue=Q), Unknown(n=3, error="cut")]
    assert broken(sent, later, dead) == {"group-order"}
    assert not broken(sent, lost, later, dead)
    assert not {each.rule for each in check([*sent, *later, *dead, Drained()], repeats_calls=True).violations}


def test_a_power_cut_may_undo_claims_and_extensions_and_nothing_else() -> None:
    held = enqueue(1, [1], max_retries=0) + claim(2, 10, delivered(1, 1, 100))
    extended = settle(3, 11, "extend", (1, 1), until=500)
    again = claim(4, 50, delivered(1, 2, 150, attempt=1))
    done = settle(5, 60, "ack", (1, 2))
    cut: list[Line] = [PowerCut(), Opened(session=1)]
    assert broken(held, extended, again, done) >= {"double-lease"}
    assert not broken(held, extended, cut, again, done)
    assert "version" in broken(held, cut, claim(4, 50, delivered(1, 1, 150, attempt=1)), settle(5, 60, "ack", (1, 1)))
    assert broken(enqueue(1, [1]), cut) == {"lost"}
    acked = enqueue(1, [1]) + claim(2, 10, delivered(1, 1)) + settle(3, 11, "ack", (1, 1))
    assert broken(acked, cut, claim(4, 50, delivered(1, 2, 150, attempt=2))) == {"resurrected"}


def test_a_claim_that_a_durable_verdict_ended_is_not_undone_by_a_power_cut() -> None:
    held = enqueue(1, [1], max_retries=0) + claim(2, 10, delivered(1, 1, 100)) + settle(3, 11, "nack", (1, 1))
    again = claim(4, 50, delivered(1, 2, 150, attempt=1)) + settle(5, 60, "ack", (1, 2))
    assert broken(held, [PowerCut()], again) == {"attempt", "over-budget"}


def test_a_lease_that_survived_a_power_cut_still_takes_one_receipt() -> None:
    held = enqueue(1, [1]) + claim(2, 10, delivered(1, 1, 100))
    assert not broken(held, [PowerCut()], settle(3, 50, "ack", (1, 1)))
    assert broken(held, [PowerCut()], settle(3, 100, "ack", (1, 1))) == {"stale-accepted"}


def test_a_power_cut_and_a_clock_set_back_may_bring_back_the_lease_before() -> None:
    held = enqueue(1, [1]) + claim(2, 10, delivered(1, 1, 100)) + claim(3, 110, delivered(1, 2, 200))
    cut: list[Line] = [PowerCut(), Stepped(was=120, at=20), Opened(session=1)]
    late = settle(4, 30, "ack", (1, 1))
    assert broken(held, late) == {"stale-accepted"}
    assert not broken(held, cut, late)
    confirmed = settle(4, 115, "nack", (1, 2))
    assert broken(held, confirmed, cut, settle(5, 30, "ack", (1, 1))) == {"stale-accepted"}


def test_a_power_cut_may_bring_back_the_end_of_a_lease_that_was_shortened() -> None:
    held = enqueue(1, [1]) + claim(2, 10, delivered(1, 1, expires_at=100))
    shortened = settle(3, 11, "extend", (1, 1), until=20)
    late = settle(4, 50, "ack", (1, 1))
    assert broken(held, shortened, late) == {"stale-accepted"}
    assert not broken(held, shortened, [PowerCut()], late)
    assert broken(held, shortened, [PowerCut()], settle(4, 100, "ack", (1, 1))) == {"stale-accepted"}


def test_the_holder_of_a_lease_that_is_refused_was_robbed() -> None:
    held = enqueue(1, [1]) + claim(2, 10, delivered(1, 1, 100))
    again = claim(5, 200, delivered(1, 2, 300)) + settle(6, 201, "ack", (1, 2))

    def refused(at: int) -> list[Line]:
        return [Settle(n=3, at=11, queue=Q, verb="ack", leases=[(1, 1)]), Settled(n=3, ok=[False], at=at)]

    assert broken(held, refused(99), again) == {"robbed"}
    assert not broken(held, refused(100), again)
    assert not broken(held, settle(4, 11, "release", (1, 1)), refused(99), again)


def test_a_step_of_the_clock_during_a_call_leaves_its_time_open() -> None:
    held = enqueue(1, [1]) + claim(2, 10, delivered(1, 1, 100))
    done = settle(5, 60, "ack", (1, 2))
    stepped_back: list[Line] = [
        Claim(n=3, queue=Q),
        Stepped(was=120, at=40),
        Claimed(n=3, at=41, deliveries=[delivered(1, 2, 170)]),
    ]
    assert not broken(held, stepped_back, done)


def test_a_lease_that_the_clock_has_passed_is_over_though_the_clock_was_set_back() -> None:
    held = enqueue(1, [1]) + claim(2, 10, delivered(1, 1, 100))
    again = claim(3, 41, delivered(1, 2, 170)) + settle(5, 60, "ack", (1, 2))
    assert not broken(held, [Stepped(was=100, at=40)], again)
    assert broken(held, [Stepped(was=99, at=40)], again) == {"double-lease"}


def test_callers_whose_clock_is_a_little_off_are_no_violation() -> None:
    lines = enqueue(1, [1]) + claim(2, 10, delivered(1, 1, 100)) + claim(3, 98, delivered(1, 2, 190))
    lines += [*settle(4, 191, "ack", (1, 2)), Drained()]
    assert {each.rule for each in check(lines).violations} == {"double-lease"}
    assert not check(lines, skew_ms=3).violations


def remove(n: int, verb: str, changed: int | None = None, id: int | None = None) -> list[Line]:
    return [Remove(n=n, queue=Q, verb=verb, id=id), Removed(n=n, changed=changed)]


def test_what_an_operator_removed_is_not_lost() -> None:
    sent = enqueue(1, [1, 2])
    assert not broken(sent, remove(2, "purge", 2))
    assert broken(sent, remove(2, "purge", 1)) == {"lost"}
    assert broken(remove(2, "purge", 2), sent) == {"lost"}
    assert not broken(sent, remove(2, "delete"))
    assert not broken(sent, [Remove(n=2, queue=Q, verb="purge"), Unknown(n=2, error="cut")])
    assert broken(sent, [Remove(n=2, queue=Q, verb="purge"), Refused(n=2, error="forbidden")]) == {"lost"}


def test_a_message_removed_by_its_id_does_not_come_back() -> None:
    removed = enqueue(1, [1, 2]) + remove(2, "remove", 1, id=1) + remove(3, "remove", 1, id=2)
    assert not broken(removed)
    assert broken(enqueue(1, [1, 2]), remove(2, "remove", 1, id=1)) == {"lost"}
    assert broken(removed, claim(4, 10, delivered(1, 1)), settle(5, 11, "ack", (1, 1))) == {"resurrected"}


def test_a_message_is_dropped_when_its_ttl_is_over_and_not_before() -> None:
    def sent(is_dropped: bool) -> list[Line]:
        item = Item(payload="p1", ttl_ms=100, is_dropped=is_dropped)
        return [Enqueue(n=1, queue=Q, items=[item], at=50), Enqueued(n=1, ids=[1], at=51)]

    def rules(is_dropped: bool, ended_at: int) -> set[str]:
        return {each.rule for each in check([*sent(is_dropped), Drained(at=ended_at)]).violations}

    assert not rules(True, 150)
    assert rules(True, 149) == {"lost"}
    assert rules(False, 1_000) == {"lost"}


def test_what_is_there_at_the_end_and_was_not_delivered_is_stuck_and_not_lost() -> None:
    stranded: list[Line] = [Stranded(id=1, queue=Q, payload="p1", state="in_flight")]
    assert broken(enqueue(1, [1]), stranded) == {"stuck"}


def test_a_tenant_that_is_answered_by_the_queue_of_another_has_leaked() -> None:
    mine = claim(2, 10)
    theirs: list[Line] = [Claim(n=3, queue=Q, caller="zeta"), Claimed(n=3, at=10, deliveries=[])]
    refused: list[Line] = [Claim(n=3, queue=Q, caller="zeta"), Refused(n=3, error="forbidden")]
    assert not rules_broken(mine, refused)
    assert rules_broken(theirs) == {"leaked"}


def test_a_key_makes_a_new_message_once_its_window_is_over() -> None:
    def keyed(n: int, id: int, payload: str, at: int) -> list[Line]:
        enqueue = Enqueue(n=n, queue=Q, items=[Item(payload=payload, key="k")], at=at)
        taken = claim(n + 1, at, delivered(id, 1, at + 50, payload=payload)) + settle(n + 2, at, "ack", (id, 1))
        return [enqueue, Enqueued(n=n, ids=[id], at=at), *taken]

    for payload in ("one", "other"):
        lines: list[Line] = [*keyed(1, 1, "one", 10), *keyed(4, 2, payload, 1_010), Drained()]
        assert {each.rule for each in check(lines, dedup_window_ms=1_001).violations} == {"duplicated"}
        assert not check(lines, dedup_window_ms=1_000).violations


def test_one_key_answers_the_first_message_whatever_the_second_payload() -> None:
    first: list[Line] = [Enqueue(n=1, queue=Q, items=[Item(payload="p1", key="k")]), Unknown(n=1, error="cut")]
    second: list[Line] = [Enqueue(n=2, queue=Q, items=[Item(payload="p2", key="k")]), Enqueued(n=2, ids=[1])]
    assert not broken(first, second, claim(3, 10, delivered(1, 1)), settle(4, 11, "ack", (1, 1)))


def test_the_verdict_is_one_line() -> None:
    lines = enqueue(1, [1, 2]) + claim(2, 10, delivered(1, 1)) + claim(3, 200, delivered(1, 2, 300))
    lines += [*settle(4, 201, "ack", (1, 2)), Drained()]
    assert check(lines).verdict(seed=7) == (
        "enqueued 2 acked 1 lost 1 resurrected 0 double-lease 0 stale-accepted 0 corrupt 0 leaked 0 duplicates 1 seed 7"
    )


def test_a_long_history_is_checked_in_time_that_grows_with_its_length_alone() -> None:
    """Counted in calls of the interpreter's own counter, not in seconds."""

    def work(messages: int) -> int:
        ids = list(range(1, messages + 1))
        lines = [line for id in ids for line in enqueue(id, [id], group="g")]
        for id in ids:
            lines += claim(messages + id, id, delivered(id, 1, id + 100))
            lines += settle(3 * messages + id, id, "ack", (id, 1))
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            findings = check([*lines, Drained()])
        finally:
            sys.setprofile(None)
        assert not findings.violations
        return calls

    assert work(2_000) < 2.5 * work(1_000)
