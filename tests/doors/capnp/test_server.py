"""`holdfast serve --capnp-port`: both doors of one server, on its own loop, from its start to its end."""

import asyncio
import ipaddress
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jwt
import pytest
from cryptography import x509

import holdfast
from holdfast.clock import SystemClock
from tests.server.certificates import Authority
from tests.server.served import Served, urls_in

SECRET = "a secret of at least thirty-two bytes"


def serve(*arguments: str | Path, port: int = 0, **more: dict[str, str]) -> Served:
    store = () if "--data" in arguments else ("--store", "memory://")
    return Served(*store, "--capnp-port", str(port), *arguments, **more)


def http_port(server: Served) -> int:
    return int(urls_in(server.line)["url"].rpartition(":")[2])


async def test_what_comes_in_by_one_door_goes_out_by_the_other(tmp_path: Path) -> None:
    with serve("--data", tmp_path / "data") as server:
        assert server.url.startswith("capnp://127.0.0.1:")
        http = f"http://127.0.0.1:{http_port(server)}"
        async with holdfast.open_async(server.url) as hf, holdfast.open_async(http) as other:
            [id] = await hf.queue("jobs").enqueue({"n": 1}, headers={"a": "b"})
            [message] = await other.queue("jobs").claim()
            assert (message.id, message.json(), message.headers) == (id, {"n": 1}, {"a": "b"})
            await message.ack()
            assert (await hf.queue("jobs").stats()).in_flight == 0

            waiting = asyncio.create_task(hf.queue("jobs").claim(wait=None))
            while (await other.queue("jobs").stats()).waiters == 0:
                await asyncio.sleep(0.01)
            await other.queue("jobs").enqueue(b"wakes")
            [woken] = await waiting
            assert woken.payload == b"wakes"

            # Whoever waits is let go, and is told that the server closes.
            waiting = asyncio.create_task(hf.queue("jobs").claim(wait=60))
            while (await other.queue("jobs").stats()).waiters == 0:
                await asyncio.sleep(0.01)
            server.signal()
            assert await asyncio.to_thread(server.end) == 0, server.log
            waiting.cancel()
            await asyncio.wait((waiting,))
    assert "Traceback" not in server.log
    assert '"capnp_address":"capnp://127.0.0.1' in server.log.replace(": ", ":")


def test_the_blocking_api_goes_through_it_too() -> None:
    with serve() as server, holdfast.open(server.url) as hf:
        queue = hf.queue("jobs")
        queue.enqueue([b"one", b"two"])
        for message in queue.claim(limit=2):
            with message:
                assert message.payload in (b"one", b"two")
        assert queue.stats().in_flight == 0
        upload = queue.upload([b"in ", b"parts"])
        assert queue.get(upload, payload=True).payload == b"in parts"


@pytest.mark.slow
def test_commands_and_workers_take_its_url(tmp_path: Path) -> None:
    token = jwt.encode({"tenant": "acme", "scope": "read write", "exp": 1 << 33, "aud": "holdfast"}, SECRET)
    with serve(environment={"HOLDFAST_JWT_SECRET": SECRET}) as server:
        place = ["--url", server.url, "--token", token]
        command = [sys.executable, "-m", "holdfast"]
        # A variable that is a store's setting is none of a connection's.
        environment = {**os.environ, "HOLDFAST_DURABILITY": "os"}
        for arguments in (["enqueue", "jobs", "hello"], ["stats", "jobs"]):
            ran = subprocess.run(
                [*command, *arguments, *place], env=environment, capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0, ran.stderr
        worker = holdfast.Worker(server.url, token=token, clock=SystemClock())
        seen: list[str] = []

        @worker.handler("jobs", tenant="acme")
        async def handle(payload: str) -> None:
            seen.append(payload)
            worker.stop()

        worker.run()
    assert seen == ["hello"]


@pytest.mark.slow
async def test_a_client_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    with serve("--data", tmp_path / "data") as server:
        port = server.port
        async with holdfast.open_async(server.url) as hf:
            await hf.queue().enqueue("before", key="a")
            server.signal(signal.SIGKILL)
            await asyncio.to_thread(server.process.wait)
            again = asyncio.create_task(hf.queue().enqueue("after", key="b"))
            with serve("--data", tmp_path / "data", port=port) as second:
                await again
                assert (await hf.queue().stats()).ready == 2
                assert [m.json() for m in await hf.queue().claim(2)] == ["before", "after"]
                second.signal()
                assert await asyncio.to_thread(second.end) == 0, second.log


async def test_a_server_that_is_not_there_is_said_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    async with holdfast.open_async(f"capnp://127.0.0.1:{port}", retries=0) as hf:
        with pytest.raises(holdfast.StoreUnavailable, match=f"cannot reach capnp://127.0.0.1:{port}"):
            await hf.queue().stats()


@pytest.mark.parametrize(
    ("url", "settings", "said"),
    [
        ("capnp://host", {}, "has no port"),
        ("capnp://host:1/path", {}, "has a path"),
        ("capnp://host:x", {}, "is not a URL"),
        ("capnp://host:1", {"pool": 3}, "pool is only for http"),
        ("capnp://host:1", {"nonsense": 3}, "is not a setting"),
        ("capnp://host:1", {"tls_ca": "x"}, "tls_ca is only for"),
        ("capnp://me:secret@host:1", {}, "password"),
    ],
)
def test_a_url_or_a_setting_that_is_wrong_is_refused_by_name(url: str, settings: dict[str, object], said: str) -> None:
    with pytest.raises(holdfast.InvalidArgument, match=said) as refused:
        holdfast.open(url, **settings)
    assert "secret" not in str(refused.value)


@pytest.mark.spec("8.6")
async def test_identities_are_those_of_http_by_token_or_by_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("server", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    known = authority.sign("known", x509.DNSName("worker.acme"), is_client=True)
    unknown = authority.sign("unknown", x509.DNSName("worker.globex"), is_client=True)
    token = jwt.encode(
        {"tenant": "acme", "scope": "read write", "exp": 1 << 33, "aud": "holdfast", "sub": "me"}, SECRET
    )
    tls = ("--tls-cert", files.cert, "--tls-key", files.key)
    certificates = ("--tls-client-ca", authority.cert, "--mtls-tenants", "worker.acme=acme")
    with serve(*tls, *certificates, environment={"HOLDFAST_JWT_SECRET": SECRET}) as server:
        assert server.url.startswith("capnps://127.0.0.1:")
        shown = {"tls_ca": authority.cert, "retries": 0}
        by_certificate = {**shown, "tls_cert": known.cert, "tls_key": known.key}
        for given in (by_certificate, {**shown, "token": token}):
            async with holdfast.open_async(server.url, **given) as hf:
                await hf.queue("jobs", tenant="acme").enqueue("x")
                with pytest.raises(holdfast.Forbidden):
                    await hf.queue("jobs", tenant="globex").enqueue("x")
        for given in (
            shown,
            {**shown, "tls_cert": unknown.cert, "tls_key": unknown.key},
            {**by_certificate, "token": "a.bad.token"},
        ):
            async with holdfast.open_async(server.url, **given) as hf:
                with pytest.raises(holdfast.Unauthenticated):
                    await hf.queue("jobs", tenant="acme").enqueue("x")
        async with holdfast.open_async(server.url, retries=0) as hf:
            with pytest.raises(holdfast.StoreUnavailable, match="not trusted"):
                await hf.queue().stats()
        server.signal()
        assert await asyncio.to_thread(server.end) == 0, server.log
    assert "Traceback" not in server.log


def test_a_port_in_use_is_said_with_the_flag_that_changes_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(AssertionError, match=f"port {port} of 127.0.0.1 is in use.*--capnp-port"):
            serve(port=port).__enter__()


async def test_garbage_leaves_a_served_process_as_it_was() -> None:
    with serve() as server:
        for n in range(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(os.urandom(n * 7) if n % 3 else b"")
            if n % 2:
                writer.write_eof()
            writer.transport.abort() if n % 5 == 0 else writer.close()
            if n % 5:
                await asyncio.wait((asyncio.ensure_future(reader.read()),), timeout=1)
        async with holdfast.open_async(server.url) as hf:
            await hf.queue().enqueue("x")
        server.signal()
        assert await asyncio.to_thread(server.end) == 0, server.log
    assert "Traceback" not in server.log
