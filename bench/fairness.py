"""Neighbours: what a flood by one tenant does to another, beside the same load from many equal tenants (SPEC 7.3)."""

import asyncio
import multiprocessing
import statistics
import time
from multiprocessing.synchronize import Event

import uvloop

from bench.http import Client
from bench.http_servers import holdfast_server
from bench.raw import scratch
from bench.report import Figure

PRODUCERS = 64
POLLERS = 300
EQUALS = 50
PROBES = 400
ROUNDS = 3
PAYLOAD = "x" * 256


def measure() -> Figure:
    """The quiet tenant's p99 of enqueue, claim and ack, one after the other."""
    flooded: list[float] = []
    shared: list[float] = []
    with (
        scratch() as path,
        holdfast_server(path / "data", "--durability", "os", "--queue-max-consumers", "4096") as port,
    ):
        for number in range(ROUNDS):
            sides = [(flooded, 1), (shared, EQUALS)]
            for latencies, tenants in sides if number % 2 else reversed(sides):
                latencies.append(_p99_beside(port, tenants))
    flooded_ms, shared_ms = statistics.median(flooded), statistics.median(shared)
    return Figure(
        f"a quiet tenant's p99 beside a flood ({PRODUCERS} producers, {POLLERS} pollers)",
        f"{flooded_ms:.1f} ms",
        f"beside the same load from {EQUALS} tenants",
        f"{shared_ms:.1f} ms",
        flooded_ms / shared_ms,
        goal=2,
        lower_is_better=True,
    )


def _p99_beside(port: int, tenants: int) -> float:
    # A process of its own: what it costs to make the load must not slow the probe.
    context = multiprocessing.get_context("spawn")
    is_over = context.Event()
    load = context.Process(target=_make_load, args=(port, tenants, is_over))
    load.start()
    try:
        latencies = uvloop.run(_probe(port))
    finally:
        is_over.set()
        load.join()
    return statistics.quantiles(latencies, n=100)[98]


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


def _make_load(port: int, tenants: int, is_over: Event) -> None:
    uvloop.run(_load(port, tenants, is_over))


async def _load(port: int, tenants: int, is_over: Event) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(PRODUCERS):
            group.create_task(_produce(port, f"load-{number % tenants}", is_over))
        for number in range(POLLERS):
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
