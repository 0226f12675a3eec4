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
from pathlib import Path
from typing import Any

from holdfast.clock import SystemClock
from holdfast.model.message import NewMessage
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


def payload_of(name: str) -> bytes:
    """The one payload of this name: some empty but for it, some in chunks."""
    dice = random.Random(name)
    size = LARGE if dice.random() < 0.002 else int(dice.random() ** 4 * 4_000)
    return name.encode() + b":" + dice.randbytes(size)


class Load:
    def __init__(self, caller: h.Caller, seed: int, session: int, backlog: int, known: list[tuple[str, str]]) -> None:
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
            deliveries = self._caller.claim(queue, dice.choice([1, 1, 3, 10]), lease_ms=lease_ms, wait_ms=10)
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
    known = receipts_before(Path(history))
    clock = SystemClock()
    recorder = h.Recorder(h.FileSink(Path(history)), clock.now_ms, int(session) * CALLS_PER_SESSION)
    os.write(1, b"opening\n")
    hf = open_blocking(directory, {"durability": durability, "max_payload": 2 * LARGE}, clock=clock)
    recorder.say(h.Opened(session=int(session), durability=durability))
    caller = h.Caller(hf, recorder)
    backlog = 0
    names = ["/".join(queue) for queue in QUEUES]
    for name in names:
        caller.set_policy(name, backoff_base_ms=5, backoff_cap_ms=40)
        counted = caller.count(name).counted
        backlog += counted["ready"] + counted.get("delayed", 0) + counted["in_flight"]
    os.write(1, b"open\n")
    if mode == "drain":
        caller.drain(names)
        caller.read_journal()
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
