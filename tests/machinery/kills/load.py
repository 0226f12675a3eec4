"""Scripts of producers, consumers and an operator under kills, for callers of either API.

Each is a script of steps. A step is a function of a caller; its answer is sent back in.
"""

import random
from collections import deque
from collections.abc import Callable, Generator
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.model.message import NewMessage
from tests.machinery import history as h

QUEUES = ("acme/mail", "acme/pay", "zeta/mail")
POLICY: dict[str, Any] = {"backoff_base_ms": 5, "backoff_cap_ms": 40}
LARGE = (1 << 20) + 70_001
MAX_PAYLOAD = 2 * LARGE
_GROUPS = ("a", "b", "c")
# Producers wait when more than this lies in the queues: they must be drained in the end.
MAX_BACKLOG = 400
_KEYS = 20
# What a consumer does with a message, by weight.
_ACTS = ["ack"] * 12 + ["nack", "nack", "final", "release", "defer", "extend", "extend", "forget", "forget"]
_LATE = ["ack", "nack", "release", "extend"]

Step = Callable[[Any], Any]
Steps = Generator[Step | None, Any, None]


def payload_of(name: str) -> bytes:
    """The one payload of this name: some empty but for it, some in chunks."""
    dice = random.Random(name)
    size = LARGE if dice.random() < 0.002 else int(dice.random() ** 4 * 4_000)
    return name.encode() + b":" + dice.randbytes(size)


class Load:
    """The scripts of one session. `known` are receipts of those before it: (queue, receipt). Where calls take longer,
    leases have to be longer by some factor, or none would outlive its claim."""

    def __init__(
        self,
        seed: int,
        session: int,
        backlog: int = 0,
        known: list[tuple[str, str]] | None = None,
        lease_factor: int = 1,
        max_backlog: int = MAX_BACKLOG,
        *,
        has_moves: bool = False,
    ) -> None:
        self._has_moves = has_moves
        # Sent of late: (queue, id).
        self._sent: deque[tuple[str, int]] = deque(maxlen=100)
        self._lease_factor = lease_factor
        self._max_backlog = max_backlog
        self._seed = seed
        self._session = session
        # Roughly: it only keeps the producers from running away.
        self.backlog = backlog
        # Of leases that are current, expired, settled, from before the last kill.
        self._known = deque(known or [], maxlen=200)

    def produce(self, producer: int) -> Steps:
        """None: there is enough for now."""
        dice = random.Random(f"{self._seed} producer {producer}")
        for number in count():
            while self.backlog > self._max_backlog:
                yield None
            queue = dice.choice(QUEUES)
            era = self._session + number // 200
            messages = [
                self._message(dice, queue, era, f"{queue} {self._session} {producer} {number} {index}")
                for index in range(dice.choice([1, 1, 1, 2, 5]))
            ]
            self.backlog += len(messages)
            ids: list[int] = yield _enqueue(queue, messages)
            self._sent.extend((queue, id) for id in ids or ())

    def _message(self, dice: random.Random, queue: str, era: int, name: str) -> NewMessage:
        options: dict[str, Any] = {"priority": dice.choice([100, 100, 100, 1, 200])}
        options["max_retries"] = dice.choice([h.ENDLESS, 3, 3, 0])
        kind = dice.random()
        if kind < 0.35:
            options.update(group=dice.choice(_GROUPS), max_retries=h.ENDLESS)
        elif kind < 0.55:
            # The same keys come again for a while, so that a call that was cut off is made once more.
            options["key"] = f"{era - dice.choice([0, 0, 1])}.{dice.randrange(_KEYS)}"
            options["max_retries"] = h.ENDLESS
            name = f"{queue} key {options['key']}"
        elif kind < 0.6:
            options["ttl"] = f"{dice.randrange(1, 60)}ms"
        if dice.random() < 0.2:
            options["delay"] = f"{dice.randrange(1, 50)}ms"
        return NewMessage(payload_of(name), **options)

    def consume(self, consumer: int) -> Steps:
        dice = random.Random(f"{self._seed} consumer {consumer}")
        while True:
            queue = dice.choice(QUEUES)
            lease_ms = dice.choice([5, 20, 100, 400]) * self._lease_factor
            deliveries = yield _claim(queue, dice.choice([1, 1, 3, 10]), lease_ms)
            receipts = [each.receipt for each in deliveries]
            self._known.extend((queue, receipt) for receipt in receipts)
            if len(receipts) > 3 and dice.random() < 0.5:
                yield from self._settle(queue, "ack", receipts)
            else:
                for receipt in receipts:
                    yield from self._act(dice, queue, receipt)
            if self._known and dice.random() < 0.2:
                of, receipt = self._known[dice.randrange(len(self._known))]
                yield from self._settle(of, dice.choice(_LATE), [receipt])

    def _act(self, dice: random.Random, queue: str, receipt: str) -> Steps:
        match dice.choice(_ACTS):
            case "forget":
                pass
            case "extend":
                lease_ms = dice.choice([5, 50, 200]) * self._lease_factor
                yield from self._settle(queue, "extend", [receipt], lease=f"{lease_ms}ms")
                yield from self._settle(queue, "ack", [receipt])
            case "nack" | "defer" as verb:
                yield from self._settle(queue, verb, [receipt], delay=f"{dice.choice([0, 0, 5, 30])}ms")
            case verb:
                yield from self._settle(queue, verb, [receipt])

    def _settle(self, queue: str, verb: str, receipts: list[str], **options: Any) -> Steps:
        settled: list[bool] = yield lambda caller: caller.settle(queue, verb, receipts, **options)
        if verb in ("ack", "final"):
            self.backlog -= sum(settled)

    def operate(self) -> Steps:
        dice = random.Random(f"{self._seed} operator")
        while True:
            yield _redrive(dice.choice(QUEUES))
            if self._has_moves and self._sent:
                # One at a time, so that the answer tells where it is.
                queue, id = self._sent[dice.randrange(len(self._sent))]
                target = dice.choice([each for each in QUEUES if each != queue])
                if (yield _move(queue, target, id)):
                    self._sent.append((target, id))


def _enqueue(queue: str, messages: list[NewMessage]) -> Step:
    return lambda caller: caller.enqueue(queue, messages)


def _claim(queue: str, limit: int, lease_ms: int) -> Step:
    return lambda caller: caller.claim(queue, limit, lease_ms=lease_ms, wait_ms=10)


def _redrive(queue: str) -> Step:
    return lambda caller: caller.redrive(queue)


def _move(queue: str, to: str, id: int) -> Step:
    return lambda caller: caller.move(queue, to, [id])


def backlog_in(counted: h.Counted) -> int:
    return counted.counted["ready"] + counted.counted.get("delayed", 0) + counted.counted["in_flight"]


def receipts_before(path: Path) -> list[tuple[str, str]]:
    """Some receipts of the sessions before, from the end of the history."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (64 << 10)))
        file.readline()  # cut in the middle
        raw = file.read()
    queues: dict[int, str] = {}
    found: list[tuple[str, str]] = []
    for line in h.parse_lines(raw):
        if isinstance(line, h.Claim):
            queues[line.n] = line.queue
        elif isinstance(line, h.Claimed) and line.n in queues:
            found += [(queues[line.n], each.receipt) for each in line.deliveries]
    return found[-100:]
