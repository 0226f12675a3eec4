"""The HTTP door: its rate beside a bare echo and beside the embedded queue, and how soon a waiting claim wakes."""

import asyncio
import json
import re
import statistics
import time
from collections.abc import Iterator

import uvloop

import holdfast
from bench.embedded.raw import scratch
from bench.http.load import Script, repeat, request, run
from bench.http.servers import echo_process, holdfast_process, holdfast_server
from bench.peers.processes import cpu_seconds
from bench.report import Figure

CONNECTIONS = 64
BATCH = 100
PAYLOAD = "x" * 256
_RECEIPT = re.compile(rb'"receipt":"([^"]+)"')


def measure() -> Iterator[Figure]:
    yield single_messages()
    yield batches()
    yield from wake_ups()


def single_messages(per_connection: int = 100, rounds: int = 7) -> Figure:
    """Lifecycles of single messages: an enqueue, a dequeue and an ack each, beside an echo of the same bodies."""
    requests = 3 * CONNECTIONS * per_connection
    # Seconds, and seconds of the server's processor time.
    ours: list[tuple[float, float]] = []
    echoes: list[tuple[float, float]] = []
    with scratch() as path, holdfast_process(path / "data", "--durability", "os") as server, echo_process() as echo:

        def measured(is_echo: bool) -> tuple[float, float]:
            process = echo if is_echo else server
            used_s = cpu_seconds([process.pid])
            took_s = uvloop.run(lifecycles(server.port, per_connection, echo_port=echo.port if is_echo else None))
            return took_s, cpu_seconds([process.pid]) - used_s

        for number in range(rounds + 1):
            for is_echo in (False, True) if number % 2 else (True, False):
                figures = measured(is_echo)
                if number:  # the first warms up
                    (echoes if is_echo else ours).append(figures)

    def shown(measurements: list[tuple[float, float]]) -> str:
        took_s, used_s = (statistics.median(each) for each in zip(*measurements, strict=True))
        return f"{requests / took_s:,.0f} requests/s, {used_s / requests * 1e6:.1f} us CPU"

    return Figure(
        "HTTP, 64 connections of single messages, OS-buffered",
        shown(ours),
        "a bare ASGI echo of the same bodies",
        shown(echoes),
        statistics.median(echo_s / our_s for (our_s, _), (echo_s, _) in zip(ours, echoes, strict=True)),
        goal=0.8,
    )


async def lifecycles(port: int, per_connection: int, *, echo_port: int | None, queues: int = 1) -> float:
    """Seconds for all three phases; with `echo_port` the same bodies go to the echo instead.

    Connections take turns over the queues.
    """
    enqueue, dequeue = _enqueue("bench"), _dequeue("bench")
    names = ["bench" if queues == 1 else f"bench-{number}" for number in range(queues)]
    places = [names[number % queues] for number in range(CONNECTIONS)]
    receipts_of: dict[str, list[bytes]] = {name: [] for name in names}

    def claims(name: str) -> Script:
        left = iter([request("/v1/queue/dequeue", _dequeue(name))] * per_connection)
        receipts = receipts_of[name]

        def following(answer: bytes | None) -> bytes | None:
            if answer is not None:
                found = _RECEIPT.search(answer)
                assert found is not None, answer
                receipts.append(found[1])
            return next(left, None)

        return following

    def acks(name: str) -> Script:
        left, receipts = iter(range(per_connection)), receipts_of[name]
        return lambda answer: (
            None
            if next(left, None) is None
            else request("/v1/queue/ack", b'{"queue":"%b","receipts":["%b"]}' % (name.encode(), receipts.pop()))
        )

    if echo_port is not None:
        receipts_of["bench"] += [b"x" * 54] * (CONNECTIONS * per_connection)
        scripts = [
            [repeat(request("/echo", enqueue), per_connection) for _ in range(CONNECTIONS)],
            [repeat(request("/echo", dequeue), per_connection) for _ in range(CONNECTIONS)],
            [acks("bench") for _ in range(CONNECTIONS)],
        ]
        port = echo_port
    else:
        scripts = [
            [repeat(request("/v1/queue/enqueue", _enqueue(name)), per_connection) for name in places],
            [claims(name) for name in places],
            [acks(name) for name in places],
        ]
    started = time.perf_counter()
    for phase in scripts:
        await run(port, phase)
    return time.perf_counter() - started


def _enqueue(queue: str) -> bytes:
    return json.dumps({"queue": queue, "messages": [{"payload": PAYLOAD}]}).encode()


def _dequeue(queue: str) -> bytes:
    return json.dumps({"queue": queue, "lease_ms": 600_000}).encode()


def batches(messages: int = 10_000, rounds: int = 5) -> Figure:
    """One connection, batches of 100, beside the same lifecycle embedded."""
    over_http: list[float] = []
    embedded: list[float] = []
    with scratch() as path, holdfast_server(path / "served", "--durability", "os") as port:
        for number in range(rounds + 1):
            http_s = uvloop.run(_batch_lifecycle(port, messages // BATCH))
            embedded_s = uvloop.run(_embedded_lifecycle(str(path / f"embedded{number}"), messages // BATCH))
            if number:
                over_http.append(http_s)
                embedded.append(embedded_s)
    http_s, embedded_s = statistics.median(over_http), statistics.median(embedded)
    return Figure(
        "HTTP lifecycle, one connection, batches of 100, OS-buffered",
        f"{messages / http_s:,.0f} msg/s",
        "the same embedded",
        f"{messages / embedded_s:,.0f} msg/s",
        embedded_s / http_s,
        goal=0.5,
    )


async def _batch_lifecycle(port: int, batches: int) -> float:
    body = json.dumps({"queue": "bench", "messages": [{"payload": PAYLOAD}] * BATCH}).encode()
    enqueue = request("/v1/queue/enqueue", body)
    dequeue = request("/v1/queue/dequeue", b'{"queue":"bench","limit":%d,"lease_ms":600000}' % BATCH)
    phase = 0

    def script(answer: bytes | None) -> bytes | None:
        nonlocal phase
        phase += 1
        if phase > 3 * batches:
            return None
        if phase % 3 == 1:
            return enqueue
        if phase % 3 == 2:
            return dequeue
        assert answer is not None
        receipts = b",".join(b'"%b"' % receipt for receipt in _RECEIPT.findall(answer))
        return request("/v1/queue/ack", b'{"queue":"bench","receipts":[%b]}' % receipts)

    started = time.perf_counter()
    await run(port, [script])
    return time.perf_counter() - started


async def _embedded_lifecycle(directory: str, batches: int) -> float:
    async with holdfast.open_async(directory, durability="os") as hf:
        queue = hf.queue("bench")
        started = time.perf_counter()
        for _ in range(batches):
            await queue.enqueue([PAYLOAD] * BATCH)
            await queue.ack(await queue.claim(limit=BATCH, lease=600))
        return time.perf_counter() - started


# --- How soon a waiting claim wakes ---------------------------------------------------------------------------


def wake_ups(rounds: int = 40) -> Iterator[Figure]:
    with scratch() as path, holdfast_server(path / "data", "--durability", "fsync") as port:
        fsync_ms = uvloop.run(_enqueue_alone(port, rounds))
        for what, wake in (
            ("an enqueue", _on_enqueue),
            ("a delay coming due", _on_delay),
            ("a lease's end", _on_expiry),
        ):
            latencies = uvloop.run(wake(port, rounds))
            p50 = statistics.median(latencies)
            yield Figure(
                f"HTTP with fsync: a waiting claim answers after {what} (p50)",
                f"{p50:.2f} ms",
                "an enqueue and its answer alone",
                f"{fsync_ms:.2f} ms",
                p50,
                goal=5,
                lower_is_better=True,
            )


class Client:
    """One connection, one call at a time."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._writer.close()

    async def post(self, operation: str, **body: object) -> dict[str, list[dict[str, str]]]:
        self._writer.write(request(f"/v1/queue/{operation}", json.dumps(body).encode()))
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        found = re.search(rb"content-length: (\d+)", head)
        assert b" 200 " in head, head
        assert found is not None, head
        answer: dict[str, list[dict[str, str]]] = json.loads(await self._reader.readexactly(int(found[1])))
        return answer


async def _enqueue_alone(port: int, rounds: int) -> float:
    async with Client(port) as client:
        took = []
        for _ in range(rounds):
            started = time.perf_counter()
            await client.post("enqueue", queue="alone", messages=[{"payload": PAYLOAD}])
            took.append((time.perf_counter() - started) * 1_000)
        return statistics.median(took)


async def _on_enqueue(port: int, rounds: int) -> list[float]:
    """From sending the enqueue to the waiting claim's answer."""
    latencies = []
    async with Client(port) as producer, Client(port) as consumer:
        for _ in range(rounds):
            claim = asyncio.ensure_future(consumer.post("dequeue", queue="woken", wait_ms=10_000))
            await asyncio.sleep(0.02)
            started = time.perf_counter()
            enqueue = asyncio.ensure_future(producer.post("enqueue", queue="woken", messages=[{"payload": PAYLOAD}]))
            [message] = (await claim)["messages"]
            latencies.append((time.perf_counter() - started) * 1_000)
            await enqueue
            await consumer.post("ack", queue="woken", receipts=[message["receipt"]])
    return latencies


async def _on_delay(port: int, rounds: int) -> list[float]:
    """Return the time since the delay ended, by this machine's clock."""
    latencies = []
    async with Client(port) as producer, Client(port) as consumer:
        for _ in range(rounds):
            due_at = int(time.time() * 1_000) + 100
            await producer.post("enqueue", queue="due", messages=[{"payload": PAYLOAD, "deliver_at": due_at}])
            [message] = (await consumer.post("dequeue", queue="due", wait_ms=10_000))["messages"]
            latencies.append(time.time() * 1_000 - due_at)
            await consumer.post("ack", queue="due", receipts=[message["receipt"]])
    return latencies


async def _on_expiry(port: int, rounds: int) -> list[float]:
    latencies = []
    async with Client(port) as first, Client(port) as second:
        for _ in range(rounds):
            await first.post("enqueue", queue="expiring", messages=[{"payload": PAYLOAD}])
            [held] = (await first.post("dequeue", queue="expiring", lease_ms=100))["messages"]
            [message] = (await second.post("dequeue", queue="expiring", wait_ms=10_000))["messages"]
            latencies.append(time.time() * 1_000 - float(held["lease_expires_at"]))
            await second.post("ack", queue="expiring", receipts=[message["receipt"]])
    return latencies
