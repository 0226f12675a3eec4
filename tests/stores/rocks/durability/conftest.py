"""Fixtures of a reopened store by the way it ends: `desk` ends it in both ways, the others in the one they name."""

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
