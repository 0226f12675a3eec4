"""The PostgreSQL store against the model: blocking calls, with the driver on a separate loop."""

import os

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.client.blocking import Holdfast
from holdfast.dice import Dice
from holdfast.stores.contract import Store
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.machine import QueueMachine
from tests.crash.rocks import sweep
from tests.postgres.bounds import PATIENT
from tests.postgres.server import PostgresServer
from tests.properties.test_memory_machine import COMMON

_WEEK_MS = 7 * 24 * 3_600_000

# A call takes a hundred times as long as in memory: a history that fails is shown as it was found.
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


def machine_on(server: PostgresServer, urls: list[str]) -> type[QueueMachine]:
    class PostgresMachine(QueueMachine):
        can_crash = True

        def make_store(self, dice: Dice) -> Store:
            server.empty(urls)
            return PostgresStore(urls, dice, journal_retention_ms=_WEEK_MS, bounds=PATIENT, uses_caller_time=True)

        def _open(self, store: Store) -> Holdfast:
            """A store sweeps when it is opened: so that is done to its end, here and in the model."""
            hf = super()._open(store)
            sweep(hf)
            self.model.sweep(self._now)
            return hf

        def reopen(self) -> Store:
            """All that a server knows by itself is gone with it; the database has the rest."""
            self.hf.close()
            return PostgresStore(urls, self.dice, journal_retention_ms=_WEEK_MS, bounds=PATIENT, uses_caller_time=True)

    return PostgresMachine


@pytest.mark.spec("2.2")
@pytest.mark.slow
@pytest.mark.parametrize("databases", [1, 2])
def test_the_postgres_store_does_what_the_model_does(postgres: PostgresServer, databases: int) -> None:
    urls = postgres.make_databases(*(f"machine_{databases}_{number}" for number in range(databases)))
    examples = settings(COMMON, max_examples=8, stateful_step_count=30, phases=_PHASES)
    run_state_machine_as_test(machine_on(postgres, urls), settings=examples)


@pytest.mark.proof
def test_the_postgres_store_does_what_the_model_does_for_hundreds_of_histories(postgres: PostgresServer) -> None:
    scale = float(os.environ.get("HOLDFAST_PROOF_SCALE", "1"))
    urls = postgres.make_databases("machine_a", "machine_b")
    examples = settings(COMMON, max_examples=max(1, int(300 * scale)), stateful_step_count=50)
    run_state_machine_as_test(machine_on(postgres, urls), settings=examples)
