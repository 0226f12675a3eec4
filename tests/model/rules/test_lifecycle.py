from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from holdfast.model.errors import Internal
from holdfast.model.events import Event
from holdfast.model.message import Draft, Envelope, Receipt, State
from holdfast.model.policy import OnTtl, QueuePolicy
from holdfast.model.rules import lifecycle
from holdfast.model.rules.lifecycle import Change, Lease, Life, holds
from holdfast.model.rules.transitions import TRANSITIONS

NOW_MS = 1_750_000_000_000
TOKEN = b"t" * 16
POLICY = QueuePolicy()
DROPS = QueuePolicy(on_ttl=OnTtl.DROP)
ENVELOPE = Envelope(id=1, enqueued_at=NOW_MS - 10_000, payload=b"x")
RECEIPT = Receipt(1, TOKEN, 4)
LEASE = Lease(token=TOKEN, claimed_at=NOW_MS - 1_000, expires_at=NOW_MS + 4_000, ends_at=NOW_MS + 60_000)

READY = Life(visible_at=NOW_MS - 5_000, attempt=3, failures=1, expiries=1, releases=1, version=3, error="old")
IN_FLIGHT = replace(READY, state=State.IN_FLIGHT, attempt=4, version=4, lease=LEASE)
FAILED = replace(READY, state=State.FAILED, attempt=4, version=4, reason="retries", settled_at=NOW_MS - 1)
SUCCEEDED = replace(READY, state=State.SUCCEEDED, attempt=4, version=4, settled_at=NOW_MS - 1)
LIVES = {State.READY: READY, State.IN_FLIGHT: IN_FLIGHT, State.FAILED: FAILED, State.SUCCEEDED: SUCCEEDED}

# SPEC 2.2, and the journal's events of API.md; written down apart from the code. None: no message, no event.
EXPECTED = {
    (None, "enqueue", "ready", "enqueued"),
    ("ready", "claim", "in_flight", "claimed"),
    ("in_flight", "extend", "in_flight", "extended"),
    ("in_flight", "ack", "succeeded", "succeeded"),
    ("in_flight", "nack, retries left", "ready", "retried"),
    ("in_flight", "nack, none left", "failed", "failed"),
    ("in_flight", "nack, final", "failed", "failed"),
    ("in_flight", "defer", "ready", "released"),
    ("in_flight", "release", "ready", "released"),
    ("in_flight", "claimed for a caller that left", "ready", "released"),
    ("in_flight", "lease ran out, retries left", "ready", "expired"),
    ("in_flight", "lease ran out, none left", "failed", "failed"),
    ("ready", "TTL ran out", "failed", "failed"),
    ("ready", "TTL ran out, policy drops", None, "removed"),
    ("in_flight", "TTL ran out", "failed", "failed"),
    ("in_flight", "TTL ran out, policy drops", None, "removed"),
    ("failed", "redrive", "ready", "redriven"),
    ("ready", "move", "ready", "moved"),
    ("failed", "move", "failed", "moved"),
    ("ready", "reprioritise", "ready", None),
    ("ready", "remove, cancel, purge", None, "removed"),
    ("in_flight", "remove, cancel, purge", None, "removed"),
    ("failed", "remove, cancel, purge", None, "removed"),
    ("succeeded", "remove, cancel, purge", None, "removed"),
}


def changed(before: Life, change: Change) -> dict[str, object]:
    """Return the fields that differ between two lives."""
    assert change.life is not None
    old, new = asdict(before), asdict(change.life)
    return {name: value for name, value in new.items() if value != old[name]}


# --- The table ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("2.2")
def test_the_table_is_that_of_the_specification_and_has_nothing_else() -> None:
    table = {
        (
            None if state is None else state.value,
            cause.value,
            None if step.state is None else step.state.value,
            None if step.event is None else step.event.value,
        )
        for (state, cause), step in TRANSITIONS.items()
    }
    assert table == EXPECTED


@pytest.mark.spec("2.2")
def test_the_documented_table_is_the_one_in_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "states.md").read_text(encoding="utf-8")
    lines = page.splitlines()
    start = lines.index("| from state | cause | to state | journal event |") + 2
    documented = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        documented.append(tuple(cell.strip().strip("`") for cell in line.strip("|").split("|")))
    in_code = [
        (str(state or "–"), cause.value, str(step.state or "–"), str(step.event or "–"))
        for (state, cause), step in TRANSITIONS.items()
    ]
    assert documented == in_code


def test_every_event_of_the_journal_stands_for_some_step() -> None:
    assert {step.event for step in TRANSITIONS.values()} - {None} == set(Event)


@pytest.mark.spec("2.10")
def test_what_succeeded_never_becomes_claimable_again() -> None:
    assert {step.state for (state, _), step in TRANSITIONS.items() if state is State.SUCCEEDED} == {None}


STEPS: dict[str, tuple[Callable[[Life], Change], set[State]]] = {
    "claim": (lambda life: lifecycle.claim(life, POLICY, NOW_MS, token=TOKEN, lease_ms=None), {State.READY}),
    "extend": (lambda life: lifecycle.extend(life, POLICY, NOW_MS, None), {State.IN_FLIGHT}),
    "ack": (lambda life: lifecycle.ack(life, POLICY, NOW_MS), {State.IN_FLIGHT}),
    "nack": (
        lambda life: lifecycle.nack(life, ENVELOPE, POLICY, NOW_MS, error=None, delay_ms=None, final=False, roll=0.5),
        {State.IN_FLIGHT},
    ),
    "nack, final": (
        lambda life: lifecycle.nack(life, ENVELOPE, POLICY, NOW_MS, error=None, delay_ms=None, final=True, roll=0.5),
        {State.IN_FLIGHT},
    ),
    "defer": (lambda life: lifecycle.defer(life, POLICY, NOW_MS, error=None, delay_ms=None), {State.IN_FLIGHT}),
    "release": (lambda life: lifecycle.release(life, POLICY, NOW_MS), {State.IN_FLIGHT}),
    "unsend": (lambda life: lifecycle.unsend(life, POLICY, NOW_MS), {State.IN_FLIGHT}),
    "expire": (lambda life: lifecycle.expire(life, ENVELOPE, POLICY, NOW_MS), {State.IN_FLIGHT}),
    "end by TTL": (lambda life: lifecycle.end_by_ttl(life, POLICY, NOW_MS), {State.READY, State.IN_FLIGHT}),
    "end by TTL, dropping": (lambda life: lifecycle.end_by_ttl(life, DROPS, NOW_MS), {State.READY, State.IN_FLIGHT}),
    "redrive": (lambda life: lifecycle.redrive(life, ENVELOPE, None, NOW_MS), {State.FAILED}),
    "move": (lambda life: lifecycle.move(life), {State.READY, State.FAILED}),
    "reprioritise": (lambda life: lifecycle.reprioritise(life, 7), {State.READY}),
    "remove": (lambda life: lifecycle.remove(life, "removed"), set(State)),
}


@pytest.mark.spec("2.2")
@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("name", STEPS)
def test_a_step_goes_along_the_table_or_raises_and_changes_nothing(name: str, state: State) -> None:
    step, allowed = STEPS[name]
    life = LIVES[state]
    before = asdict(life)
    if state not in allowed:
        with pytest.raises(Internal):
            step(life)
    else:
        change = step(life)
        after = None if change.life is None else change.life.state
        assert (after, change.event) in {(to.state, to.event) for (of, _), to in TRANSITIONS.items() if of is state}
    assert asdict(life) == before


# --- The fencing rule --------------------------------------------------------------------------------------------


def test_the_receipt_of_the_current_lease_holds_until_the_very_end() -> None:
    assert holds(IN_FLIGHT, RECEIPT, NOW_MS)
    assert holds(IN_FLIGHT, RECEIPT, LEASE.expires_at - 1)
    assert not holds(IN_FLIGHT, RECEIPT, LEASE.expires_at)
    assert not holds(IN_FLIGHT, RECEIPT, LEASE.expires_at + 1)


@given(st.binary(min_size=16, max_size=16), st.integers(0, 10))
def test_no_other_token_or_version_holds(token: bytes, version: int) -> None:
    is_ours = token == TOKEN and version == IN_FLIGHT.version
    assert holds(IN_FLIGHT, Receipt(1, token, version), NOW_MS) == is_ours


@pytest.mark.parametrize("state", [State.READY, State.FAILED, State.SUCCEEDED])
def test_what_is_not_in_flight_is_held_by_nobody(state: State) -> None:
    assert not holds(LIVES[state], RECEIPT, NOW_MS)


@pytest.mark.parametrize(("expires_at", "is_over"), [(None, False), (NOW_MS + 1, False), (NOW_MS, True), (0, True)])
def test_a_ttl_ends_at_its_very_instant(expires_at: int | None, is_over: bool) -> None:
    assert lifecycle.is_over(replace(READY, expires_at=expires_at), NOW_MS) == is_over


# --- Each step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draft", "visible_at", "expires_at"),
    [
        (Draft(payload=b""), NOW_MS, None),
        (Draft(payload=b"", delay_ms=5), NOW_MS + 5, None),
        (Draft(payload=b"", deliver_at=NOW_MS + 7), NOW_MS + 7, None),
        (Draft(payload=b"", deliver_at=5), NOW_MS, None),
        (Draft(payload=b"", ttl_ms=9), NOW_MS, NOW_MS + 9),
    ],
)
def test_a_new_message_is_ready_from_its_time_on(draft: Draft, visible_at: int, expires_at: int | None) -> None:
    life = lifecycle.first_life(draft, None, NOW_MS)
    assert life == Life(visible_at=visible_at, expires_at=expires_at)
    assert (life.state, life.attempt, life.version, life.priority) == (State.READY, 0, 0, 100)


def test_the_message_s_own_ttl_comes_before_the_queue_s() -> None:
    assert lifecycle.first_life(Draft(payload=b""), 30, NOW_MS).expires_at == NOW_MS + 30
    assert lifecycle.first_life(Draft(payload=b"", ttl_ms=9), 30, NOW_MS).expires_at == NOW_MS + 9


@pytest.mark.parametrize(
    ("policy", "lease_ms", "held_ms"),
    [
        (POLICY, None, 5_000),
        (POLICY, 9, 9),
        (QueuePolicy(lease_ms=70), None, 70),
        (QueuePolicy(lease_ms=70, max_lease_ms=50), None, 50),
        (QueuePolicy(max_lease_ms=50), 60, 50),
    ],
)
def test_a_claim_leases_and_counts_and_keeps_the_place(policy: QueuePolicy, lease_ms: int | None, held_ms: int) -> None:
    change = lifecycle.claim(READY, policy, NOW_MS, token=TOKEN, lease_ms=lease_ms, owner="w", ledger=("c", 1))

    assert changed(READY, change) == {
        "state": State.IN_FLIGHT,
        "attempt": READY.attempt + 1,
        "version": READY.version + 1,
        "lease": Lease(
            token=TOKEN,
            claimed_at=NOW_MS,
            expires_at=NOW_MS + held_ms,
            ends_at=NOW_MS + policy.max_lease_ms,
            owner="w",
            ledger=("c", 1),
        ),
    }
    assert change.event is Event.CLAIMED


@pytest.mark.parametrize(("lease_ms", "expires_at"), [(None, NOW_MS + 5_000), (1, NOW_MS + 1), (90_000, LEASE.ends_at)])
def test_extend_sets_the_expiry_and_may_shorten_but_never_passes_max_lease(
    lease_ms: int | None, expires_at: int
) -> None:
    change = lifecycle.extend(IN_FLIGHT, POLICY, NOW_MS, lease_ms)

    assert change.life == replace(IN_FLIGHT, lease=replace(LEASE, expires_at=expires_at))
    assert change.event is Event.EXTENDED


def test_ack_settles() -> None:
    change = lifecycle.ack(IN_FLIGHT, POLICY, NOW_MS)

    assert changed(IN_FLIGHT, change) == {"state": State.SUCCEEDED, "lease": None, "settled_at": NOW_MS}
    assert change.event is Event.SUCCEEDED


def test_a_success_is_kept_for_as_long_as_the_policy_says_and_else_is_gone() -> None:
    gone = lifecycle.ack(IN_FLIGHT, POLICY, NOW_MS).life
    kept = lifecycle.ack(IN_FLIGHT, QueuePolicy(keep_succeeded_ms=70), NOW_MS).life
    assert gone is not None
    assert kept is not None
    assert (gone.is_gone, gone.keep_until) == (True, None)
    assert (kept.is_gone, kept.keep_until) == (False, NOW_MS + 70)
    assert not any(LIVES[state].is_gone for state in (State.READY, State.IN_FLIGHT, State.FAILED))


@pytest.mark.spec("2.5")
@given(st.integers(0, 100), st.integers(0, 100))
def test_a_version_rises_above_its_last_and_above_the_floor_a_crash_left(version: int, floor: int) -> None:
    life = replace(READY, version=version)
    change = lifecycle.claim(life, POLICY, NOW_MS, token=TOKEN, lease_ms=None, version_floor=floor)
    assert change.life is not None
    assert change.life.version == max(version, floor) + 1


def nack(life: Life, *, policy: QueuePolicy = POLICY, delay_ms: int | None = None, final: bool = False,
         error: str | None = "boom", roll: float = 0.5, max_retries: int | None = None) -> Change:  # fmt: skip
    envelope = replace(ENVELOPE, max_retries=max_retries)
    return lifecycle.nack(life, envelope, policy, NOW_MS, error=error, delay_ms=delay_ms, final=final, roll=roll)


def test_a_nack_with_retries_left_comes_back_after_a_backoff() -> None:
    change = nack(IN_FLIGHT)

    # The third retry: one failure and one expiry came before.
    assert changed(IN_FLIGHT, change) == {
        "state": State.READY, "lease": None, "failures": 2, "error": "boom", "visible_at": NOW_MS + 1_000,
    }  # fmt: skip
    assert (change.event, change.error) == (Event.RETRIED, "boom")


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 5), st.none() | st.integers(0, 5))
def test_failures_and_expiries_use_one_budget_and_releases_none(
    failures: int, expiries: int, releases: int, own: int | None
) -> None:
    life = replace(IN_FLIGHT, failures=failures, expiries=expiries, releases=releases)
    is_last = failures + expiries + 1 > (3 if own is None else own)

    by_nack = nack(life, max_retries=own)
    by_expiry = lifecycle.expire(life, replace(ENVELOPE, max_retries=own), POLICY, NOW_MS)

    assert by_nack.life is not None
    assert by_expiry.life is not None
    assert by_nack.life.state == by_expiry.life.state == (State.FAILED if is_last else State.READY)
    assert by_nack.life.reason == ("retries" if is_last else None)
    assert by_expiry.life.reason == ("lease_expired" if is_last else None)


def test_with_the_default_of_3_retries_the_fourth_attempt_is_the_last() -> None:
    life, attempts = Life(visible_at=NOW_MS), 0
    while life.state is State.READY:
        claimed = lifecycle.claim(life, POLICY, NOW_MS, token=TOKEN, lease_ms=None).life
        assert claimed is not None
        attempts += 1
        life = nack(claimed).life or life
    assert (attempts, life.attempt, life.failures, life.reason) == (4, 4, 4, "retries")


@given(st.integers(0, 10), st.floats(0, 1, exclude_max=True))
def test_the_first_retry_waits_up_to_the_base_and_each_next_twice_as_long(used: int, roll: float) -> None:
    policy = QueuePolicy(max_retries=100)
    change = nack(replace(IN_FLIGHT, failures=used, expiries=0), policy=policy, roll=roll)
    assert change.life is not None
    assert change.life.visible_at == NOW_MS + int(roll * min(500 * 2**used, 30_000))


@pytest.mark.parametrize("delay_ms", [0, 1, 999_999])
def test_a_nack_s_own_delay_comes_before_the_backoff(delay_ms: int) -> None:
    change = nack(IN_FLIGHT, delay_ms=delay_ms)
    assert change.life is not None
    assert change.life.visible_at == NOW_MS + delay_ms


def test_a_final_nack_fails_whatever_is_left() -> None:
    change = nack(IN_FLIGHT, final=True)
    assert changed(IN_FLIGHT, change) == {
        "state": State.FAILED, "lease": None, "failures": 2, "error": "boom", "reason": "final", "settled_at": NOW_MS,
    }  # fmt: skip


def test_an_error_text_is_cut_to_4096_characters() -> None:
    change = nack(IN_FLIGHT, error="x" * 10_000)
    assert change.life is not None
    assert change.life.error == "x" * 4_096


@pytest.mark.spec("2.8")
def test_defer_waits_and_counts_nothing() -> None:
    change = lifecycle.defer(IN_FLIGHT, POLICY, NOW_MS, error=None, delay_ms=70)

    assert changed(IN_FLIGHT, change) == {
        "state": State.READY, "lease": None, "visible_at": NOW_MS + 70, "reason": "defer",
    }  # fmt: skip
    assert change.event is Event.RELEASED


def test_release_keeps_the_place_and_counts_as_a_release() -> None:
    change = lifecycle.release(IN_FLIGHT, POLICY, NOW_MS)
    assert changed(IN_FLIGHT, change) == {"state": State.READY, "lease": None, "releases": 2}


def test_an_unanswered_claim_counts_only_for_its_version() -> None:
    change = lifecycle.unsend(IN_FLIGHT, POLICY, NOW_MS)
    assert changed(IN_FLIGHT, change) == {"state": State.READY, "lease": None, "attempt": 3, "reason": "unsent"}


def test_an_expired_message_comes_back_as_of_its_expiry() -> None:
    late = LEASE.expires_at + 12_345
    change = lifecycle.expire(IN_FLIGHT, ENVELOPE, POLICY, late)
    assert changed(IN_FLIGHT, change) == {
        "state": State.READY, "lease": None, "expiries": 2, "visible_at": LEASE.expires_at,
    }  # fmt: skip
    assert change.event is Event.EXPIRED


OVER = replace(IN_FLIGHT, expires_at=NOW_MS)
GIVEN_BACK: dict[str, tuple[Callable[[QueuePolicy], Change], dict[str, int]]] = {
    "nack": (lambda policy: nack(OVER, policy=policy, error="old"), {"failures": 2}),
    "defer": (lambda policy: lifecycle.defer(OVER, policy, NOW_MS, error=None, delay_ms=5), {}),
    "release": (lambda policy: lifecycle.release(OVER, policy, NOW_MS), {"releases": 2}),
    "unsend": (lambda policy: lifecycle.unsend(OVER, policy, NOW_MS), {"attempt": 3}),
    "expire": (lambda policy: lifecycle.expire(OVER, ENVELOPE, policy, NOW_MS), {"expiries": 2}),
}


@pytest.mark.parametrize("name", GIVEN_BACK)
def test_a_message_in_flight_meets_its_ttl_when_its_lease_ends(name: str) -> None:
    step, counted = GIVEN_BACK[name]
    change = step(POLICY)

    expected = {"state": State.FAILED, "lease": None, "reason": "ttl", "settled_at": NOW_MS, **counted}
    assert changed(OVER, change) == expected
    assert (change.event, change.reason) == (Event.FAILED, "ttl")


@pytest.mark.parametrize("name", GIVEN_BACK)
def test_where_the_policy_drops_a_ttl_leaves_nothing_but_its_event(name: str) -> None:
    change = GIVEN_BACK[name][0](DROPS)
    assert (change.life, change.event, change.reason) == (None, Event.REMOVED, "ttl")


def test_an_ack_after_the_ttl_still_succeeds_and_a_final_nack_is_still_final() -> None:
    acked, final = lifecycle.ack(OVER, POLICY, NOW_MS).life, nack(OVER, final=True).life
    assert acked is not None
    assert acked.state is State.SUCCEEDED
    assert final is not None
    assert final.reason == "final"


@pytest.mark.parametrize(
    ("own", "queue_s", "expires_at"), [(None, None, None), (9, 30, NOW_MS + 9), (None, 30, NOW_MS + 30)]
)
def test_redrive_gives_a_fresh_budget_and_ttl_and_keeps_attempt_and_version(
    own: int | None, queue_s: int | None, expires_at: int | None
) -> None:
    dead = replace(FAILED, expires_at=NOW_MS - 77)
    change = lifecycle.redrive(dead, replace(ENVELOPE, ttl_ms=own), queue_s, NOW_MS)

    assert changed(dead, change) == {
        "state": State.READY, "failures": 0, "expiries": 0, "visible_at": NOW_MS, "expires_at": expires_at,
        "reason": None, "settled_at": None,
    }  # fmt: skip
    assert change.event is Event.REDRIVEN


@pytest.mark.parametrize("life", [READY, FAILED], ids=["ready", "failed"])
def test_a_move_changes_nothing_of_a_message(life: Life) -> None:
    assert lifecycle.move(life).life == life


def test_reprioritise_changes_the_priority_alone_and_is_no_event() -> None:
    change = lifecycle.reprioritise(READY, 7)
    assert changed(READY, change) == {"priority": 7}
    assert change.event is None


def test_a_removal_says_why() -> None:
    assert lifecycle.remove(READY, "purged") == Change(None, Event.REMOVED, "purged")


# --- Whole histories ---------------------------------------------------------------------------------------------


@pytest.mark.spec("2.1")
@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 3_000)), max_size=40))
def test_along_any_history_versions_and_attempts_only_rise_and_a_lease_means_in_flight(
    history: list[tuple[str, int]],
) -> None:
    life, highest = Life(visible_at=NOW_MS), 0
    for name, _ in history:
        step, allowed = STEPS[name]
        if life.state not in allowed:
            continue
        after = step(life).life
        if after is None:
            return
        assert after.version == life.version + (name == "claim")
        assert after.version >= highest
        assert (after.lease is not None) == (after.state is State.IN_FLIGHT)
        assert (after.settled_at is not None) == (after.state in (State.FAILED, State.SUCCEEDED))
        life, highest = after, after.version
