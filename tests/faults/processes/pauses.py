"""Processes stopped for two leases and let go again: workers with messages in hand, and the server under them."""

import asyncio
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import holdfast
from holdfast.clock import SystemClock, steady_s
from tests.faults.processes.pausing import CALLS_EACH, QUEUE
from tests.machinery import history as h
from tests.machinery.history.recording import AsyncCaller
from tests.machinery.history.scripts import Recorder
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing
from tests.server.served import Served

ROOT = Path(__file__).parents[3]
WORKERS = 4
LEASE_MS = 150
# Of one history: the checker is quick, and a broken one can be read.
ROUND = 500
# Between two pauses of a process, about.
REST_MS = 200
SERVER_REST_MS = 1_000
HANG_S = 60.0
# Two processes of one machine read their clocks.
SKEW_MS = 2

Process = subprocess.Popen[Any]


def run_pauses(total: int, *, seed: int, progress: Progress = say_nothing) -> PartOutcome:
    """Pause processes this number of times, each twice as long as a lease."""
    outcome = PartOutcome(name="pauses longer than a lease", unit="pauses")
    began = steady_s()
    for number, at in enumerate(range(0, total, ROUND)):
        pauses = min(ROUND, total - at)
        with tempfile.TemporaryDirectory() as directory:
            findings, refused = asyncio.run(_run_round(Path(directory), pauses, seed + number))
        for violation in findings.violations:
            outcome.violate(f"{violation} (tests.faults.processes.pauses.run_pauses({pauses}, seed={seed + number}))")
        outcome.done += pauses
        outcome.add_counts({name: findings.counts[name] for name in ("sent", "acked", "duplicates")})
        outcome.add_counts({"late verdicts refused": refused})
        progress(outcome.done, total, findings.verdict(seed + number))
    outcome.seconds = steady_s() - began
    return outcome


async def _run_round(directory: Path, pauses: int, seed: int) -> tuple[h.Findings, int]:
    history = directory / "history.jsonl"
    with Served("--data", directory / "data") as served:
        workers = [_start(served.url, history, seed, number) for number in range(WORKERS)]
        try:
            await _until_all_work(history)
            await _pause(served, workers, pauses, random.Random(f"{seed} pauses"))
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        lines = h.read_history(history)
        async with holdfast.open_async(served.url) as hf:
            recorder = Recorder(lines.append, SystemClock().now_ms, first_call=WORKERS * CALLS_EACH)
            caller = AsyncCaller(hf, recorder)
            await caller.drain([QUEUE])
            await caller.count(QUEUE)
    refused = sum(not ok for line in lines if isinstance(line, h.Settled) for ok in line.ok)
    return h.check(lines, allow_refusals=True, repeats_calls=True, skew_ms=SKEW_MS), refused


def _start(url: str, history: Path, seed: int, number: int) -> Process:
    arguments = [url, history, seed, number, LEASE_MS]
    return subprocess.Popen([sys.executable, "-m", "tests.faults.processes.pausing", *map(str, arguments)], cwd=ROOT)


async def _until_all_work(history: Path) -> None:
    async with asyncio.timeout(HANG_S):
        while True:
            lines = h.read_history(history) if history.exists() else []
            if len({line.n // CALLS_EACH for line in lines if isinstance(line, h.Settled)}) == WORKERS:
                return
            await asyncio.sleep(0.02)


async def _pause(served: Served, workers: list[Process], pauses: int, dice: random.Random) -> None:
    """Pause each process separately, so that several stand still at once; the server now and then."""
    left = pauses

    async def stop(process: Process, rest_ms: int) -> None:
        nonlocal left
        while left > 0:
            await asyncio.sleep(dice.uniform(0.5, 1.5) * rest_ms / 1_000)
            left -= 1
            process.send_signal(SIGSTOP)
            await asyncio.sleep(2 * LEASE_MS / 1_000)
            process.send_signal(SIGCONT)

    await asyncio.gather(stop(served.process, SERVER_REST_MS), *(stop(worker, REST_MS) for worker in workers))
