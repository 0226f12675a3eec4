"""Checkpoints of a whole store: the changes that reach RocksDB, released segments, waiting calls, and failures."""

import asyncio
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.blocking import Holdfast
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine import sync_pacing
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.stores.rocks.engine.layers import LogLocation
from holdfast.stores.rocks.log.segments import list_segments
from tests.crash.rocks import copy_store, core_of, open_store, verify_store
from tests.stores.rocks.engine.disk import PATIENCE_S, Disk, begin, opened, turns

SMALL = 64 << 10
PAYLOAD = b"x" * 1_000
LARGE = 3 << 20


def database_of(hf: Holdfast) -> Database:
    database = core_of(hf).store.shards[0].engine.database
    assert isinstance(database, Database)
    return database


def checkpoint(hf: Holdfast) -> None:
    hf._driver.run(core_of(hf).store.shards[0].checkpoints.run_once())


def keys_in_rocksdb(database: Database, family: int) -> list[bytes]:
    """Return the keys in RocksDB, without the layers over it."""
    return list(database._rocks_keys(family, b"", b"\xff" * 40))


def test_a_message_that_is_acked_before_a_checkpoint_never_reaches_rocksdb(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as hf:
        queue = hf.queue("mail")
        queue.enqueue([PAYLOAD] * 100)
        for message in queue.claim(100):
            message.ack()
        database = database_of(hf)
        layer = database.commit.layer
        for family in (keys.MESSAGES, keys.VISIBLE, keys.LEASES, keys.EXPIRIES):
            assert len(layer.families[family]) == 0
        checkpoint(hf)
        assert keys_in_rocksdb(database, keys.MESSAGES) == []
        assert len(hf.journal(limit=1_000)) == 300


@pytest.mark.spec("4.3")
def test_survivors_are_in_rocksdb_and_out_of_memory_after_a_checkpoint(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as hf:
        hf.queue("mail").enqueue([PAYLOAD] * 100)
        database = database_of(hf)
        assert len(database.commit.layer) > 200
        checkpoint(hf)
        assert len(database.commit.layer) == 0
        assert len(keys_in_rocksdb(database, keys.MESSAGES)) == 100
        assert hf.queue("mail").stats().ready == 100
        assert len(hf.queue("mail").claim(1_000)) == 100


def test_checkpoints_begin_by_themselves_and_free_the_log(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", checkpoint_bytes=SMALL) as hf:
        for _ in range(300):
            hf.queue("mail").enqueue([PAYLOAD] * 4)
        checkpoint(hf)
        checkpoints = core_of(hf).store.shards[0].checkpoints
        assert checkpoints.written > 3
        # All but the current segment, the one made ahead, and one kept for reuse.
        assert len(list_segments(tmp_path / "store" / "log")) <= 3
        assert hf.queue("mail").stats().ready == 1_200
        killed = copy_store(tmp_path / "store", tmp_path / "killed")
    for store in (tmp_path / "store", killed):
        verify_store(store, store.name)
        with open_store(store) as hf:
            assert hf.queue("mail").stats().ready == 1_200


def test_an_orderly_close_leaves_an_empty_log(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as hf:
        hf.queue("mail").enqueue([PAYLOAD] * 10)
        assert list_segments(tmp_path / "store" / "log")
    assert list((tmp_path / "store" / "log").iterdir()) == []


def test_a_large_payload_does_not_stay_in_memory(tmp_path: Path) -> None:
    payload = bytes(range(256)) * (LARGE // 256)
    with open_store(tmp_path / "store", settings={"max_payload": 2 * LARGE}) as hf:
        hf.queue("mail").enqueue(payload)
        layer = database_of(hf).commit.layer.families[keys.INDEXES]
        pieces = [value for key, value in layer.overrides.items() if key.startswith(keys.PIECES)]
        pieces += [value for key, value in layer.fresh.items() if key.startswith(keys.PIECES)]
        assert len(pieces) == LARGE >> 18
        assert all(isinstance(value, LogLocation) for value in pieces)
        [found] = hf.queue("mail").list()
        assert hf.queue("mail").get(found.id, payload=True).payload == payload
        killed = copy_store(tmp_path / "store", tmp_path / "killed")
        checkpoint(hf)
        [message] = hf.queue("mail").claim()
        assert message.payload == payload
    with open_store(killed) as hf:
        [message] = hf.queue("mail").claim()
        assert message.payload == payload


async def test_enqueues_wait_while_twice_the_bound_has_gathered_and_acks_do_not(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    flush = Database.flush

    def held_flush(database: Database) -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        flush(database)

    async with opened(tmp_path, disk, Durability.OS, checkpoint_bytes=SMALL) as hf:
        queue = hf.queue("mail")
        await queue.enqueue(b"first")
        [message] = await queue.claim()
        with monkeypatch.context() as patched:
            patched.setattr(Database, "flush", held_flush)
            waiting = [begin(queue.enqueue([PAYLOAD] * 10))]
            while waiting[-1].done() or not begun.is_set():
                waiting.append(begin(queue.enqueue([PAYLOAD] * 10)))
                await turns()
                if not waiting[-1].done():
                    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
            await message.ack()
            assert not waiting[-1].done()
            may_end.set()
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)


def test_a_checkpoint_that_fails_stops_the_store_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(database: Database) -> None:
        raise Exception("IO error: No space left on device")  # as the binding does

    hf = open_store(tmp_path / "store", durability="fsync", reopen_after_ms=1 << 40)
    hf.queue("mail").enqueue([PAYLOAD] * 10)
    with monkeypatch.context() as patched:
        patched.setattr(Database, "flush_families", fail)
        with pytest.raises(StoreUnavailable, match="has stopped: IO error: No space left"):
            checkpoint(hf)
    with pytest.raises(StoreUnavailable, match="has stopped"):
        hf.queue("mail").enqueue(b"later")
    hf.close()
    with open_store(tmp_path / "store") as hf:
        assert hf.queue("mail").stats().ready == 10
    verify_store(tmp_path / "store", "after the stop")


def test_a_lone_blocking_caller_syncs_on_its_own_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handing it to another thread and back would cost half as much as the sync."""
    threads: list[int] = []
    sync = Database.sync

    def noted_sync(database: Database, pending: Any) -> None:
        threads.append(threading.get_ident())
        sync(database, pending)

    # However slow the disk of this machine is.
    monkeypatch.setattr(sync_pacing, "_SHORT_SYNC_S", math.inf)
    with open_store(tmp_path / "store", durability="fsync") as hf:
        hf.queue("mail").enqueue(b"first")
        monkeypatch.setattr(Database, "sync", noted_sync)
        hf.queue("mail").enqueue(b"second")
        assert threads == [threading.get_ident()]
        [message] = hf.queue("mail").claim()
        assert len(threads) == 1, "a claim pays for no sync of its own"
        message.ack()
        assert threads == [threading.get_ident()] * 2


def test_a_slow_sync_of_one_caller_does_not_hold_up_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a slow sync the caller waits without the lock, so another thread may read meanwhile."""
    begun, may_end = threading.Event(), threading.Event()
    sync = Database.sync

    def held_sync(database: Database, pending: Any) -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        sync(database, pending)

    with open_store(tmp_path / "store", durability="fsync") as hf:
        hf.queue("mail").enqueue(b"first")
        core_of(hf).store.shards[0].engine._pacing.paused_until_s = math.inf
        with monkeypatch.context() as patched:
            patched.setattr(Database, "sync", held_sync)
            writer = threading.Thread(target=lambda: hf.queue("mail").enqueue(b"second"))
            writer.start()
            assert begun.wait(PATIENCE_S)
            assert hf.queue("mail").stats().ready >= 1
            may_end.set()
            writer.join()
        assert hf.queue("mail").stats().ready == 2


def test_ctrl_c_in_the_middle_of_a_write_stops_the_store_and_nothing_builds_on_the_lost_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(database: Database, *_: object) -> None:
        database.commit.take()
        raise KeyboardInterrupt

    hf = open_store(tmp_path / "store", durability="fsync", reopen_after_ms=1 << 40)
    hf.queue("mail").enqueue(b"first")
    with monkeypatch.context() as patched:
        patched.setattr(Database, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hf.queue("mail").enqueue(b"lost")
    with pytest.raises(StoreUnavailable, match="a write was interrupted"):
        hf.queue("mail").claim()
    hf.close()
    verify_store(tmp_path / "store", "after the interruption")
    with open_store(tmp_path / "store") as hf:
        assert [message.payload for message in hf.queue("mail").claim(10)] == [b"first"]
