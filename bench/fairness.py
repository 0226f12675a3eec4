"""Neighbours: what a flood by one tenant does to another, beside the same load from many equal tenants (SPEC 7.3)."""

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from typing import NamedTuple

import uvloop

from bench.embedded.raw import scratch
from bench.http.door import Client
from bench.http.servers import holdfast_server
from bench.report import Figure

PRODUCERS = 64
EQUALS = 50
PROBES = 250
ROUNDS = 3
PAYLOAD = "x" * 256
# The most that a quiet tenant's p99 may be beside a flood.
MAX_P99_MS = 50.0


class Quantiles(NamedTuple):
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms"


def measure() -> Iterator[Figure]:
    """A quiet tenant's enqueue, claim and ack, one after the other: the time for all three."""
    for pollers in (0, 300):
        beside = f"{PRODUCERS} producers" + (f" and {pollers} pollers" if pollers else "")
        flooded, shared = _measure_sides(pollers)
        yield Figure(
            f"a quiet tenant's lifecycle beside one tenant with {beside}",
            str(flooded),
            f"beside {EQUALS} tenants with as many in all",
            str(shared),
            flooded.p99_ms / shared.p99_ms,
            goal=2,
            lower_is_better=True,
        )
        yield Figure(
            f"its p99 beside one tenant with {beside}",
            f"{flooded.p99_ms:.1f} ms",
            "the most that it may be",
            f"{MAX_P99_MS:.0f} ms",
            flooded.p99_ms / MAX_P99_MS,
            goal=1,
            lower_is_better=True,
        )


def _measure_sides(pollers: int) -> tuple[Quantiles, Quantiles]:
    """Beside one tenant, and beside many; in turns, so that the machine's moods meet both."""
    flooded: list[Quantiles] = []
    shared: list[Quantiles] = []
    with (
        scratch() as path,
        holdfast_server(path / "data", "--durability", "os", "--queue-max-consumers", "4096") as port,
    ):
        for number in range(ROUNDS):
            sides = [(flooded, 1), (shared, EQUALS)]
            for quantiles, tenants in sides if number % 2 else reversed(sides):
                quantiles.append(_measure_beside(port, tenants, pollers))
    return _median(flooded), _median(shared)


def _median(rounds: list[Quantiles]) -> Quantiles:
    return Quantiles(
        statistics.median(each.p50_ms for each in rounds), statistics.median(each.p99_ms for each in rounds)
    )


def _measure_beside(port: int, tenants: int, pollers: int) -> Quantiles:
    # A process of its own: what it costs to make the load must not slow the probe.
    context = multiprocessing.get_context("spawn")
    is_over = context.Event()
    load = context.Process(target=_make_load, args=(port, tenants, pollers, is_over))
    load.start()
    try:
        latencies = uvloop.run(_probe(port))
    finally:
        is_over.set()
        load.join()
    hundredths = statistics.quantiles(latencies, n=100)
    return Quantiles(hundredths[49], hundredths[98])


async def _probe(port: int) -> list[float]:
    latencies = []
    async with Client(port) as client:
        await asyncio.sleep(2)  # until the load is there
        for _ in range(PROBES):
            started = time.perf_counter()
            await client.post("enqueue", tenant="quiet", queue="probe", messages=[{"payload": PAYLOAD}])
            [message] = (await client.post("dequeue", tenant="quiet", queue="probe"))["messages"]
            await client.post("ack", tenant="quiet", queue="probe", receipts=[message["receipt"]])
            latencies.append((time.perf_counter() - started) * 1_000)
            await asyncio.sleep(0.005)
    return latencies


def _make_load(port: int, tenants: int, pollers: int, is_over: Event) -> None:
    uvloop.run(_load(port, tenants, pollers, is_over))


async def _load(port: int, tenants: int, pollers: int, is_over: Event) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(PRODUCERS):
            group.create_task(_produce(port, f"load-{number % tenants}", is_over))
        for number in range(pollers):
            group.create_task(_consume(port, f"load-{number % tenants}", is_over))


async def _produce(port: int, tenant: str, is_over: Event) -> None:
    async with Client(port) as client:
        while not is_over.is_set():
            await client.post("enqueue", tenant=tenant, queue="load", messages=[{"payload": PAYLOAD}])


async def _consume(port: int, tenant: str, is_over: Event) -> None:
    async with Client(port) as client:
        receipts: list[str] = []
        while not is_over.is_set():
            verdicts = [{"receipt": each, "verdict": "ack"} for each in receipts]
            wait_ms = 0 if receipts else 1_000
            asked = {"tenant": tenant, "queue": "load", "limit": 10, "wait_ms": wait_ms, "verdicts": verdicts}
            receipts = [each["receipt"] for each in (await client.post("dequeue", **asked))["messages"]]
