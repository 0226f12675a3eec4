"""Small segments, so that a test fills several, and a disk that the test controls."""

from collections.abc import Iterator

import pytest

from holdfast.stores.rocks.log import commit_log
from tests.stores.rocks.engine.disk import Disk

SEGMENT_BYTES = 8 << 10
ZEROS_BYTES = 1 << 10


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "SEGMENT_BYTES", SEGMENT_BYTES)
    monkeypatch.setattr(commit_log, "ZEROS_BYTES", ZEROS_BYTES)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    watched = Disk(monkeypatch)
    yield watched
    watched.let_all_go()
