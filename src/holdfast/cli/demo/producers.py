"""The demo's queues and messages, the expected outcome of each message, and the producers that enqueue them."""

import asyncio
import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

import holdfast
from holdfast.runtime import Runtime, sleep_until

# Short, so that the leases of the killed worker expire within the demo.
LEASE_S = 2.0
# Enough that, even on a slow machine, only messages that fail at every attempt run out of retries.
MAX_RETRIES = 4
# Milliseconds between a producer's batches.
_PACE_MS = 100
# A producer pauses while more messages than this are ready, so that the queues become empty in time on a slow machine.
_MAX_READY = 200
_EVERY_ATTEMPT = 1_000_000


class ExpectedOutcome(StrEnum):
    """How a message should end."""

    ACKED = "acked"
    # The handler fails at each attempt.
    USED_UP = "out of retries"
    # The handler does not accept the payload.
    BAD_PAYLOAD = "bad payload"


class Task(msgspec.Struct, frozen=True):
    """The payload of the demo's messages."""

    number: int
    # How long the handler takes.
    seconds: float
    # How many attempts fail before one succeeds.
    fails: int = 0


@dataclass(frozen=True)
class DemoQueue:
    """One queue of the demo, and the properties of its messages."""

    tenant: str
    queue: str
    # The maximum number of messages in a batch.
    batch: int
    # The minimum and maximum time that a handler takes.
    seconds: tuple[float, float]
    # The probabilities that a message is delayed, fails once or twice, fails always, or has a bad payload.
    delayed: float = 0.0
    failing: float = 0.02
    failing_always: float = 0.0
    bad_payload: float = 0.0
    groups: int = 0

    def __str__(self) -> str:
        return f"{self.tenant}/{self.queue}"


DEMO_QUEUES = (
    DemoQueue("acme", "orders", batch=12, seconds=(0.005, 0.03), failing_always=0.02),
    DemoQueue("acme", "emails", batch=8, seconds=(0.01, 0.05), delayed=0.1, failing=0.08, bad_payload=0.02),
    # Slow enough that the killed worker holds some of these messages.
    DemoQueue("globex", "thumbnails", batch=4, seconds=(0.2, 0.5), failing=0.05),
    DemoQueue("initech", "ledger", batch=8, seconds=(0.002, 0.01), groups=16),
)


@dataclass
class Accepted:
    """The messages whose enqueue was confirmed, by their snowflake. None of them may be lost."""

    expected: dict[int, ExpectedOutcome] = field(default_factory=dict)


class Producers:
    """One producer per queue, each with its own random numbers."""

    def __init__(self, hf: holdfast.AsyncHoldfast, seed: int, runtime: Runtime) -> None:
        self.accepted = Accepted()
        self._runtime = runtime
        self._hf = hf
        self._seed = seed
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        for number, each in enumerate(DEMO_QUEUES):
            rng = random.Random(self._seed * 100 + number)
            self._tasks.append(tasks.create_task(self._produce(each, rng)))

    async def stop(self) -> None:
        """Stop the producers, after enqueues in progress have been confirmed."""
        self._is_stopping = True
        await asyncio.gather(*self._tasks)

    async def _produce(self, demo_queue: DemoQueue, rng: random.Random) -> None:
        queue = self._hf.queue(demo_queue.queue, tenant=demo_queue.tenant)
        while not self._is_stopping:
            if (await queue.stats()).ready < _MAX_READY:
                made = [make_message(demo_queue, rng) for _ in range(rng.randint(1, demo_queue.batch))]
                ids = await queue.enqueue([message for message, _ in made])
                self.accepted.expected.update(
                    (id.snowflake, outcome) for id, (_, outcome) in zip(ids, made, strict=True)
                )
            await sleep_until(self._runtime, self._runtime.clock.now_ms() + _PACE_MS)


async def set_policies(hf: holdfast.AsyncHoldfast) -> None:
    """Set short leases and backoffs on all queues, because the demo takes ten seconds."""
    for each in DEMO_QUEUES:
        queue = hf.queue(each.queue, tenant=each.tenant)
        await queue.set_policy(
            lease_ms=int(LEASE_S * 1_000), max_retries=MAX_RETRIES, backoff_base_ms=100, backoff_cap_ms=500
        )


def make_message(demo_queue: DemoQueue, rng: random.Random) -> tuple[holdfast.NewMessage, ExpectedOutcome]:
    """Return a random message and its expected outcome."""
    outcome = _choose_outcome(demo_queue, rng)
    if outcome is ExpectedOutcome.USED_UP:
        fails = _EVERY_ATTEMPT
    else:
        fails = rng.randint(1, 2) if rng.random() < demo_queue.failing else 0
    payload: Any = Task(rng.randrange(1_000_000), round(rng.uniform(*demo_queue.seconds), 3), fails)
    if outcome is ExpectedOutcome.BAD_PAYLOAD:
        payload = {"number": "seven"}
    message = holdfast.NewMessage(
        payload,
        delay=rng.uniform(0.2, 1.5) if rng.random() < demo_queue.delayed else None,
        group=f"account-{rng.randrange(demo_queue.groups)}" if demo_queue.groups else None,
        priority=rng.choice((50, 100, 100, 100)),
    )
    return message, outcome


def _choose_outcome(demo_queue: DemoQueue, rng: random.Random) -> ExpectedOutcome:
    if rng.random() < demo_queue.failing_always:
        return ExpectedOutcome.USED_UP
    if rng.random() < demo_queue.bad_payload:
        return ExpectedOutcome.BAD_PAYLOAD
    return ExpectedOutcome.ACKED
