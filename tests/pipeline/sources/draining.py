"""Spark as a consumer that is killed at random beside a rival, and what must be true of it all afterwards.

One server, one queue, which is topped up until the last kill. The query runs in a driver process of its own; from
outside the workers, the process beside the driver that claims, or the driver itself are killed by SIGKILL. A rival
claims from the same queue under short leases and acks most of what it gets.

    lost         a message that neither a batch of the query nor the rival ended with
    unexplained  a message that was handed over twice, though the first lease was not lost in between
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

import holdfast
from holdfast.clock import steady_s
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing
from tests.server.served import Served

QUEUE = "drained"
DRIVER = Path(__file__).with_name("drain_driver.py")
_START_S = 600.0
# Shorter than a driver takes to start: what a killed one held is lost to the rival.
_LEASE = "3s"
_LOW = 120
# Kills of one server and checkpoint.
ROUND = 25


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
        # A Java that is killed leaves its files.
        files = directory / "java"
        files.mkdir(exist_ok=True)
        with (directory / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER), url, QUEUE, str(directory), _LEASE],
                env={**os.environ, "TMPDIR": str(files)},
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
                is_ours = each.name.isdigit() and os.getsid(int(each.name)) == self.process.pid
                if is_ours and mark in (each / "cmdline").read_bytes():
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
                self.ends.wait(0.3)


def run_spark_kills(total: int, *, seed: int, progress: Progress = say_nothing) -> PartOutcome:
    """Kill this number of times, in rounds on a queue each."""
    outcome = PartOutcome(name="kills of Spark", unit="kills")
    began = steady_s()
    for number, at in enumerate(range(0, total, ROUND)):
        kills = min(ROUND, total - at)
        with tempfile.TemporaryDirectory() as directory:
            tally = drain_under_kills(
                Path(directory),
                kills=kills,
                seed=seed + number,
                progress=partial(_pass_on, progress, at, total),
            )
        again = f"tests.pipeline.sources.draining.run_spark_kills({kills}, seed={seed + number})"
        for lost in tally.lost:
            outcome.violate(f"message {lost} was lost ({again})")
        for twice in tally.unexplained:
            outcome.violate(f"message {twice} came twice and no lease was lost in between ({again})")
        outcome.done += kills
        outcome.add_counts({"messages": tally.messages, "by Spark": tally.handed_over, "by the rival": tally.to_rival})
        outcome.add_counts({"again, after a lost lease": tally.again})
    outcome.seconds = steady_s() - began
    return outcome


def _pass_on(progress: Progress, before: int, total: int, done: int) -> None:
    progress(before + done, total, "killed")


class Scene:
    """The queue, the driver of the moment, and what was enqueued so far."""

    def __init__(self, q: holdfast.Queue, url: str, directory: Path) -> None:
        self.q = q
        self.url = url
        self.directory = directory
        self.ids: list[str] = []
        self.driver = Driver(url, directory)

    def top_up(self) -> None:
        """A kill should hit work: there is always some waiting."""
        if self.waiting < _LOW:
            self.ids += map(str, self.q.enqueue([b"x"] * _LOW))

    @property
    def waiting(self) -> int:
        stats = self.q.stats()
        return stats.ready + stats.delayed

    def batches(self) -> dict[str, int]:
        return {each.name: each.stat().st_mtime_ns for each in (self.directory / "batches").glob("*.json")}

    def wait_for(self, is_so: Callable[[], bool], *, tops_up: bool = True) -> None:
        ends = monotonic() + _START_S
        while not is_so():
            if self.driver.process.poll() is not None or monotonic() > ends:
                log = (self.directory / "driver.log").read_text()
                raise AssertionError(f"the driver ended, or did nothing for {_START_S} s: {log[-3_000:]}")
            if tops_up:
                self.top_up()
            sleep(0.05)


def drain_under_kills(
    directory: Path, *, kills: int, seed: int, progress: Callable[[int], None] = lambda done: None
) -> Tally:
    dice = random.Random(seed)
    (directory / "batches").mkdir(parents=True)
    with Served("--data", directory / "store", "--durability", "os") as served, holdfast.open(served.url) as hf:
        q = hf.queue(QUEUE)
        q.set_policy(max_retries=1_000)
        rival = Rival(served.url, dice)
        scene = Scene(q, served.url, directory)
        try:
            rival.start()
            for done in range(kills):
                before = scene.batches()
                scene.wait_for(lambda before=before: scene.batches() != before)
                sleep(dice.random() * 0.5)
                _strike(scene, done)
                progress(done + 1)
            scene.wait_for(lambda: not scene.waiting, tops_up=False)
            rival.ends.set()
            rival.join()
            # Idle by now, and still alive: nothing is left in flight, so its last batch is acked.
            scene.wait_for(lambda: not scene.waiting and not q.stats().in_flight, tops_up=False)
        finally:
            rival.ends.set()
            scene.driver.kill()
        return _judge(hf, scene.ids, directory, rival, kills)


def _strike(scene: Scene, done: int) -> None:
    """The workers, the process that claims, the driver: in turn."""
    if done % 3 == 2:
        scene.driver.kill()
        scene.driver = Driver(scene.url, scene.directory)
        return
    mark = b"python_streaming_source_runner" if done % 3 == 1 else b"pyspark.daemon"
    # Spark lets go of what it does not need for a moment.
    scene.wait_for(lambda: bool(scene.driver.children(mark)))
    for pid in scene.driver.children(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
    """Return the leases that ran out, by message and version, from the journal."""
    found: set[tuple[str, int]] = set()
    position: str | None = None
    while page := hf.journal(position, 10_000):
        found |= {(event.id, event.version) for event in page if event.event in ("expired", "released")}
        position = page.next
    return found
