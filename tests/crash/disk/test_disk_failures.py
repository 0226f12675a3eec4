"""Syncs that fail, disks that fill up: what was answered is kept, and what was not is refused by name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client.blocking import Queue
from holdfast.model.errors import StoreUnavailable
from holdfast.testing import ManualClock
from tests.crash.proofs import check_outcome
from tests.crash.rocks import open_store
from tests.machinery.disk import run_crash_points, run_full_disk, run_sync_failures
from tests.seeds import run_seed
from tests.small_disk import mounted


@pytest.mark.slow
def test_a_failed_sync_is_raised_to_waiting_callers_and_loses_nothing() -> None:
    check_outcome(run_sync_failures(20, seed=run_seed(), shards=(1,)), at_least=20)


@pytest.mark.slow
def test_a_sync_that_fails_on_one_shard_leaves_moved_messages_in_one_queue() -> None:
    check_outcome(run_sync_failures(4, seed=run_seed(), shards=(4,)), at_least=4)


@pytest.mark.slow
def test_a_full_disk_loses_nothing_and_the_store_continues_once_there_is_room() -> None:
    """From every seventy-fifth write on: `make proof` tries each."""
    check_outcome(run_full_disk(75, seed=run_seed(), shards=(1,)), at_least=10)


@pytest.mark.slow
def test_a_full_disk_under_four_shards_leaves_moved_messages_in_one_queue() -> None:
    check_outcome(run_full_disk(2_000, seed=run_seed(), shards=(4,)), at_least=2)


@pytest.mark.spec("4.10")
@pytest.mark.slow
def test_a_store_killed_anywhere_while_it_reopens_has_all_that_was_answered() -> None:
    """At every fifteenth call that changes a file, from the probe to the close: `make proof` tries each."""
    check_outcome(run_crash_points(15, seed=run_seed(), while_reopening=True, shards=(1,)), at_least=10)


@pytest.mark.slow
def test_a_store_with_shards_killed_anywhere_while_it_reopens_has_all_that_was_answered() -> None:
    check_outcome(run_crash_points(400, seed=run_seed(), while_reopening=True, shards=(4,)), at_least=4)


# --- A disk that is really small -------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", 8 << 20) as place:
        yield place


def fill(queue: Queue, clock: ManualClock) -> list[bytes]:
    """Until it is refused; answers what was not."""
    taken: list[bytes] = []
    for number in range(10_000):
        clock.advance(300)  # the free space is looked at every now and then
        try:
            queue.enqueue(b"%04d" % number * 500)
        except StoreUnavailable:
            return taken
        taken.append(b"%04d" % number * 500)
    raise AssertionError("the disk never filled up")


@pytest.mark.spec("4.8")
def test_on_a_disk_that_is_nearly_full_enqueues_are_refused_and_acks_continue(small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(2 << 20))
    clock = ManualClock()
    with open_store(small_disk / "store", clock, durability="fsync", low_disk_bytes=2 << 20) as hf:
        queue = hf.queue("mail")
        taken = fill(queue, clock)
        claimed = queue.claim(100)
        assert [message.payload for message in claimed] == taken[:100]
        assert all(result.ok for result in queue.ack(claimed))
        (small_disk / "other").unlink()
        clock.advance(300)
        queue.enqueue(b"there is room again")
    with open_store(small_disk / "store", clock, low_disk_bytes=0) as hf:
        found = [message.payload for message in hf.queue("mail").claim(1_000)]
        assert found == [*taken[100:], b"there is room again"][: len(found)]
        assert len(found) == min(1_000, len(taken) - 99)


def test_a_store_that_a_full_disk_stopped_opens_again_with_all_that_was_answered(small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(4 << 20))
    clock = ManualClock()
    hf = open_store(small_disk / "store", clock, durability="fsync", low_disk_bytes=0)
    taken = fill(hf.queue("mail"), clock)
    with pytest.raises(StoreUnavailable):
        hf.queue("mail").claim(1)
    hf.close()
    (small_disk / "other").unlink()
    with open_store(small_disk / "store", clock, low_disk_bytes=0) as hf:
        found = [message.payload for message in hf.queue("mail").claim(10_000)]
        # The last one was refused after it was written: it may be there.
        assert found[: len(taken)] == taken
        assert len(found) <= len(taken) + 1
