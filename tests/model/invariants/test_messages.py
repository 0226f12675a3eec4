"""Every life that the transitions make satisfies the invariants, and each kind of impossible life breaks one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.model.ids import EPOCH_MS
from holdfast.model.invariants.damage import DamageKind
from holdfast.model.invariants.messages import AHEAD_MS, check_id, check_life, check_options
from holdfast.model.message import Draft, State, make_envelope
from holdfast.model.policy import QueuePolicy
from holdfast.model.rules import lifecycle
from holdfast.model.rules.lifecycle import Lease, Life

NOW_MS = EPOCH_MS + 86_400_000
LEASE = Lease(token=bytes(16), claimed_at=1, expires_at=2, ends_at=3)
HELD = Life(state=State.IN_FLIGHT, attempt=1, version=1, lease=LEASE)
POLICY = QueuePolicy(keep_succeeded_ms=1_000, max_retries=2)
ENVELOPE = make_envelope(Draft(payload=b"x"), 1, NOW_MS)


def kinds(life: Life) -> set[DamageKind]:
    return {problem.damage for problem in check_life(life)}


@given(st.lists(st.sampled_from(["nack", "final", "defer", "release", "unsend", "expire", "ack"]), max_size=12))
def test_no_life_that_the_transitions_make_is_damaged(steps: list[str]) -> None:
    now_ms, life = NOW_MS, lifecycle.first_life(Draft(payload=b"x"), None, NOW_MS)
    for number, step in enumerate(steps):
        now_ms += 1_000
        if life.state is State.FAILED:
            life = after(lifecycle.redrive(life, ENVELOPE, None, now_ms))
            assert kinds(life) == set()
        if life.state is not State.READY:
            return
        life = after(lifecycle.claim(life, POLICY, now_ms, token=bytes(16), lease_ms=None, version_floor=number * 7))
        assert kinds(life) == set()
        life = after(_settle(life, step, now_ms))
        assert kinds(life) == set()


def after(change: lifecycle.Change) -> Life:
    assert change.life is not None
    return change.life


def _settle(life: Life, step: str, now_ms: int) -> lifecycle.Change:
    match step:
        case "nack" | "final":
            options: dict[str, Any] = {"error": "no", "delay_ms": None, "final": step == "final", "roll": 0.5}
            return lifecycle.nack(life, ENVELOPE, POLICY, now_ms, **options)
        case "defer":
            return lifecycle.defer(life, POLICY, now_ms, error=None, delay_ms=5)
        case "release":
            return lifecycle.release(life, POLICY, now_ms)
        case "unsend":
            return lifecycle.unsend(life, POLICY, now_ms)
        case "expire":
            return lifecycle.expire(life, ENVELOPE, POLICY, now_ms)
        case _:
            return lifecycle.ack(life, POLICY, now_ms)


@pytest.mark.parametrize(
    ("life", "kind"),
    [
        (replace(HELD, lease=None), DamageKind.LEASE_MISSING),
        (Life(lease=LEASE), DamageKind.LEASE_UNEXPECTED),
        (replace(HELD, lease=replace(LEASE, token=b"")), DamageKind.LEASE_INVALID),
        (replace(HELD, lease=replace(LEASE, expires_at=4)), DamageKind.LEASE_INVALID),
        (replace(HELD, version=0), DamageKind.ATTEMPTS_INVALID),
        (replace(HELD, failures=1), DamageKind.ATTEMPTS_INVALID),
        (replace(HELD, attempt=0), DamageKind.ATTEMPTS_INVALID),
        (Life(releases=-1), DamageKind.ATTEMPTS_INVALID),
        (Life(priority=256), DamageKind.OPTION_INVALID),
        (Life(priority=-1), DamageKind.OPTION_INVALID),
        (Life(keep_until=1), DamageKind.KEPT_INVALID),
        (Life(state=State.SUCCEEDED, settled_at=1), DamageKind.KEPT_INVALID),
        (Life(state=State.SUCCEEDED, keep_until=1), DamageKind.KEPT_INVALID),
        (Life(state=State.FAILED, settled_at=1), DamageKind.DEAD_LETTER_INVALID),
        (Life(state=State.FAILED, reason="ttl"), DamageKind.DEAD_LETTER_INVALID),
    ],
)
def test_each_impossible_life_is_named(life: Life, kind: DamageKind) -> None:
    assert kinds(life) == {kind}


def test_an_id_may_be_ahead_of_the_clock_by_a_day_and_no_more() -> None:
    def at(ms: int) -> int:
        return (ms - EPOCH_MS) << 22

    assert list(check_id(at(NOW_MS + AHEAD_MS), NOW_MS)) == []
    assert [each.damage for each in check_id(at(NOW_MS + AHEAD_MS + 1), NOW_MS)] == [DamageKind.ID_INVALID]
    assert [each.damage for each in check_id(-1, NOW_MS)] == [DamageKind.ID_INVALID]


@pytest.mark.parametrize(("given_id", "retries"), [("two words", None), (" x", None), ("", None), (None, -1)])
def test_an_option_that_no_door_accepts_is_named(given_id: str | None, retries: int | None) -> None:
    assert [each.damage for each in check_options(given_id, retries)] == [DamageKind.OPTION_INVALID]


def test_the_options_that_doors_accept_are_none() -> None:
    assert list(check_options(None, None)) == list(check_options("order-7", 0)) == []
