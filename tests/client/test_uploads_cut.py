"""An upload on a way that breaks: whole or nothing, and again only where that is safe."""

import asyncio
import io
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from holdfast.client.payloads.part_reader import PART
from holdfast.client.queue import AsyncQueue
from holdfast.testing.proxy import Fault, FaultProxy, NetworkFaultKind
from tests.client.answering import answering
from tests.client.large import PATIENCE_S, staged
from tests.doors.serving import Server

PAYLOAD = Random(0).randbytes(5 * PART // 2)


@pytest.fixture
async def q(far: AsyncHoldfast) -> AsyncQueue:
    """A queue of a server that has answered before."""
    await far.queue("q").set_policy(lease_ms=60_000)
    return far.queue("q")


Cut = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture
def cut(server: Server, proxy: FaultProxy) -> Cut:
    """Cuts the way once the server has some of the payload, and returns when it has none of it any more."""

    async def cut() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not await staged(server.core):
                await asyncio.sleep(0.01)
        await proxy.cut()
        await assert_nothing_staged(server)

    return cut


class Cutting(io.BytesIO):
    """A file on whose way something happens, so often, when most of it was read."""

    def __init__(self, cut: Cut, times: int = 1, *, can_seek: bool = True) -> None:
        super().__init__(PAYLOAD)
        self._loop = asyncio.get_running_loop()
        self._cut = cut
        self._can_seek = can_seek
        self.times = times

    def seekable(self) -> bool:
        return self._can_seek

    def read(self, size: int | None = -1, /) -> bytes:
        if self.times and 2 * PART <= self.tell() < len(PAYLOAD):
            self.times -= 1
            asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(PATIENCE_S)
        return super().read(size)


async def assert_nothing_staged(server: Server) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await staged(server.core):  # the server hears of the cut, but not at once
            await asyncio.sleep(0.01)


def sent(server: Server) -> int:
    """Return the number of uploads that the server received."""
    return sum(1 for operation, _, _ in server.requests.seen if operation in ("enqueue", "upload"))


@pytest.mark.parametrize(
    ("key", "can_seek"), [(None, True), (None, False), ("k", False)], ids=["no key", "neither", "cannot be read again"]
)
async def test_an_upload_that_is_cut_in_the_middle_enqueues_nothing(
    server: Server, q: AsyncQueue, cut: Cut, key: Any, can_seek: bool
) -> None:
    with pytest.raises(holdfast.StoreUnavailable, match="in the middle") as lost:
        await q.upload(Cutting(cut, can_seek=can_seek), key=key)
    assert lost.value.facts["outcome"] == "nothing happened"
    await assert_nothing_staged(server)
    assert (await q.stats()).ready == 0
    assert sent(server) == 1


async def test_an_upload_with_a_key_and_a_file_is_repeated_after_a_cut(server: Server, q: AsyncQueue, cut: Cut) -> None:
    source = Cutting(cut, times=2)
    id = await q.upload(source, key="k")
    assert (source.times, id.duplicate) == (0, False)
    assert (await q.get(id, payload=True)).payload == PAYLOAD
    assert (await q.stats()).ready == 1
    await assert_nothing_staged(server)


async def test_an_upload_is_repeated_from_where_its_file_stood(q: AsyncQueue, cut: Cut) -> None:
    source = Cutting(cut)
    source.seek(1_000)
    id = await q.upload(source, key="k")
    assert (await q.get(id, payload=True)).payload == PAYLOAD[1_000:]


# Over frames the server says something in the middle of a payload: a lost answer is in tests/client/framed.
OVER_HTTP = pytest.mark.parametrize("server", ["http"], indirect=True)


@OVER_HTTP
async def test_an_upload_whose_answer_was_lost_says_that_its_outcome_is_unknown(
    server: Server, proxy: FaultProxy, q: AsyncQueue
) -> None:
    proxy.inject(Fault(NetworkFaultKind.CUT_BEFORE_REPLY))
    with pytest.raises(holdfast.StoreUnavailable, match="may have been carried out") as lost:
        await q.upload(io.BytesIO(PAYLOAD))
    assert lost.value.facts["outcome"] == "unknown"
    assert (await q.stats()).ready == 1
    proxy.inject(Fault(NetworkFaultKind.CUT_BEFORE_REPLY))
    with pytest.raises(holdfast.StoreUnavailable, match="safe to retry") as lost:
        await q.upload([PAYLOAD], key="k")
    assert lost.value.facts["outcome"] == "unknown"
    assert (await q.upload([PAYLOAD], key="k")).duplicate
    assert (await q.stats()).ready == 2
    assert sent(server) == 3


@OVER_HTTP
async def test_an_upload_with_a_key_whose_answer_was_lost_is_repeated_and_enqueued_once(
    server: Server, proxy: FaultProxy, q: AsyncQueue, tmp_path: Path
) -> None:
    path = tmp_path / "payload"
    path.write_bytes(PAYLOAD)
    proxy.inject(*[Fault(NetworkFaultKind.CUT_BEFORE_REPLY)] * 2)
    id = await q.upload(path, key="k")
    assert id.duplicate
    assert sent(server) == 3
    assert (await q.stats()).ready == 1
    [message] = await q.claim(stream=True)
    assert (message.id, await message.load()) == (id, PAYLOAD)
    await assert_nothing_staged(server)


async def test_an_upload_to_a_server_that_stays_away_is_given_up(server: Server, proxy: FaultProxy, cut: Cut) -> None:
    async with holdfast.open_async(proxy.url, retries=2) as hf:
        q = hf.queue("q")
        await q.set_policy(lease_ms=60_000)
        source = Cutting(cut, times=10)
        with pytest.raises(holdfast.StoreUnavailable, match="in the middle"):
            await q.upload(source, key="k")
        assert source.times == 7
    async with holdfast.open_async("http://127.0.0.1:9") as hf:
        with pytest.raises(holdfast.StoreUnavailable, match="cannot reach"):
            await hf.queue("q").upload([PAYLOAD])
    await assert_nothing_staged(server)


async def test_a_server_that_says_nothing_is_waited_for_no_longer_than_the_timeout(proxy: FaultProxy) -> None:
    async with holdfast.open_async(proxy.url, timeout=1, retries=0) as hf:
        for payload in (b"small", bytes(15 << 20)):  # the answer does not come, or there is no room for more
            proxy.inject(Fault(NetworkFaultKind.SILENCE))
            with pytest.raises(holdfast.StoreUnavailable, match="no response within"):
                await hf.queue("q").upload([payload])


async def test_a_server_on_its_way_out_is_asked_again_with_a_key(server: Server, far: AsyncHoldfast) -> None:
    server.drain.is_draining = True
    with pytest.raises(holdfast.StoreUnavailable, match="shutting down"):
        await far.queue("q").upload(io.BytesIO(PAYLOAD))
    asyncio.get_running_loop().call_later(0.3, setattr, server.drain, "is_draining", False)
    assert not (await far.queue("q").upload(io.BytesIO(PAYLOAD), key="k")).duplicate


async def test_a_client_that_is_closed_in_the_middle_says_so(server: Server) -> None:
    async with holdfast.open_async(server.url) as hf:
        source = Cutting(hf.close)
        with pytest.raises(holdfast.StoreUnavailable, match="this client is closed"):
            await hf.queue("q").upload(source, key="k")
    await assert_nothing_staged(server)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", holdfast.InvalidArgument),
        (b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", holdfast.PayloadTooLarge),
        (b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", holdfast.Forbidden),
        (b"garbage", holdfast.StoreUnavailable),
    ],
)
async def test_what_is_no_server_is_not_believed(answer: bytes, error: type[Exception]) -> None:
    async with answering(answer) as url, holdfast.open_async(url, retries=0) as hf:
        with pytest.raises(error):
            await hf.queue("q").upload(iter([PAYLOAD] * 50))
