"""The clients of a server: the price of a blocking call beside a bare socket, and of many calls that share requests or
a connection."""

import asyncio
import json
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import holdfast
from bench.embedded.raw import scratch
from bench.http.load import request
from bench.http.servers import free_port, holdfast_process, holdfast_server
from bench.peers.processes import cpu_seconds
from bench.report import Figure
from holdfast.client.queue import AsyncQueue

CALLERS = 64
PAYLOAD = "x" * 256


def measure() -> Iterator[Figure]:
    for durability, what in (("fsync", "fsync"), ("os", "OS-buffered")):
        with scratch() as path, holdfast_server(path / "data", "--durability", durability) as port:
            yield blocking_enqueues(port, what)
    framed_port = free_port()
    flags = ("--durability", "os", "--framed-port", str(framed_port))
    with scratch() as path, holdfast_process(path / "data", *flags) as server:
        url = f"http://127.0.0.1:{server.port}"
        yield asyncio.run(_single_enqueues(url))
        yield from asyncio.run(_calls_in_flight(f"holdfast://127.0.0.1:{framed_port}", url, server.pid))


def blocking_enqueues(port: int, durability: str, rounds: int = 9, each: int = 500) -> Figure:
    """Processor time of the caller of single blocking enqueues, beside a socket that sends the same request.

    Only the caller's thread is counted. It waits for the server in every call, so that a good part of either side is
    the price of being woken with cold caches.
    """
    document = {"tenant": "default", "queue": "bench", "messages": [{"payload": PAYLOAD}]}
    raw = request("/v1/queue/enqueue", json.dumps(document, separators=(",", ":")).encode())
    ours: list[float] = []
    bare: list[float] = []
    with holdfast.open(f"http://127.0.0.1:{port}") as hf, socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        q = hf.queue("bench")

        def enqueue() -> None:
            q.enqueue(PAYLOAD)

        def send() -> None:
            sock.sendall(raw)
            assert sock.recv(65_536).startswith(b"HTTP/1.1 200")

        for number in range(rounds + 1):
            for call, taken in ((enqueue, ours), (send, bare)) if number % 2 else ((send, bare), (enqueue, ours)):
                used_us = _cpu_us(call, each)
                if number:  # the first warms up
                    taken.append(used_us)
    return Figure(
        f"client CPU of a single blocking enqueue over HTTP, {durability}",
        f"{statistics.median(ours):.1f} us",
        "a bare socket with the same request",
        f"{statistics.median(bare):.1f} us",
        statistics.median(our_us / bare_us for our_us, bare_us in zip(ours, bare, strict=True)),
        goal=2,
        lower_is_better=True,
    )


def _cpu_us(call: Callable[[], None], times: int) -> float:
    used_ns = time.thread_time_ns()
    for _ in range(times):
        call()
    return (time.thread_time_ns() - used_ns) / times / 1_000


async def _single_enqueues(url: str, rounds: int = 7, each: int = 60) -> Figure:
    """64 tasks of one client that enqueue one message at a time, beside one task that enqueues 64 at a time."""
    singles: list[float] = []
    batches: list[float] = []
    async with holdfast.open_async(url) as hf:
        for number in range(rounds + 1):
            q = hf.queue(f"bench{number}")
            loads = (_concurrently, _in_batches)
            took = [await load(q, each) for load in (loads if number % 2 else reversed(loads))]
            single_s, batch_s = took if number % 2 else reversed(took)
            if number:  # the first warms up
                singles.append(single_s)
                batches.append(batch_s)
    messages = CALLERS * each
    single_s, batch_s = statistics.median(singles), statistics.median(batches)
    return Figure(
        f"one HTTP client, {CALLERS} concurrent enqueues of single messages, OS-buffered",
        f"{messages / single_s:,.0f} msg/s",
        f"the same client, batches of {CALLERS}",
        f"{messages / batch_s:,.0f} msg/s",
        batch_s / single_s,
        goal=0.5,
    )


class _Cost(NamedTuple):
    """The cost of one call in microseconds."""

    wall_us: float
    client_us: float
    server_us: float


async def _calls_in_flight(
    framed_url: str, http_url: str, server_pid: int, rounds: int = 7, each: int = 100
) -> list[Figure]:
    """64 tasks that each make one call after the other, of two messages, which share no request."""
    over_frames: list[_Cost] = []
    over_http: list[_Cost] = []
    calls = CALLERS * each
    async with holdfast.open_async(framed_url) as framed, holdfast.open_async(http_url) as http:
        for number in range(rounds + 1):
            sides = [(framed, over_frames), (http, over_http)]
            for hf, costs in sides if number % 2 else reversed(sides):
                used_s, server_s = time.process_time(), cpu_seconds([server_pid])
                took_s = await _concurrently(hf.queue(f"flight{number}"), each, [PAYLOAD] * 2)
                spent_s = took_s, time.process_time() - used_s, cpu_seconds([server_pid]) - server_s
                if number:  # the first warms up
                    costs.append(_Cost(*(seconds / calls * 1e6 for seconds in spent_s)))
    ours, theirs = (
        _Cost(*(statistics.median(each) for each in zip(*costs, strict=True))) for costs in (over_frames, over_http)
    )
    what = f"framed, {CALLERS} calls in flight, OS-buffered"
    return [
        Figure(
            what,
            f"{1e6 / ours.wall_us:,.0f} calls/s",
            "HTTP, the same calls",
            f"{1e6 / theirs.wall_us:,.0f} calls/s",
            theirs.wall_us / ours.wall_us,
            goal=3.0,
        ),
        Figure(
            f"{what}, by CPU of client and server",
            f"{ours.client_us:.0f} + {ours.server_us:.0f} us a call",
            "HTTP, the same calls",
            f"{theirs.client_us:.0f} + {theirs.server_us:.0f} us",
            (theirs.client_us + theirs.server_us) / (ours.client_us + ours.server_us),
            goal=3.0,
        ),
    ]


async def _concurrently(q: AsyncQueue, each: int, payload: Any = PAYLOAD) -> float:
    async def enqueue() -> None:
        for _ in range(each):
            await q.enqueue(payload)

    started = time.perf_counter()
    await asyncio.gather(*(enqueue() for _ in range(CALLERS)))
    return time.perf_counter() - started


async def _in_batches(q: AsyncQueue, each: int) -> float:
    started = time.perf_counter()
    for _ in range(each):
        await q.enqueue([PAYLOAD] * CALLERS)
    return time.perf_counter() - started
