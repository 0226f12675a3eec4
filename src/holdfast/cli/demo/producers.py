"""The demo's messages: what they are like, how each is to end, and the producers that enqueue them."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

import holdfast

# Short, so that the end of a killed worker's leases is seen within the demo.
LEASE_S = 2.0
# Enough that nothing but what fails every time uses them up, on a slow machine too.
MAX_RETRIES = 4
# Seconds between a producer's batches.
_PACE_S = 0.1
# A producer waits while so many are ready: on a slow machine the queues shall run empty in time.
_MOST_READY = 200
_EVERY_TIME = 1_000_000


class Fate(StrEnum):
    """How a message is to end."""

    ACKED = "acked"
    # Its handler fails at each attempt.
    USED_UP = "out of retries"
    # Its payload is not what the handler takes.
    BAD_PAYLOAD = "bad payload"


class Task(msgspec.Struct, frozen=True):
    """What the demo's handlers take."""

    number: int
    seconds: float
    # The first attempts that fail.
    fails: int = 0


@dataclass(frozen=True)
class DemoQueue:
    """One queue of the demo and what its messages are like."""

    tenant: str
    queue: str
    # Messages of a batch at most.
    batch: int
    # How long a handler takes at least and at most.
    seconds: tuple[float, float]
    # Chances that a message is delayed, fails a time or two, fails every time, or has a bad payload.
    delayed: float = 0.0
    failing: float = 0.02
    hopeless: float = 0.0
    bad: float = 0.0
    groups: int = 0

    def __str__(self) -> str:
        return f"{self.tenant}/{self.queue}"


KINDS = (
    DemoQueue("acme", "orders", batch=12, seconds=(0.005, 0.03), hopeless=0.02),
    DemoQueue("acme", "emails", batch=8, seconds=(0.01, 0.05), delayed=0.1, failing=0.08, bad=0.02),
    # Long enough that whoever is killed is in the middle of some.
    DemoQueue("globex", "thumbnails", batch=4, seconds=(0.2, 0.5), failing=0.05),
    DemoQueue("initech", "ledger", batch=8, seconds=(0.002, 0.01), groups=16),
)


@dataclass
class Accepted:
    """What enqueue answered: none of it may be lost, and each is to end as its fate says."""

    fates: dict[int, Fate] = field(default_factory=dict)


class Producers:
    def __init__(self, hf: holdfast.AsyncHoldfast, seed: int) -> None:
        self.accepted = Accepted()
        self._hf = hf
        self._seed = seed
        self._is_stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        for number, kind in enumerate(KINDS):
            dice = random.Random(self._seed * 100 + number)
            self._tasks.append(tasks.create_task(self._produce(kind, dice)))

    async def stop(self) -> None:
        """What is being enqueued is answered first."""
        self._is_stopping.set()
        await asyncio.gather(*self._tasks)

    async def _produce(self, kind: DemoQueue, dice: random.Random) -> None:
        queue = self._hf.queue(kind.queue, tenant=kind.tenant)
        while not self._is_stopping.is_set():
            if (await queue.stats()).ready < _MOST_READY:
                made = [make_message(kind, dice) for _ in range(dice.randint(1, kind.batch))]
                ids = await queue.enqueue([message for message, _ in made])
                self.accepted.fates.update((id.snowflake, fate) for id, (_, fate) in zip(ids, made, strict=True))
            try:
                async with asyncio.timeout(_PACE_S):
                    await self._is_stopping.wait()
            except TimeoutError:
                continue


async def set_policies(hf: holdfast.AsyncHoldfast) -> None:
    """Retries come soon: the demo has ten seconds."""
    for kind in KINDS:
        queue = hf.queue(kind.queue, tenant=kind.tenant)
        await queue.set_policy(
            lease_ms=int(LEASE_S * 1_000), max_retries=MAX_RETRIES, backoff_base_ms=100, backoff_cap_ms=500
        )


def make_message(kind: DemoQueue, dice: random.Random) -> tuple[holdfast.NewMessage, Fate]:
    fate = next(_fates(kind, dice))
    fails = _EVERY_TIME if fate is Fate.USED_UP else dice.randint(1, 2) if dice.random() < kind.failing else 0
    payload: Any = Task(dice.randrange(1_000_000), round(dice.uniform(*kind.seconds), 3), fails)
    if fate is Fate.BAD_PAYLOAD:
        payload = {"number": "seven"}
    message = holdfast.NewMessage(
        payload,
        delay=dice.uniform(0.2, 1.5) if dice.random() < kind.delayed else None,
        group=f"account-{dice.randrange(kind.groups)}" if kind.groups else None,
        priority=dice.choice((50, 100, 100, 100)),
    )
    return message, fate


def _fates(kind: DemoQueue, dice: random.Random) -> Iterator[Fate]:
    if dice.random() < kind.hopeless:
        yield Fate.USED_UP
    if dice.random() < kind.bad:
        yield Fate.BAD_PAYLOAD
    yield Fate.ACKED
