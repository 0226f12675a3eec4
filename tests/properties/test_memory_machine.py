import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.dice import Dice
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.machine import QueueMachine

_WEEK_MS = 7 * 24 * 3_600_000

# A rule draws many small choices; neither a slow machine nor a large draw is a fault of the store.
COMMON = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


class MemoryMachine(QueueMachine):
    def make_store(self, dice: Dice) -> Store:
        return MemoryStore(dice, _WEEK_MS)


@pytest.mark.spec("2.1", "2.2")
@pytest.mark.slow
def test_the_memory_store_does_what_the_model_does() -> None:
    run_state_machine_as_test(MemoryMachine, settings=settings(COMMON, max_examples=150, stateful_step_count=40))


@pytest.mark.proof
def test_the_memory_store_does_what_the_model_does_for_thousands_of_histories() -> None:
    scale = float(os.environ.get("HOLDFAST_PROOF_SCALE", "1"))
    examples = max(1, int(2_000 * scale))
    run_state_machine_as_test(MemoryMachine, settings=settings(COMMON, max_examples=examples, stateful_step_count=50))
