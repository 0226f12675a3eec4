"""The Cap'n Proto door beside the HTTP one, in the same server: 64 callers that add batches of 10."""

import asyncio
import json
import socket
import statistics
import struct
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import capnp
import uvloop

import holdfast
from bench.embedded.raw import scratch
from bench.http.load import repeat, request, run
from bench.http.servers import free_port, holdfast_server
from bench.report import Figure
from holdfast.wire.capnp.frames import Frames
from holdfast.wire.capnp.schema import SCHEMA

CALLERS = 64
BATCH = 10
PAYLOAD = b"x" * 256

_HERE = Path(capnp.__file__).parent
_RPC: Any = capnp.load(str(_HERE / "rpc.capnp"), imports=[str(_HERE.parent)])
# Stands for the number of a question in a template.
_QUESTION = 0x5A5B5C5D


# Until the server's second door is open.
_PATIENCE_S = 30


def measure(each: int = 20, rounds: int = 7) -> Iterator[Figure]:
    """Run `rounds` in which every caller adds `each` batches over either door, after a first one as a warm-up."""
    with scratch() as path:
        port = free_port()
        with holdfast_server(path / "data", "--durability", "os", "--capnp-port", str(port)) as http_port:
            _wait_for(port)
            yield from _doors(port, http_port, each, rounds)
            yield asyncio.run(_clients(port, http_port, each // 2, rounds))


def _doors(port: int, http_port: int, each: int, rounds: int) -> Iterator[Figure]:
    """By hand on both sides, so that the server is what is measured: one connection for each caller.

    The rate is that of a run with nothing else on the machine. What the server's process used of the processor for it
    says the same on a machine that is busy.
    """
    message = {"payload_base64": "eHh4" * 85 + "eA=="}
    body = json.dumps({"queue": "http", "messages": [message] * BATCH}).encode()
    over_capnp: list[_Cost] = []
    over_http: list[_Cost] = []

    def add_over_capnp() -> _Cost:
        return _cost(http_port, lambda: _add(port, each))

    def add_over_http() -> _Cost:
        enqueue = request("/v1/queue/enqueue", body)
        return _cost(http_port, lambda: run(http_port, [repeat(enqueue, each) for _ in range(CALLERS)]))

    for number in range(rounds + 1):
        sides = [(add_over_capnp, over_capnp), (add_over_http, over_http)]
        for load, costs in sides if number % 2 else reversed(sides):
            cost = load()
            if number:  # the first warms up
                costs.append(cost)
    yield _figure(
        "Cap'n Proto door", "the HTTP door", each, [c.took_s for c in over_capnp], [c.took_s for c in over_http]
    )
    capnp_us, http_us = (statistics.median(c.cpu_s for c in costs) * 1e6 for costs in (over_capnp, over_http))
    calls = CALLERS * each
    yield Figure(
        "Cap'n Proto door, the same, of the server's processor",
        f"{capnp_us / calls:,.0f} us a call",
        "the HTTP door, the same",
        f"{http_us / calls:,.0f} us a call",
        http_us / capnp_us,
        goal=1,
    )


async def _clients(port: int, http_port: int, each: int, rounds: int) -> Figure:
    """The same with the Python client, whose work is in it: one client for all callers."""
    over_capnp: list[float] = []
    over_http: list[float] = []
    async with (
        holdfast.open_async(f"capnp://127.0.0.1:{port}") as first,
        holdfast.open_async(f"http://127.0.0.1:{http_port}") as second,
    ):
        for number in range(rounds + 1):
            sides = [(first, over_capnp), (second, over_http)]
            for hf, times in sides if number % 2 else reversed(sides):
                queue = hf.queue("clients")

                async def add(queue: Any = queue) -> None:
                    for _ in range(each):
                        await queue.enqueue([PAYLOAD] * BATCH)

                started = time.perf_counter()
                await asyncio.gather(*(add() for _ in range(CALLERS)))
                if number:
                    times.append(time.perf_counter() - started)
    return _figure("Cap'n Proto client", "the HTTP client", each, over_capnp, over_http)


def _figure(ours: str, other: str, each: int, over_capnp: list[float], over_http: list[float]) -> Figure:
    messages = CALLERS * each * BATCH
    capnp_s, http_s = statistics.median(over_capnp), statistics.median(over_http)
    return Figure(
        f"{ours}, {CALLERS} callers adding batches of {BATCH}, OS-buffered",
        f"{messages / capnp_s:,.0f} msg/s",
        f"{other}, the same",
        f"{messages / http_s:,.0f} msg/s",
        http_s / capnp_s,
        goal=1,
    )


class _Cost(NamedTuple):
    took_s: float
    # Of the server's process.
    cpu_s: float


def _cost(http_port: int, load: Callable[[], Coroutine[Any, Any, None]]) -> _Cost:
    used_s, started = _cpu_s(http_port), time.perf_counter()
    uvloop.run(load())
    return _Cost(time.perf_counter() - started, _cpu_s(http_port) - used_s)


def _cpu_s(http_port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics") as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("process_cpu_seconds_total "))


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


async def _add(port: int, each: int) -> None:
    loop = asyncio.get_running_loop()
    callers = [await loop.create_connection(lambda: _Caller(each), "127.0.0.1", port) for _ in range(CALLERS)]
    await asyncio.gather(*(caller.done for _, caller in callers))


class _Caller(asyncio.Protocol):
    """Adds, and lets go of each answer, as any client does."""

    def __init__(self, each: int) -> None:
        self._left = each
        self._question = 0
        self._frames = Frames(1 << 20)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(_bootstrap())

    def data_received(self, data: bytes) -> None:
        if not self._frames.take(data):
            return
        if not self._left:
            self.done.set_result(None)
            self._transport.close()
            return
        self._left -= 1
        finish = b"" if not self._question else _FINISH(self._question)
        self._question += 1
        self._transport.write(finish + _ADD(self._question))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))


class _Template:
    """A message with a place for the number of its question."""

    def __init__(self, raw: bytes) -> None:
        self._before, self._after = raw.split(struct.pack("<I", _QUESTION))

    def __call__(self, question: int) -> bytes:
        return self._before + struct.pack("<I", question) + self._after


def _bootstrap() -> bytes:
    message = _RPC.Message.new_message()
    message.init("bootstrap").questionId = 0
    return bytes(message.to_bytes())


def _finish() -> bytes:
    message = _RPC.Message.new_message()
    message.init("finish").questionId = _QUESTION
    return bytes(message.to_bytes())


def _add_call() -> bytes:
    message = _RPC.Message.new_message()
    call = message.init("call")
    call.questionId = _QUESTION
    call.target.init("promisedAnswer").questionId = 0
    call.interfaceId = SCHEMA.Queues.schema.node.id
    call.methodId = 0
    add = call.params.content.as_struct(SCHEMA.Add)
    add.init("ref").queue = "capnp"
    add.items = [PAYLOAD] * BATCH
    return bytes(message.to_bytes())


_FINISH = _Template(_finish())
_ADD = _Template(_add_call())


if __name__ == "__main__":
    for figure in measure():
        print(figure.row(), flush=True)
