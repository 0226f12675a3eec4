"""A shard with a blocked disk does not block calls, waiters and sweeps of the other shards (SPEC 4.4)."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.blocking import Holdfast, Queue
from holdfast.client.client import AsyncHoldfast
from holdfast.dice import SeededDice
from holdfast.model.names import QueueRef
from holdfast.server.embedded import open_on_loop
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.database import Database
from holdfast.testing import ManualClock
from tests.crash.rocks import WEEK_MS, core_of, open_store, sweep, verify_store
from tests.stores.rocks.shards.queues import SHARDS, queue_in

PATIENCE_S = 60.0


class Gate:
    """A gate that blocks the syncs of one shard from `close` until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._held: int | None = None
        self._go_on = threading.Event()
        self.reached = threading.Event()
        sync = Database.sync

        def held_sync(database: Database, pending: Any) -> None:
            if database.path.name == str(self._held):
                self.reached.set()
                assert self._go_on.wait(PATIENCE_S), "the gate was never opened"
            sync(database, pending)

        monkeypatch.setattr(Database, "sync", held_sync)

    def close(self, shard: int) -> None:
        self._held = shard

    def open(self) -> None:
        self._go_on.set()

    def __enter__(self) -> None:
        """Enter within the `with` block of the store, so that the gate opens before the store closes.

        A store with a blocked sync cannot be closed.
        """

    def __exit__(self, *_: object) -> None:
        self.open()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def in_thread(function: Any, *arguments: Any) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(function(*arguments)), daemon=True)
    thread.start()
    return thread, answers


@pytest.mark.parametrize("held", [0, 2])
def test_while_one_shards_sync_is_held_blocking_calls_on_the_others_are_answered(
    tmp_path: Path, gate: Gate, held: int
) -> None:
    with open_store(tmp_path / "store", durability="fsync", shards=SHARDS) as hf, gate:
        queues = [queue_in(hf, shard) for shard in range(SHARDS)]
        gate.close(held)
        waiting, answers = in_thread(queues[held].enqueue, b"held")
        assert gate.reached.wait(PATIENCE_S)
        for shard, queue in enumerate(queues):
            if shard != held:
                _use(queue)
        assert answers == []
        gate.open()
        waiting.join(PATIENCE_S)
        assert len(answers) == 1
        assert queues[held].stats().ready == 1
    verify_store(tmp_path / "store", "after the gate was opened")


def _use(queue: Queue) -> None:
    queue.enqueue([b"a", b"b"])
    first, second = queue.claim(2)
    first.extend("1m")
    first.ack()
    second.nack()
    assert queue.stats().ready + queue.stats().delayed == 1
    queue.purge()


@pytest.mark.spec("4.4")
async def test_while_one_shards_sync_is_held_calls_on_a_loop_are_answered_and_waiters_woken(
    tmp_path: Path, gate: Gate
) -> None:
    store = RocksStore(tmp_path / "store", SeededDice(0), journal_retention_ms=WEEK_MS, shards=SHARDS)
    async with open_on_loop("", {}, clock=ManualClock(), store=store) as hf:
        held, free = await _two_queues(hf, store)
        gate.close(store.shard_of(held.ref))
        enqueued = asyncio.create_task(held.enqueue(b"held"))
        assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
        waiter = asyncio.create_task(free.claim(wait="1h"))
        await asyncio.sleep(0)
        await free.enqueue(b"free")
        [message] = await asyncio.wait_for(waiter, PATIENCE_S)
        await message.ack()
        assert not enqueued.done()
        gate.open()
        await enqueued
    verify_store(tmp_path / "store", "after the gate was opened")


async def _two_queues(hf: AsyncHoldfast, store: RocksStore) -> tuple[Any, Any]:
    first = hf.queue("queue-0")
    await first.enqueue(b"x")
    await first.purge()
    for number in range(1, 100):
        other = hf.queue(f"queue-{number}")
        await other.enqueue(b"x")
        await other.purge()
        if store.shard_of(other.ref) != store.shard_of(first.ref):
            return first, other
    raise AssertionError("all queues lie in one shard")


@pytest.mark.spec("4.4")
def test_while_one_shards_sync_is_held_the_others_are_swept(tmp_path: Path, gate: Gate) -> None:
    clock = ManualClock()
    with open_store(tmp_path / "store", clock, durability="fsync", shards=SHARDS) as hf, gate:
        held, free = queue_in(hf, 1), queue_in(hf, 3)
        for queue in (held, free):
            queue.enqueue([b"a", b"b"])
            assert len(queue.claim(1, lease="10s")) == 1
        gate.close(1)
        clock.advance(10_000)  # the sweeper begins, and waits for the held shard
        assert gate.reached.wait(PATIENCE_S)
        _until(lambda: free.stats().in_flight == 0)
        # A deadline that comes while the first sweep is still held.
        assert len(free.claim(1, lease="10s")) == 1
        clock.advance(10_000)
        _until(lambda: free.stats().in_flight == 0)
        gate.open()
        sweep(hf)
        assert held.stats().in_flight == 0
    verify_store(tmp_path / "store", "after the gate was opened")


def test_checkpoints_of_a_held_shard_hold_up_no_other_shards(tmp_path: Path, gate: Gate) -> None:
    with open_store(tmp_path / "store", shards=SHARDS, checkpoint_bytes=256 << 10) as hf, gate:
        held, free = queue_in(hf, 1), queue_in(hf, 3)
        checkpoints = core_of(hf).store.shards[3].checkpoints  # type: ignore[attr-defined]  # `core_of` has any store
        gate.close(1)
        while not gate.reached.is_set():
            held.enqueue([bytes(1_000)] * 10)
        written = checkpoints.written
        while checkpoints.written == written:
            free.enqueue([bytes(1_000)] * 10)
        gate.open()
    verify_store(tmp_path / "store", "after the gate was opened")


@pytest.mark.spec("4.4")
def test_a_busy_queue_wakes_only_the_waiters_of_its_own_queue(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", shards=SHARDS) as hf:
        busy, calm = queue_in(hf, 0), queue_in(hf, 1)
        passes: list[str] = []
        store = core_of(hf).store
        claim = store.claim

        def counted(ref: QueueRef, *rest: Any) -> Any:
            passes.append(ref.queue)
            return claim(ref, *rest)

        store.claim = counted  # type: ignore[method-assign]  # counts the passes over each queue
        waiting, answers = in_thread(lambda: calm.claim(wait="1h"))
        _until(lambda: calm.stats().waiters == 1)
        passes.clear()
        for _ in range(20):
            busy.enqueue(b"a")
        assert calm.ref.queue not in passes
        calm.enqueue(b"b")
        waiting.join(PATIENCE_S)
        assert [message.payload for message in answers[0]] == [b"b"]


def _until(condition: Any) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came to that")


def test_all_shards_stop_when_one_fails_and_reopen_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with open_store(tmp_path / "store", clock, durability="fsync", shards=SHARDS, reopen_after_ms=1_000) as hf:
        queues = [queue_in(hf, shard) for shard in range(SHARDS)]
        for queue in queues:
            queue.enqueue(b"answered")
        sync = Database.sync

        def failing(database: Database, pending: Any) -> None:
            if database.path.name == "2":
                raise OSError(5, "the disk failed")
            sync(database, pending)

        with monkeypatch.context() as patched:
            patched.setattr(Database, "sync", failing)
            with pytest.raises(Exception, match="the disk failed"):
                queues[2].enqueue(b"failed")
        for queue in queues:
            with pytest.raises(Exception, match="the disk failed"):
                queue.stats()
        clock.advance(1_000)
        _until(lambda: _is_up(hf))
        for shard, queue in enumerate(queues):
            payloads = [message.payload for message in queue.claim(10)]
            assert payloads[:1] == [b"answered"]
            assert len(payloads) == 1 or (shard == 2 and payloads[1:] == [b"failed"])
    verify_store(tmp_path / "store", "after the reopening")


def _is_up(hf: Holdfast) -> bool:
    figures = hf._driver.run(core_of(hf).store.figures())
    return bool(figures.is_up)
