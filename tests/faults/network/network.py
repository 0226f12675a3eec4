"""Live traffic through a network that fails, and the history of it held against the promises."""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from typing import NamedTuple

import holdfast
from holdfast.clock import SystemClock, steady_s
from holdfast.testing.proxy import FaultProxy, NetworkFaultKind, seeded
from tests.doors.serving import Server, serve
from tests.faults.network.traffic import QUEUES, Client, Traffic
from tests.faults.parallel_runs import run_all
from tests.machinery import history as h
from tests.machinery.history.recording import AsyncCaller
from tests.machinery.history.scripts import Recorder
from tests.machinery.outcomes import PartOutcome, Progress, say_nothing
from tests.waiting import until

CLIENTS = 6
CONSUMERS_EACH = 2
# Faults of one history: small enough to be read when one breaks a promise.
ROUND = 100
# Of the exchanges.
RATE = 0.35
# What a client waits for an answer: half-open connections cost this much.
TIMEOUT = "200ms"
# A server forgets those that left without a word sooner here than in earnest, so that sockets do not pile up.
FORGET_S = 1.0
HANG_S = 120.0
# Half-open and slow ones keep a client for its whole timeout: fewer of them make more faults.
KINDS = [
    *(kind for kind in NetworkFaultKind for _ in range(3)),
    *[NetworkFaultKind.CUT_BEFORE_REPLY] * 6,
    *[NetworkFaultKind.CUT_IN_REPLY] * 3,
]


class Round(NamedTuple):
    seed: int
    findings: h.Findings
    faults: Counter[NetworkFaultKind]


def run_network_faults(total: int, *, seed: int, progress: Progress = say_nothing) -> PartOutcome:
    """Make about this number of faults, each on a connection in use, in rounds of `ROUND` faults."""
    outcome = PartOutcome(name="network faults", unit="faults")
    began = steady_s()
    rounds = [(seed + number, min(ROUND, total - at)) for number, at in enumerate(range(0, total, ROUND))]
    for each in run_all(run_round, rounds):
        for violation in each.findings.violations:
            outcome.violate(f"{violation} (tests.faults.network.network.run_round(({each.seed}, {ROUND})))")
        outcome.done += each.faults.total()
        outcome.add_counts({str(kind): times for kind, times in each.faults.items()})
        outcome.add_counts({name: each.findings.counts[name] for name in ("sent", "acked", "duplicates", "unknown")})
        progress(outcome.done, total, each.findings.verdict(each.seed))
    outcome.seconds = steady_s() - began
    return outcome


def run_round(asked: tuple[int, int]) -> Round:
    """By (seed, faults). The seed repeats the faults and the choices; the timing is the machine's own."""
    return asyncio.run(_run_round(*asked))


async def _run_round(seed: int, faults: int) -> Round:
    clock, lines = SystemClock(), list[h.Line]()
    recorder = Recorder(lines.append, clock.now_ms)
    async with _server(clock, seed) as server:
        before = asyncio.all_tasks()
        async with FaultProxy(server.url, seeded(seed, rate=RATE, kinds=KINDS), half_open_timeout_s=FORGET_S) as proxy:
            await _meet(proxy, recorder, seed, faults)
        await _until_over(before)
        async with holdfast.open_async(server.url) as hf:
            caller = AsyncCaller(hf, recorder)
            await caller.drain(QUEUES)
            for queue in QUEUES:
                await caller.count(queue)
    return Round(seed, h.check(lines, allow_refusals=True, repeats_calls=True), proxy.faults)


@contextlib.asynccontextmanager
async def _server(clock: SystemClock, seed: int) -> AsyncIterator[Server]:
    """On either store, by turns."""
    if seed % 2:
        async with serve(clock) as server:
            yield server
    else:
        with tempfile.TemporaryDirectory() as directory:
            async with serve(clock, store=directory) as server:
                yield server


async def _until_over(before: "set[asyncio.Task[object]]") -> None:
    """A call that was cut off may be under way in the server yet, and happen after everything was drained."""
    await until(lambda: not (asyncio.all_tasks() - before))


async def _meet(proxy: FaultProxy, recorder: Recorder, seed: int, faults: int) -> None:
    """Run several clients until this number of faults was made. Then their calls are cut off too."""
    traffic = Traffic()
    async with contextlib.AsyncExitStack() as clients:
        tasks = []
        for number in range(CLIENTS):
            hf = await clients.enter_async_context(holdfast.open_async(proxy.url, timeout=TIMEOUT))
            client = Client(hf, recorder, f"{seed} {number}", traffic)
            tasks += [client.produce(), *(client.consume(each) for each in range(CONSUMERS_EACH))]
        running = [asyncio.create_task(work) for work in tasks]
        try:
            async with asyncio.timeout(HANG_S):
                while proxy.faults.total() < faults:
                    done, _ = await asyncio.wait(running, timeout=0.01, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
