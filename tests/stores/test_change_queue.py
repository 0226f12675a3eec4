"""`QueueDirectory.change_queue` and `Store.counts` on every store: the fields together, alone, and for all queues."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdfast.dice import SeededDice
from holdfast.model.errors import QueueNotFound
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy
from holdfast.model.schedules import ScheduleChange, apply_change
from holdfast.runtime import LoopRuntime
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.rocks import RocksStore
from holdfast.stores.values import QueueChange
from holdfast.testing import ManualClock
from tests.postgres.bounds import PATIENT
from tests.postgres.landing_calls import WEEK_MS, Deaf
from tests.postgres.server import PostgresServer

REF, OTHER = QueueRef("acme", "mail"), QueueRef("acme", "sms")


@pytest.fixture(scope="module")
def urls(postgres: PostgresServer) -> list[str]:
    return postgres.make_databases("change_queue")


@pytest.fixture(params=["memory", "rocks", "objects", "postgres"])
async def store(request: pytest.FixtureRequest, urls: list[str], tmp_path: Path) -> AsyncIterator[Store]:
    dice = SeededDice(0)
    makers: dict[str, Callable[[], Store]] = {
        "memory": lambda: MemoryStore(dice, WEEK_MS),
        "rocks": lambda: RocksStore(tmp_path / "store", dice, journal_retention_ms=WEEK_MS),
        "objects": lambda: ObjectStore(MemoryBucket(), dice, journal_retention_ms=WEEK_MS),
        "postgres": lambda: PostgresStore(
            urls, dice, journal_retention_ms=WEEK_MS, bounds=PATIENT, uses_caller_time=True
        ),
    }
    clock = ManualClock()
    runtime = LoopRuntime(clock)
    made = makers[request.param]()
    await made.open(Deaf(), runtime)
    yield made
    await made.close()
    await runtime.aclose()


async def test_a_change_sets_its_fields_together_and_leaves_the_others(store: Store) -> None:
    now_ms = ManualClock().now_ms()
    directory = store.directory
    with pytest.raises(QueueNotFound):
        await directory.change_queue(REF, QueueChange(is_paused=True), now_ms)
    made = await directory.create_queue(REF, now_ms)
    schedule = apply_change("s", None, ScheduleChange(every_ms=60_000, message=Draft(payload=b"tick")), now_ms, 99)
    assert await store.schedules.put(REF, None, schedule, now_ms)

    policy = QueuePolicy(max_retries=3)
    both = await directory.change_queue(REF, QueueChange(policy=policy, is_paused=True), now_ms)
    assert (both.policy, both.is_paused, both.drain_until, both.queue_id) == (policy, True, None, made.queue_id)
    resumed = await directory.change_queue(REF, QueueChange(is_paused=False), now_ms)
    assert (resumed.policy, resumed.is_paused) == (policy, False)
    assert await store.schedules.find(REF, "s") == schedule, "only a deletion takes the schedules"

    drained = await directory.change_queue(REF, QueueChange(is_paused=True, drain_until=now_ms + 60_000), now_ms)
    assert (drained.policy, drained.is_paused, drained.drain_until) == (policy, True, now_ms + 60_000)
    assert await directory.find_queue(REF) == drained
    assert await store.schedules.find(REF, "s") is None

    await store.enqueue(OTHER, [Draft(payload=b"ab"), Draft(payload=b"c")], now_ms, auto_create=True)
    assert (await store.counts(*OTHER, now_ms)).bytes == 3
    assert (await store.counts(*REF, now_ms)).ready == 0
    assert (await store.counts("acme", None, now_ms)).ready == 2
    assert (await store.counts("nobody", None, now_ms)).ready == 0
    with pytest.raises(QueueNotFound):
        await store.counts("acme", "none", now_ms)
