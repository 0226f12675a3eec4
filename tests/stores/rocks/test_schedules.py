"""Schedules survive a close and a crash: no tick fires twice or is lost, and each enqueues one message."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.client.blocking import Holdfast
from holdfast.model.schedules import Schedule
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing import ManualClock
from tests.crash.rocks import copy_store, core_of, open_store, verify_store


def fire(hf: Holdfast) -> None:
    while hf._driver.run(core_of(hf).scheduler.fire_once()):
        pass


def ticks(hf: Holdfast) -> list[int]:
    return [int(each.headers["scheduled-at"]) for each in hf.queue("q").list(limit=10_000)]


@pytest.fixture(params=["os", "fsync"])
def durability(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Line:
    """A store that is killed and opened again on one clock."""

    def __init__(self, directory: Path, durability: str) -> None:
        self.clock = ManualClock()
        self._directory = directory
        self._durability = durability
        self._number = 0
        self.path = directory / "0"
        self.hf = self._open()

    def _open(self) -> Holdfast:
        return open_store(self.path, self.clock, durability=self._durability)

    def kill(self) -> Holdfast:
        self._number += 1
        left = copy_store(self.path, self._directory / str(self._number))
        self.hf.close()
        self.path = left
        verify_store(left, "after a kill")
        self.hf = self._open()
        return self.hf

    def close(self) -> Holdfast:
        self.hf.close()
        verify_store(self.path, "after closing")
        self.hf = self._open()
        return self.hf


@pytest.fixture
def line(tmp_path: Path, durability: str) -> Iterator[Line]:
    made = Line(tmp_path, durability)
    yield made
    made.hf.close()


@pytest.mark.spec("3.9")
def test_a_crash_at_any_tick_fires_each_once(line: Line) -> None:
    start = line.clock.now_ms()
    line.hf.queue("q").schedule("s", every=1, payload={"n": 1})
    line.kill()
    expected = []
    for number in range(1, 7):
        line.clock.step_to(start + number * 1_000)
        if number % 3:
            fire(line.hf)
        # Whether or not it has fired before.
        line.kill()
        fire(line.hf)
        fire(line.hf)
        expected.append(start + number * 1_000)
        assert ticks(line.hf) == expected
    [schedule] = line.hf.queue("q").schedules()
    assert (schedule.last_at, schedule.next_at) == (start + 6_000, start + 7_000)
    reasons = [event.reason for event in line.hf.journal() if event.event == "enqueued"]
    assert reasons == [f"schedule s, tick {each}" for each in expected]


def test_after_hours_down_the_latest_tick_fires_when_it_is_opened(line: Line) -> None:
    q, start = line.hf.queue("q"), line.clock.now_ms()
    q.schedule("hourly", cron="0 * * * *", payload=b"")
    q.schedule("paused", every=1, payload=b"", paused=True)
    line.clock.step_to(start + 10 * 3_600_000)
    hf = line.close()
    # It heard of the tick when it opened: nobody asks for anything.
    line.clock.advance(0)
    assert ticks(hf) == [start // 3_600_000 * 3_600_000 + 10 * 3_600_000]
    assert [each.name for each in hf.queue("q").schedules() if each.paused] == ["paused"]


def test_what_was_unscheduled_or_went_with_its_queue_stays_gone(line: Line) -> None:
    for name in ("q", "going"):
        line.hf.queue(name).schedule("s", every=1, payload=b"")
        line.hf.queue(name).schedule("t", every=1, payload=b"x" * 100_000)
    line.hf.queue("q").unschedule("s")
    line.hf.queue("going").delete(force_after=0)
    line.kill()
    line.clock.advance(1_000)
    fire(line.hf)
    assert [each.headers["schedule"] for each in line.hf.queue("q").list()] == ["t"]
    assert [each.queue for each in line.hf.queues()] == ["q"]


def test_embedded_programs_that_block_are_served_by_the_clock_alone(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(tmp_path / "store", clock) as hf:
        hf.queue("q").schedule("s", every=60, payload=b"")
        for _ in range(3):
            clock.advance(60_000)
        assert len(ticks(hf)) == 3


def test_a_backup_has_the_schedules(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(tmp_path / "store", clock) as hf:
        hf.queue("q").schedule("s", every=60, payload=b"")
        hf.backup(str(tmp_path / "copy"))
    with open_store(tmp_path / "copy", clock) as hf:
        assert [each.name for each in hf.queue("q").schedules()] == ["s"]


# --- What verify finds -----------------------------------------------------------------------------------------


def altered(path: Path, change: dict[str, object] | bytes, name: bytes = b"s") -> list[str]:
    """Return the violations after a change of the stored bytes of a store's only schedule."""
    clock = ManualClock()
    with open_store(path, clock) as hf:
        hf.queue("q").schedule("s", every=60, payload=b"")
        clock.advance(60_000)
    assert verify(path).is_clean
    database = Database(path)
    key = keys.SCHEDULES + keys.prefix(1, 1)
    raw = database.get(keys.INDEXES, key + b"s")
    assert raw is not None
    if isinstance(change, dict):
        change = msgspec.msgpack.encode(replace(msgspec.msgpack.decode(raw, type=Schedule), **change))
    database.commit.put(key + name, change, keys.INDEXES)
    database.write()
    database.close()
    return [str(each) for each in verify(path).violations]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (b"\xc1", "is damaged"),
        ({"name": "t"}, "is stored under 's'"),
        ({"cron": "* * * * *"}, "must have either a cron line or an interval"),
        ({"paused": True}, "is paused, but has a next tick"),
        ({"next_at": 1}, "would fire its last tick again"),
        ({"last_id": 1 << 62}, "names a message with an id that was never given"),
    ],
)
def test_verify_names_a_schedule_that_is_wrong(tmp_path: Path, change: dict[str, object] | bytes, said: str) -> None:
    [violation] = altered(tmp_path / "store", change)
    assert violation.startswith("default/q: schedule ")
    assert said in violation
