"""The CPU time of a program's start, compared with an interpreter that does nothing."""

import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.embedded.raw import scratch
from bench.http.servers import holdfast_server
from bench.report import Figure

ROUNDS = 15
_COMMAND = str(Path(sys.executable).parent / "holdfast")
_NOTHING = [sys.executable, "-c", "pass"]


class Start(NamedTuple):
    what: str
    command: list[str]
    goal: float
    # A server is killed after it has printed the line with its address.
    is_server: bool = False
    # The exit code, if the program ends by itself.
    code: int = 0


def measure(rounds: int = ROUNDS) -> Iterator[Figure]:
    with scratch() as path, holdfast_server(path / "data", "--durability", "os") as port:
        environment = _environment(f"http://127.0.0.1:{port}")
        served = [_COMMAND, "serve", "--data", str(path / "started"), "--port", "0"]
        embedded = ["--url", str(path / "embedded")]
        starts = [
            Start("`import holdfast`", [sys.executable, "-c", "import holdfast"], goal=3.5),
            Start("`holdfast --help`", [_COMMAND, "--help"], goal=10),
            Start("`holdfast enqueue` to a server", [_COMMAND, "enqueue", "mail", "hello"], goal=10),
            Start("`holdfast dequeue` from a server", [_COMMAND, "dequeue", "none", "--block", "0"], goal=10, code=3),
            Start("`holdfast stats` of a server", [_COMMAND, "stats"], goal=10),
            Start("`holdfast queues` of a server, into a pipe", [_COMMAND, "queues"], goal=10),
            Start("`holdfast enqueue` to a directory", [_COMMAND, "enqueue", "mail", "hello", *embedded], goal=17),
            Start("`holdfast stats` of a directory", [_COMMAND, "stats", *embedded], goal=17),
            Start("`holdfast serve` until it listens", served, goal=30, is_server=True),
        ]
        yield from _interleaved(starts, environment, rounds)


def _interleaved(starts: list[Start], environment: Mapping[str, str], rounds: int) -> Iterator[Figure]:
    nothing_s: list[float] = []
    taken_s: list[list[float]] = [[] for _ in starts]
    for number in range(rounds + 1):
        round_s = [
            _cpu_s(Start("", _NOTHING, goal=1), environment),
            *(_cpu_s(each, environment) for each in starts),
        ]
        if number:  # the first round compiles the modules
            nothing_s.append(round_s[0])
            for taken, cpu_s in zip(taken_s, round_s[1:], strict=True):
                taken.append(cpu_s)
    baseline_s = statistics.median(nothing_s)
    for start, taken in zip(starts, taken_s, strict=True):
        cpu_s = statistics.median(taken)
        yield Figure(
            f"start of {start.what}",
            f"{cpu_s * 1_000:.0f} ms CPU",
            "`python -c pass`",
            f"{baseline_s * 1_000:.0f} ms CPU",
            cpu_s / baseline_s,
            goal=start.goal,
            lower_is_better=True,
        )


def _environment(url: str) -> dict[str, str]:
    """Return an environment without settings in which Python writes bytecode, as an installation does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**kept, "HOLDFAST_URL": url}


def _cpu_s(start: Start, environment: Mapping[str, str]) -> float:
    """Run a program, and return the CPU time of all its threads."""
    with subprocess.Popen(
        start.command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        if start.is_server:
            process.stdout.readline()
            process.kill()
        else:
            process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != (-signal.SIGKILL if start.is_server else start.code):
        raise RuntimeError(f"{' '.join(start.command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime
