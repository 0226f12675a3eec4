"""Opening a remote client: its settings, its errors, and its connections.

The laws run over it in tests/stores/test_http_laws.py and tests/stores/test_framed_laws.py.
"""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.testing import ManualClock
from holdfast.testing.proxy import FaultProxy
from tests.client.answering import answering
from tests.client.remote.patience import soon, until_waiting
from tests.doors.serving import Server, Tokens, caller, serve

# --- Opening ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tokn": "x"}, "tokn"),
        ({"durability": "os"}, "durability"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": 0}, "timeout"),
        ({"retries": -1}, "retries"),
        ({"pool": 0}, "pool"),
        ({"token": "two words"}, "token"),
        ({"token": "line\n"}, "token"),
        ({"tls_ca": "ca.pem"}, "tls_ca"),
        ({"wait_round": 0}, "wait_round"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(holdfast.InvalidArgument) as refused:
        holdfast.open_async("http://localhost:7077", **settings)
    assert refused.value.facts["field"] == named
    assert named in refused.value.message


@pytest.mark.parametrize(
    "url", ["http://", "http://:7077", "http://host:port", "http://host:99999", "http://host/?token=x", "http://host#x"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(holdfast.InvalidArgument):
        holdfast.open_async(url)


@pytest.mark.parametrize("url", ["http://ada:secret@host:7077", "https://secret@host"])
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(holdfast.InvalidArgument, match="token") as refused:
        holdfast.open_async(url)
    assert "secret" not in refused.value.message


async def test_a_token_is_sent_from_the_setting_the_variable_or_a_function(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = iter(["good", "good", "stale"])
    async with serve(clock, identity=Tokens({"good": caller("default", "admin")})) as server:
        monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
        async with holdfast.open_async(server.url) as hf:
            with pytest.raises(holdfast.Unauthenticated):
                await hf.queue("q").enqueue(1)
        async with holdfast.open_async(server.url, token="good") as hf:
            await hf.queue("q").enqueue(1)
        async with holdfast.open_async(server.url, token=lambda: next(tokens)) as hf:
            await hf.queue("q").enqueue(2)
            await hf.queue("q").enqueue(3)
            with pytest.raises(holdfast.Unauthenticated):
                await hf.queue("q").enqueue(4)
        monkeypatch.setenv("HOLDFAST_TOKEN", "good")
        async with holdfast.open_async(server.url) as hf:
            assert (await hf.queue("q").stats()).ready == 3


async def test_a_server_below_a_path_is_asked_there() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with holdfast.open_async(f"http://127.0.0.1:{port}/queues/") as hf:
        await hf.queue("q").pause()
    listening.close()
    assert seen[0].startswith(b"POST /queues/v1/tenants/default/queues/q/pause HTTP/1.1\r\n")


# --- Errors ----------------------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_named_with_what_to_do() -> None:
    async with FaultProxy("http://127.0.0.1:1") as gone:
        url = gone.url
    async with holdfast.open_async(url) as hf:
        with pytest.raises(holdfast.StoreUnavailable, match="holdfast serve") as refused:
            await hf.queue("q").enqueue(1)
    assert url in refused.value.message


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>", holdfast.InvalidArgument),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", holdfast.InvalidArgument),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", holdfast.InvalidArgument),
        (b"HTTP/1.1 301 Moved\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", holdfast.InvalidArgument),
        (b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", holdfast.PayloadTooLarge),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", holdfast.Unauthenticated),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", holdfast.StoreUnavailable),
        (b"SSH-2.0-OpenSSH_9.6\r\n", holdfast.StoreUnavailable),
    ],
)
async def test_what_is_not_holdfast_is_told_apart(answer: bytes, kind: type[holdfast.HoldfastError]) -> None:
    async with answering(answer) as url, holdfast.open_async(url, retries=0) as hf:
        with pytest.raises(kind) as refused:
            await hf.queue("q").stats()
    assert url in refused.value.message


async def test_the_servers_errors_come_with_their_facts(clock: ManualClock) -> None:
    async with serve(clock, max_payload=10) as server, holdfast.open_async(server.url) as hf:
        with pytest.raises(holdfast.PayloadTooLarge) as refused:
            await hf.queue("q").enqueue(b"x" * 11)
        assert (refused.value.facts["bytes"], refused.value.facts["limit"]) == (11, 10)
        with pytest.raises(holdfast.QueueNotFound):
            await hf.queue("nowhere").stats()


# --- Connections -----------------------------------------------------------------------------------------------


async def test_one_connection_serves_call_after_call(proxy: FaultProxy, far: AsyncHoldfast) -> None:
    q = far.queue("q")
    for number in range(20):
        await q.enqueue(number)
    for _ in range(20):
        async with (await q.claim())[0]:
            pass
    assert proxy.connections == 1


async def test_a_connection_that_died_while_idle_is_replaced_without_a_word(
    proxy: FaultProxy, far: AsyncHoldfast
) -> None:
    q = far.queue("q")
    await q.enqueue(1)
    await proxy.cut()
    await q.enqueue(2)  # without a key: nothing was sent into the dead one
    assert (await q.stats()).ready == 2


async def test_claims_that_wait_leave_connections_for_verdicts(server: Server) -> None:
    async with holdfast.open_async(server.url, pool=1) as hf:
        q = hf.queue("q")
        await q.enqueue(1)
        [held] = await q.claim()
        waiting = [asyncio.create_task(q.claim(wait=None)) for _ in range(5)]
        await until_waiting(q, 5)
        await soon(held.ack())
        await q.enqueue(list(range(5)))
        assert sorted(m.json() for [m] in await soon(asyncio.gather(*waiting))) == list(range(5))


async def test_large_payloads_go_and_come_whole(hf: AsyncHoldfast) -> None:
    q = hf.queue("q")
    payload = bytes(range(256)) * 2_000
    await q.enqueue(payload, headers={"a": "b"}, key="k", priority=3, content_type="image/png")
    await q.enqueue("x" * 500_000)
    first, second = await q.claim(limit=2)
    assert (first.payload, first.headers, first.priority, first.content_type) == (payload, {"a": "b"}, 3, "image/png")
    assert second.json() == "x" * 500_000
    assert (await q.enqueue(payload, key="k"))[0].duplicate
