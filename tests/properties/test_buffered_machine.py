"""The PostgreSQL store with the fast path against the model; a reopening finds what was buffered in the log alone,
and every claim what was reserved for it."""

import os
import tempfile
from pathlib import Path
from typing import cast

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.client.blocking import Holdfast
from holdfast.dice import Dice
from holdfast.runtime import ThreadRuntime
from holdfast.stores.buffered.fast_path import FastPathOptions
from holdfast.stores.contract import Store
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.machine import QueueMachine
from tests.crash.rocks import core_of, sweep
from tests.postgres.bounds import PATIENT
from tests.postgres.server import PostgresServer
from tests.properties.test_memory_machine import COMMON
from tests.properties.test_postgres_machine import _PHASES, _WEEK_MS
from tests.redis.reserving import ReservingStore
from tests.redis.server import RedisServer


def machine_on(server: PostgresServer, redis: RedisServer, urls: list[str], path: Path) -> type[QueueMachine]:
    class BufferedMachine(QueueMachine):
        can_crash = True

        def make_store(self, dice: Dice) -> Store:
            server.empty(urls)
            redis.flush()
            self._wal_dir = tempfile.mkdtemp(dir=path)
            return self._store(dice)

        def _store(self, dice: Dice) -> Store:
            inner = PostgresStore(urls, dice, journal_retention_ms=_WEEK_MS, bounds=PATIENT, uses_caller_time=True)
            # Nothing lands by itself, nor when it is closed.
            terms = FastPathOptions(
                redis_url=redis.url,
                wal_dir=self._wal_dir,
                flush_interval_ms=3_600_000,
                flush_batch=10_000,
                drain_ms=0,
                prefetch_batch=50,
                segment_bytes=4_096,
            )
            return ReservingStore(inner, terms)

        def _open(self, store: Store) -> Holdfast:
            """A store sweeps when it is opened: so that is done to its end, here and in the model. If it went on in the
            background while the clock is moved, it would sweep what the model has not."""
            hf = super()._open(store)
            runtime = cast(ThreadRuntime, core_of(hf).runtime)
            with runtime._all_finished:
                assert runtime._all_finished.wait_for(lambda: not runtime._background, timeout=60)
            sweep(hf)
            self.model.sweep(self._now)
            return hf

        def reopen(self) -> Store:
            self.hf.close()
            redis.flush()
            return self._store(self.dice)

    return BufferedMachine


@pytest.mark.spec("2.2")
@pytest.mark.slow
@pytest.mark.parametrize("databases", [1, 2])
def test_the_buffered_store_does_what_the_model_does(
    postgres: PostgresServer, redis_server: RedisServer, databases: int, tmp_path: Path
) -> None:
    urls = postgres.make_databases(*(f"buffered_{databases}_{number}" for number in range(databases)))
    examples = settings(COMMON, max_examples=8, stateful_step_count=30, phases=_PHASES)
    run_state_machine_as_test(machine_on(postgres, redis_server, urls, tmp_path), settings=examples)


@pytest.mark.proof
def test_the_buffered_store_does_what_the_model_does_for_hundreds_of_histories(
    postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    scale = float(os.environ.get("HOLDFAST_PROOF_SCALE", "1"))
    urls = postgres.make_databases("buffered_a", "buffered_b")
    examples = settings(COMMON, max_examples=max(1, int(300 * scale)), stateful_step_count=50)
    run_state_machine_as_test(machine_on(postgres, redis_server, urls, tmp_path), settings=examples)
