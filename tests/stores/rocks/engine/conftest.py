"""The disk below every store of a test."""

from collections.abc import Iterator

import pytest

from tests.stores.rocks.engine.disk import Disk


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    watched = Disk(monkeypatch)
    yield watched
    watched.let_all_go()
