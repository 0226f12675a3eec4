"""Fixtures of a store that a test ends and opens again. `restartable` ends it in both ways, the others in the one they
name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.rocks.durability.restartable_store import RestartableStore


@pytest.fixture(params=["closed", "killed"])
def restartable(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RestartableStore]:
    restartable = RestartableStore(tmp_path, request.param)
    yield restartable
    restartable.end()


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[RestartableStore]:
    restartable = RestartableStore(tmp_path, "closed")
    yield restartable
    restartable.end()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[RestartableStore]:
    restartable = RestartableStore(tmp_path, "killed")
    yield restartable
    restartable.end()
