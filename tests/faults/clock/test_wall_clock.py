"""The real server, started again with the wall clock set elsewhere (T10)."""

import time
from pathlib import Path

import pytest

import holdfast
from tests.faults.clock.wall import set_wall
from tests.server.served import Served

pytestmark = pytest.mark.slow

HANG_S = 30
HOUR_S = 3_600
YEAR_S = 365 * 24 * HOUR_S


class Machine:
    """A store, and the wall clock of its server."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def serve(self, wall_s: int = 0) -> Served:
        site = self._directory / f"site{wall_s}"
        site.mkdir(exist_ok=True)
        return Served("--data", self._directory / "data", environment=set_wall(site, wall_s))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def stop(served: Served) -> str:
    served.signal()
    assert served.end() == 0
    return served.log


def test_after_the_wall_went_back_an_hour_everything_continues_as_if_it_had_not(machine: Machine) -> None:
    with machine.serve() as served, holdfast.open(served.url) as hf:
        q = hf.queue("q")
        ids = q.enqueue([b"held", b"ready", b"also ready"])
        [held] = q.claim(lease="2s")
        ids += q.enqueue(b"delayed", delay="2s")
        hf.queue("ticks").schedule("s", every=1, payload=b"")
        stop(served)
    with machine.serve(-HOUR_S) as served, holdfast.open(served.url) as hf:
        q = hf.queue("q")
        came = q.claim(limit=2, lease=60)
        assert [each.payload for each in came] == [b"ready", b"also ready"]  # at once
        later = _claim(q, 2)  # the lease and the delay end in their time, and not an hour later
        assert sorted(each.payload for each in later) == [b"delayed", b"held"]
        again = next(each for each in later if each.payload == b"held")
        assert again.version > held.version
        assert [each.snowflake for each in q.enqueue([b"new"] * 2)] > [each.snowflake for each in ids]
        assert _claim(hf.queue("ticks"), 1)
        log = stop(served)
    assert "clock_behind_store" in log


def test_a_receipt_holds_across_a_step_back_and_is_refused_once_its_lease_is_over(machine: Machine) -> None:
    with machine.serve() as served, holdfast.open(served.url) as hf:
        hf.queue("q").enqueue([b"a", b"b"])
        long, short = [*hf.queue("q").claim(lease=60), *hf.queue("q").claim(lease="200ms")]
        stop(served)
    with machine.serve(-HOUR_S) as served, holdfast.open(served.url) as hf:
        q = hf.queue("q")
        [again] = _claim(q, 1)
        assert q.ack([long.receipt])[0].ok
        assert not q.ack([short.receipt])[0].ok
        assert q.ack([again.receipt])[0].ok


def test_a_clock_that_was_a_year_ahead_holds_back_what_was_written_then_and_says_so(machine: Machine) -> None:
    """The documented limit: beyond a day, time does not continue from the store's. Ids and versions still grow."""
    with machine.serve(YEAR_S) as served, holdfast.open(served.url) as hf:
        q = hf.queue("q")
        [early] = q.enqueue(b"from next year")
        [message] = q.claim(lease=60)
        message.release()
        stop(served)
    with machine.serve() as served, holdfast.open(served.url) as hf:
        q = hf.queue("q")
        [late] = q.enqueue(b"now")
        assert late.snowflake > early.snowflake
        assert [each.payload for each in q.claim(limit=10, lease=60)] == [b"now"]
        log = stop(served)
    assert "waits until the clock reaches that time" in log
    with machine.serve(YEAR_S) as served, holdfast.open(served.url) as hf:
        again = [each for each in _claim(hf.queue("q"), 2) if each.payload == b"from next year"]
        assert [each.version for each in again] == [message.version + 1]


def test_after_the_wall_went_ahead_ten_years_leases_are_over_delays_are_due_and_ttls_have_ended(
    machine: Machine,
) -> None:
    with machine.serve() as served, holdfast.open(served.url) as hf:
        q = hf.queue("q")
        q.enqueue(b"held")
        [held] = q.claim(lease=60)
        q.enqueue(b"delayed", delay="30d")
        q.enqueue(b"mortal", ttl="1h")
        stop(served)
    with machine.serve(10 * YEAR_S) as served, holdfast.open(served.url) as hf:
        q = hf.queue("q")
        assert sorted(each.payload for each in _claim(q, 2)) == [b"delayed", b"held"]
        assert not q.ack([held.receipt])[0].ok
        assert [each.reason for each in q.list("failed")] == ["ttl"]
        stop(served)


def _claim(q: holdfast.Queue, number: int) -> list[holdfast.Message]:
    """Claim this number of messages. Fail if they do not come in time."""
    deadline, came = time.monotonic() + HANG_S, []
    while len(came) < number:
        assert time.monotonic() < deadline, f"only {[each.payload for each in came]} came"
        came += q.claim(limit=10, lease=60, wait="100ms")
    return came
