"""The RocksDB store against the model, with crashes among the rules."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.client.blocking import Holdfast
from holdfast.dice import Dice
from holdfast.stores.contract import Store
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine.engine import Durability
from holdfast.testing.machine import QueueMachine
from tests.crash.rocks import WEEK_MS, copy_store, sweep, verify_store
from tests.properties.test_memory_machine import COMMON


class RocksMachine(QueueMachine):
    """A crash is a copy of the open store's files, opened while the original is put away: what a killed process
    leaves. Every invariant of the copy is checked before it is opened."""

    can_crash = True
    durability = Durability.OS
    shards = 1

    def make_store(self, dice: Dice) -> Store:
        self._directory = Path(tempfile.mkdtemp(prefix="holdfast-machine-"))
        self._number = 0
        return self._store()

    def _open(self, store: Store) -> Holdfast:
        """A store sweeps when it is opened: so that is done to its end, here and in the model."""
        hf = super()._open(store)
        sweep(hf)
        self.model.sweep(self._now)
        return hf

    def _store(self) -> Store:
        path = self._directory / str(self._number)
        return RocksStore(path, self.dice, durability=self.durability, journal_retention_ms=WEEK_MS, shards=self.shards)

    def reopen(self) -> Store:
        left = self._directory / str(self._number)
        self._number += 1
        copy = copy_store(left, self._directory / str(self._number))
        self.hf.close()
        shutil.rmtree(left)
        verify_store(copy, "after a crash")
        return self._store()

    def teardown(self) -> None:
        super().teardown()
        verify_store(self._directory / str(self._number), "at the end")
        shutil.rmtree(self._directory)


class SyncedRocksMachine(RocksMachine):
    durability = Durability.FSYNC


class ShardedRocksMachine(RocksMachine):
    durability = Durability.FSYNC
    shards = 3


# Shrinking takes minutes on a disk, longer than a test may hang: the blob repeats the case, and `make proof` shrinks.
QUICK = settings(COMMON, max_examples=20, stateful_step_count=40, phases=[Phase.explicit, Phase.reuse, Phase.generate])

MACHINES = [RocksMachine, SyncedRocksMachine, ShardedRocksMachine]


@pytest.mark.spec("2.2")
@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_the_rocks_store_does_what_the_model_does(machine: type[RocksMachine]) -> None:
    run_state_machine_as_test(machine, settings=QUICK)


@pytest.mark.proof
@pytest.mark.parametrize("machine", MACHINES)
def test_the_rocks_store_does_what_the_model_does_for_thousands_of_histories(machine: type[RocksMachine]) -> None:
    scale = float(os.environ.get("HOLDFAST_PROOF_SCALE", "1"))
    examples = max(1, int(2_000 * scale))
    run_state_machine_as_test(machine, settings=settings(COMMON, max_examples=examples, stateful_step_count=50))
