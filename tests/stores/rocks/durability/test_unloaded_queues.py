"""A store opens without loading its queues, and operations on all queues include those that are only on disk."""

from typing import Any

import pytest

from holdfast.client.blocking import Holdfast
from holdfast.model.errors import Draining, OverQuota, QueueNotFound, RateLimited
from holdfast.model.names import QueueRef
from holdfast.stores.rocks import RocksStore, keys
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.shard import Shard
from tests.crash.rocks import core_of, sweep, verify_store
from tests.stores.rocks.durability.restartable_store import RestartableStore


def reopen(restartable: RestartableStore) -> Holdfast:
    return restartable.reopen()


@pytest.fixture(autouse=True)
def _counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the queues that each shard loads or makes."""
    make_queue_state = Shard._make_queue_state

    def counting(shard: Shard, *parts: Any) -> QueueState:
        shard.__dict__["loaded"] = shard.__dict__.get("loaded", 0) + 1
        return make_queue_state(shard, *parts)

    monkeypatch.setattr(Shard, "_make_queue_state", counting)


def loaded(hf: Holdfast) -> int:
    store = core_of(hf).store
    assert isinstance(store, RocksStore)
    return sum(shard.__dict__.get("loaded", 0) for shard in store.shards)


def rows(hf: Holdfast, tenant: str) -> dict[str, int]:
    """Return the numbers of the tenant's queues, by their names."""
    found = hf._driver.run(core_of(hf).store.directory.list_queues(tenant))
    return {row.ref.queue: row.queue_id for row in found}


# --- Loading ---------------------------------------------------------------------------------------------------------


def test_opening_loads_no_queue(restartable: RestartableStore) -> None:
    hf = restartable.open()
    for number in range(20):
        hf.queue(f"idle-{number}").set_policy(max_retries=3)
        hf.queue(f"filled-{number}", tenant="acme").enqueue([b"a", b"b"])
    hf.queue("held").enqueue(b"a")
    hf.queue("held").claim(1, lease="10m")
    hf.queue("slow").set_policy(max_claims=1)
    hf = reopen(restartable)
    assert loaded(hf) == 0
    sweep(hf)
    assert loaded(hf) == 0
    assert len(hf.queues()) == 22


def test_a_queue_is_loaded_once_and_works_as_before(restartable: RestartableStore) -> None:
    hf = restartable.open()
    hf.queue("mail").enqueue([b"a", b"b"])
    hf.queue("mail").enqueue([b"x", b"y"], group="g")
    hf = reopen(restartable)
    queue = hf.queue("mail")
    assert [message.payload for message in queue.claim(3)] == [b"a", b"b", b"x"]
    queue.enqueue(b"c")
    assert [message.payload for message in queue.claim(3)] == [b"c"]
    assert loaded(hf) == 1


@pytest.mark.spec("1.3")
def test_looking_for_a_queue_that_does_not_exist_loads_and_keeps_nothing(restartable: RestartableStore) -> None:
    restartable.open().queue("mail").enqueue(b"a")
    hf = reopen(restartable)
    for _ in range(3):
        assert hf.queue("other").claim(1) == []
        assert hf.queue("mail", tenant="nobody").claim(1) == []
    assert loaded(hf) == 0
    assert core_of(hf).store.shards[0].catalog._loaded == {}  # type: ignore[attr-defined]  # `core_of` has any store


def test_a_peek_and_the_counts_of_a_queue_that_was_just_loaded_are_complete(restartable: RestartableStore) -> None:
    hf = restartable.open()
    hf.queue("mail").enqueue([b"a", b"b"], group="g")
    hf.queue("mail").enqueue(b"c", ttl="1s", group="h")
    hf.queue("mail").enqueue(b"d", group="h")
    hf.queue("mail").enqueue(b"later", delay="1m")
    restartable.clock.step_to(restartable.clock.now_ms() + 2_000)
    assert [each.payload for each in reopen(restartable).queue("mail").peek(10)] == [b"a", b"b", b"d"]
    restartable.clock.step_to(restartable.clock.now_ms() + 60_000)
    assert (stats := reopen(restartable).queue("mail").stats()).delayed == 0
    assert stats.ready + stats.failed == 5


# --- What time ends --------------------------------------------------------------------------------------------------


def test_leases_of_queues_that_nobody_asked_for_expire_after_an_opening(restartable: RestartableStore) -> None:
    hf = restartable.open()
    for number in range(5):
        hf.queue(f"queue-{number}", tenant=f"tenant-{number % 2}").enqueue([b"a", b"b"])
        hf.queue(f"queue-{number}", tenant=f"tenant-{number % 2}").claim(2, lease=f"{10 + number}s")
    hf.queue("idle").enqueue(b"a")
    hf = reopen(restartable)
    restartable.clock.step_to(restartable.clock.now_ms() + 12_000)
    sweep(hf)
    assert loaded(hf) == 3
    restartable.clock.step_to(restartable.clock.now_ms() + 12_000)
    sweep(hf)
    assert loaded(hf) == 5
    events = [event for event in hf.journal(limit=1_000) if event.event == "expired"]
    assert len(events) == 10


@pytest.mark.spec("8.11")
def test_a_deletion_under_way_continues_after_an_opening(restartable: RestartableStore) -> None:
    hf = restartable.open()
    for number in range(3):
        hf.queue(f"queue-{number}").enqueue([b"a", b"b"])
    hf.queue("queue-1").claim(1, lease="10m")
    hf.queue("queue-1").delete(force_after="1m")
    hf = reopen(restartable)
    with pytest.raises(Draining):
        hf.queue("queue-1").enqueue(b"c")
    hf = reopen(restartable)
    restartable.clock.step_to(restartable.clock.now_ms() + 60_000)
    sweep(hf)
    assert loaded(hf) == 1
    assert [each.queue for each in hf.queues()] == ["queue-0", "queue-2"]
    with pytest.raises(QueueNotFound):
        reopen(restartable).queue("queue-1").stats()


def test_ttls_kept_messages_and_schedules_of_unloaded_queues_end_in_their_time(restartable: RestartableStore) -> None:
    hf = restartable.open()
    hf.queue("mortal").enqueue(b"a", ttl="10s")
    hf.queue("keeping").set_policy(keep_succeeded_ms=10_000)
    hf.queue("keeping").enqueue(b"a")
    hf.queue("keeping").claim(1)[0].ack()
    hf.queue("ticking").schedule("tick", every=10, payload=b"tick")
    hf = reopen(restartable)
    restartable.clock.step_to(restartable.clock.now_ms() + 11_000)
    sweep(hf)
    hf._driver.run(core_of(hf).scheduler.fire_once())
    assert hf.queue("mortal").stats().failed == 1
    assert list(hf.queue("keeping").list("succeeded")) == []
    assert [message.payload for message in hf.queue("ticking").claim(5)] == [b"tick"]


# --- Numbers, quotas and limits --------------------------------------------------------------------------------------


def test_the_number_of_a_queue_is_never_given_again_whatever_is_loaded(restartable: RestartableStore) -> None:
    hf = restartable.open()
    for tenant in ("acme", "globex", "zeta"):
        for number in range(3):
            hf.queue(f"queue-{number}", tenant=tenant).set_policy()
    hf.queue("queue-2", tenant="acme").delete(force_after=0)
    sweep(hf)
    hf = reopen(restartable)
    hf.queue("queue-2", tenant="acme").set_policy()
    hf.queue("queue-3", tenant="globex").set_policy()
    hf.queue("first", tenant="fresh").set_policy()
    assert rows(hf, "acme") == {"queue-0": 1, "queue-1": 2, "queue-2": 4}
    assert rows(hf, "globex") == {"queue-0": 1, "queue-1": 2, "queue-2": 3, "queue-3": 4}
    assert rows(hf, "fresh") == {"first": 1}


def test_quotas_count_the_messages_of_unloaded_queues(restartable: RestartableStore) -> None:
    hf = restartable.open()
    for number in range(10):
        hf.queue(f"queue-{number}", tenant="acme").enqueue([b"12345", b"67890"])
    hf.queue("other", tenant="globex").enqueue([b"a"] * 50)
    hf.tenant("acme").set(quotas={"max_messages": 25, "max_bytes": 120})
    hf = reopen(restartable)
    queue = hf.queue("queue-3", tenant="acme")
    queue.claim(1)[0].ack()  # before the messages are counted
    queue.enqueue([b"a"] * 6)
    with pytest.raises(OverQuota, match="max_messages of 25"):
        hf.queue("new", tenant="acme").enqueue(b"b")
    hf.queue("queue-7", tenant="acme").claim(1)[0].ack()  # loaded after they were counted
    with pytest.raises(OverQuota, match="max_bytes of 120"):
        queue.enqueue(b"x" * 25)
    queue.enqueue(b"x" * 24)
    with pytest.raises(OverQuota):
        queue.enqueue(b"")
    assert (stats := hf.tenant("acme").stats()).ready == 25
    assert stats.bytes == 120


def test_a_quota_that_is_set_later_counts_what_changed_since_the_opening(restartable: RestartableStore) -> None:
    hf = restartable.open()
    hf.queue("old", tenant="acme").enqueue([b"a"] * 4)
    hf = reopen(restartable)
    hf.queue("new", tenant="acme").enqueue([b"a"] * 4)
    hf.queue("new", tenant="acme").claim(1)[0].ack()
    hf.tenant("acme").set(quotas={"max_messages": 8})
    hf.queue("new", tenant="acme").enqueue(b"a")
    with pytest.raises(OverQuota):
        hf.queue("new", tenant="acme").enqueue(b"a")


def test_the_number_of_queues_is_limited_by_those_on_disk_too(restartable: RestartableStore) -> None:
    hf = restartable.open()
    for number in range(5):
        hf.queue(f"queue-{number}", tenant="acme").set_policy()
    hf.tenant("acme").set(quotas={"max_queues": 6})
    hf = reopen(restartable)
    hf.queue("sixth", tenant="acme").set_policy()
    with pytest.raises(OverQuota, match="6 queues"):
        hf.queue("seventh", tenant="acme").set_policy()
    hf.queue("queue-2", tenant="acme").delete(force_after=0)
    sweep(hf)
    hf.queue("seventh", tenant="acme").set_policy()
    with pytest.raises(OverQuota, match="6 queues"):
        hf.queue("eighth", tenant="acme").enqueue(b"a")


def test_limits_of_queues_hold_after_an_opening_and_no_longer_once_they_are_lifted(
    restartable: RestartableStore,
) -> None:
    hf = restartable.open()
    hf.queue("plain").set_policy(max_retries=1)
    for name in ("slow", "lifted"):
        hf.queue(name).set_policy(limits={"write_ops_per_s": 1, "burst_s": 1})
    hf.queue("lifted").set_policy(limits={"write_ops_per_s": None})
    hf = reopen(restartable)
    limited = core_of(hf)._directory.queue_limits
    assert set(limited) == {QueueRef("default", "slow")}
    assert loaded(hf) == 0
    hf.queue("slow").enqueue(b"a")
    with pytest.raises(RateLimited):
        hf.queue("slow").enqueue(b"a")


# --- Reports ---------------------------------------------------------------------------------------------------------


def test_the_stats_of_a_tenant_count_unloaded_queues(restartable: RestartableStore) -> None:
    hf = restartable.open()
    for number in range(4):
        queue = hf.queue(f"queue-{number}", tenant="acme")
        queue.enqueue([b"a", b"b", b"c", b"d"])
        restartable.clock.advance(1_000)
        queue.enqueue(b"later", delay="10s")
        [_, failed, acked] = queue.claim(3, lease="1h")
        failed.nack("broken", final=True)
        acked.ack()
    for number in range(10):
        hf.queue(f"idle-{number}", tenant="acme").set_policy()
    [message] = hf.queue("failed", tenant="acme").enqueue(b"a") and hf.queue("failed", tenant="acme").claim(1)
    message.nack("broken", final=True)
    before = hf.tenant("acme").stats()
    assert (before.ready, before.delayed, before.in_flight, before.failed) == (4, 4, 4, 5)
    hf = reopen(restartable)
    assert hf.tenant("acme").stats() == before
    assert loaded(hf) == 4
    hf.queue("idle-3", tenant="acme").enqueue(b"a")
    assert hf.tenant("acme").stats().ready == 5
    restartable.clock.step_to(restartable.clock.now_ms() + 10_000)
    assert (reopen(restartable).tenant("acme").stats().ready) == 9


def test_the_journal_names_queues_that_were_never_loaded_and_those_that_are_gone(restartable: RestartableStore) -> None:
    hf = restartable.open()
    for number in range(3):
        hf.queue(f"queue-{number}", tenant="acme").enqueue(b"a")
    hf.queue("queue-1", tenant="acme").delete(force_after=0)
    sweep(hf)
    before = list(hf.journal())
    hf = reopen(restartable)
    assert list(hf.journal()) == before
    assert {event.queue for event in before} == {"queue-0", "queue-1", "queue-2"}
    assert loaded(hf) == 0


# --- The indexes of queues -------------------------------------------------------------------------------------------


def test_a_store_without_indexes_of_its_queues_gets_them_once_when_it_is_opened(closed: RestartableStore) -> None:
    hf = closed.open()
    for number in range(3):
        hf.queue(f"queue-{number}").enqueue(b"a")
    hf.queue("queue-1").claim(1, lease="10m")
    hf.queue("queue-1").delete(force_after="1m")
    hf.queue("queue-2").set_policy(max_claims=3)
    closed.reopen().close()
    closed._opened.clear()
    database = Database(closed.path)
    for space in (keys.DELETING, keys.LIMITED, keys.META + b"queue indexes"):
        for key in list(database.scan(keys.DIRECTORY, space, keys.after(space))):
            database.commit.delete(key, keys.DIRECTORY)
    # An entry that a version without the indexes left behind.
    database.commit.put(keys.LIMITED + keys.prefix(1, 1), b"", keys.DIRECTORY)
    database.write()
    database.close()
    verify_store(closed.path, "without indexes")
    hf = closed.open()
    assert set(core_of(hf)._directory.queue_limits) == {QueueRef("default", "queue-2")}
    hf = closed.reopen()  # which verifies the indexes
    closed.clock.step_to(closed.clock.now_ms() + 60_000)
    assert set(core_of(hf)._directory.queue_limits) == {QueueRef("default", "queue-2")}
    sweep(hf)
    assert [each.queue for each in hf.queues()] == ["queue-0", "queue-2"]


def test_limits_that_a_reopened_store_has_lost_hold_no_longer(closed: RestartableStore) -> None:
    hf = closed.open()
    hf.queue("slow").set_policy(max_claims=3)
    directory = core_of(hf)._directory
    directory.queue_limits[QueueRef("default", "lost")] = directory.queue_limits[QueueRef("default", "slow")]
    hf._driver.run(directory.load())
    assert set(directory.queue_limits) == {QueueRef("default", "slow")}


# --- The latest time in the store ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_trimmed", [False, True], ids=["kept", "trimmed"])
def test_a_clock_behind_the_newest_event_is_reported_though_no_queue_is_loaded(
    restartable: RestartableStore, caplog: pytest.LogCaptureFixture, is_trimmed: bool
) -> None:
    hf = restartable.open(journal_retention_ms=1_000)
    hf.queue("mail").enqueue(b"a")
    restartable.clock.step_to(restartable.clock.now_ms() + 60_000)
    hf.queue("mail").claim(1, lease="1h")
    if is_trimmed:
        restartable.clock.step_to(restartable.clock.now_ms() + 1_000)
        sweep(hf)
        assert not hf.journal()
        restartable.clock.step_to(restartable.clock.now_ms() - 1_000)
    restartable.clock.step_to(restartable.clock.now_ms() - 5_000)
    reopen(restartable)
    assert "clock_behind_store behind_s=5.0" in caplog.text
