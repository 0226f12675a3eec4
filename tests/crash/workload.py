"""The process that is killed: producers, consumers and an operator on one store, writing down all they are answered.

    python -m tests.crash.workload run   DIRECTORY HISTORY SEED SESSION DURABILITY
    python -m tests.crash.workload drain DIRECTORY HISTORY SEED SESSION DURABILITY

`run` goes on until it is killed. `drain` takes what is there, says what was left, and closes the store.
"""

import itertools
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from holdfast.client.blocking import Holdfast, Queue
from holdfast.clock import SystemClock
from holdfast.model.errors import HoldfastError
from holdfast.model.message import NewMessage, Receipt
from holdfast.server.embedded import open_blocking
from holdfast.testing import history as h

QUEUES = [("acme", "mail"), ("acme", "pay"), ("zeta", "mail")]
GROUPS = ["a", "b", "c"]
PRODUCERS = 2
CONSUMERS = 3
# Producers wait when more than this lies in the queues: the last process must be able to drain them.
BACKLOG = 400
# Sessions write this many calls at most, so that numbers of calls never meet.
CALLS_PER_SESSION = 10_000_000
LARGE = (1 << 20) + 70_001
# What a consumer does with a message, by weight.
ACTS = ["ack"] * 12 + ["nack", "nack", "final", "release", "defer", "extend", "extend", "forget", "forget"]


def digest(payload: bytes) -> str:
    return blake2b(payload, digest_size=8).hexdigest()


def payload_of(name: str) -> bytes:
    """The one payload of this name: some empty but for it, some in chunks."""
    dice = random.Random(name)
    size = LARGE if dice.random() < 0.002 else int(dice.random() ** 4 * 4_000)
    return name.encode() + b":" + dice.randbytes(size)


class Recorder:
    """Each line is one write to the system: a kill tears none of those before it."""

    def __init__(self, path: Path, session: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._numbers = itertools.count(session * CALLS_PER_SESSION)
        os.write(self._file, b"\n")  # ends a line that the last kill may have torn

    def number(self) -> int:
        return next(self._numbers)

    def say(self, line: h.Line) -> None:
        os.write(self._file, h.encode_line(line) + b"\n")


class Caller:
    """Calls on the store, each written down before and after."""

    def __init__(self, hf: Holdfast, clock: SystemClock, recorder: Recorder) -> None:
        self._hf = hf
        self._clock = clock
        self._recorder = recorder

    def queue(self, name: str) -> Queue:
        tenant, _, queue = name.partition("/")
        return self._hf.queue(queue, tenant=tenant)

    def enqueue(self, queue: str, messages: list[NewMessage]) -> None:
        items = [
            h.Item(
                payload=digest(each.payload),
                max_retries=each.options["max_retries"],
                key=each.options.get("key"),
                group=each.options.get("group"),
            )
            for each in messages
        ]
        self._call(
            lambda n: h.Enqueue(n=n, queue=queue, items=items),
            lambda: self.queue(queue).enqueue(messages),
            lambda n, ids: h.Enqueued(n=n, ids=[id.snowflake for id in ids]),
        )

    def claim(self, queue: str, limit: int, lease_ms: int, wait_ms: int) -> list[h.Delivered]:
        def answer(n: int, messages: list[Any]) -> h.Claimed:
            return h.Claimed(
                n=n,
                at=self._clock.now_ms(),
                deliveries=[
                    h.Delivered(
                        id=each.id.snowflake,
                        version=each.version,
                        attempt=each.attempt,
                        payload=digest(each.payload),
                        expires_at=each.lease_expires_at,
                        group=each.group,
                        receipt=each.receipt,
                    )
                    for each in messages
                ],
            )

        claimed = self._call(
            lambda n: h.Claim(n=n, queue=queue),
            lambda: self.queue(queue).claim(limit, lease=f"{lease_ms}ms", wait=f"{wait_ms}ms"),
            answer,
        )
        return [] if claimed is None else claimed.deliveries

    def settle(self, queue: str, verb: str, receipts: list[str], **options: Any) -> list[bool]:
        on_queue = self.queue(queue)
        verbs: dict[str, Callable[[], Any]] = {
            "ack": lambda: on_queue.ack(receipts),
            "nack": lambda: on_queue.nack(receipts, "failed", **options),
            "final": lambda: on_queue.nack(receipts, "broken", final=True),
            "defer": lambda: on_queue.nack(receipts, defer=True, **options),
            "release": lambda: on_queue.release(receipts),
            "extend": lambda: on_queue.extend(receipts, **options),
        }
        leases = [(parsed.id, parsed.version) for parsed in map(Receipt.parse, receipts)]
        settled = self._call(
            lambda n: h.Settle(n=n, at=self._clock.now_ms(), queue=queue, verb=verb, leases=leases),
            verbs[verb],
            lambda n, results: h.Settled(
                n=n,
                ok=[result.ok for result in results],
                expires_at=[result.lease_expires_at for result in results] if verb == "extend" else [],
            ),
        )
        return [] if settled is None else settled.ok

    def redrive(self, queue: str) -> None:
        self._call(
            lambda n: h.Redrive(n=n, queue=queue),
            lambda: self.queue(queue).redrive(),
            lambda n, changed: h.Redriven(n=n, changed=changed.changed),
        )

    def _call(self, intent: Callable[[int], h.Line], call: Callable[[], Any], answer: Callable[[int, Any], Any]) -> Any:
        n = self._recorder.number()
        self._recorder.say(intent(n))
        try:
            result = call()
        except HoldfastError as error:
            self._recorder.say(h.Refused(n=n, error=f"{error.code}: {error}"))
            return None
        line = answer(n, result)
        self._recorder.say(line)
        return line


class Load:
    def __init__(self, caller: Caller, seed: int, session: int, backlog: int, known: list[tuple[str, str]]) -> None:
        self._caller = caller
        self._seed = seed
        self._session = session
        # Roughly: it only keeps the producers from running away.
        self._backlog = backlog
        self._room = threading.Event()
        # Receipts of leases, current, expired, settled, from before the last kill: (queue, receipt).
        self._known = deque(known, maxlen=200)

    def produce(self, thread: int) -> None:
        dice = random.Random(f"{self._seed} producer {thread}")
        for number in itertools.count():
            while self._backlog > BACKLOG:
                self._room.clear()
                self._room.wait(0.005)
            queue = "/".join(dice.choice(QUEUES))
            messages = [
                self._message(dice, queue, f"{queue} {self._session} {thread} {number} {index}")
                for index in range(dice.choice([1, 1, 1, 2, 5]))
            ]
            self._backlog += len(messages)
            self._caller.enqueue(queue, messages)

    def _message(self, dice: random.Random, queue: str, name: str) -> NewMessage:
        options: dict[str, Any] = {"priority": dice.choice([100, 100, 100, 1, 200])}
        options["max_retries"] = dice.choice([h.ENDLESS, 3, 3, 0])
        kind = dice.random()
        if kind < 0.35:
            options.update(group=dice.choice(GROUPS), max_retries=h.ENDLESS)
        elif kind < 0.55:
            # The same keys come again in this session and in the next, so that a cut-off call is made once more.
            options["key"] = f"{self._session - dice.choice([0, 0, 1])}.{dice.randrange(20)}"
            options["max_retries"] = h.ENDLESS
            name = f"{queue} key {options['key']}"
        elif kind < 0.6:
            options["ttl"] = f"{dice.randrange(1, 60)}ms"
        if dice.random() < 0.2:
            options["delay"] = f"{dice.randrange(1, 50)}ms"
        return NewMessage(payload_of(name), **options)

    def consume(self, thread: int) -> None:
        dice = random.Random(f"{self._seed} consumer {thread}")
        while True:
            queue = "/".join(dice.choice(QUEUES))
            lease_ms = dice.choice([5, 20, 100, 400])
            deliveries = self._caller.claim(queue, dice.choice([1, 1, 3, 10]), lease_ms, wait_ms=10)
            self._known.extend((queue, each.receipt) for each in deliveries)
            receipts = [each.receipt for each in deliveries]
            if len(receipts) > 3 and dice.random() < 0.5:
                self._settle(queue, "ack", receipts)
            else:
                for receipt in receipts:
                    self._act(dice, queue, receipt)
            if self._known and dice.random() < 0.2:
                queue, receipt = self._known[dice.randrange(len(self._known))]
                self._settle(queue, dice.choice(["ack", "nack", "release", "extend"]), [receipt])

    def _act(self, dice: random.Random, queue: str, receipt: str) -> None:
        match dice.choice(ACTS):
            case "forget":
                pass
            case "extend":
                self._settle(queue, "extend", [receipt], lease=f"{dice.choice([5, 50, 200])}ms")
                self._settle(queue, "ack", [receipt])
            case "nack" | "defer" as verb:
                self._settle(queue, verb, [receipt], delay=f"{dice.choice([0, 0, 5, 30])}ms")
            case verb:
                self._settle(queue, verb, [receipt])

    def _settle(self, queue: str, verb: str, receipts: list[str], **options: Any) -> None:
        settled = self._caller.settle(queue, verb, receipts, **options)
        if verb == "ack":
            self._backlog -= sum(settled)
            self._room.set()

    def operate(self) -> None:
        dice = random.Random(f"{self._seed} operator")
        never = threading.Event()
        while not never.wait(0.02):
            self._caller.redrive("/".join(dice.choice(QUEUES)))


def drain(hf: Holdfast, caller: Caller, recorder: Recorder) -> None:
    """Claim and ack until nothing comes any more; then say what is left."""
    names = ["/".join(queue) for queue in QUEUES]
    while any(_unfinished(caller.queue(name)) for name in names):
        for name in names:
            receipts = [each.receipt for each in caller.claim(name, 100, lease_ms=10_000, wait_ms=20)]
            if receipts:
                caller.settle(name, "ack", receipts)
    for name in names:
        for info in listed(caller.queue(name)):
            payload = caller.queue(name).get(info.id, payload=True).payload
            recorder.say(h.DeadLetter(id=info.snowflake, queue=name, payload=digest(payload or b"")))
    position: str | None = None
    while events := hf.journal(position, 10_000):
        position = events.next
        for event in events:
            recorder.say(h.Journalled(id=event.snowflake, event=event.event))
    recorder.say(h.Drained())


def _unfinished(queue: Queue) -> int:
    stats = queue.stats()
    return stats.ready + stats.delayed + stats.in_flight


def listed(queue: Queue) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = None
    while True:
        page = queue.list(limit=1_000, cursor=cursor)
        found += page
        cursor = page.cursor
        if cursor is None:
            return found


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


def main(mode: str, directory: str, history: str, seed: str, session: str, durability: str) -> None:
    recorder = Recorder(Path(history), int(session))
    known = receipts_before(Path(history))
    clock = SystemClock()
    os.write(1, b"opening\n")
    hf = open_blocking(directory, {"durability": durability, "max_payload": 2 * LARGE}, clock=clock)
    recorder.say(h.Opened(session=int(session), durability=durability))
    caller = Caller(hf, clock, recorder)
    backlog = 0
    for name in ("/".join(queue) for queue in QUEUES):
        queue = caller.queue(name)
        queue.set_policy(backoff_base_ms=5, backoff_cap_ms=40)
        stats = queue.stats()
        counted = stats.ready + stats.delayed + stats.in_flight + stats.failed
        recorder.say(h.Counted(queue=name, counted=counted, listed=len(listed(queue))))
        backlog += counted - stats.failed
    os.write(1, b"open\n")
    if mode == "drain":
        drain(hf, caller, recorder)
        hf.close()
        return
    load = Load(caller, int(seed), int(session), backlog, known)
    threads = [threading.Thread(target=load.produce, args=(number,)) for number in range(PRODUCERS)]
    threads += [threading.Thread(target=load.consume, args=(number,)) for number in range(CONSUMERS)]
    threads.append(threading.Thread(target=load.operate))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # until the kill


if __name__ == "__main__":
    # A thread that dies of an error must end the process: a load that quietly stops would prove nothing.
    threading.excepthook = lambda args: (sys.__excepthook__(*args[:3]), os._exit(1))  # type: ignore[arg-type]
    main(*sys.argv[1:])
