"""Messages that move between shards arrive complete and once; after a crash, both shards have the move or neither."""

import itertools
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.blocking import Holdfast, Queue
from holdfast.model.errors import OverQuota, StoreUnavailable
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.log.frames import LogPartKind, find_next_frame, read_header
from holdfast.stores.rocks.log.segments import FIRST_FRAME_OFFSET
from holdfast.stores.rocks.payloads.staging import RocksStaging
from holdfast.stores.rocks.queues.rocks_unit import RocksUnits
from holdfast.stores.rocks.recovery.marker import MARKER
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing import ManualClock
from tests.crash.rocks import copy_store, open_store, sweep, verify_store
from tests.stores.rocks.shards.queues import SHARDS, queue_in

LARGE = os.urandom(3 << 20)
SETTINGS = {"max_payload": 8 << 20}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(tmp_path: Path, clock: ManualClock) -> Iterator[Holdfast]:
    with open_store(tmp_path / "store", clock, durability="fsync", shards=SHARDS, settings=SETTINGS) as hf:
        yield hf
    verify_store(tmp_path / "store", "at the end")


def move(source: Queue, target: Queue, **options: Any) -> int:
    return source.move(target.ref.queue, tenant=target.ref.tenant, **options).changed


def payloads(queue: Queue) -> list[bytes]:
    return [message.payload for message in queue.claim(1_000)]


def test_a_message_moves_to_another_shard_with_its_id_its_attempts_and_its_state(hf: Holdfast) -> None:
    source, target = queue_in(hf, 0), queue_in(hf, 1)
    [id] = source.enqueue(b"work", headers={"a": "b"}, priority=7)
    [message] = source.claim()
    message.save_state({"page": 3})
    message.release()
    assert move(source, target) == 1
    assert source.stats().ready == 0
    [moved] = target.claim(state=True)
    assert (moved.id, moved.payload, moved.headers, moved.attempt) == (id, b"work", {"a": "b"}, 2)
    assert moved.state == {"page": 3}
    moved.ack()
    assert target.stats().in_flight == 0
    events = [(event.event.value, event.queue, event.shard) for event in hf.journal() if event.id == id]
    assert ("moved", source.ref.queue, 0) in events
    assert ("moved", target.ref.queue, 1) in events
    assert events.index(("moved", source.ref.queue, 0)) < events.index(("moved", target.ref.queue, 1))


def test_the_events_of_a_move_between_shards_come_in_order_through_every_page(hf: Holdfast) -> None:
    queues = [queue_in(hf, shard) for shard in range(SHARDS)]
    queues[0].enqueue([b"%d" % number for number in range(10)])
    for source, target in itertools.pairwise(queues):
        assert move(source, target) == 10
    whole = list(hf.journal(limit=1_000))
    paged, position = [], None
    while page := hf.journal(position, limit=7):
        paged += page
        position = page.next
    assert sorted((event.shard, event.seq) for event in paged) == sorted((event.shard, event.seq) for event in whole)
    for id in {event.id for event in whole}:
        reasons = [event.reason for event in paged if event.id == id and event.event == "moved"]
        assert [(reason or "").split()[0] for reason in reasons] == ["to", "from"] * (SHARDS - 1)


def test_large_payloads_go_along_and_leave_nothing_behind(hf: Holdfast, tmp_path: Path) -> None:
    source, target = queue_in(hf, 2), queue_in(hf, 3)
    source.enqueue([LARGE, b"small", LARGE[:-1]])
    assert move(source, target) == 3
    assert payloads(target) == [LARGE, b"small", LARGE[:-1]]
    sweep(hf)
    hf.backup(str(tmp_path / "copy"))
    report = verify(tmp_path / "copy")
    assert report.violations == []


def test_more_large_payloads_than_one_step_copies_all_arrive(hf: Holdfast) -> None:
    source, target = queue_in(hf, 2), queue_in(hf, 3)
    for _ in range(8):
        source.enqueue(LARGE)
    assert move(source, target) == 8
    assert target.stats().ready == 8


def test_a_payload_that_a_failed_attempt_copied_is_not_deleted_after_the_move(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both attempts copy to the same blob id."""
    source, target = queue_in(hf, 2), queue_in(hf, 3)
    source.enqueue(LARGE)

    async def refused(*_: Any) -> None:
        raise StoreUnavailable("not now")

    with monkeypatch.context() as patched:
        patched.setattr(RocksUnits, "run_across", refused)
        with pytest.raises(StoreUnavailable, match="not now"):
            move(source, target)
    assert move(source, target) == 1
    sweep(hf)
    assert payloads(target) == [LARGE]


def test_a_copy_that_the_disk_has_no_room_for_is_given_up_and_the_message_stays(
    hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = queue_in(hf, 2), queue_in(hf, 3)
    source.enqueue(LARGE)
    copy_piece, copied = RocksStaging.copy_piece, 0

    async def filling(staging: RocksStaging, place: int, number: int, piece: bytes) -> None:
        nonlocal copied
        if copied == 2:
            raise StoreUnavailable("the disk is nearly full")
        copied += 1
        await copy_piece(staging, place, number, piece)

    with monkeypatch.context() as patched:
        patched.setattr(RocksStaging, "copy_piece", filling)
        with pytest.raises(StoreUnavailable, match="nearly full"):
            move(source, target)
    sweep(hf)
    hf.backup(str(tmp_path / "copy"))
    report = verify(tmp_path / "copy")
    assert (report.violations, report.unfinished) == ([], 0)
    assert payloads(source) == [LARGE]


def test_groups_keep_their_order_in_the_other_shard(hf: Holdfast) -> None:
    source, target = queue_in(hf, 0), queue_in(hf, 3)
    source.enqueue([b"1", b"2", b"3"], group="g")
    assert move(source, target) == 3
    for expected in (b"1", b"2", b"3"):
        [message] = target.claim(1)
        assert message.payload == expected
        message.ack()


def test_failed_messages_move_to_another_shard_and_can_be_redriven_there(hf: Holdfast) -> None:
    source, target = queue_in(hf, 0), queue_in(hf, 1)
    source.enqueue(b"broken")
    source.claim()[0].nack("broken", final=True)
    assert move(source, target, state="failed") == 1
    assert target.stats().failed == 1
    assert target.redrive().changed == 1
    assert payloads(target) == [b"broken"]


def test_a_move_to_another_tenants_queue_is_refused_beyond_its_quota_and_changes_nothing(hf: Holdfast) -> None:
    source, target = queue_in(hf, 0), queue_in(hf, 1, tenant="other")
    hf.tenant("other").set(quotas={"max_messages": 2})
    source.enqueue([b"a", b"b", b"c"])
    with pytest.raises(OverQuota):
        move(source, target)
    assert (source.stats().ready, target.stats().ready) == (3, 0)
    hf.tenant("other").set(quotas={"max_messages": 3})
    assert move(source, target) == 3
    with pytest.raises(OverQuota):
        target.enqueue(b"d")


def test_a_waiter_of_the_target_is_woken_by_a_move(hf: Holdfast) -> None:
    source, target = queue_in(hf, 0), queue_in(hf, 1)
    source.enqueue(b"work")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(target.claim(wait="1h")))
    waiting.start()
    while not target.stats().waiters:
        pass
    move(source, target)
    waiting.join(60)
    assert [message.payload for message in found] == [b"work"]


def test_concurrent_moves_between_all_shards_lose_and_double_nothing(hf: Holdfast) -> None:
    queues = [queue_in(hf, shard) for shard in range(SHARDS)]
    ids = [id for queue in queues for id in queue.enqueue([b"x"] * 25)]

    def shuffle(first: int) -> None:
        for step in range(12):
            source = queues[(first + step) % SHARDS]
            move(source, queues[(first + 3 * step + 1) % SHARDS])

    threads = [threading.Thread(target=shuffle, args=(first,)) for first in range(SHARDS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [message.id for queue in queues for message in queue.claim(1_000)]
    assert sorted(found) == sorted(ids)


# --- Crashes ---------------------------------------------------------------------------------------------------------


def found_in(store: Path, *queues: str) -> list[list[bytes]]:
    verify_store(store, store.name)
    with open_store(store, settings=SETTINGS) as hf:
        sweep(hf)
        found = [[message.payload for message in hf.queue(queue).claim(100)] for queue in queues]
    verify_store(store, f"{store.name}, opened again")
    return found


def test_whatever_write_is_the_last_one_a_moved_message_is_in_exactly_one_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill leaves all writes up to one of them, which may be between the two halves of a link."""
    copies: list[Path] = []
    write = Database.write
    is_copying = False

    def copying_write(database: Database, *kind: LogPartKind) -> None:
        write(database, *kind)
        if is_copying:
            copies.append(copy_store(tmp_path / "store", tmp_path / f"copy {len(copies)} {kind}"))

    monkeypatch.setattr(Database, "write", copying_write)
    with open_store(tmp_path / "store", shards=SHARDS, settings=SETTINGS) as hf:
        source, target = queue_in(hf, 1), queue_in(hf, 2)
        source.enqueue([b"small", LARGE])
        is_copying = True
        assert move(source, target) == 2
        assert move(target, source) == 2
        is_copying = False
        names = source.ref.queue, target.ref.queue
    assert sum("LINKED" in each.name for each in copies) == 4
    seen = set()
    for each in copies:
        here, there = found_in(each, *names)
        assert sorted(here + there) == sorted([b"small", LARGE])
        assert [] in (here, there)
        seen.add(bool(there))
    assert seen == {False, True}


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A killed store whose last commit moved a message from shard 1 to shard 2, and the names of both queues."""
    place = tmp_path_factory.mktemp("moved")
    with open_store(place / "running", durability="fsync", shards=SHARDS) as hf:
        source, target = queue_in(hf, 1), queue_in(hf, 2)
        source.enqueue(b"work")
        move(source, target)
        return copy_store(place / "running", place / "killed"), source.ref.queue, target.ref.queue


def log_of(store: Path, shard: int) -> Path:
    [segment] = (store / "shards-1" / str(shard) / "log").iterdir()
    return segment


def linked_frame(segment: Path) -> tuple[int, int]:
    """Return the begin and the end of the last linked frame."""
    raw, generation, at, found = segment.read_bytes(), int(segment.stem), FIRST_FRAME_OFFSET, None
    while (header := read_header(raw, at, generation)) is not None:
        if header.kind == LogPartKind.LINKED:
            found = header.offset, header.end
        at = header.end
    assert found is not None
    assert find_next_frame(raw, at, generation) is None
    return found


def lose(store: Path, shard: int) -> None:
    """Overwrite the linked frame and everything after it with zeros, as if they had never reached the disk."""
    segment = log_of(store, shard)
    start, _ = linked_frame(segment)
    raw = segment.read_bytes()
    segment.write_bytes(raw[:start] + bytes(len(raw) - start))
    for marker in (store / "shards-1").glob(f"*/{MARKER}"):
        marker.write_text(json.dumps({**json.loads(marker.read_text()), "boot": "the one before"}))


@pytest.mark.parametrize("shard", [1, 2])
def test_a_power_cut_that_takes_one_half_of_a_move_undoes_the_other(
    moved: tuple[Path, str, str], tmp_path: Path, shard: int
) -> None:
    killed, *names = moved
    store = copy_store(killed, tmp_path / "store")
    lose(store, shard)
    assert found_in(store, *names) == [[b"work"], []]


def test_a_half_that_was_synced_and_is_missing_is_damage_and_is_refused_by_name(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path / "running", durability="fsync", shards=SHARDS) as hf:
        source, target = queue_in(hf, 1), queue_in(hf, 2)
        source.enqueue(b"work")
        move(source, target)
        source.enqueue(b"behind it")  # its frame says that the half was on disk, and so was the other
        store = copy_store(tmp_path / "running", tmp_path / "store")
    lose(store, 2)
    with pytest.raises(StoreUnavailable, match="shard 2 lacks a commit that shard 1 has the other half of"):
        open_store(store)
    with pytest.raises(StoreUnavailable, match="shard 2 lacks a commit"):
        verify(store)


def test_an_opening_that_is_killed_after_it_left_a_half_out_changes_nothing(
    moved: tuple[Path, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, *names = moved
    store = copy_store(killed, tmp_path / "store")
    lose(store, 2)
    begin, copies = Database.begin, []

    def copying_begin(database: Database) -> None:
        begin(database)
        copies.append(copy_store(store, tmp_path / f"killed {len(copies)}"))

    with monkeypatch.context() as patched:
        patched.setattr(Database, "begin", copying_begin)
        with open_store(store) as hf:
            hf.queue("another").enqueue(b"goes on")
    assert len(copies) == SHARDS
    for each in copies:
        assert found_in(each, *names) == [[b"work"], []]
