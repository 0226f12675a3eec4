from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.dispatch.fairness import UNIT, FairTurns, cost_of

weights = st.integers(1, 10)
costs = st.integers(0, 50 * UNIT)
TURNS = 300


def share(served: int, weight: int) -> float:
    return served / weight


@pytest.mark.spec("7.3")
@given(st.integers(0, 10_000), st.integers(0, 1 << 30))
def test_a_message_costs_one_and_so_does_each_4_kib(messages: int, size: int) -> None:
    assert cost_of(messages, size) / UNIT == messages + size / 4_096


def test_with_nobody_waiting_there_is_no_turn() -> None:
    turns: FairTurns[str] = FairTurns(lambda tenant: 1)
    assert turns.pop() is None
    assert len(turns) == 0


def test_one_tenant_s_items_come_in_the_order_they_were_given() -> None:
    turns: FairTurns[int] = FairTurns(lambda tenant: 1)
    for item in range(5):
        turns.push("a", item)
    taken = []
    while (turn := turns.pop()) is not None:
        taken.append(turn)
        turns.charge("a", cost_of(100, 0))
    assert taken == [("a", item) for item in range(5)]


def test_tenants_of_equal_weight_and_cost_take_turns() -> None:
    turns: FairTurns[int] = FairTurns(lambda tenant: 1)
    for item in range(3):
        for tenant in ("a", "b", "c"):
            turns.push(tenant, item)
    order = []
    while (turn := turns.pop()) is not None:
        order.append(turn)
        turns.charge(turn[0], UNIT)
    assert order == [(tenant, item) for item in range(3) for tenant in ("a", "b", "c")]


@pytest.mark.spec("7.3")
@settings(deadline=None)
@given(st.lists(weights, min_size=2, max_size=6), st.data())
def test_among_tenants_always_waiting_served_cost_per_weight_differs_by_at_most_one_batch(
    of_tenant: list[int], data: st.DataObject
) -> None:
    weight = {f"t{at}": each for at, each in enumerate(of_tenant)}
    pattern = data.draw(st.lists(costs, min_size=1, max_size=20), label="costs of turns")
    turns: FairTurns[int] = FairTurns(weight.__getitem__)
    served = dict.fromkeys(weight, 0)
    batch = 0.0
    for tenant in weight:
        turns.push(tenant, 0)
    for turn in range(TURNS):
        popped = turns.pop()
        assert popped is not None
        tenant, _ = popped
        turns.push(tenant, turn)
        cost = pattern[turn % len(pattern)]
        turns.charge(tenant, cost)
        served[tenant] += cost
        batch = max(batch, share(cost, weight[tenant]))
        shares = [share(served[each], weight[each]) for each in weight]
        # Integer arithmetic may be off by one round, which is one part of a unit per weight.
        assert max(shares) - min(shares) <= batch + 1


@pytest.mark.spec("7.3")
@settings(deadline=None)
@given(
    st.lists(weights, min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), costs), min_size=20, max_size=200),
)
def test_however_work_arrives_two_tenants_that_both_wait_differ_by_at_most_a_batch_of_each(
    of_tenant: list[int], arrivals: list[tuple[int, int, int]]
) -> None:
    tenants = [f"t{at}" for at in range(len(of_tenant))]
    weight = dict(zip(tenants, of_tenant, strict=True))
    turns: FairTurns[int] = FairTurns(weight.__getitem__)
    waiting: dict[str, int] = defaultdict(int)
    # For each pair, the service that each got while both were waiting without a break.
    together: dict[tuple[str, str], list[int]] = {}
    batch: dict[str, int] = defaultdict(int)
    for who, number, cost in arrivals:
        arriving = tenants[who % len(tenants)]
        for item in range(number):
            turns.push(arriving, item)
            waiting[arriving] += 1
        if (popped := turns.pop()) is None:
            assert not any(waiting.values())
            continue
        tenant, _ = popped
        turns.charge(tenant, cost)
        waiting[tenant] -= 1
        batch[tenant] = max(batch[tenant], cost)
        for one in tenants:
            for other in tenants:
                if one >= other:
                    continue
                if not (waiting[one] and waiting[other]):
                    together.pop((one, other), None)
                    continue
                pair = together.setdefault((one, other), [0, 0])
                pair[0] += cost if tenant == one else 0
                pair[1] += cost if tenant == other else 0
                apart = abs(share(pair[0], weight[one]) - share(pair[1], weight[other]))
                assert apart <= share(batch[one], weight[one]) + share(batch[other], weight[other]) + 2


@settings(deadline=None)
@given(weights, weights, costs, costs, st.lists(st.integers(0, 2), min_size=1, max_size=10))
def test_leaving_and_coming_back_gives_no_advantage_over_staying(
    stays: int, hops: int, cost_of_stayer: int, cost_of_hopper: int, absences: list[int]
) -> None:
    weight = {"stays": stays, "hops": hops}
    turns: FairTurns[int] = FairTurns(weight.__getitem__)
    served = {"stays": 0, "hops": 0}
    turns.push("stays", 0)
    absent, left = 0, 0
    for turn in range(TURNS):
        if absent == 0:
            # One item at a time: after it the tenant has none.
            turns.push("hops", turn)
            absent = -1
        popped = turns.pop()
        assert popped is not None
        tenant, _ = popped
        cost = cost_of_stayer if tenant == "stays" else cost_of_hopper
        if tenant == "stays":
            turns.push("stays", turn)
        turns.charge(tenant, cost)
        served[tenant] += cost
        if tenant == "hops":
            absent = absences[left % len(absences)]
            left += 1
        elif absent > 0:
            absent -= 1
        largest = max(share(cost_of_stayer, stays), share(cost_of_hopper, hops))
        assert share(served["hops"], hops) <= share(served["stays"], stays) + largest + 1


@settings(deadline=None)
@given(weights, weights, st.integers(UNIT, 50 * UNIT), st.integers(UNIT, 50 * UNIT))
def test_who_leaves_and_comes_back_at_once_is_served_as_if_it_had_stayed(
    stays: int, hops: int, cost_of_stayer: int, cost_of_hopper: int
) -> None:
    weight = {"stays": stays, "hops": hops}
    turns: FairTurns[int] = FairTurns(weight.__getitem__)
    cost = {"stays": cost_of_stayer, "hops": cost_of_hopper}
    served = {"stays": 0, "hops": 0}
    left = 0
    for tenant in weight:
        turns.push(tenant, 0)
    for turn in range(TURNS):
        popped = turns.pop()
        assert popped is not None
        tenant, _ = popped
        if tenant == "stays":
            turns.push(tenant, turn)
        turns.charge(tenant, cost[tenant])
        if tenant == "hops":
            turns.push(tenant, turn)
            left += 1
        served[tenant] += cost[tenant]
        largest = max(share(cost[each], weight[each]) for each in weight)
        # The rest of a round, less than one part of a unit per weight, is lost for a tenant without items.
        assert abs(share(served["hops"], hops) - share(served["stays"], stays)) <= largest + 1 + left


def test_a_debt_is_worked_off_while_its_tenant_is_away() -> None:
    turns: FairTurns[int] = FairTurns(lambda tenant: 1)
    turns.push("away", 0)
    turns.push("stays", 0)
    assert turns.pop() == ("away", 0)
    turns.charge("away", 10 * UNIT)
    for turn in range(11):
        assert turns.pop() == ("stays", turn)
        turns.push("stays", turn + 1)
        turns.charge("stays", UNIT)
    turns.push("away", 1)
    order = []
    for turn in range(2):
        popped = turns.pop()
        assert popped is not None
        order.append(popped[0])
        turns.push(popped[0], turn)
        turns.charge(popped[0], UNIT)
    assert sorted(order) == ["away", "stays"]


@pytest.mark.spec("7.3")
@settings(deadline=None)
@given(weights, weights, st.integers(1, 20 * UNIT))
def test_a_thousand_queues_get_their_tenant_no_more_than_its_weight(many: int, one: int, cost: int) -> None:
    weight = {"many": many, "one": one}
    turns: FairTurns[int] = FairTurns(weight.__getitem__)
    served = {"many": 0, "one": 0}
    for queue in range(1_000):
        turns.push("many", queue)
    turns.push("one", 0)
    for _ in range(TURNS):
        popped = turns.pop()
        assert popped is not None
        tenant, queue = popped
        turns.push(tenant, queue)
        turns.charge(tenant, cost)
        served[tenant] += cost
    assert share(served["many"], many) <= share(served["one"], one) + share(cost, many) + 1
    assert share(served["one"], one) <= share(served["many"], many) + share(cost, one) + 1


@pytest.mark.spec("7.3")
def test_a_newcomer_does_not_wait_behind_a_backlog() -> None:
    turns: FairTurns[int] = FairTurns(lambda tenant: 1)
    for item in range(1_000):
        turns.push("noisy", item)
    for _ in range(100):
        turns.pop()
        turns.charge("noisy", cost_of(100, 1 << 20))
    turns.push("quiet", 0)
    turn = turns.pop()
    assert turn == ("quiet", 0)


def test_time_spent_away_is_not_saved_up() -> None:
    turns: FairTurns[int] = FairTurns(lambda tenant: 1)
    turns.push("stays", 0)
    for turn in range(1_000):
        turns.pop()
        turns.push("stays", turn)
        turns.charge("stays", UNIT)
    for item in range(10):
        turns.push("late", item)
    order = []
    for turn in range(10):
        popped = turns.pop()
        assert popped is not None
        order.append(popped[0])
        turns.push(popped[0], turn)
        turns.charge(popped[0], UNIT)
    assert abs(order.count("late") - order.count("stays")) <= 2


def test_a_tenant_alone_is_served_at_once_whatever_it_spent() -> None:
    turns: FairTurns[int] = FairTurns(lambda tenant: 1)
    for item in range(3):
        turns.push("a", item)
        assert turns.pop() == ("a", item)
        turns.charge("a", cost_of(10_000, 1 << 40))
    assert len(turns) == 0


def test_a_turn_that_found_nothing_costs_nothing_and_still_goes_behind_the_others() -> None:
    turns: FairTurns[int] = FairTurns(lambda tenant: 1)
    order = []
    for tenant in ("a", "b"):
        turns.push(tenant, 0)
    for turn in range(6):
        popped = turns.pop()
        assert popped is not None
        order.append(popped[0])
        turns.push(popped[0], turn)
        turns.charge(popped[0], 0)
    assert order == ["a", "b"] * 3
