"""The order in which requests are parsed, on a loop that the test runs step by step."""

import contextlib
from collections import Counter

import pytest

from holdfast.dispatch.fairness import UNIT
from holdfast.service.limits.request_turns import (
    CONTENTION_S,
    MAX_AT_ONCE,
    MAX_AT_ONCE_EACH,
    MAX_BUSY_TURNS,
    MAX_TURNS,
    WAIT_BOUNDS,
    RequestTurns,
    TurnTaken,
)
from tests.doors.connections.hand_loop import HandLoop


class Flow:
    """A connection with a given number of requests."""

    def __init__(self, turns: RequestTurns, name: str, requests: int, read: list[str], size: int = 0) -> None:
        self._turns = turns
        self._left = requests
        self._read = read
        self._size = size
        self.name = name
        turns.wait(name, self)

    def take_turn(self) -> TurnTaken:
        self._read.append(self.name)
        self._left -= 1
        if self._left:
            self._turns.wait(self.name, self)
        return TurnTaken(1, self._size)


def turns_on(loop: HandLoop, **weights: int) -> RequestTurns:
    return RequestTurns(lambda tenant: weights.get(tenant, 1), loop.as_loop, now_s=lambda: 0.0)


def contended_on(loop: HandLoop, **weights: int) -> RequestTurns:
    turns = turns_on(loop, **weights)
    turns.note("a")
    turns.note("b")
    return turns


def test_a_tenant_alone_is_never_asked_to_wait() -> None:
    turns = turns_on(HandLoop())
    for _ in range(1_000):
        turns.note("a")
        assert not turns.is_contended


def test_a_second_tenant_makes_requests_ask_for_turns_until_one_has_been_alone_for_a_second() -> None:
    loop = HandLoop()
    turns = contended_on(loop)
    for after_s, is_contended in ((0.9, True), (0.2, False)):
        loop.now_s += CONTENTION_S * after_s
        assert turns.may_go_on("a")
        loop.run()
        assert turns.is_contended is is_contended
    turns.note("c")
    loop.now_s += CONTENTION_S * 0.9
    turns.note("a")
    loop.now_s += CONTENTION_S * 0.9
    assert turns.may_go_on("a")
    loop.run()
    assert turns.is_contended


def test_only_a_few_requests_of_a_tenant_are_read_at_once_in_a_round() -> None:
    loop = HandLoop()
    turns = contended_on(loop)
    for _ in range(3):
        for name in "ab":
            may = [turns.may_go_on(name) for _ in range(MAX_AT_ONCE_EACH + 2)]
            assert may == [True] * MAX_AT_ONCE_EACH + [False] * 2
        loop.run_round()
    assert [turns.may_go_on(str(number)) for number in range(MAX_AT_ONCE + 1)] == [True] * MAX_AT_ONCE + [False]


def test_a_request_never_passes_one_of_its_own_tenant_that_waits() -> None:
    loop, read = HandLoop(), list[str]()
    turns = contended_on(loop)
    Flow(turns, "a", 1, read)
    assert not turns.may_go_on("a")
    assert turns.may_go_on("b")
    loop.run()
    assert (read, turns.waiting) == (["a"], 0)


def test_a_quiet_tenant_is_read_after_at_most_one_more_request_of_a_flood() -> None:
    loop, read = HandLoop(), list[str]()
    turns = contended_on(loop)
    for _ in range(64):
        Flow(turns, "flood", 1_000, read)
    for number in range(100):
        loop.run_round()
        before = len(read)
        Flow(turns, "quiet", 1, read)
        loop.run_round()
        assert read.index("quiet", before) - before <= 1, number


def test_rounds_are_bounded_and_short_while_a_quiet_tenant_calls() -> None:
    loop, read = HandLoop(), list[str]()
    turns = contended_on(loop)
    for _ in range(64):
        Flow(turns, "flood", 1_000, read)
    loop.run_round()
    assert len(read) == MAX_BUSY_TURNS
    assert turns.may_go_on("quiet")
    read.clear()
    loop.run_round()
    assert len(read) == MAX_TURNS
    for _ in range(3):
        loop.now_s += CONTENTION_S
        read.clear()
        loop.run_round()
    assert len(read) == MAX_BUSY_TURNS


def test_a_round_ends_early_when_its_turns_take_long() -> None:
    loop, read = HandLoop(), list[str]()
    turns = RequestTurns(lambda tenant: 1, loop.as_loop, now_s=lambda: float(len(read)))
    for _ in range(3):
        Flow(turns, "slow", 1, read)
    loop.run_round()
    assert len(read) == 1
    loop.run()
    assert len(read) == 3


def test_a_tenant_that_had_to_wait_is_read_in_turns_alone_while_a_quiet_one_calls() -> None:
    loop, read = HandLoop(), list[str]()
    turns = contended_on(loop)
    Flow(turns, "flood", 1, read)
    loop.run()
    assert turns.may_go_on("flood")
    loop.run()
    assert turns.may_go_on("quiet")
    loop.run()
    assert not turns.may_go_on("flood")
    assert turns.may_go_on("quiet")
    for _ in range(3):  # it has not waited for two seconds, so it counts as quiet
        loop.now_s += CONTENTION_S
        assert turns.may_go_on("quiet")
        loop.run()
    assert turns.may_go_on("flood")


@pytest.mark.spec("7.3")
def test_turns_go_by_weight_and_by_what_they_cost() -> None:
    loop, read = HandLoop(), list[str]()
    turns = contended_on(loop, heavy=3)
    for name, size in (("heavy", 0), ("light", 0), ("large", 3 * UNIT)):
        Flow(turns, name, 10_000, read, size)
    while len(read) < 1_700:
        loop.run_round()
    counts = Counter(read[:1_700])
    assert abs(counts["heavy"] - 3 * counts["light"]) <= 6
    assert abs(counts["light"] - 4 * counts["large"]) <= 8


def test_a_turn_that_fails_takes_no_other_s_turn() -> None:
    loop, read = HandLoop(), list[str]()
    turns = contended_on(loop)

    class Broken:
        def take_turn(self) -> TurnTaken:
            raise ZeroDivisionError

    turns.wait("broken", Broken())
    Flow(turns, "other", 3, read)
    with contextlib.suppress(ZeroDivisionError):
        loop.run_round()
    loop.run()
    assert read == ["other"] * 3


def test_a_credential_is_known_by_its_tenant_and_only_so_many_are() -> None:
    turns = turns_on(HandLoop())
    turns.remember(b"Bearer one", "a")
    assert turns.tenant_of(b"Bearer one") == "a"
    assert turns.tenant_of(b"Bearer two") is None
    for number in range(10_000):
        turns.remember(b"%d" % number, "b")
    assert len(turns._tenants) <= 4_096


def test_waits_are_counted_with_their_time_and_requests_that_went_on_at_once_are_not() -> None:
    loop, now_s = HandLoop(), 10.0
    turns = RequestTurns(lambda tenant: 1, loop.as_loop, now_s=lambda: now_s)
    for name in ("a", "b"):
        turns.note(name)
    assert turns.may_go_on("a")
    assert (turns.waiting, sum(turns.waits.counts)) == (0, 0)
    read = list[str]()
    Flow(turns, "a", 1, read)
    Flow(turns, "b", 1, read)
    assert (turns.waiting, sum(turns.waits.counts)) == (2, 0)
    now_s += 0.25
    loop.run()
    assert len(read) == 2
    assert turns.waiting == 0
    assert dict(zip(WAIT_BOUNDS, turns.waits.counts, strict=False))[0.5] == 2
    assert (sum(turns.waits.counts), turns.waits.sum) == (2, 0.5)
