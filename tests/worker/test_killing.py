"""Workers as separate processes, against a server: killed, stopped, paused; and the server killed under them."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM
from uuid import uuid4

import pytest

import holdfast
from holdfast import Holdfast
from tests.server.served import Served
from tests.waiting import wait_until as until

pytestmark = pytest.mark.slow

PATIENCE_S = 60
ROOT = Path(__file__).parent.parent.parent


class Program:
    """A worker process, and what it said."""

    def __init__(self, url: str, log: Path, work: float, *options: str) -> None:
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker.program", url, str(log), str(work), *options],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said(self, word: str) -> list[list[str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split() for line in lines if line.startswith(f"{word} ")]

    def numbers(self, word: str) -> list[int]:
        return [int(each[1]) for each in self.said(word)]

    def end(self) -> int:
        _, self.stderr = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(SIGCONT)
            self.process.kill()
        if self.process.stderr is not None and not self.process.stderr.closed:
            self.process.communicate()


class Rig:
    """A separate tenant on a server, and workers for it."""

    def __init__(self, url: str, hf: Holdfast, directory: Path) -> None:
        self.url = url
        self.hf = hf
        self.tenant = f"tenant-{uuid4().hex}"
        self.queue = hf.queue("q", tenant=self.tenant)
        self.directory = directory
        self.programs: list[Program] = []

    def start(self, work: float, *options: str) -> Program:
        log = self.directory / f"log{len(self.programs)}"
        program = Program(self.url, log, work, f"tenant={self.tenant}", *options)
        self.programs.append(program)
        return program

    def events(self) -> Counter[str]:
        return Counter(each.event for each in self.hf.journal(limit=10_000, tenant=self.tenant))

    def is_done(self) -> bool:
        stats = self.queue.stats()
        return not (stats.ready or stats.delayed or stats.in_flight)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all tests that leave their server alone."""
    with Served("--data", tmp_path_factory.mktemp("served") / "data") as served:
        yield served


@pytest.fixture
def rig(served: Served, tmp_path: Path) -> Iterator[Rig]:
    with rigged(served.url, tmp_path) as rig:
        yield rig


@contextmanager
def rigged(url: str, directory: Path) -> Iterator[Rig]:
    with holdfast.open(url) as hf:
        rig = Rig(url, hf, directory)
        try:
            yield rig
        finally:
            for program in rig.programs:
                program.close()


@pytest.mark.spec("10.3")
@pytest.mark.parametrize("how", ["async", "thread", "process"])
def test_what_a_killed_worker_had_in_hand_is_handled_by_another_and_none_is_lost(rig: Rig, how: str) -> None:
    ids = rig.queue.enqueue(list(range(20)))
    killed = rig.start(3_600, "concurrency=4", "lease=2s", f"how={how}")
    until(lambda: len(killed.said("begin")) == 4)
    killed.process.send_signal(SIGKILL)
    killed.end()
    heir = rig.start(0, "concurrency=4", "lease=5s")
    until(rig.is_done)
    assert sorted(heir.numbers("end")) == list(range(20))
    events = rig.events()
    assert events["succeeded"] == len(ids)
    assert events["expired"] == 4
    assert not events["failed"]
    versions = {int(each[1]): int(each[3]) for each in killed.said("begin")}
    assert all(int(each[3]) > versions.get(int(each[1]), 0) for each in heir.said("end"))
    # A process that its worker left behind ends as well, before its work is done.
    pids = {int(each[-1]) for each in killed.said("begin")}
    until(lambda: all(is_gone(pid) for pid in pids))


@pytest.mark.spec("10.3")
@pytest.mark.parametrize("how", ["async", "thread", "process"])
@pytest.mark.parametrize("which", [SIGTERM, SIGINT])
def test_a_stopped_worker_finishes_what_is_in_hand(rig: Rig, how: str, which: int) -> None:
    rig.queue.enqueue(list(range(40)))
    worker = rig.start(0.3, "concurrency=4", "lease=5s", f"how={how}")
    until(lambda: len(worker.said("end")) >= 4)
    worker.process.send_signal(which)
    assert worker.end() == 0
    assert sorted(worker.numbers("begin")) == sorted(worker.numbers("end")) == sorted(worker.numbers("succeeded"))
    assert worker.said("stopped")
    stats = rig.queue.stats()
    assert (stats.in_flight, stats.ready) == (0, 40 - len(worker.said("end")))
    events = rig.events()
    assert not events["failed"] + events["retried"] + events["expired"]


@pytest.mark.spec("10.3")
@pytest.mark.parametrize("how", ["async", "thread", "process"])
def test_a_stopped_worker_releases_what_it_cannot_finish_and_none_counts_as_failed(rig: Rig, how: str) -> None:
    ids = rig.queue.enqueue(list(range(4)))
    worker = rig.start(3_600, "concurrency=4", "grace=0.2", f"how={how}")
    until(lambda: len(worker.said("begin")) == 4)
    worker.process.send_signal(SIGTERM)
    assert worker.end() == 0
    assert sorted(worker.numbers("released")) == [0, 1, 2, 3]
    for id in ids:
        info = rig.queue.get(id)
        assert (info.state, info.failures, info.expiries, info.releases) == ("ready", 0, 0, 1)


@pytest.mark.parametrize("how", ["async", "thread", "process", "stubborn"])
def test_a_second_signal_releases_at_once(rig: Rig, how: str) -> None:
    rig.queue.enqueue([1, 2])
    worker = rig.start(3_600, "concurrency=2", f"how={how}")
    until(lambda: len(worker.said("begin")) == 2)
    worker.process.send_signal(SIGTERM)
    worker.process.send_signal(SIGINT)
    assert worker.end() == 0
    assert sorted(worker.numbers("released")) == [1, 2]
    assert rig.queue.stats().ready == 2


def test_an_idle_worker_stops_at_once_and_leaves_nothing_claimed(rig: Rig) -> None:
    rig.queue.set_policy(max_retries=3)
    worker = rig.start(0)
    until(lambda: rig.queue.stats().waiters == 1)
    worker.process.send_signal(SIGTERM)
    assert worker.end() == 0
    rig.queue.enqueue(1)
    assert rig.queue.stats().ready == 1


@pytest.mark.spec("2.9")
@pytest.mark.parametrize("how", ["async", "thread", "process"])
def test_a_handler_longer_than_its_lease_finishes_once(rig: Rig, how: str) -> None:
    rig.queue.enqueue(7)
    worker = rig.start(1.5, "lease=600ms", f"how={how}")
    rival = rig.start(0, "lease=600ms")
    until(rig.is_done)
    assert len(worker.said("end") + rival.said("end")) == 1
    events = rig.events()
    assert events["succeeded"] == 1
    assert not events["expired"]


@pytest.mark.spec("2.6")
def test_a_worker_that_was_stopped_in_its_tracks_loses_its_lease_and_its_late_ack_is_refused(rig: Rig) -> None:
    rig.queue.enqueue(7)
    paused = rig.start(1, "lease=800ms", "how=thread")
    until(lambda: bool(paused.said("begin")))
    paused.process.send_signal(SIGSTOP)
    heir = rig.start(0, "lease=5s")
    until(lambda: bool(heir.said("succeeded")))
    paused.process.send_signal(SIGCONT)
    until(lambda: bool(paused.said("lost")))
    paused.process.send_signal(SIGTERM)
    assert paused.end() == 0
    assert not paused.said("succeeded")
    events = rig.events()
    assert (events["succeeded"], events["expired"]) == (1, 1)
    [[_, _, attempt, version, _]] = heir.said("end")
    assert (int(attempt), int(version)) == (2, 2)


@pytest.mark.spec("10.3")
def test_a_server_that_is_killed_and_comes_back_is_carried_on_with(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Served("--data", data) as first:
        port, url = first.port, first.url
        with rigged(url, tmp_path) as rig:
            rig.queue.enqueue(list(range(200)))
            workers = [rig.start(0.02, "concurrency=4", "lease=3s") for _ in range(2)]
            until(lambda: sum(len(worker.said("succeeded")) for worker in workers) >= 20)
            first.signal(SIGKILL)
            first.end()
            with Served("--data", data, "--port", str(port)):
                rig.queue.enqueue(list(range(200, 250)))
                until(rig.is_done)
                ended = Counter(number for worker in workers for number in worker.numbers("end"))
                assert set(ended) == set(range(250))
                for worker in workers:
                    worker.process.send_signal(SIGTERM)
                    assert worker.end() == 0
                assert rig.events()["succeeded"] == 250
                assert not rig.events()["failed"]


def test_a_worker_may_be_started_before_its_server(tmp_path: Path) -> None:
    with Served("--data", tmp_path / "first") as taken:
        port, url = taken.port, taken.url
    program = Program(url, tmp_path / "log", 0)
    try:
        until(lambda: bool(program.said("running")))
        with Served("--data", tmp_path / "data", "--port", str(port)), holdfast.open(url) as hf:
            hf.queue("q").enqueue(7)
            until(lambda: program.numbers("succeeded") == [7])
    finally:
        program.close()


def is_gone(pid: int) -> bool:
    """Or a zombie, which nobody here may reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
