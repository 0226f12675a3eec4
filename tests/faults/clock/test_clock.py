"""A clock that steps back or ahead, stands still or races: nothing is lost, and no id comes twice (T10)."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.client.queue import AsyncQueue
from holdfast.server.embedded import Embedded, open_on_loop
from holdfast.testing import ManualClock
from holdfast.testing.subject import fire_due
from tests.faults.clock.clocks import HOUR_MS, YEAR_MS, run_clock_steps
from tests.machinery.outcomes import PartOutcome
from tests.seeds import run_seed

SEEDS = 20


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "rocks"])
async def hf(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[AsyncHoldfast]:
    url = "memory://" if request.param == "memory" else str(tmp_path / "data")
    async with open_on_loop(url, {}, clock=clock) as opened:
        yield opened


def step(clock: ManualClock, by_ms: int) -> None:
    clock.step_to(clock.now_ms() + by_ms)


async def payloads(q: AsyncQueue) -> list[bytes]:
    return [each.payload for each in await q.claim(limit=100, lease=60)]


# --- Any steps at all ----------------------------------------------------------------------------------------------


@pytest.mark.spec("2.14")
@pytest.mark.slow
def test_whatever_steps_the_clock_makes_nothing_is_lost_or_leased_twice() -> None:
    _check(run_clock_steps(SEEDS, seed=run_seed()), SEEDS)


def _check(outcome: PartOutcome, seeds: int) -> None:
    sys.stdout.write(f"{outcome}\n")
    assert not outcome.violations, "\n".join(outcome.violations)
    assert outcome.done == seeds
    assert outcome.counts["acked"]
    assert outcome.counts["stepped"]


# --- Back an hour --------------------------------------------------------------------------------------------------


async def test_a_lease_does_not_end_sooner_when_the_clock_goes_back(hf: AsyncHoldfast, clock: ManualClock) -> None:
    q = hf.queue("q")
    await q.enqueue(b"a")
    [held] = await q.claim(lease=60)
    step(clock, -HOUR_MS)
    clock.advance(60_000)
    assert await q.claim() == []
    clock.advance(HOUR_MS - 1)
    assert await q.claim() == []
    await held.extend(60)
    clock.advance(60_000)
    [again] = await q.claim()
    assert again.version == held.version + 1


async def test_what_was_enqueued_before_the_clock_went_back_waits_for_it_and_what_comes_now_does_not(
    hf: AsyncHoldfast, clock: ManualClock
) -> None:
    q = hf.queue("q")
    await q.enqueue(b"before")
    step(clock, -HOUR_MS)
    await q.enqueue(b"now")
    await q.enqueue(b"soon", delay=60)
    assert await payloads(q) == [b"now"]
    clock.advance(60_000)
    assert await payloads(q) == [b"now", b"soon"]  # the first lease is over
    clock.advance(HOUR_MS)
    assert sorted(await payloads(q)) == [b"before", b"now", b"soon"]


async def test_a_retry_waits_no_shorter_after_the_clock_went_back(hf: AsyncHoldfast, clock: ManualClock) -> None:
    q = hf.queue("q")
    await q.enqueue(b"a")
    [message] = await q.claim(lease=60)
    step(clock, -HOUR_MS)
    await message.nack("no", delay=30)
    clock.advance(29_999)
    assert await q.claim() == []
    clock.advance(1)
    assert len(await q.claim()) == 1


async def test_a_tick_that_has_fired_does_not_fire_again_when_the_clock_goes_back(
    hf: AsyncHoldfast, clock: ManualClock
) -> None:
    q = hf.queue("q")
    await q.schedule("s", every=60, payload=b"")
    for _ in range(3):
        clock.advance(60_000)
        await settle(hf)
    assert len(await q.list()) == 3
    step(clock, -HOUR_MS)
    clock.advance(HOUR_MS)
    await settle(hf)
    assert len(await q.list()) == 3
    clock.advance(60_000)
    await settle(hf)
    assert len(await q.list()) == 4


async def test_a_ttl_ends_later_and_not_sooner_when_the_clock_goes_back(hf: AsyncHoldfast, clock: ManualClock) -> None:
    q = hf.queue("q")
    [id] = await q.enqueue(b"a", ttl=60)
    step(clock, -HOUR_MS)
    clock.advance(HOUR_MS)
    assert (await q.get(id)).state == "ready"
    clock.advance(60_000)
    await settle(hf)
    assert ((await q.get(id)).state, (await q.get(id)).reason) == ("failed", "ttl")


# --- Forward ten years ---------------------------------------------------------------------------------------------


async def test_ten_years_ahead_leases_are_over_delays_due_and_ttls_ended_and_nothing_is_lost(
    hf: AsyncHoldfast, clock: ManualClock
) -> None:
    q = hf.queue("q")
    await q.enqueue(b"held")
    [held] = await q.claim(lease=60)
    await q.enqueue(b"delayed", delay="365d")
    [mortal] = await q.enqueue(b"mortal", ttl=60)
    step(clock, 10 * YEAR_MS)
    [late] = await q.ack([held.receipt])
    assert not late.ok
    assert sorted(await payloads(q)) == [b"delayed", b"held"]
    assert ((await q.get(mortal)).state, (await q.get(mortal)).reason) == ("failed", "ttl")


async def test_ten_years_ahead_the_latest_tick_of_a_schedule_fires_once(hf: AsyncHoldfast, clock: ManualClock) -> None:
    q = hf.queue("q")
    await q.schedule("s", cron="0 * * * *", payload=b"")
    clock.advance(10 * YEAR_MS)
    await settle(hf)
    assert len(await q.list()) == 1


async def test_ids_and_versions_grow_through_any_steps(hf: AsyncHoldfast, clock: ManualClock) -> None:
    q = hf.queue("q")
    ids, versions = [], []
    await q.enqueue(b"again and again", priority=1)
    for by_ms in (0, -HOUR_MS, 10 * YEAR_MS, -10 * YEAR_MS, -30 * YEAR_MS, 40 * YEAR_MS, -1, 1):
        step(clock, by_ms)
        ids += [each.snowflake for each in await q.enqueue([b""] * 50)]
        if message := next((each for each in await q.claim(lease=60) if each.priority == 1), None):
            versions.append(message.version)
            await message.release()
    assert ids == sorted(set(ids))
    assert versions == sorted(set(versions))
    assert len(versions) >= 3


# --- Standing still, and racing ------------------------------------------------------------------------------------


async def test_on_a_clock_that_stands_still_work_continues_and_no_id_comes_twice(
    hf: AsyncHoldfast, clock: ManualClock
) -> None:
    q = hf.queue("q")
    ids = {id.snowflake for _ in range(10) for id in await q.enqueue([b""] * 1_000)}
    assert len(ids) == 10_000  # more than a millisecond has numbers
    for _ in range(10):
        results = await q.ack([each.receipt for each in await q.claim(limit=1_000, lease="1ms")])
        assert all(each.ok for each in results)
    assert (await q.stats()).ready == 0


async def test_on_a_clock_that_races_a_lease_lasts_as_long_as_it_says(hf: AsyncHoldfast, clock: ManualClock) -> None:
    q = hf.queue("q")
    await q.enqueue(b"a")
    for _ in range(50):
        [message] = await q.claim(lease="500ms")
        assert message.lease_expires_at == clock.now_ms() + 500
        clock.advance(499)
        assert await message.extend("500ms") == clock.now_ms() + 500
        clock.advance(499)
        await message.release()


async def settle(hf: AsyncHoldfast) -> None:
    """All that is due by the clock has been swept and fired."""
    core = cast(Embedded, hf._transport).core
    while await core.sweeper.sweep_once():
        pass
    await fire_due(core)
