"""`holdfast db reshard`: every message, index and event arrives in the new shards, even after an interruption."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import HoldfastError, InvalidArgument, StoreUnavailable
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.journal.journal import decode_block
from holdfast.stores.rocks.offline import resharding
from holdfast.stores.rocks.offline.read_only import ReadOnlyShards
from holdfast.stores.rocks.offline.resharding import reshard
from holdfast.stores.rocks.recovery import layout
from holdfast.stores.rocks.recovery.layout import read_layout
from tests.crash.rocks import contents, copy_store, open_store, verify_store
from tests.stores.rocks.format_one import close_format_one
from tests.stores.rocks.made_store import Made, copy_made, make_healthy
from tests.stores.rocks.shards.queues import queue_in


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a store without shards that has messages and keys of every kind."""
    return make_healthy(tmp_path_factory.mktemp("healthy") / "store")


def keys_of(path: Path) -> Counter[tuple[int, bytes, bytes]]:
    """Return all keys and values but the facts, names and journals of single databases."""
    store = ReadOnlyShards(path)
    try:
        return Counter(
            (family, key, value)
            for shard in store.shards
            for family in range(len(keys.FAMILY_NAMES))
            if family != keys.JOURNAL
            for key, value in shard.items(family, b"", b"\xff" * 40)
            if not (family == keys.DIRECTORY and key.startswith((keys.META, keys.QUEUE_NAMES)))
        )
    finally:
        store.close()


def events_of(path: Path) -> Counter[tuple[Any, ...]]:
    store = ReadOnlyShards(path)
    try:
        return Counter(
            tuple(row)
            for shard in store.shards
            for _, block in shard.items(keys.JOURNAL, b"", b"\xff" * 9)
            for row in decode_block(block)
        )
    finally:
        store.close()


def check_same(path: Path, before: Path) -> None:
    verify_store(path, path.name)
    assert keys_of(path) == keys_of(before)
    assert events_of(path) == events_of(before)


@pytest.mark.spec("4.4")
@pytest.mark.parametrize("way", [(4,), (2, 5), (4, 2, 3), (4, 1), (3, 1, 2)], ids=str)
def test_every_key_and_event_arrives_and_the_store_is_in_order(
    healthy: Made, tmp_path: Path, way: tuple[int, ...]
) -> None:
    store = copy_made(healthy, tmp_path / "store").path
    for shards in way:
        resharded = reshard(store, shards)
        assert resharded.shards == shards
        assert resharded.messages > 20
        check_same(store, healthy.path)
    assert read_layout(store).shards == way[-1]
    with open_store(store, shards=way[-1], settings={"max_payload": 4 << 20}) as hf:
        assert hf.queue("jobs", tenant="acme").claim(100)
        assert hf.queue("grouped", tenant="acme").stats().in_flight == 2
        assert hf.queue("other", tenant="globex").ledger("spark")
    verify_store(store, "used again")


def test_nothing_but_the_new_shards_is_left(healthy: Made, tmp_path: Path) -> None:
    store = copy_made(healthy, tmp_path / "store").path
    reshard(store, 3)
    assert sorted(each.name for each in store.iterdir()) == ["HOLDFAST", "shards-1"]
    reshard(store, 2)
    assert sorted(each.name for each in store.iterdir()) == ["HOLDFAST", "shards-2"]
    assert sorted(each.name for each in (store / "shards-2").iterdir()) == ["0", "1"]


def test_the_same_number_changes_nothing(healthy: Made, tmp_path: Path) -> None:
    store = copy_made(healthy, tmp_path / "store").path
    before = contents(store)
    assert reshard(store, 1).messages == 0
    assert contents(store) == before


def test_a_killed_store_is_resharded_with_what_only_its_log_has_and_its_versions_jump(tmp_path: Path) -> None:
    with open_store(tmp_path / "running", durability="fsync", shards=2) as hf:
        queues = [queue_in(hf, shard) for shard in (0, 1)]
        for queue in queues:
            queue.enqueue([b"a", b"b"])
        queues[0].move(queues[1].ref.queue, filter={"ids": [queues[0].list()[0].id]})
        killed = copy_store(tmp_path / "running", tmp_path / "killed")
    reshard(killed, 4)
    verify_store(killed, "resharded")
    with open_store(killed) as hf:
        claimed = [hf.queue(queue.ref.queue).claim(10) for queue in queues]
        assert [len(each) for each in claimed] == [1, 3]
        assert all(message.version > 1 << 20 for each in claimed for message in each)


def test_a_store_of_format_1_is_resharded(tmp_path: Path) -> None:
    closed = close_format_one(tmp_path / "old", [b"a", b"b"], "fsync")
    assert reshard(closed, 2).messages == 2
    verify_store(closed, "resharded")
    with open_store(closed) as hf:
        assert [message.payload for message in hf.queue("mail").claim(10)] == [b"a", b"b"]


# --- Journals --------------------------------------------------------------------------------------------------------


def test_with_more_shards_a_reader_continues_at_its_position(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", shards=2) as hf:
        for number in range(6):
            hf.queue(f"queue-{number}").enqueue(b"before")
        page = hf.journal(limit=4)
        read, position = [(event.shard, event.seq) for event in page], page.next
    resharded = reshard(tmp_path / "store", 4)
    assert resharded.position is None
    with open_store(tmp_path / "store") as hf:
        for number in range(6):
            hf.queue(f"queue-{number}").enqueue(b"after")
        while page := hf.journal(position, limit=3):
            read += [(event.shard, event.seq) for event in page]
            position = page.next
    assert len(read) == len(set(read)) == 12
    assert {shard for shard, _ in read} > {0, 1}


def test_with_fewer_shards_a_reader_that_had_read_everything_continues_at_the_answered_position(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", shards=4) as hf:
        for number in range(8):
            hf.queue(f"queue-{number}").enqueue(b"before")
        position = hf.journal(limit=1_000).next
    resharded = reshard(tmp_path / "store", 2)
    with open_store(tmp_path / "store") as hf:
        for number in range(8):
            hf.queue(f"queue-{number}").enqueue(b"after")
        with pytest.raises(InvalidArgument, match="journal position"):
            hf.journal(position)
        assert [event.event for event in hf.journal(resharded.position)] == ["enqueued"] * 8
        assert len(hf.journal(limit=1_000)) == 16
    verify_store(tmp_path / "store", "resharded")


# --- Refusals and crashes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [0, 65])
def test_a_number_that_no_store_can_have_is_refused(healthy: Made, tmp_path: Path, shards: int) -> None:
    store = copy_made(healthy, tmp_path / "store").path
    before = contents(store)
    with pytest.raises(InvalidArgument, match="give 1 to 64"):
        reshard(store, shards)
    assert contents(store) == before


def test_a_directory_without_a_store_and_a_store_in_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="holds no store"):
        reshard(tmp_path, 2)
    with open_store(tmp_path / "store") as hf:
        hf.queue("mail").enqueue(b"a")
        with pytest.raises(StoreUnavailable, match="in use"):
            reshard(tmp_path / "store", 2)
        assert hf.queue("mail").stats().ready == 1


def test_a_damaged_store_is_refused_and_left_as_it_is(healthy: Made, tmp_path: Path) -> None:
    store = copy_made(healthy, tmp_path / "store").path
    database = Database(store)
    database.commit.delete(keys.COUNTERS + keys.prefix(1, 1), keys.DIRECTORY)
    database.write()
    database.close()
    before = contents(store)
    with pytest.raises(StoreUnavailable, match="was not changed"):
        reshard(store, 4)
    assert contents(store) == before


@pytest.mark.parametrize("before", [1, 3])
def test_killed_at_any_step_the_store_is_the_old_one_or_the_new_one(
    healthy: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    store = copy_made(healthy, tmp_path / "store").path
    reshard(store, before)
    copies: list[Path] = []

    def copying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            copies.append(copy_store(store, tmp_path / f"copy {len(copies)}"))
            return result

        return call

    with monkeypatch.context() as patched:
        for place, name in (
            (Database, "begin"),
            (Database, "load"),
            (Database, "close"),
            (resharding, "make_directory"),
            (resharding, "write_marker"),
            (layout.shutil, "rmtree"),
        ):
            patched.setattr(place, name, copying(getattr(place, name)))
        reshard(store, 2)
    assert len(copies) > 8
    found = Counter[int]()
    for each in copies:
        found[read_layout(each).shards] += 1
        with open_store(each) as hf:
            assert len(hf.queues(tenant="acme")) == 2
        left = {entry.name for entry in each.iterdir()} - {"HOLDFAST", "db", "log"}
        assert len(left) == (read_layout(each).role.folder is not None)
        verify_store(each, each.name)
        shutil.rmtree(each)
    assert found[before] > 2
    assert found[2] > 0


def test_a_kill_of_the_last_step_is_finished_by_the_next_call(
    healthy: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copy_made(healthy, tmp_path / "store").path

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(resharding, "write_marker", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reshard(store, 2)
    assert reshard(store, 2).shards == 2
    check_same(store, healthy.path)


def test_errors_are_named_for_the_directory_of_one_shard(healthy: Made, tmp_path: Path) -> None:
    store = copy_made(healthy, tmp_path / "store").path
    reshard(store, 2)
    with pytest.raises(HoldfastError, match="is shard 1 of a store"):
        reshard(store / "shards-1" / "1", 4)
