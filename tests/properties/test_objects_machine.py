"""The object store against the model: blocking calls, and processes that die with all that they know by themselves."""

import os

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.client.blocking import Holdfast
from holdfast.dice import Dice
from holdfast.stores.contract import Store
from holdfast.stores.objects import ObjectStore
from holdfast.stores.objects.buckets.cloud import MemoryBucket
from holdfast.testing.machine import QueueMachine
from tests.crash.rocks import sweep
from tests.properties.test_memory_machine import COMMON

_WEEK_MS = 7 * 24 * 3_600_000
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


class ObjectMachine(QueueMachine):
    can_crash = True

    def make_store(self, dice: Dice) -> Store:
        self._bucket = MemoryBucket()
        return self._store(dice)

    def _store(self, dice: Dice) -> Store:
        # One machine, one clock: what another process granted ends when it says.
        return ObjectStore(self._bucket, dice, journal_retention_ms=_WEEK_MS, clock_skew_ms=0)

    def _open(self, store: Store) -> Holdfast:
        """A store sweeps when it is opened: so that is done to its end, here and in the model."""
        hf = super()._open(store)
        sweep(hf)
        self.model.sweep(self._now)
        return hf

    def reopen(self) -> Store:
        self.hf.close()
        return self._store(self.dice)


@pytest.mark.spec("2.2")
@pytest.mark.slow
def test_the_object_store_does_what_the_model_does() -> None:
    examples = settings(COMMON, max_examples=15, stateful_step_count=30, phases=_PHASES)
    run_state_machine_as_test(ObjectMachine, settings=examples)


@pytest.mark.proof
def test_the_object_store_does_what_the_model_does_for_hundreds_of_histories() -> None:
    scale = float(os.environ.get("HOLDFAST_PROOF_SCALE", "1"))
    examples = settings(COMMON, max_examples=max(1, int(300 * scale)), stateful_step_count=50)
    run_state_machine_as_test(ObjectMachine, settings=examples)
