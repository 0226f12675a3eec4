"""`holdfast serve --processes N`: real processes, on one set of ports."""

import asyncio
import json
import os
import signal
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.model.errors import InvalidArgument
from holdfast.server.processes.door_process import DoorStart
from holdfast.server.processes.link import LinkAddress
from holdfast.server.processes.supervisor import DoorProcess
from holdfast.server.settings import Settings
from tests.server.served import END_S, Caller, Served, urls_in
from tests.waiting import until as eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")

BODY = json.dumps({"queue": "q", "messages": [{"payload": "late"}]}).encode()


def serve(data: Path, *arguments: str) -> Served:
    return Served("--data", data, "--processes", "2", *arguments)


def http_url(server: Served) -> str:
    return urls_in(server.line)["url"]


def door_processes(server: Served) -> list[int]:
    """Return the process ids of the door processes that run now."""
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    children = [pid for task in tasks for pid in (task / "children").read_text().split()]
    return sorted(int(pid) for pid in children if b"door_process" in Path(f"/proc/{pid}/cmdline").read_bytes())


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def make_queues(server: Served, *names: str) -> None:
    async with holdfast.open_async(http_url(server)) as hf:
        for name in names:
            await hf.queue(name).set_policy(max_retries=3)


def metrics(server: Served) -> dict[str, float]:
    with urllib.request.urlopen(http_url(server) + "/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


async def connect_to(server: Served, pid: int) -> Caller:
    """Return a connection that this door process has accepted: the system spreads them over both."""
    for _ in range(200):
        caller = await server.connect()
        await ask_health(caller)
        local = caller.writer.get_extra_info("sockname")[1]
        if owns_connection(pid, local):
            return caller
    raise AssertionError(f"process {pid} takes no connections")


async def ask_health(caller: Caller) -> None:
    caller.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await caller.answer()).status == 200


def owns_connection(pid: int, port: int) -> bool:
    """Return whether a socket of the process is connected to this port of the loopback."""
    inodes = {
        columns[9]
        for columns in (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        if columns[2].endswith(f":{port:04X}")
    }
    held = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}
    return any(f"socket:[{inode}]" in held for inode in inodes)


async def call(caller: Caller, path: str, document: object) -> Any:
    caller.send(path, document)
    answer = await caller.answer()
    assert answer.status == 200, answer
    return answer.json


async def test_every_door_of_every_process_serves_one_store(tmp_path: Path) -> None:
    with serve(tmp_path / "store", "--framed-port", "0", "--capnp-port", "0") as server:
        assert len(door_processes(server)) == 2
        urls = urls_in(server.line)
        assert set(urls) == {"url", "framed_url", "capnp_url"}
        for number in range(6):
            for url in urls.values():
                async with holdfast.open_async(url) as hf:
                    await hf.queue("jobs").enqueue(f"{number} by {url}")
        async with holdfast.open_async(http_url(server)) as hf:
            messages = await hf.queue("jobs").claim(100)
        assert len({message.payload for message in messages}) == 18
        server.signal()
        assert await asyncio.to_thread(server.end) == 0, server.log
    assert "Traceback" not in server.log


async def test_a_lease_and_a_waiting_claim_cross_the_processes(tmp_path: Path) -> None:
    with serve(tmp_path / "store") as server:
        await make_queues(server, "q")
        first, second = [await connect_to(server, pid) for pid in door_processes(server)]
        first.send("/v1/queue/dequeue", {"queue": "q", "wait_ms": 60_000})
        await eventually(lambda: metrics(server).get('holdfast_queue_waiters{tenant="default",queue="q"}') == 1)
        await call(second, "/v1/queue/enqueue", {"queue": "q", "messages": [{"payload": "x"}]})
        [message] = (await first.answer()).json["messages"]
        settled = await call(second, "/v1/queue/ack", {"queue": "q", "receipts": [message["receipt"]]})
        assert settled["results"][0]["ok"]


@pytest.mark.spec("8.9")
async def test_quotas_are_exact_over_all_processes(tmp_path: Path) -> None:
    with serve(tmp_path / "store") as server:
        async with holdfast.open_async(http_url(server)) as hf:
            await hf.tenant("default").set(quotas={"max_messages": 50})
        callers = [await connect_to(server, pid) for pid in door_processes(server) * 4]

        async def enqueue(caller: Caller) -> int:
            taken = 0
            for _ in range(20):
                caller.send("/v1/queue/enqueue", {"queue": "q", "messages": [{"payload": "x"}]})
                taken += (await caller.answer()).status == 200
            return taken

        assert sum(await asyncio.gather(*map(enqueue, callers))) == 50


async def test_metrics_count_the_calls_of_all_processes(tmp_path: Path) -> None:
    with serve(tmp_path / "store") as server:
        for pid in door_processes(server):
            caller = await connect_to(server, pid)
            for _ in range(3):
                await call(caller, "/v1/queue/enqueue", {"queue": "q", "messages": [{"payload": "x"}]})
        name = 'holdfast_requests_total{operation="enqueue",outcome="ok",tenant="default",queue="q"}'
        await eventually(lambda: metrics(server).get(name) == 6)
        found = metrics(server)
        assert found["holdfast_door_processes"] == 2
        assert all(found[f'holdfast_door_process_cpu_seconds_total{{process="{number}"}}'] > 0 for number in (1, 2))


async def test_a_killed_door_process_is_replaced_and_loses_nothing(tmp_path: Path) -> None:
    with serve(tmp_path / "store") as server:
        await make_queues(server, "waits")
        killed, other = door_processes(server)
        doomed, safe = await connect_to(server, killed), await connect_to(server, other)
        await call(doomed, "/v1/queue/enqueue", {"queue": "q", "messages": [{"payload": "x"}, {"payload": "y"}]})
        claimed = await call(doomed, "/v1/queue/dequeue", {"queue": "q", "lease_ms": 600_000})
        doomed.send("/v1/queue/dequeue", {"queue": "waits", "wait_ms": 60_000})
        waiters = 'holdfast_queue_waiters{tenant="default",queue="waits"}'
        await eventually(lambda: metrics(server).get(waiters) == 1)

        os.kill(killed, signal.SIGKILL)
        await eventually(lambda: len(door_processes(server)) == 2 and killed not in door_processes(server))
        await eventually(lambda: metrics(server).get(waiters) == 0)

        # Its claim still holds, and can be settled through the other process.
        [message] = claimed["messages"]
        settled = await call(safe, "/v1/queue/ack", {"queue": "q", "receipts": [message["receipt"]]})
        assert settled["results"][0]["ok"]
        assert len((await call(safe, "/v1/queue/dequeue", {"queue": "q"}))["messages"]) == 1
        # What was enqueued for the claim that is gone is held by nobody.
        await call(safe, "/v1/queue/enqueue", {"queue": "waits", "messages": [{"payload": "z"}]})
        assert len((await call(safe, "/v1/queue/dequeue", {"queue": "waits"}))["messages"]) == 1
        assert metrics(server)["holdfast_door_process_ends_total"] == 1
        for pid in door_processes(server):
            await ask_health(await connect_to(server, pid))
        server.signal()
        assert await asyncio.to_thread(server.end) == 0, server.log
    assert "door_process_ended" in server.log


async def test_a_door_process_that_gets_sigterm_finishes_its_calls_and_is_replaced(tmp_path: Path) -> None:
    with serve(tmp_path / "store") as server:
        await make_queues(server, "waits")
        [stopped, _] = door_processes(server)
        caller = await connect_to(server, stopped)
        caller.send("/v1/queue/dequeue", {"queue": "waits", "wait_ms": 60_000})
        waiters = 'holdfast_queue_waiters{tenant="default",queue="waits"}'
        await eventually(lambda: metrics(server).get(waiters) == 1)
        os.kill(stopped, signal.SIGTERM)
        assert (await caller.answer()).json["messages"] == []
        await eventually(lambda: len(door_processes(server)) == 2 and stopped not in door_processes(server))


async def test_a_killed_store_process_takes_its_door_processes_with_it(tmp_path: Path) -> None:
    data = tmp_path / "store"
    with serve(data) as server:
        doors = door_processes(server)
        port = server.port
        async with holdfast.open_async(http_url(server)) as hf:
            for payload in (b"acked", b"kept"):
                await hf.queue("q").enqueue(payload)
            acked, _ = await hf.queue("q").claim(2, lease="10m")
            await acked.ack()
        server.process.kill()
        await eventually(lambda: not any(map(is_running, doors)))
    with serve(data, "--port", str(port)) as server:
        async with holdfast.open_async(http_url(server)) as hf:
            stats = await hf.queue("q").stats()
            assert (stats.ready, stats.in_flight) == (0, 1)


@pytest.mark.spec("5.7")
async def test_a_drain_ends_waits_and_finishes_calls_in_every_process(tmp_path: Path) -> None:
    with serve(tmp_path / "store") as server:
        await make_queues(server, "waits")
        waiting, sending = [], []
        for pid in door_processes(server):
            caller = await connect_to(server, pid)
            caller.send("/v1/queue/dequeue", {"queue": "waits", "wait_ms": 60_000})
            waiting.append(caller)
            caller = await connect_to(server, pid)
            caller.send_head("/v1/queue/enqueue", len(BODY))
            caller.writer.write(BODY[:10])
            await caller.writer.drain()
            sending.append(caller)
            await ask_health(await connect_to(server, pid))
        waiters = 'holdfast_queue_waiters{tenant="default",queue="waits"}'
        await eventually(lambda: metrics(server).get(waiters) == 2)
        # As a terminal's Ctrl-C does, to every process of the server.
        for pid in [*door_processes(server), server.process.pid]:
            os.kill(pid, signal.SIGINT)
        for caller in waiting:
            assert (await caller.answer()).json["messages"] == []
        for caller in sending:
            caller.writer.write(BODY[10:])
            assert len((await caller.answer()).json["messages"]) == 1
        assert await asyncio.to_thread(server.end) == 0, server.log
    assert "Traceback" not in server.log


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_port_of_another_server_is_refused(tmp_path: Path, processes: str) -> None:
    with Served("--data", tmp_path / "first", "--processes", processes) as first:
        for arguments in (["--port", str(first.port)], ["--framed-port", str(first.port)]):
            with pytest.raises(AssertionError, match=f"port {first.port} .*in use.*{arguments[0]}"):
                serve(tmp_path / "second", *arguments).__enter__()
    assert not (tmp_path / "second").exists()


async def test_the_ports_are_free_again_after_the_end(tmp_path: Path) -> None:
    with serve(tmp_path / "store", "--framed-port", "0") as server:
        ports = [int(url.rsplit(":", 1)[1]) for url in urls_in(server.line).values()]
        server.signal()
        assert await asyncio.to_thread(server.end) == 0, server.log
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


async def test_a_door_process_that_cannot_start_gives_its_reason(tmp_path: Path) -> None:
    settings = Settings(port=0, tls_cert=str(tmp_path / "missing.pem"))
    link = LinkAddress(path=str(tmp_path / "store"), secret="secret")
    process = DoorProcess(1)
    with pytest.raises(InvalidArgument, match=r"tls_cert .*missing.pem.* cannot be read"):
        await process.start(DoorStart(number=1, settings=settings, link=link, log_format="json"))
    assert await process.end_within(END_S) == 1


async def test_large_payloads_pass_through_a_door_process(tmp_path: Path) -> None:
    payload = os.urandom(9 << 20)
    with serve(tmp_path / "store", "--framed-port", "0", "--max-payload", "16MiB") as server:
        for url in urls_in(server.line).values():
            async with holdfast.open_async(url) as hf:
                await hf.queue("q").upload([payload])
                [message] = await hf.queue("q").claim()
                assert message.payload == payload
                await message.ack()
