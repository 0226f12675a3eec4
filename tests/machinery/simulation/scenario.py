"""One seed: a run with its faults, a quiet end in which everything must come, and the verdict on its history."""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.client.queue import AsyncQueue
from holdfast.dice import Dice, SeededDice
from holdfast.model.errors import HoldfastError, QueueNotFound
from holdfast.model.message import NewMessage
from holdfast.service.access import EVERY_TENANT
from holdfast.testing.clock import START_MS
from tests.machinery.history import AsyncCaller, Line, Recorder, check, encode_line
from tests.machinery.simulation import ticks
from tests.machinery.simulation.loop import SeededLoop, Stalled
from tests.machinery.simulation.machine import Machine
from tests.machinery.simulation.media import Medium, MemoryMedium
from tests.machinery.simulation.plan import LIVENESS_MS, Plan, plan_of
from tests.machinery.simulation.workload import Workload, connect, together

OPERATIONS = 50
_MEETINGS = 3
_WOKEN_WITHIN_MS = 3_000
_LATER_MS = 900
_PAUSE_MS = 20

MakeMedium = Callable[[Dice], Medium]


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of one seed."""

    seed: int
    lines: list[Line]
    violations: list[str]
    # What happened, by fault and by verb.
    seen: dict[str, int]
    verdict: str
    steps: int = 0

    @property
    def hash(self) -> str:
        """Return a hash of the whole history. It is the same for every run of a seed."""
        digest = blake2b(digest_size=16)
        for line in self.lines:
            digest.update(encode_line(line) + b"\n")
        return digest.hexdigest()


def simulate(seed: int, operations: int = OPERATIONS, make_medium: MakeMedium = MemoryMedium) -> Outcome:
    plan = plan_of(seed, operations)
    with _quiet_log():
        run = _Run(seed, plan, make_medium)
        try:
            run.loop.run(run.main())
        except (Stalled, HoldfastError) as error:
            run.broken.append(f"stalled: {type(error).__name__}: {error}")
        finally:
            run.end()
    findings = check(run.lines, allow_refusals=True, repeats_calls=plan.network.repeats > 0)
    run.seen.update({f"messages {name}": findings.counts[name] for name in ("sent", "acked", "duplicates")})
    return Outcome(
        seed=seed,
        lines=run.lines,
        violations=[*run.broken, *map(str, findings.violations)],
        seen=dict(run.seen),
        verdict=findings.verdict(seed),
        steps=run.loop.steps,
    )


class _Run:
    def __init__(self, seed: int, plan: Plan, make_medium: MakeMedium) -> None:
        self.lines: list[Line] = []
        self.broken: list[str] = []
        self.seen: Counter[str] = Counter()
        self.loop = SeededLoop(seed, START_MS, drag=plan.drag, lag=plan.lag)
        self._plan = plan
        self._dice = random.Random(f"{seed} end")
        dice = SeededDice(seed)
        self._medium = make_medium(dice)
        self._machine = Machine(self.loop, self._medium, dice, plan, seen=self.seen, on_broken=self.broken.append)
        self._recorder = Recorder(self.lines.append, self._machine.now_ms)
        self._machine.record(self._recorder)
        self._workload = Workload(
            seed, plan, self.loop, self._machine, self._recorder, self.seen, has_moves=self._medium.has_moves
        )

    async def main(self) -> None:
        self._machine.start()
        await self._until_up()
        operator = AsyncCaller(await connect(self._machine.network, EVERY_TENANT), self._recorder)
        self._hf = await connect(self._machine.network, EVERY_TENANT)
        for queue, policy in self._plan.policies.items():
            await operator.set_policy(queue, **policy)
        if self._plan.ticks_every_ms is not None:
            await ticks.begin(self._hf, self._plan.ticks_every_ms)
        self._break()
        await self._workload.run()
        await self._mend()
        await self._end_quietly(operator)

    def end(self) -> None:
        self._machine.vanish()
        self._medium.close()

    # --- Faults ----------------------------------------------------------------------------------------------------

    def _break(self) -> None:
        self._machine.network.rates = self._plan.network
        self._machine.set_rates(self._plan.disk)
        for blow in self._plan.blows:
            strike = partial(self._strike, blow.kind, blow.ms)
            if blow.at_event:
                self._machine.at_event.setdefault(blow.at_event, []).append(strike)
            else:
                self.loop.call_at(self.loop.now_ms + blow.at_ms, strike)

    def _strike(self, kind: str, ms: int) -> None:
        match kind:
            case "pause":
                self.seen["pause"] += 1
                self.loop.skip(ms)
            case "close":
                self._machine.close(ms)
            case _:
                self._machine.crash(power_cut=kind == "power cut")
                self._machine.start_later(ms)

    async def _mend(self) -> None:
        """From here on nothing goes wrong; what was stopped is started."""
        last_blow_ms = max((blow.at_ms for blow in self._plan.blows), default=0)
        await self.loop.sleep(last_blow_ms)
        self._machine.at_event.clear()
        self._machine.network.rates = self._plan.calm_network
        self._machine.set_rates(replace(self._plan.disk, fails=0.0, is_full=0.0))
        await self._until_up()
        if self._plan.ends_with_crash:
            self._strike("crash", 0)
            await self._until_up()

    async def _until_up(self) -> None:
        while not self._machine.is_up:
            await self.loop.sleep(5)

    # --- The end ---------------------------------------------------------------------------------------------------

    async def _end_quietly(self, operator: AsyncCaller) -> None:
        """First nobody calls, and every lease runs out by itself. Then those who wait are handed all that is there,
        within the time that is promised, and what is left is looked over."""
        await self.loop.sleep(LIVENESS_MS + self._plan.set_back_ms)
        for queue in self._plan.queues:
            with suppress(QueueNotFound):  # deleted
                stats = await self._queue(queue).stats()
                if stats.in_flight:
                    self.broken.append(
                        f"liveness: {stats.in_flight} of {queue} are in flight though every lease has ended"
                    )
                if stats.draining:
                    self.broken.append(f"liveness: {queue} is still being deleted")
            await operator.set_policy(queue, limits=_NO_LIMITS)
            await self._queue(queue).resume()
        until_ms = self.loop.now_ms + LIVENESS_MS
        queues = self._plan.queues
        await together(self.loop, [self._wait_for_all(operator, queue, until_ms) for queue in queues for _ in range(2)])
        for queue in queues:
            stats = await self._queue(queue).stats()
            if left := stats.ready + stats.delayed + stats.in_flight:
                self.broken.append(f"liveness: {left} of {queue} did not come to those who waited")
        await together(self.loop, [self._meet(operator, queue) for queue in queues])
        await self.loop.sleep(LIVENESS_MS)  # what is kept for look-up after its ack goes meanwhile
        for queue in queues:
            await operator.count(queue)
        if self._plan.ticks_every_ms is not None:
            self.broken += await ticks.check(self._hf, self._plan.ticks_every_ms, self._machine.now_ms())
        await operator.read_journal()
        await operator.drain(queues, patience_ms=LIVENESS_MS)

    def _queue(self, name: str) -> AsyncQueue:
        tenant, _, queue = name.partition("/")
        return self._hf.queue(queue, tenant=tenant)

    async def _wait_for_all(self, caller: AsyncCaller, queue: str, until_ms: int) -> None:
        while (left_ms := until_ms - self.loop.now_ms) > 0:
            deliveries = await caller.claim(queue, 3, lease_ms=1_000, wait_ms=left_ms)
            if deliveries:
                await caller.settle(queue, "ack", [each.receipt for each in deliveries])
            else:
                await self.loop.sleep(_PAUSE_MS)  # refused, perhaps: there is a cap on claims

    async def _meet(self, caller: AsyncCaller, queue: str) -> None:
        """One who waits and one message, at about the same time: nobody else is there to make up for a lost wake-up."""
        slack_ms = 4 + int(self._plan.disk.slow > 0) * self._plan.disk.slow_ms

        async def send(name: str, **options: Any) -> None:
            await self.loop.sleep(self._dice.randrange(slack_ms))
            await caller.enqueue(queue, [NewMessage(f"{queue} {name}".encode(), **options)])

        async def wait() -> None:
            await self.loop.sleep(self._dice.randrange(slack_ms))
            deliveries = await caller.claim(queue, lease_ms=LIVENESS_MS, wait_ms=_WOKEN_WITHIN_MS)
            if not deliveries:
                self.broken.append(f"liveness: a message came to {queue}, and the one who waited was not woken")
            await caller.settle(queue, "ack", [each.receipt for each in deliveries])

        for number in range(_MEETINGS):
            await together(self.loop, [send(f"last {number}"), wait()])
        await together(self.loop, [send("delayed", delay=f"{_LATER_MS}ms"), wait()])
        # Somebody takes it, and is never heard of again.
        await send("forgotten")
        await caller.claim(queue, lease_ms=_LATER_MS)
        await wait()


_NO_LIMITS = {"write_ops_per_s": None, "read_ops_per_s": None}


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Disable the log, because the faults are intended."""
    log = logging.getLogger("holdfast")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled
