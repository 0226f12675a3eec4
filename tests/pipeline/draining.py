"""Spark as a consumer that is killed at random beside a rival, and what must be true of it all afterwards.

One server, one queue. Producers are done before it starts. The query runs in a driver process of its own; from outside
the driver, the process beside it that claims, or its workers are killed by SIGKILL. A rival claims from the same queue
under short leases and acks most of what it gets.

    lost         a message that neither a batch of the query nor the rival ended with
    unexplained  a message that was handed over twice, though the first lease was not lost in between
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

import holdfast
from tests.server.served import Served

QUEUE = "drained"
DRIVER = Path(__file__).with_name("drain_driver.py")
_START_S = 90.0
# Shorter than a driver takes to start: what a killed one held is lost to the rival.
_LEASE = "3s"


class Tally(NamedTuple):
    messages: int
    kills: int
    handed_over: int
    to_rival: int
    again: int
    lost: list[str]
    unexplained: list[str]

    @property
    def is_good(self) -> bool:
        return not self.lost and not self.unexplained


class Driver:
    """A Spark driver that streams the queue into files, one for each batch, and starts again what fails."""

    def __init__(self, url: str, directory: Path) -> None:
        with (directory / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER), url, QUEUE, str(directory), _LEASE],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def children(self, mark: bytes) -> list[int]:
        """The processes it started, or they did, whose command line has this."""
        found = []
        for each in Path("/proc").iterdir():
            # Gone meanwhile is as good as not there.
            with suppress(OSError):
                if each.name.isdigit() and os.getsid(int(each.name)) == self.process.pid:
                    if mark in (each / "cmdline").read_bytes():
                        found.append(int(each.name))
        return found

    def kill(self) -> None:
        """And everything it started: as if the machine were gone."""
        for pid in self.children(b""):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Rival(threading.Thread):
    """Takes a few at a time, acks most, and now and then lets a lease run out."""

    def __init__(self, url: str, dice: random.Random) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._dice = dice
        self.ends = threading.Event()
        self.acked: list[tuple[str, int]] = []

    def run(self) -> None:
        with holdfast.open(self._url) as client:
            q = client.queue(QUEUE)
            while not self.ends.is_set():
                for message in q.claim(limit=3, lease="1s"):
                    if self._dice.random() < 0.8:
                        try:
                            message.ack()
                        except holdfast.StaleLease:
                            continue
                        self.acked.append((message.id, message.version))
                self.ends.wait(0.1)


def drain_under_kills(
    directory: Path, *, messages: int, kills: int, seed: int, progress: Callable[[int], None] = lambda done: None
) -> Tally:
    dice = random.Random(seed)
    (directory / "batches").mkdir(parents=True)
    with Served("--data", directory / "store", "--durability", "os") as served, holdfast.open(served.url) as hf:
        q = hf.queue(QUEUE)
        q.set_policy(max_retries=1_000)
        ids = [
            str(id) for start in range(0, messages, 1_000) for id in q.enqueue([b"x"] * min(1_000, messages - start))
        ]
        rival = Rival(served.url, dice)
        driver = Driver(served.url, directory)
        try:
            rival.start()
            for done in range(kills):
                _wait_for_progress(directory, driver, q)
                sleep(dice.random() * 0.8)
                driver = _strike(driver, served.url, directory, done)
                progress(done + 1)
            _wait_for(lambda: not _waiting(q), driver, directory)
            rival.ends.set()
            rival.join()
            # Idle by now, and still alive: nothing is left in flight, so its last batch is acked.
            _wait_for(lambda: not _waiting(q) and not q.stats().in_flight, driver, directory)
            assert driver.process.poll() is None, (directory / "driver.log").read_text()[-3_000:]
        finally:
            rival.ends.set()
            driver.kill()
        return _judge(hf, ids, directory, rival, kills)


def _strike(driver: Driver, url: str, directory: Path, done: int) -> Driver:
    """The workers, the process that claims, the driver: in turn."""
    if done % 3 == 2:
        driver.kill()
        return Driver(url, directory)
    mark = b"python_streaming_source_runner" if done % 3 == 1 else b"pyspark.daemon"
    # Spark lets go of what it does not need for a moment.
    _wait_for(lambda: bool(driver.children(mark)), driver, directory)
    struck = driver.children(mark)
    for pid in struck:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return driver


def _waiting(q: holdfast.Queue) -> int:
    stats = q.stats()
    return stats.ready + stats.delayed


def _wait_for_progress(directory: Path, driver: Driver, q: holdfast.Queue) -> None:
    """Until another batch is written: a kill should hit work, not a start."""
    before = _batches(directory)
    _wait_for(lambda: _batches(directory) != before or not _waiting(q), driver, directory)


def _batches(directory: Path) -> dict[str, int]:
    return {each.name: each.stat().st_mtime_ns for each in (directory / "batches").glob("*.json")}


def _wait_for(is_so: Callable[[], bool], driver: Driver, directory: Path) -> None:
    ends = monotonic() + _START_S
    while not is_so():
        if driver.process.poll() is not None or monotonic() > ends:
            raise AssertionError(f"the driver came to nothing: {(directory / 'driver.log').read_text()[-3_000:]}")
        sleep(0.05)


def _judge(hf: holdfast.Holdfast, ids: list[str], directory: Path, rival: Rival, kills: int) -> Tally:
    handed: defaultdict[str, list[int]] = defaultdict(list)
    for file in (directory / "batches").glob("*.json"):
        for id, version in json.loads(file.read_text()):
            handed[id].append(version)
    by_query = sum(map(len, handed.values()))
    for id, version in rival.acked:
        handed[id].append(version)
    lost_versions = _versions_lost(hf)
    again = {id: sorted(versions) for id, versions in handed.items() if len(versions) > 1}
    unexplained = [
        f"{id}: {versions}"
        for id, versions in again.items()
        if len(set(versions)) != len(versions) or not all((id, version) in lost_versions for version in versions[:-1])
    ]
    lost = [id for id in ids if id not in handed]
    return Tally(len(ids), kills, by_query, len(rival.acked), len(again), lost, unexplained)


def _versions_lost(hf: holdfast.Holdfast) -> set[tuple[str, int]]:
    """Leases that ran out, by message and version: the journal tells of each."""
    found: set[tuple[str, int]] = set()
    position: str | None = None
    while page := hf.journal(position, 10_000):
        found |= {(event.id, event.version) for event in page if event.event in ("expired", "released")}
        position = page.next
    return found
