"""Fixtures with a `Desk`: `desk` once closes and once kills its store, the others do what their names say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.rocks.durability.desk import Desk


@pytest.fixture(params=["closed", "killed"])
def desk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = Desk(tmp_path, request.param)
    yield desk
    desk.end()


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, "closed")
    yield desk
    desk.end()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, "killed")
    yield desk
    desk.end()
