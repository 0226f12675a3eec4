"""Many plain messages at once, against the same one by one: every key, counter and event is the same."""

import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.blocking import BlockingMessage, Holdfast
from holdfast.stores.rocks import keys, unit
from holdfast.testing import ManualClock
from tests.crash.rocks import core_of, open_store, sweep, verify_store

SEEDS = range(12)
STEPS = 40


def state_of(hf: Holdfast) -> dict[str, Any]:
    """Everything that a store holds, on disk and in memory."""
    store = core_of(hf).store
    store.shards[0].engine.write()  # type: ignore[attr-defined]
    database = store.shards[0].engine.database  # type: ignore[attr-defined]
    found: dict[str, Any] = {
        name: list(database.items(number, b"", b"\xff" * 40)) for number, name in enumerate(keys.FAMILY_NAMES)
    }
    for shelf in store.shards[0].catalog._shelves.values():  # type: ignore[attr-defined]
        levels = shelf._in_use()
        found[f"levels of {shelf.row.ref}"] = {level: set(window._live) for level, window in levels.items() if window}
        found[f"leases of {shelf.row.ref}"] = set(shelf._leases._live)
        found[f"counters of {shelf.row.ref}"] = shelf.counters
    found["tallies"] = {ref: dict(counts) for ref, counts in store.shards[0].journal.take_tallies().items()}  # type: ignore[attr-defined]
    found["remembered"] = {id: entry.life for id, entry in store.shards[0].entries._cached.items()}  # type: ignore[attr-defined]
    return found


class Player:
    """Plays the same calls on a store, given the same dice."""

    def __init__(self, path: Path, durability: str, seed: int) -> None:
        self.clock = ManualClock()
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
        """Mostly none: the messages are plain then."""
        return self.dice.choice(
            [{}, {}, {}, {}, {"priority": 3}, {"delay": "2s"}, {"ttl": "3s"}, {"group": "g"}, {"headers": {"a": "b"}}]
        )

    def some(self) -> list[BlockingMessage]:
        self.dice.shuffle(self.held)
        count = self.dice.randint(0, len(self.held))
        some, self.held = self.held[:count], self.held[count:]
        return some


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_many_messages_at_once_leave_what_one_by_one_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, durability: str
) -> None:
    at_once, one_by_one = (Player(tmp_path / name, durability, seed) for name in ("at once", "one by one"))
    for step in range(STEPS):
        monkeypatch.setattr(unit, "MANY", 2)
        at_once.play()
        monkeypatch.setattr(unit, "MANY", 1 << 30)
        one_by_one.play()
        left, right = state_of(at_once.hf), state_of(one_by_one.hf)
        for name in left:
            assert left[name] == right[name], f"step {step}: {name}"
    at_once.hf.close()
    one_by_one.hf.close()
    verify_store(tmp_path / "at once", "at the end")


def test_batches_of_plain_messages_take_the_short_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the comparison above would compare nothing."""
    taken: list[bool] = []
    apply_many = unit.RocksUnits._apply_many

    def noted(self: unit.RocksUnits, *args: Any) -> bool:
        taken.append(apply_many(self, *args))
        return taken[-1]

    monkeypatch.setattr(unit.RocksUnits, "_apply_many", noted)
    with open_store(tmp_path / "store") as hf:
        hf.queue("mail").enqueue([b"x"] * 10)
        hf.queue("mail").ack(hf.queue("mail").claim(10))
    assert taken == [True, True]
