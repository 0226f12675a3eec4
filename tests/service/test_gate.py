"""The gate: a limit on concurrent calls, and turns by weight for the waiting ones."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.dispatch.fairness import UNIT
from holdfast.runtime import LoopRuntime
from holdfast.service.limits import gate as gates
from holdfast.service.limits.gate import Gate
from holdfast.testing import ManualClock


def make_gate(clock: ManualClock, size: int, weights: dict[str, int] | None = None) -> Gate:
    return Gate(LoopRuntime(clock, clock), size, lambda tenant: (weights or {}).get(tenant, 1))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def settle_loop() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def wait_at(gate: Gate, clock: ManualClock, tenant: str = "acme", cost: int = UNIT) -> "asyncio.Task[bool]":
    return asyncio.create_task(gate.enter(tenant, cost, clock.now_ms() + 5_000))


async def test_as_many_as_fit_go_in_and_the_next_waits_until_one_leaves(clock: ManualClock) -> None:
    gate = make_gate(clock, 2)
    assert gate.try_enter()
    assert gate.try_enter()
    assert not gate.try_enter()
    waiting = wait_at(gate, clock)
    await settle_loop()
    assert not waiting.done()
    gate.leave()
    assert await waiting
    assert gate.in_hand == 2


async def test_nobody_passes_those_who_wait(clock: ManualClock) -> None:
    gate = make_gate(clock, 1)
    gate.try_enter()
    waiting = wait_at(gate, clock)
    await settle_loop()
    gate.leave()
    assert not gate.try_enter()
    assert await waiting


async def test_whoever_waits_too_long_is_sent_away_and_takes_no_place(clock: ManualClock) -> None:
    gate = make_gate(clock, 1)
    gate.try_enter()
    waiting = wait_at(gate, clock)
    await settle_loop()
    clock.advance(4_999)
    await settle_loop()
    assert not waiting.done()
    clock.advance(1)
    assert not await waiting
    gate.leave()
    assert gate.is_idle


@pytest.mark.parametrize("after_turns", range(4))
async def test_one_that_is_cancelled_at_any_moment_leaves_no_trace(clock: ManualClock, after_turns: int) -> None:
    gate = make_gate(clock, 1)
    gate.try_enter()
    gone, stays = wait_at(gate, clock), wait_at(gate, clock)
    await settle_loop()
    gate.leave()  # admits the first, which has not run since
    for _ in range(after_turns):
        await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    if not gone.cancelled():
        gate.leave()  # too late: it was admitted before
    assert await stays
    gate.leave()
    assert gate.is_idle


async def test_one_that_is_cancelled_while_it_waits_leaves_no_trace(clock: ManualClock) -> None:
    gate = make_gate(clock, 1)
    gate.try_enter()
    gone, stays = wait_at(gate, clock), wait_at(gate, clock)
    await settle_loop()
    gone.cancel()
    gate.leave()  # in the same step: the cancelled call is still waiting
    assert await stays
    gate.leave()
    await settle_loop()
    assert gate.is_idle


async def test_a_gate_made_larger_lets_in_those_who_waited_first(clock: ManualClock) -> None:
    gate = make_gate(clock, 1)
    gate.try_enter()
    first, second = wait_at(gate, clock), wait_at(gate, clock)
    await settle_loop()
    gate.size = 2
    third = wait_at(gate, clock)
    assert await first
    await settle_loop()
    assert not second.done()
    assert not third.done()
    for task in (second, third):
        task.cancel()


async def test_one_tenant_s_full_line_is_not_anothers(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "MAX_WAITING_OF_TENANT", 3)
    gate = make_gate(clock, 1)
    gate.try_enter()
    flood = [wait_at(gate, clock, "noisy") for _ in range(3)]
    await settle_loop()
    assert gate.is_full("noisy")
    assert not gate.is_full("quiet")
    for task in flood:
        task.cancel()
    await settle_loop()
    assert not gate.is_full("noisy")


async def test_a_tenant_that_comes_new_goes_in_before_a_flood(clock: ManualClock) -> None:
    gate = make_gate(clock, 4)
    for _ in range(4):
        gate.try_enter()
    flood = [wait_at(gate, clock, "noisy") for _ in range(500)]
    await settle_loop()
    for _ in range(100):
        gate.leave()
    await settle_loop()
    quiet = wait_at(gate, clock, "quiet")
    await settle_loop()
    # At most one call of the flood comes before it.
    gate.leave()
    gate.leave()
    assert await quiet
    for task in flood:
        task.cancel()
    await settle_loop()


@pytest.mark.spec("7.3")
@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 8), min_size=2, max_size=5),
    st.lists(st.integers(UNIT, 40 * UNIT), min_size=1, max_size=12),
    st.integers(1, 6),
)
def test_among_tenants_that_wait_what_is_let_in_per_weight_differs_by_at_most_one_batch(
    of_tenant: list[int], pattern: list[int], size: int
) -> None:
    weights = {f"t{at}": weight for at, weight in enumerate(of_tenant)}

    async def run() -> None:
        clock = ManualClock()
        gate = make_gate(clock, size, weights)
        for _ in range(size):
            gate.try_enter()
        served: Counter[str] = Counter()
        order: list[tuple[str, int]] = []

        async def one(tenant: str, cost: int) -> None:
            if await gate.enter(tenant, cost, clock.now_ms() + 5_000):
                order.append((tenant, cost))

        # More items than are served of any tenant, so that all of them wait throughout.
        tasks = [
            asyncio.create_task(one(tenant, pattern[(at + number) % len(pattern)]))
            for number in range(80)
            for at, tenant in enumerate(weights)
        ]
        await settle_loop()
        for _ in range(80):
            gate.leave()
            await settle_loop()
        batch = 0.0
        for tenant, cost in order:
            served[tenant] += cost
            batch = max(batch, cost / weights[tenant])
            shares = [served[each] / weights[each] for each in weights]
            assert max(shares) - min(shares) <= batch + 1
        for task in tasks:
            task.cancel()
        await settle_loop()

    asyncio.run(run())
