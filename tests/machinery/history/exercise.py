"""A little of everything that callers do, by a seed, on a clock that is moved by hand."""

import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.model.message import NewMessage
from holdfast.testing.clock import ManualClock
from tests.machinery.history.lines import ENDLESS
from tests.machinery.history.recording import AsyncCaller

# The first two of one tenant, the first and the last of one name.
QUEUES = ("acme/mail", "acme/pay", "zeta/mail")
_GROUPS = ("a", "b")
_ACTS = ["ack"] * 8 + ["nack", "nack", "final", "release", "defer", "extend", "forget", "forget", "forget"]
_SWEEP_MS = 50


class Exercise:
    """Callers of one queue after the other, `steps` times, and at the end everything is drained and counted."""

    def __init__(
        self, caller: AsyncCaller, clock: ManualClock, sweep: Callable[[], Awaitable[Any]], seed: int = 0
    ) -> None:
        self._caller = caller
        self._clock = clock
        self._sweep = sweep
        self._dice = random.Random(seed)
        self._sent = 0
        self._ids: deque[tuple[str, int]] = deque(maxlen=50)
        self._last: dict[int, str] = {}
        self._receipts: deque[tuple[str, str]] = deque(maxlen=20)

    async def run(self, steps: int = 300) -> None:
        for name in QUEUES:
            await self._caller.set_policy(
                name,
                backoff_base_ms=5,
                backoff_cap_ms=40,
                on_ttl="drop" if name == "acme/pay" else "dead_letter",
            )
        for _ in range(steps):
            await self._step()
        for name in QUEUES:
            await self._caller.count(name)
        await self._caller.drain(QUEUES, lease_ms=1_000, wait_ms=0, patience_ms=10_000, pause=self._pause)
        await self._caller.read_journal()

    async def _step(self) -> None:
        dice = self._dice
        queue = dice.choice(QUEUES)
        roll = dice.random()
        if roll < 0.3:
            await self._enqueue(queue)
        elif roll < 0.65:
            await self._work(queue)
        elif roll < 0.75 and self._receipts:
            of, receipt = dice.choice(self._receipts)
            await self._caller.settle(of, dice.choice(["ack", "nack", "release", "extend"]), [receipt])
        elif roll < 0.92:
            self._clock.advance(dice.choice([1, 7, 40, 100, 300]))
        elif roll < 0.95:
            await self._sweep()
        elif roll < 0.97:
            await self._caller.count(queue)
        else:
            await self._operate()

    async def _pause(self) -> None:
        self._clock.advance(_SWEEP_MS)
        await self._sweep()

    async def _enqueue(self, queue: str) -> None:
        dice = self._dice
        messages = [self._message(queue) for _ in range(dice.choice([1, 1, 2, 4]))]
        ids = await self._caller.enqueue(queue, messages)
        self._ids.extend((queue, id) for id in ids)

    def _message(self, queue: str) -> NewMessage:
        dice = self._dice
        self._sent += 1
        name = f"{queue} {self._sent}"
        options: dict[str, Any] = {"priority": dice.choice([100, 100, 1, 200])}
        options["max_retries"] = dice.choice([ENDLESS, 3, 1])
        kind = dice.random()
        if kind < 0.35:
            options.update(group=dice.choice(_GROUPS), max_retries=ENDLESS)
        elif kind < 0.55:
            number = dice.randrange(8)
            options.update(key=f"key {number}", max_retries=number % 4)
            name = f"{queue} {options['key']}"
        elif kind < 0.65:
            options["ttl"] = f"{dice.randrange(20, 500)}ms"
        if dice.random() < 0.2:
            options["delay"] = f"{dice.randrange(1, 100)}ms"
        return NewMessage(name.encode(), **options)

    async def _work(self, queue: str) -> None:
        dice = self._dice
        deliveries = await self._caller.claim(queue, dice.choice([1, 1, 3, 10]), lease_ms=dice.choice([20, 100, 400]))
        for each in deliveries:
            earlier = self._last.get(each.id)
            if earlier is not None and dice.random() < 0.3:
                # Whoever had it before comes late, with what is now another's.
                await self._caller.settle(queue, dice.choice(["ack", "nack", "release", "extend"]), [earlier])
            self._last[each.id] = each.receipt
            self._receipts.append((queue, each.receipt))
            act = dice.choice(_ACTS)
            if act == "extend":
                await self._caller.settle(queue, "extend", [each.receipt], lease=f"{dice.choice([10, 200])}ms")
            elif act in ("nack", "defer"):
                await self._caller.settle(queue, act, [each.receipt], delay=f"{dice.choice([0, 5, 30])}ms")
            elif act != "forget":
                await self._caller.settle(queue, act, [each.receipt])

    async def _operate(self) -> None:
        """On the queues of one tenant alone: what an operator does excuses much, and the other is to excuse nothing."""
        dice = self._dice
        queue = dice.choice(QUEUES[:2])
        match dice.randrange(4):
            case 0:
                await self._caller.redrive(queue)
            case 1 if self._ids:
                of, id = dice.choice(self._ids)
                await self._caller.remove(of, "remove", id=id)
            case 2:
                await self._caller.remove("acme/pay", "purge")
            case _:
                await self._caller.remove("acme/pay", "purge_failed")
