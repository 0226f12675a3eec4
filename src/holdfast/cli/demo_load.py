"""The demo's programs: producers, workers and one worker that dies, all on one embedded store."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import holdfast

# Short, so that the end of a dead worker's leases is seen within the demo.
LEASE_S = 1.0
_BATCH = 20
# Seconds between a producer's batches.
_PACE_S = 0.05


@dataclass(frozen=True)
class Kind:
    """One queue of the demo and what its messages are like."""

    tenant: str
    queue: str
    # Chances that a message is delayed, fails once, or fails for good.
    delayed: float = 0.0
    failing: float = 0.02
    hopeless: float = 0.0
    groups: int = 0

    def __str__(self) -> str:
        return f"{self.tenant}/{self.queue}"


KINDS = (
    Kind("acme", "orders", hopeless=0.004),
    Kind("acme", "emails", delayed=0.1, failing=0.05),
    Kind("globex", "thumbnails", failing=0.03),
    Kind("initech", "ledger", groups=16),
)


@dataclass
class Tally:
    """What the demo's programs saw; written by many threads under one lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    # Ids that enqueue answered: none of them may be lost.
    accepted: list[int] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    # Work done under a lease that was no longer held: someone else does it too.
    late: int = 0
    died_holding: int = 0


class Load:
    def __init__(self, hf: holdfast.Holdfast, seed: int) -> None:
        self.tally = Tally()
        self._hf = hf
        self._seed = seed
        self._producing = threading.Event()
        self._working = threading.Event()
        self._death = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self) -> None:
        for kind in KINDS:
            queue = self._hf.queue(kind.queue, tenant=kind.tenant)
            # Retries come soon: the demo has ten seconds.
            queue.set_policy(lease_ms=int(LEASE_S * 1_000), max_retries=3, backoff_base_ms=100, backoff_cap_ms=800)
        self._producing.set()
        self._working.set()
        for number, kind in enumerate(KINDS):
            self._run(self._produce, kind, number)
            self._run(self._work, kind, number)
        self._run(self._work_and_die, KINDS[0], len(KINDS))

    def kill_one(self) -> None:
        """The worker that is to die takes a last batch and does so with it in hand."""
        self._death.set()

    def stop_producing(self) -> None:
        self._producing.clear()

    def stop(self) -> None:
        self._producing.clear()
        self._working.clear()
        self._death.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    @property
    def is_one_dying(self) -> bool:
        return self._death.is_set()

    @property
    def has_failed(self) -> bool:
        return bool(self._errors)

    def _run(self, program: Callable[[Kind, random.Random], None], kind: Kind, number: int) -> None:
        def run() -> None:
            try:
                program(kind, random.Random(self._seed * 100 + number))
            except BaseException as error:
                self._errors.append(error)

        thread = threading.Thread(target=run, name=f"{program.__name__} {kind}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _produce(self, kind: Kind, dice: random.Random) -> None:
        queue = self._hf.queue(kind.queue, tenant=kind.tenant)
        pause = threading.Event()
        while self._producing.is_set():
            batch = [_message(kind, dice) for _ in range(dice.randint(1, _BATCH))]
            ids = queue.enqueue(batch)
            with self.tally.lock:
                self.tally.accepted += [id.snowflake for id in ids]
            pause.wait(_PACE_S)

    def _work(self, kind: Kind, dice: random.Random) -> None:
        queue = self._hf.queue(kind.queue, tenant=kind.tenant)
        while self._working.is_set():
            self._settle(kind, queue, queue.claim(limit=_BATCH, wait=0.1), dice)

    def _work_and_die(self, kind: Kind, dice: random.Random) -> None:
        """As any worker, until it is killed: what it holds then is neither acked nor given back."""
        queue = self._hf.queue(kind.queue, tenant=kind.tenant)
        while self._working.is_set():
            held = queue.claim(limit=_BATCH, wait=0.1)
            if self._death.is_set():
                self.tally.died_holding += len(held)
                if self.tally.died_holding >= _BATCH:
                    return
            else:
                self._settle(kind, queue, held, dice)

    def _settle(
        self, kind: Kind, queue: holdfast.Queue, messages: list[holdfast.BlockingMessage], dice: random.Random
    ) -> None:
        good = [each for each in messages if not _fails(each, dice, kind)]
        bad = [each for each in messages if each not in good]
        results = queue.ack(good) if good else []
        for message in bad:
            results += queue.nack([message], "the other side did not answer")
        with self.tally.lock:
            self.tally.done[str(kind)] += sum(result.ok for result in results[: len(good)])
            self.tally.late += sum(not result.ok for result in results)


def _message(kind: Kind, dice: random.Random) -> holdfast.NewMessage:
    work = {"number": dice.randrange(1_000_000), "hopeless": dice.random() < kind.hopeless}
    return holdfast.NewMessage(
        work,
        delay=dice.uniform(0.2, 1.5) if dice.random() < kind.delayed else None,
        group=f"account-{dice.randrange(kind.groups)}" if kind.groups else None,
        priority=dice.choice((50, 100, 100, 100)),
    )


def _fails(message: holdfast.BlockingMessage, dice: random.Random, kind: Kind) -> bool:
    return bool(message.json()["hopeless"]) or dice.random() < kind.failing
