"""Door processes and store processes: where the CPU time of a call goes with `--processes` and `--stores`, where they
are full, and the rates that many cores would give."""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.embedded.raw import scratch
from bench.http.door import CONNECTIONS, lifecycles
from bench.http.servers import Started, holdfast_process
from bench.peers.processes import cpu_seconds
from bench.report import Table

PROCESSES = (1, 2, 4)
STORES = (1, 2, 4)
# Spread over the store processes by their hash.
QUEUES = 64
CORES = 16


class Cost(NamedTuple):
    requests_per_s: float
    # Microseconds of CPU for a request.
    store_us: float
    doors_us: float


def measure(per_connection: int = 60, rounds: int = 5) -> Iterator[Table]:
    """Lifecycles of single messages over 64 connections, OS-buffered: an enqueue, a claim and an ack each."""
    costs: dict[int, list[Cost]] = {number: [] for number in PROCESSES}
    with scratch() as path, ExitStack() as stack:
        servers = {
            number: stack.enter_context(
                holdfast_process(path / str(number), "--durability", "os", "--processes", str(number))
            )
            for number in PROCESSES
        }
        for turn in range(rounds + 1):
            for number in PROCESSES if turn % 2 else reversed(PROCESSES):
                cost = _measure_once(servers[number], per_connection)
                if turn:  # the first warms up
                    costs[number].append(cost)
    typical = {number: _median(each) for number, each in costs.items()}
    yield Table(
        (
            "`processes`",
            "requests/s here",
            "CPU of the store process for a request",
            "CPU of the door processes",
            f"requests/s on {CORES} cores, by CPU",
            "door processes that fill the store process",
        ),
        tuple(_row(number, cost) for number, cost in typical.items()),
    )

    yield from measure_stores(per_connection, rounds)


def measure_stores(per_connection: int, rounds: int) -> Iterator[Table]:
    """The same lifecycles, over many queues, by the number of store processes, with two door processes."""
    costs: dict[int, list[Cost]] = {number: [] for number in STORES}
    with scratch() as path, ExitStack() as stack:
        servers = {
            number: stack.enter_context(holdfast_process(path / f"stores-{number}", *_stores_arguments(number)))
            for number in STORES
        }
        for turn in range(rounds + 1):
            for number in STORES if turn % 2 else reversed(STORES):
                cost = _measure_once(servers[number], per_connection, queues=QUEUES)
                if turn:  # the first warms up
                    costs[number].append(cost)
    typical = {number: _median(each) for number, each in costs.items()}
    yield Table(
        (
            "`stores`",
            "requests/s here",
            "CPU of all store processes for a request",
            "CPU of the door processes",
            f"requests/s on {CORES} cores, by CPU",
        ),
        tuple(_row_of_stores(number, cost) for number, cost in typical.items()),
    )


def _stores_arguments(number: int) -> tuple[str, ...]:
    return ("--durability", "os", "--processes", "2", "--shards", str(max(STORES)), "--stores", str(number))


def _row_of_stores(number: int, cost: Cost) -> tuple[str, ...]:
    by_doors, by_stores = (CORES - number) * 1e6 / cost.doors_us, number * 1e6 / cost.store_us
    return (
        f"{number}",
        f"{cost.requests_per_s:,.0f}",
        f"{cost.store_us:.0f} us",
        f"{cost.doors_us:.0f} us",
        f"{min(by_doors, by_stores):,.0f}",
    )


def _measure_once(server: Started, per_connection: int, queues: int = 1) -> Cost:
    doors = [child for child in _children(server.pid) if b"door_process" in Path(f"/proc/{child}/cmdline").read_bytes()]
    all_before, doors_before = cpu_seconds([server.pid]), cpu_seconds(doors)
    took_s = uvloop.run(lifecycles(server.port, per_connection, echo_port=None, queues=queues))
    doors_s = cpu_seconds(doors) - doors_before
    store_s = cpu_seconds([server.pid]) - all_before - doors_s
    requests = 3 * CONNECTIONS * per_connection
    return Cost(requests / took_s, store_s / requests * 1e6, doors_s / requests * 1e6)


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _median(every: list[Cost]) -> Cost:
    return Cost(*(statistics.median(each) for each in zip(*every, strict=True)))


def _row(number: int, cost: Cost) -> tuple[str, ...]:
    if number == 1:
        return "1", f"{cost.requests_per_s:,.0f}", f"{cost.store_us:.0f} us", "–", f"{1e6 / cost.store_us:,.0f}", "–"
    # One core for the store process, the others for the door processes.
    by_doors, by_store = (CORES - 1) * 1e6 / cost.doors_us, 1e6 / cost.store_us
    return (
        f"{number}",
        f"{cost.requests_per_s:,.0f}",
        f"{cost.store_us:.0f} us",
        f"{cost.doors_us:.0f} us",
        f"{min(by_doors, by_store):,.0f}",
        f"{cost.doors_us / cost.store_us:.1f}",
    )
