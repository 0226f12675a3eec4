"""Work on a store whose clock steps, stands still and races, with a check of its history."""

import asyncio
import random
import tempfile
from collections import deque

from holdfast.clock import steady_s
from holdfast.model.message import NewMessage
from holdfast.server.embedded import open_on_loop
from holdfast.testing import ManualClock
from tests.faults.parallel_runs import run_all
from tests.machinery import history as h
from tests.machinery.history.recording import AsyncCaller
from tests.machinery.history.scripts import Recorder
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing

QUEUES = ["acme/mail", "acme/pay"]
OPERATIONS = 150
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
STEPS_MS = [-HOUR_MS, -HOUR_MS, HOUR_MS, -1, -1_000, 10 * YEAR_MS, -10 * YEAR_MS, 24 * HOUR_MS]
# No wall clock is set before 1970.
EARLIEST_MS = 0
LEASES_MS = [10, 1_000, 60_000, HOUR_MS]
VERBS = ["ack", "ack", "ack", "nack", "final", "release", "defer", "extend"]


def run_clock_steps(total: int, *, seed: int, progress: Progress = say_nothing) -> PartOutcome:
    """Run this number of seeds, each with some work on a faulty clock."""
    outcome = PartOutcome(name="clock steps", unit="seeds")
    began = steady_s()
    for each_seed, findings in run_all(run_seed, range(seed, seed + total)):
        for violation in findings.violations:
            outcome.violate(f"{violation} (tests.faults.clock.clocks.run_seed({each_seed}))")
        outcome.done += 1
        outcome.add_counts({name: findings.counts[name] for name in ("sent", "acked", "duplicates", "stepped")})
        progress(outcome.done, total, findings.verdict(each_seed))
    outcome.seconds = steady_s() - began
    return outcome


def run_seed(seed: int) -> tuple[int, h.Findings]:
    if seed % 2:
        return seed, asyncio.run(_run_seed("memory://", seed))
    with tempfile.TemporaryDirectory() as directory:
        return seed, asyncio.run(_run_seed(directory, seed))


async def _run_seed(url: str, seed: int) -> h.Findings:
    clock, dice, lines = ManualClock(), random.Random(f"{seed} clock"), list[h.Line]()
    latest = clock.now_ms()
    async with open_on_loop(url, {"durability": "os"}, clock=clock) as hf:
        caller = AsyncCaller(hf, Recorder(lines.append, clock.now_ms))
        worker = Worker(caller, dice)
        for number in range(OPERATIONS):
            match dice.randrange(10):
                case 0:
                    was = clock.now_ms()
                    clock.step_to(max(EARLIEST_MS, was + dice.choice(STEPS_MS)))
                    lines.append(h.Stepped(was=was, at=clock.now_ms()))
                case 1 | 2:
                    clock.advance(dice.choice([1, 20, 1_000, 60_000, HOUR_MS]))
                case _:
                    await worker.work(number)
            latest = max(latest, clock.now_ms())
        was = clock.now_ms()
        clock.step_to(latest)
        lines.append(h.Stepped(was=was, at=latest))

        async def pass_time() -> None:
            clock.advance(HOUR_MS)

        await caller.drain(QUEUES, wait_ms=0, patience_ms=3 * 24 * HOUR_MS, pause=pass_time)
        for queue in QUEUES:
            await caller.count(queue)
    # Steps to and fro make any number of windows: how often a key makes a message is not for this to tell.
    return h.check(lines, dedup_window_ms=1)


class Worker:
    def __init__(self, caller: AsyncCaller, dice: random.Random) -> None:
        self._caller = caller
        self._dice = dice
        self._held: deque[tuple[str, str]] = deque(maxlen=30)

    async def work(self, number: int) -> None:
        dice, queue = self._dice, self._dice.choice(QUEUES)
        match dice.randrange(3):
            case 0:
                options = dice.choice([{}, {}, {"delay": "1m"}, {"group": "g"}, {"key": f"{dice.randrange(4)}"}])
                name = f"{queue} key {options['key']}" if "key" in options else f"{number}"
                await self._caller.enqueue(queue, [NewMessage(name, max_retries=h.ENDLESS, **options)])
            case 1:
                claimed = await self._caller.claim(queue, dice.choice([1, 5]), lease_ms=dice.choice(LEASES_MS))
                self._held.extend((queue, each.receipt) for each in claimed)
            case _ if self._held:
                verb = dice.choice(VERBS)
                options = {"lease": f"{dice.choice(LEASES_MS)}ms"} if verb == "extend" else {}
                queue, receipt = dice.choice(self._held)
                await self._caller.settle(queue, verb, [receipt], **options)
