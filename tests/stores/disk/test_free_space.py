"""The reserve on a disk: refusals begin below it, end with a margin above it, and are logged once per shortage."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import ThreadRuntime
from holdfast.stores.disk import free_space
from holdfast.stores.disk.free_space import DiskRoom
from holdfast.testing import ManualClock

RESERVE = 800


class Space:
    """The free space of a disk, set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free: int | None = 10_000
        self.measurements = 0
        monkeypatch.setattr(free_space, "free_bytes", self._measure)

    def _measure(self, path: Any) -> int | None:
        self.measurements += 1
        return self.free


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Space:
    return Space(monkeypatch)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk_room(tmp_path: Path, clock: ManualClock) -> DiskRoom:
    return DiskRoom(tmp_path, ThreadRuntime(clock, clock), RESERVE)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_free_space_that_varies_around_the_reserve_is_one_shortage(
    disk_room: DiskRoom, space: Space, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    disk_room.check(clock.now_ms())
    for free in (799, 801, 790, 899, 799):
        space.free = free
        clock.advance(200)
        with pytest.raises(StoreUnavailable, match="enqueues are refused"):
            disk_room.check(clock.now_ms())
    space.free = 900
    clock.advance(200)
    disk_room.check(clock.now_ms())
    assert disk_room.refusals == 5
    assert logged(caplog) == ["enqueues_refused", "enqueues_accepted_again"]


def test_the_end_of_a_shortage_is_noticed_without_an_enqueue(
    disk_room: DiskRoom, space: Space, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    space.free = 0
    assert disk_room.refusal(clock.now_ms()) is not None
    space.free = 10_000
    clock.advance(1_000)
    assert logged(caplog) == ["enqueues_refused", "enqueues_accepted_again"]
    measurements = space.measurements
    clock.advance(10_000)
    assert space.measurements == measurements, "without a shortage, only enqueues cause measurements"


def test_a_burst_between_two_measurements_cannot_use_up_the_reserve(
    disk_room: DiskRoom, space: Space, clock: ManualClock
) -> None:
    disk_room.check(clock.now_ms())
    space.free = RESERVE - 1
    taken = 0
    while disk_room.refusal(clock.now_ms(), 10) is None:
        taken += 10
        assert taken <= RESERVE // 16


def test_a_disk_whose_free_space_cannot_be_read_refuses_enqueues(
    disk_room: DiskRoom, space: Space, clock: ManualClock
) -> None:
    space.free = None
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        disk_room.check(clock.now_ms())
