"""A server that stops: new calls are refused, waiting claims answered, calls in hand finished, nothing lost."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdfast
from tests.server.served import Caller, Served, urls_in

BODY = json.dumps({"queue": "q", "messages": [{"payload": "late"}]}).encode()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "store"


async def begin_call(server: Served) -> Caller:
    """A call that is in hand until its body has come."""
    caller = await server.connect()
    caller.send_head("/v1/queue/enqueue", len(BODY))
    caller.writer.write(BODY[:10])
    await caller.writer.drain()
    # Another connection's answer comes after the server has read this one's head.
    await server.call("/v1/queue/enqueue", {"messages": []})
    return caller


async def finish_call(caller: Caller) -> list[str]:
    caller.writer.write(BODY[10:])
    answer = await caller.answer()
    assert answer.status == 200
    assert answer.headers["connection"] == "close"
    return [each["id"] for each in answer.json["messages"]]


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_server_stops_at_once_and_in_order(data: Path, which: signal.Signals) -> None:
    with Served("--data", data) as server:
        assert urls_in(server.line) == {"url": f"http://127.0.0.1:{server.port}"}
        assert (await server.get("/readyz")).status == 200
        told_at = time.monotonic()
        server.signal(which)

        assert await asyncio.to_thread(server.end) == 0, server.log
        assert time.monotonic() - told_at < 10
    lines = [json.loads(line) for line in server.log.splitlines()]
    serving = next(line for line in lines if line["event"] == "serving")
    assert serving["address"] == server.url
    assert (serving["store"], serving["durability"], serving["identities"]) == (str(data), "fsync", "none")
    assert serving["pid"] == server.process.pid
    assert "loopback only" in server.log
    assert "Traceback" not in server.log


@pytest.mark.spec("5.7")
async def test_what_is_in_hand_is_finished_and_what_is_new_is_refused(data: Path) -> None:
    with Served("--data", data, "--durability", "os") as server:
        idle = await server.connect()
        caller = await begin_call(server)
        server.signal()
        refused = await server.until_refused()
        unready = await server.get("/readyz")
        idle.send("/v1/queue/dequeue", {"queue": "q"})
        refused_too = await idle.answer()
        [id] = await finish_call(caller)

        assert await asyncio.to_thread(server.end) == 0, server.log
    for answer in (refused, refused_too):
        assert answer.json["error"]["code"] == "store_unavailable"
    for answer in (refused, refused_too, unready):
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert "close" in answer.headers["connection"]
    with holdfast.open(str(data)) as hf:
        assert [each.id for each in hf.queue("q").peek(10)] == [id]


async def test_waiting_claims_are_answered_at_once(data: Path) -> None:
    with Served("--data", data, "--durability", "os") as server:
        await server.call("/v1/queue/enqueue", {"queue": "full", "messages": [{"payload": 1}, {"payload": 2}]})
        claim, subscriber, full = [await server.connect() for _ in range(3)]
        claim.send("/v1/queue/dequeue", {"queue": "empty", "wait_ms": None})
        subscriber.send("/v1/queue/subscribe", {"queue": "empty", "wait_ms": None})
        full.send("/v1/queue/subscribe", {"queue": "full", "prefetch": 1, "wait_ms": None})
        await subscriber.head()
        await full.head()
        await full.reader.readuntil(b"\n")  # the first delivery: there is no room for the second
        told_at = time.monotonic()
        server.signal()

        answer = await claim.answer()
        assert (answer.status, answer.json) == (200, {"messages": []})
        assert (await subscriber.rest()).endswith(b"0\r\n\r\n")
        assert (await full.rest()).endswith(b"0\r\n\r\n")
        assert await asyncio.to_thread(server.end) == 0, server.log
        assert time.monotonic() - told_at < 10


@pytest.mark.spec("5.7")
async def test_past_its_grace_a_server_cuts_off_what_is_left_and_names_it(data: Path) -> None:
    with Served("--data", data, "--shutdown-grace", "300ms") as server:
        kept = await server.call("/v1/queue/enqueue", {"queue": "q", "messages": [{"payload": "early"}]})
        await begin_call(server)
        server.signal()

        assert await asyncio.to_thread(server.end) == 1
    assert "calls_cut_off grace_s=0.3" in server.log
    assert "1 POST /v1/queue/enqueue" in server.log
    assert "server_stopped" in server.log
    assert "Traceback" not in server.log
    with holdfast.open(str(data)) as hf:
        assert [each.id for each in hf.queue("q").peek(10)] == [kept.json["messages"][0]["id"]]


async def test_a_caller_that_does_not_read_its_answer_does_not_hold_the_server_for_ever(data: Path) -> None:
    with Served("--data", data, "--shutdown-grace", "500ms", "--max-payload", "16MiB", "--durability", "os") as server:
        big = {"queue": "q", "messages": [{"payload": "x" * (8 << 20)}]}
        for _ in range(2):
            assert (await server.call("/v1/queue/enqueue", big)).status == 200
        caller = await server.connect()
        caller.writer.transport.pause_reading()
        caller.send("/v1/queue/dequeue", {"queue": "q", "limit": 2})
        await caller.writer.drain()
        await server.call("/v1/queue/enqueue", {"messages": []})
        server.signal()

        assert await asyncio.to_thread(server.end) == 1
    assert "responses_not_read" in server.log or "calls_cut_off" in server.log


@pytest.mark.parametrize(("which", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_second_signal_ends_it_at_once_and_loses_nothing(data: Path, which: signal.Signals, code: int) -> None:
    with Served("--data", data) as server:
        kept = await server.call("/v1/queue/enqueue", {"queue": "q", "messages": [{"payload": "early"}]})
        await begin_call(server)
        server.signal()
        await server.until_refused()
        server.signal(which)

        assert await asyncio.to_thread(server.end) == code
    with holdfast.open(str(data)) as hf:
        assert [each.id for each in hf.queue("q").peek(10)] == [kept.json["messages"][0]["id"]]


@pytest.mark.spec("5.7")
@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_stopped_in_the_middle_of_load_it_loses_nothing_that_was_acknowledged(
    data: Path, durability: str
) -> None:
    enqueued: set[str] = set()
    acked: set[str] = set()
    unknown: set[str] = set()  # acks that were asked for and never answered
    refusals: list[int] = []
    under_way = asyncio.Event()

    async def produce(server: Served, number: int) -> None:
        caller = await server.connect()
        for n in range(100_000):
            caller.send("/v1/queue/enqueue", {"queue": "q", "messages": [{"payload": [number, n]}] * 3})
            answer = await caller.answer()
            if answer.status != 200:
                refusals.append(answer.status)
                return
            enqueued.update(each["id"] for each in answer.json["messages"])

    async def consume(server: Served) -> None:
        caller = await server.connect()
        while True:
            caller.send("/v1/queue/dequeue", {"queue": "q", "limit": 2, "wait_ms": 10_000, "lease_ms": 600_000})
            answer = await caller.answer()
            if answer.status != 200:
                refusals.append(answer.status)
                return
            ids = [each["id"] for each in answer.json["messages"]]
            unknown.update(ids)
            caller.send(
                "/v1/queue/ack", {"queue": "q", "receipts": [each["receipt"] for each in answer.json["messages"]]}
            )
            answer = await caller.answer()
            unknown.difference_update(ids)
            if answer.status != 200:
                refusals.append(answer.status)
                return
            acked.update(ids)
            if len(acked) >= 200:
                under_way.set()

    with Served("--data", data, "--durability", durability) as server:
        load = [asyncio.create_task(produce(server, n)) for n in range(4)]
        load += [asyncio.create_task(consume(server)) for _ in range(4)]
        await under_way.wait()
        server.signal()
        told_at = time.monotonic()
        ended = await asyncio.gather(*load, return_exceptions=True)

        assert await asyncio.to_thread(server.end) == 0, server.log
        assert time.monotonic() - told_at < 15
    # Told so, or the connection was closed in between; nothing else.
    assert set(refusals) <= {503}
    assert all(each is None or isinstance(each, asyncio.IncompleteReadError | OSError) for each in ended), ended
    with holdfast.open(str(data)) as hf:
        listed = hf.queue("q").list(limit=1_000)
        found = {each.id for each in listed}
        while listed.cursor is not None:
            listed = hf.queue("q").list(limit=1_000, cursor=listed.cursor)
            found.update(each.id for each in listed)
    assert not acked & found, "acknowledged, and there all the same"
    assert enqueued - acked - unknown <= found, "acknowledged, and nowhere"


def test_a_server_that_cannot_end_by_itself_is_ended() -> None:
    program = "from holdfast.server.ending import Watchdog; import time; Watchdog().start(0.1); time.sleep(60)"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)

    assert ran.returncode == 1
    assert "did not close in time" in ran.stderr
