"""A sweep has a limit for each shard, so no shard and no kind of work waits for the backlog of another."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client.blocking import Holdfast, Queue
from holdfast.stores.rocks.queues.sweep import Work, share
from holdfast.stores.values import Swept
from holdfast.testing import ManualClock
from tests.crash.rocks import core_of, open_store, sweep, verify_store
from tests.stores.rocks.shards.queues import SHARDS, queue_in

LIMIT = 100
BACKLOG = 5 * LIMIT


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(tmp_path: Path, clock: ManualClock) -> Iterator[Holdfast]:
    with open_store(tmp_path / "store", clock, shards=SHARDS) as hf:
        yield hf
    verify_store(tmp_path / "store", "at the end")


def sweep_once(hf: Holdfast, clock: ManualClock) -> Swept:
    swept: Swept = hf._driver.run(core_of(hf).store.sweep(LIMIT, clock.now_ms()))
    return swept


def hold(queue: Queue, number: int, lease: str) -> None:
    queue.enqueue([b"a"] * number)
    assert len(queue.claim(number, lease=lease)) == number


# --- Between shards --------------------------------------------------------------------------------------------------


def test_a_backlog_of_expired_leases_does_not_delay_those_of_another_shard(hf: Holdfast, clock: ManualClock) -> None:
    busy, calm = queue_in(hf, 0), queue_in(hf, 1)
    hold(busy, BACKLOG, "10s")
    hold(calm, 3, "20s")
    clock.step_to(clock.now_ms() + 20_000)
    assert sweep_once(hf, clock).changed == LIMIT + 3
    assert calm.stats().in_flight == 0
    assert busy.stats().in_flight == BACKLOG - LIMIT


def test_a_backlog_of_ended_ttls_does_not_delay_those_of_another_shard(hf: Holdfast, clock: ManualClock) -> None:
    busy, calm = queue_in(hf, 0), queue_in(hf, 1)
    for _ in range(BACKLOG):
        busy.enqueue(b"a", ttl="10s")
    for _ in range(3):
        calm.enqueue(b"a", ttl="20s")
    clock.step_to(clock.now_ms() + 20_000)
    assert sweep_once(hf, clock).changed == LIMIT + 3
    assert (calm.stats().failed, busy.stats().failed) == (3, LIMIT)


def test_a_queue_being_deleted_does_not_delay_leases_of_another_shard(hf: Holdfast, clock: ManualClock) -> None:
    busy, calm = queue_in(hf, 0), queue_in(hf, 1)
    busy.enqueue([b"a"] * BACKLOG)
    hold(calm, 3, "10s")
    clock.step_to(clock.now_ms() + 10_000)
    busy.delete(force_after=0)
    assert sweep_once(hf, clock).changed <= LIMIT + 1 + 3
    assert calm.stats().in_flight == 0
    assert busy.stats().draining


@pytest.mark.spec("4.5")
def test_each_shard_that_has_a_backlog_gets_a_whole_limit(hf: Holdfast, clock: ManualClock) -> None:
    queues = [queue_in(hf, shard) for shard in range(SHARDS)]
    for place, queue in enumerate(queues):
        hold(queue, BACKLOG, f"{10 + place}s")
    clock.step_to(clock.now_ms() + 20_000)
    assert sweep_once(hf, clock).changed == SHARDS * LIMIT
    assert [BACKLOG - queue.stats().in_flight for queue in queues] == [LIMIT] * SHARDS


@pytest.mark.spec("4.5")
def test_a_shard_alone_with_its_work_gets_all_of_the_limit(hf: Holdfast, clock: ManualClock) -> None:
    busy = queue_in(hf, 2)
    hold(busy, BACKLOG, "10s")
    clock.step_to(clock.now_ms() + 10_000)
    for passes in range(1, BACKLOG // LIMIT + 1):
        assert sweep_once(hf, clock).changed == LIMIT
        assert busy.stats().in_flight == BACKLOG - passes * LIMIT
    assert sweep_once(hf, clock).changed == 0


def test_a_sweep_says_when_the_first_deadline_of_any_shard_comes(hf: Holdfast, clock: ManualClock) -> None:
    begin = clock.now_ms()
    hold(queue_in(hf, 3), 1, "10s")
    hold(queue_in(hf, 1), 1, "20s")
    assert sweep_once(hf, clock).next_at == begin + 10_000
    clock.step_to(begin + 10_000)
    assert sweep_once(hf, clock) == Swept(1, begin + 20_000)


def test_after_an_opening_every_lease_of_every_shard_runs_out(tmp_path: Path, clock: ManualClock) -> None:
    with open_store(tmp_path / "store", clock, shards=SHARDS) as hf:
        for number in range(10):
            hold(hf.queue(f"queue-{number}"), 1, "10s")
    clock.step_to(clock.now_ms() + 10_000)
    with open_store(tmp_path / "store", clock) as hf:
        sweep(hf)
        assert [hf.queue(f"queue-{number}").stats().in_flight for number in range(10)] == [0] * 10


# --- Between kinds of work -------------------------------------------------------------------------------------------


@pytest.mark.spec("4.5")
def test_a_backlog_of_expired_leases_does_not_delay_ttls_keys_and_kept_messages_of_its_own_shard(
    hf: Holdfast, clock: ManualClock
) -> None:
    busy, other = queue_in(hf, 0), queue_in(hf, 0)
    other.set_policy(keep_succeeded_ms=10_000, dedup_window_ms=10_000)
    other.enqueue(b"kept", key="k")
    [kept] = other.claim(1)
    kept.ack()
    other.enqueue(b"mortal", ttl="10s")
    hold(busy, BACKLOG, "5s")
    clock.step_to(clock.now_ms() + 10_000)
    assert sweep_once(hf, clock).changed == LIMIT
    assert other.stats().failed == 1
    assert [info.id for info in other.list("succeeded")] == []
    assert busy.stats().in_flight == BACKLOG - (LIMIT - 3)


# --- Sharing ---------------------------------------------------------------------------------------------------------


def work_of(amount: int, done: list[int]) -> Work:
    done.append(0)
    place = len(done) - 1

    async def work(limit: int) -> int:
        step = min(limit, amount - done[place])
        done[place] += step
        return step

    return work


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        ([], []),
        ([0, 0], [0, 0]),
        ([1_000], [10]),
        ([1_000, 1_000], [5, 5]),
        ([1_000, 1, 1_000], [5, 1, 4]),
        ([1_000, 0, 2], [8, 0, 2]),
        ([2, 3, 4], [2, 3, 4]),
        ([5, 5, 5], [4, 3, 3]),
        ([9] * 12, [1] * 10 + [0, 0]),
    ],
)
async def test_a_limit_is_shared_so_that_the_one_with_the_least_gets_the_most_it_can(
    amounts: list[int], expected: list[int]
) -> None:
    done: list[int] = []
    works = [work_of(amount, done) for amount in amounts]
    assert await share(10, works) == sum(expected)
    assert done == expected
