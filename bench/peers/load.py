"""A client process: `python -m bench.peers.load`, with its task as one line of JSON on standard input.

It prints `ready` once all of its clients are, and at the end the delays that they saw. It ends with its standard input,
so that none is left behind by a benchmark that was killed.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.peers.contract import Client, age_ms, load_client, make_payload
from bench.peers.counters import MEASURE, PREPARE, STOP, Counters
from bench.peers.scenarios import Role

_WAIT_S = 0.25
_PAUSE_S = 0.0005


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The work of the clients of a process. Several run as threads that share one connection."""

    client: str
    address: str
    counters: str
    roles: list[tuple[Role, int]]  # each with the number of its counter
    queues: list[str]
    notifies: bool
    batch: int
    producers: int
    consumers: int
    most_outstanding: int
    rate_per_s: int
    passes: int


class Load:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._counters = Counters(Path(task.counters))
        self._client: Client = load_client(task.client)(task.address, notifies=task.notifies)
        self._delays_ms: list[float] = []
        self._all_ready = threading.Barrier(len(task.roles), action=lambda: _say("ready"))

    def run(self) -> None:
        work: dict[Role, Callable[[int], None]] = {
            Role.PRODUCE: self._produce,
            Role.CONSUME: self._consume,
            Role.ROTATE: self._rotate,
        }
        threads = [threading.Thread(target=_or_exit(work[role]), args=(slot,)) for role, slot in self._task.roles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _say(msgspec.json.encode(self._delays_ms).decode())
        self._client.close()

    def _await_start(self) -> None:
        self._all_ready.wait()
        while self._counters.state == PREPARE:
            time.sleep(0.001)

    def _produce(self, slot: int) -> None:
        task, counters, [queue] = self._task, self._counters, self._task.queues
        self._client.enqueue(queue, [make_payload()])  # a connection, a queue and a plan are made by the first
        counters.add(slot, 1)
        self._await_start()
        due_at = time.monotonic()
        while counters.state < STOP:
            if task.rate_per_s:
                due_at += 1 / task.rate_per_s
                time.sleep(max(0.0, due_at - time.monotonic()))
            elif task.most_outstanding and self._outstanding() > task.most_outstanding:
                time.sleep(_PAUSE_S)
                continue
            self._client.enqueue(queue, [make_payload() for _ in range(task.batch)])
            counters.add(slot, task.batch)

    def _outstanding(self) -> int:
        task, counters = self._task, self._counters
        acked = counters.total(task.producers, task.producers + task.consumers)
        return counters.total(0, task.producers) - acked

    def _consume(self, slot: int) -> None:
        task, counters, [queue] = self._task, self._counters, self._task.queues
        self._await_start()
        held: list[Any] = []
        while counters.state < STOP:
            claimed = self._client.exchange(queue, held, task.batch, _WAIT_S)
            if task.rate_per_s and claimed and counters.state == MEASURE:
                self._delays_ms.append(age_ms(claimed[0][1]))
            counters.add(slot, len(held))
            held = [handle for handle, _ in claimed]
        if held:
            self._client.ack(queue, held)

    def _rotate(self, slot: int) -> None:
        """Until all messages are acked: the benchmark takes the time."""
        task, client, counters = self._task, self._client, self._counters
        for queue in task.queues[:3]:
            client.enqueue(queue, [make_payload()])
            client.ack(queue, [handle for handle, _ in client.claim(queue, 1, 0)])
        self._await_start()
        for _ in range(task.passes):
            for queue in task.queues:
                client.enqueue(queue, [make_payload()])
        left = task.passes * len(task.queues)
        while left and counters.state < STOP:
            for queue in task.queues:
                if claimed := client.claim(queue, task.passes, 0):
                    client.ack(queue, [handle for handle, _ in claimed])
                    counters.add(slot, len(claimed))
                    left -= len(claimed)


def _or_exit(work: Callable[[int], None]) -> Callable[[int], None]:
    """End the process if one of its threads fails: the benchmark reports what it printed."""

    def run(slot: int) -> None:
        try:
            work(slot)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(1)

    return run


def _say(line: str) -> None:
    print(line, flush=True)


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    task = msgspec.json.decode(sys.stdin.readline(), type=Task)
    threading.Thread(target=_end_with_input, daemon=True).start()
    Load(task).run()
    sys.stdout.flush()
    # Libraries may have threads that would be waited for, and nothing is left to be done.
    os._exit(0)


if __name__ == "__main__":
    main()
