"""A store with a large backlog, opened again: `python -m tests.faults.backlog DIRECTORY NOW_MS` says what that took.

Half of the messages are delayed and half in flight. One is ready, before all others.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from holdfast.clock import steady_s
from holdfast.server.embedded import open_blocking
from holdfast.testing import ManualClock
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing

ROOT = Path(__file__).parent.parent.parent
HOUR_MS = 3_600_000
BATCH = 1_000
# Of the whole, to be compared with. What depends on the size of the backlog takes ten times as long with ten times as
# much: the bounds tell that from what does not, and leave room for the noise of a busy machine.
SMALL = 10
TIME_RATIO = 5.0
MEMORY_RATIO = 1.5
TRIES = 3


class Opening(NamedTuple):
    # Until the ready message was claimed.
    seconds: float
    peak_kib: int
    delayed: int
    in_flight: int


def run_backlog(total: int, *, seed: int, progress: Progress = say_nothing) -> PartOutcome:
    """Open a store with this number of messages, and compare the time with that of a tenth of them."""
    outcome = PartOutcome(name="restart with a backlog", unit="messages")
    began = steady_s()
    with tempfile.TemporaryDirectory() as directory:
        small = _measure(Path(directory) / "small", max(2, total // SMALL), outcome)
        progress(0, total, f"a tenth is open in {small.seconds:.3f} s")
        large = _measure(Path(directory) / "large", total, outcome)
        progress(total, total, f"all of it is open in {large.seconds:.3f} s")
    if large.seconds > TIME_RATIO * small.seconds:
        outcome.violate(f"{total} messages: open in {large.seconds:.3f} s, a tenth of them in {small.seconds:.3f} s")
    if large.peak_kib > MEMORY_RATIO * small.peak_kib:
        outcome.violate(f"{total} messages: {large.peak_kib} KiB to open, a tenth of them {small.peak_kib} KiB")
    outcome.done = total
    outcome.add_counts(
        {
            "open ms": round(large.seconds * 1_000),
            "open ms, a tenth": round(small.seconds * 1_000),
            "peak KiB": large.peak_kib,
            "peak KiB, a tenth": small.peak_kib,
        }
    )
    outcome.seconds = steady_s() - began
    return outcome


def _measure(directory: Path, total: int, outcome: PartOutcome) -> Opening:
    """The best of several openings; then everything must be there when it is due."""
    clock = ManualClock()
    _fill(directory, total, clock)
    openings = [_open_in_child(directory, clock.now_ms()) for _ in range(TRIES)]
    half = total // 2
    for each in openings:
        if (each.delayed, each.in_flight) != (half, half):
            outcome.violate(f"{half} were delayed and {half} in flight; after a restart {each}")
    clock.advance(HOUR_MS)
    found = _drain(directory, clock)
    if found != 2 * half + 1:
        outcome.violate(f"{2 * half + 1} messages were there, and {found} came after a restart")
    return min(openings)


def _fill(directory: Path, total: int, clock: ManualClock) -> None:
    with open_blocking(str(directory), {"durability": "os"}, clock=clock) as hf:
        q = hf.queue("q")
        for at in range(0, total // 2, BATCH):
            number = min(BATCH, total // 2 - at)
            q.enqueue([b"held"] * number)
            q.claim(limit=number, lease="1h")
            q.enqueue([b"delayed"] * number, delay="1h")
        q.enqueue(b"ready", priority=1)


def _open_in_child(directory: Path, now_ms: int) -> Opening:
    command = [sys.executable, "-m", "tests.faults.backlog", str(directory), str(now_ms)]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return Opening(**json.loads(said))


def open_once(directory: str, now_ms: str) -> Opening:
    began = steady_s()
    with open_blocking(directory, {"durability": "os"}, clock=ManualClock(int(now_ms))) as hf:
        q = hf.queue("q")
        [ready] = q.claim(lease=60)
        seconds = steady_s() - began
        assert ready.payload == b"ready"
        ready.release()
        stats = q.stats()
    return Opening(seconds=seconds, peak_kib=_peak_kib(), delayed=stats.delayed, in_flight=stats.in_flight)


def _peak_kib() -> int:
    """Not what getrusage says: that begins with the process this one was forked from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _drain(directory: Path, clock: ManualClock) -> int:
    found = 0
    with open_blocking(str(directory), {"durability": "os"}, clock=clock) as hf:
        q = hf.queue("q")
        while messages := q.claim(limit=BATCH, lease="1h"):
            found += sum(each.ok for each in q.ack([message.receipt for message in messages]))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(open_once(*sys.argv[1:])._asdict()))
