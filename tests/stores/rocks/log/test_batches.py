"""Changes of many plain messages at once give the same keys, counters and events as changes one by one."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.blocking import BlockingMessage, Holdfast
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine import layers, rocks_writes
from holdfast.stores.rocks.engine.log_position import POSITION_KEY
from holdfast.stores.rocks.engine.reads import MergedReads
from holdfast.stores.rocks.journal.event_blocks import decode_rows
from holdfast.stores.rocks.offline.read_only import ReadOnlyStore
from holdfast.stores.rocks.queues import unit_writes
from holdfast.testing import ManualClock
from tests.crash.rocks import copy_store, core_of, open_store, sweep, verify_store
from tests.stores.rocks.log.database_ends import mark_as_killed

SEEDS = range(12)
STEPS = 40


def items_of(reads: MergedReads) -> dict[str, Any]:
    """Return every key with its value by family, except the log position. For the journal, return its events, because a
    block encodes many similar events differently from single ones."""
    found: dict[str, Any] = {
        name: [(key, value) for key, value in reads.items(number, b"", b"\xff" * 40) if key != POSITION_KEY]
        for number, name in enumerate(keys.FAMILY_NAMES)
    }
    journal = keys.FAMILY_NAMES[keys.JOURNAL]
    return found | {journal: [(key, decode_rows(block)) for key, block in found[journal]]}


def state_of(hf: Holdfast) -> dict[str, Any]:
    """Return all data of a store, on disk and in memory."""
    store = core_of(hf).store
    store.shards[0].engine.write()
    database = store.shards[0].engine.database
    found: dict[str, Any] = items_of(database)
    for queue in store.shards[0].catalog._loaded.values():
        levels = queue._make_windows()
        found[f"levels of {queue.row.ref}"] = {level: set(window._live) for level, window in levels.items() if window}
        found[f"leases of {queue.row.ref}"] = set(queue._leases._live)
        found[f"counters of {queue.row.ref}"] = queue.counters
    found["tallies"] = {ref: dict(counts) for ref, counts in store.shards[0].journal.take_tallies().items()}
    found["remembered"] = {id: entry.life for id, entry in store.shards[0].entries._cached.items()}
    return found


class Player:
    """A player of the same calls on a store, given the same seed."""

    def __init__(self, path: Path, durability: str, seed: int) -> None:
        self.clock = ManualClock()
        self.path = path
        self.hf = open_store(path, self.clock, durability=durability)
        self.hf.queue("mail").set_policy(backoff_base_ms=0, max_retries=1_000)
        self.dice = random.Random(seed)
        self.held: list[BlockingMessage] = []

    def play(self) -> None:
        dice, queue = self.dice, self.hf.queue("mail")
        match dice.randrange(8):
            case 0 | 1:
                queue.enqueue([b"%d" % dice.randrange(100)] * dice.randint(1, 30), **self.options())
            case 2 | 3:
                self.held += queue.claim(dice.randint(1, 30), lease=f"{dice.randint(1, 9)}s")
            case 4 | 5:
                queue.ack(self.some())
            case 6:
                some = self.some()
                if dice.random() < 0.5:
                    queue.nack(some, "failed", delay=dice.choice([None, "1s"]))
                elif dice.random() < 0.5:
                    queue.extend(some, "9s")
                    self.held += some
                else:
                    queue.release(some)
            case 7:
                self.clock.advance(dice.choice([1, 1_000, 5_000]))
                sweep(self.hf)

    def options(self) -> dict[str, Any]:
        """Return options of an enqueue. They are mostly empty, so that the messages are plain."""
        return self.dice.choice(
            [{}, {}, {}, {}, {"priority": 3}, {"delay": "2s"}, {"ttl": "3s"}, {"group": "g"}, {"headers": {"a": "b"}}]
        )

    def some(self) -> list[BlockingMessage]:
        self.dice.shuffle(self.held)
        count = self.dice.randint(0, len(self.held))
        some, self.held = self.held[:count], self.held[count:]
        return some


class SlowCheckpoints:
    """A writer of one checkpoint after another to RocksDB, a slice now and then."""

    def __init__(self, hf: Holdfast, dice: random.Random) -> None:
        store = core_of(hf).store
        self.engine = store.shards[0].engine
        self.database = self.engine.database
        self.dice = dice
        self.slices: Iterator[bool] | None = None

    def go_on(self) -> None:
        for _ in range(self.dice.choice([0, 0, 1, 5])):
            if self.slices is None:
                self.engine.write()
                self.engine.sync_now()
                self.slices = self.database.write_slices(*self.database.begin_checkpoint())
            self.write_slice()

    def write_slice(self) -> None:
        assert self.slices is not None
        if next(self.slices, None) is None:
            self.database.end_checkpoint()
            self.slices = None

    def end(self) -> None:
        while self.slices is not None:
            self.write_slice()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_batches_between_reads_and_slices_of_checkpoints_leave_what_one_by_one_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, durability: str
) -> None:
    """Messages that no read needs have no keys. Here the whole store is read only now and then. The log of a killed
    store must give the same messages."""
    monkeypatch.setattr(rocks_writes, "_SLICE_MESSAGES", 7)
    monkeypatch.setattr(layers, "_MAX_KEYLESS", 60)
    at_once, one_by_one = (Player(tmp_path / name, durability, seed) for name in ("at once", "one by one"))
    checkpoints = SlowCheckpoints(at_once.hf, random.Random(seed))
    for step in range(STEPS):
        monkeypatch.setattr(unit_writes, "MANY", 1)
        at_once.play()
        checkpoints.go_on()
        monkeypatch.setattr(unit_writes, "MANY", 1 << 30)
        one_by_one.play()
        if step % 9 == seed % 9:
            killed = [copy_of(each, tmp_path / f"killed {number}") for number, each in enumerate((at_once, one_by_one))]
            left, right = state_of(at_once.hf), state_of(one_by_one.hf)
            for name in left:
                assert left[name] == right[name], f"step {step}: {name}"
            for each in killed:
                read_only = ReadOnlyStore(each)
                assert items_of(read_only) == {name: left[name] for name in keys.FAMILY_NAMES}
                read_only.close()
                shutil.rmtree(each)
    checkpoints.end()
    at_once.hf.close()
    one_by_one.hf.close()
    verify_store(tmp_path / "at once", "at the end")


def copy_of(player: Player, target: Path) -> Path:
    """Return a copy of the player's store as a kill leaves it."""
    core_of(player.hf).store.shards[0].engine.write()
    copy_store(player.path, target)
    mark_as_killed(target)
    return target


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_many_messages_at_once_leave_what_one_by_one_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, durability: str
) -> None:
    at_once, one_by_one = (Player(tmp_path / name, durability, seed) for name in ("at once", "one by one"))
    for step in range(STEPS):
        monkeypatch.setattr(unit_writes, "MANY", 2)
        at_once.play()
        monkeypatch.setattr(unit_writes, "MANY", 1 << 30)
        one_by_one.play()
        left, right = state_of(at_once.hf), state_of(one_by_one.hf)
        for name in left:
            assert left[name] == right[name], f"step {step}: {name}"
    at_once.hf.close()
    one_by_one.hf.close()
    verify_store(tmp_path / "at once", "at the end")


def test_batches_of_plain_messages_take_the_short_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, the comparison above would compare nothing."""
    taken: list[bool] = []
    apply_many = unit_writes.UnitWrites._apply_many

    def noted(self: unit_writes.UnitWrites, *args: Any) -> bool:
        taken.append(apply_many(self, *args))
        return taken[-1]

    monkeypatch.setattr(unit_writes.UnitWrites, "_apply_many", noted)
    with open_store(tmp_path / "store") as hf:
        hf.queue("mail").enqueue([b"x"] * 10)
        hf.queue("mail").ack(hf.queue("mail").claim(10))
    assert taken == [True, True]
