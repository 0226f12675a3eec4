"""A client that chose between frames and HTTP chooses again after an outage, and loses nothing by it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.client.choosing.endpoints import Protocol
from holdfast.client.choosing.transport import ChosenTransport, open_chosen_on_loop
from holdfast.client.client import AsyncHoldfast
from holdfast.client.framed.transport import FramedTransport
from holdfast.client.http.transport import HttpTransport
from holdfast.model.message import State
from tests.client.choosing.gate import Gate, gate_before
from tests.server.served import Served, urls_in

PATIENCE_S = 30


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served("--store", "memory://") as served:
        yield served


@pytest.fixture
async def gate(served: Served) -> AsyncIterator[Gate]:
    async with gate_before(served.port) as gate:
        yield gate


@pytest.fixture
async def direct(served: Served) -> AsyncIterator[AsyncHoldfast]:
    """A client that does not go through the gate."""
    async with holdfast.open_async(served.url) as hf:
        yield hf


@pytest.fixture
async def hf(gate: Gate) -> AsyncIterator[AsyncHoldfast]:
    """A client that has chosen frames."""
    async with open_chosen_on_loop(gate.url, {}, Protocol.AUTO) as hf:
        assert type(chosen(hf).current) is FramedTransport
        yield hf


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The name of the test's own queue."""
    name: str = request.node.name
    return name.replace("[", ".").replace("]", "")[:128]


def chosen(hf: AsyncHoldfast) -> ChosenTransport:
    transport = hf._transport
    assert isinstance(transport, ChosenTransport)
    return transport


async def soon(work: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await work


async def until_waiting(q: holdfast.AsyncQueue) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not (await q.stats()).waiters:
            await asyncio.sleep(0)


async def test_calls_go_over_http_once_frames_no_longer_get_through(hf: AsyncHoldfast, gate: Gate, name: str) -> None:
    q = hf.queue(name)
    await q.enqueue(1)
    gate.lets_frames = False
    gate.cut()
    [message] = await soon(q.claim())
    assert message.json() == 1
    assert type(chosen(hf).current) is HttpTransport
    await message.ack()


async def test_calls_go_over_frames_again_once_they_get_through_after_an_outage(
    gate: Gate, direct: AsyncHoldfast, name: str
) -> None:
    gate.lets_frames = False
    async with open_chosen_on_loop(gate.url, {"retries": 0}, Protocol.AUTO) as hf:
        assert type(chosen(hf).current) is HttpTransport
        gate.is_open = False
        with pytest.raises(holdfast.StoreUnavailable):
            await soon(hf.queue(name).enqueue(1, key="one"))
        gate.is_open = gate.lets_frames = True
        await soon(hf.queue(name).enqueue(2))
        assert type(chosen(hf).current) is FramedTransport
    assert (await direct.queue(name).stats()).ready == 1


async def test_a_transport_that_still_works_is_kept(hf: AsyncHoldfast, gate: Gate, name: str) -> None:
    before = chosen(hf).current
    gate.cut()
    await soon(hf.queue(name).enqueue(1, key="one"))
    await soon(hf.queue(name).stats())
    assert chosen(hf).current is before


async def test_frames_that_were_asked_for_are_kept(gate: Gate, name: str) -> None:
    async with open_chosen_on_loop(gate.url, {"retries": 0}, Protocol.FRAMED) as hf:
        gate.lets_frames = False
        gate.cut()
        with pytest.raises(holdfast.StoreUnavailable):
            await soon(hf.queue(name).enqueue(1))
        assert type(chosen(hf).current) is FramedTransport
        gate.lets_frames = True
        await soon(hf.queue(name).enqueue(1))


async def test_a_claim_that_waits_continues_over_the_other_protocol(
    hf: AsyncHoldfast, gate: Gate, direct: AsyncHoldfast, name: str
) -> None:
    await direct.queue(name).set_policy(max_retries=9)
    for wait, expected in ((60, HttpTransport), (None, FramedTransport)):
        # A delivery to the connection that is cut comes back when its lease ends.
        claim = asyncio.ensure_future(hf.queue(name).claim(wait=wait, lease="3s"))
        await until_waiting(direct.queue(name))
        gate.lets_frames = not gate.lets_frames
        gate.cut()
        await direct.queue(name).enqueue("woken")
        [message] = await soon(claim)
        assert message.json() == "woken"
        assert type(chosen(hf).current) is expected
        await message.ack()


async def test_a_subscription_continues_over_http(
    hf: AsyncHoldfast, gate: Gate, direct: AsyncHoldfast, name: str
) -> None:
    await direct.queue(name).enqueue([0, 1, 2])
    seen = []
    async with asyncio.timeout(PATIENCE_S):
        async for message in hf.queue(name).subscribe(prefetch=1, lease=600):
            seen.append(message.json())
            if message.json() == 0:
                gate.lets_frames = False
                gate.cut()
            await message.ack()
            if len(seen) == 3:
                break
    assert seen == [0, 1, 2]
    assert type(chosen(hf).current) is HttpTransport


async def test_a_verdict_that_was_carried_out_before_the_change_is_known_to_hold(
    hf: AsyncHoldfast, gate: Gate, direct: AsyncHoldfast, name: str
) -> None:
    there = direct.queue(name)
    await there.set_policy(keep_succeeded_ms=60_000)
    await there.enqueue([1, 2])
    one, two = await hf.queue(name).claim(2)
    gate.is_deaf = True
    ack = asyncio.ensure_future(hf.queue(name).ack([one]))
    exchange = asyncio.ensure_future(hf.queue(name).exchange([two]))
    async with asyncio.timeout(PATIENCE_S):
        for message in (one, two):
            while (await there.get(message.id)).state is not State.SUCCEEDED:
                await asyncio.sleep(0)
    gate.lets_frames = gate.is_deaf = False
    gate.cut()
    [acked] = await soon(ack)
    [exchanged], _ = await soon(exchange)
    assert (acked.ok, exchanged.ok) == (True, True)
    assert type(chosen(hf).current) is HttpTransport


async def test_an_enqueue_without_a_key_that_may_have_been_carried_out_is_not_repeated(
    hf: AsyncHoldfast, gate: Gate, direct: AsyncHoldfast, name: str
) -> None:
    await direct.queue(name).set_policy(max_retries=9)
    gate.is_deaf = True
    enqueue = asyncio.ensure_future(hf.queue(name).enqueue(1))
    async with asyncio.timeout(PATIENCE_S):
        while not (await direct.queue(name).stats()).ready:
            await asyncio.sleep(0)
    gate.lets_frames = gate.is_deaf = False
    gate.cut()
    with pytest.raises(holdfast.StoreUnavailable) as unknown:
        await soon(enqueue)
    assert unknown.value.facts["outcome"] == "unknown"
    await soon(hf.queue(name).enqueue(2))
    assert (await direct.queue(name).stats()).ready == 2


async def test_a_removal_that_was_carried_out_before_the_change_is_not_an_error(
    hf: AsyncHoldfast, gate: Gate, direct: AsyncHoldfast, name: str
) -> None:
    [id] = await direct.queue(name).enqueue(1)
    gate.is_deaf = True
    removal = asyncio.ensure_future(hf.queue(name).remove(id))
    async with asyncio.timeout(PATIENCE_S):
        while (await direct.queue(name).stats()).ready:
            await asyncio.sleep(0)
    gate.lets_frames = gate.is_deaf = False
    gate.cut()
    await soon(removal)


async def test_an_upload_stays_on_the_transport_on_which_it_began(
    hf: AsyncHoldfast, gate: Gate, direct: AsyncHoldfast, name: str
) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"first "
        has_begun.set()
        await may_end.wait()
        yield b"second"

    upload = asyncio.ensure_future(hf.queue(name).upload(parts()))
    await soon(has_begun.wait())
    first = chosen(hf).current
    gate.lets_frames = False
    assert await soon(chosen(hf).is_replaced(first))
    may_end.set()
    await soon(upload)
    [message] = await direct.queue(name).claim()
    assert message.payload == b"first second"


async def test_a_server_that_returns_without_its_framed_port_is_used_by_its_http_port(tmp_path: Path) -> None:
    data = ("--data", tmp_path / "data", "--durability", "os")
    with Served(*data, "--framed-port", "0") as first:
        port = urls_in(first.line)["url"].rpartition(":")[2]
        async with open_chosen_on_loop(f"http://127.0.0.1:{port}", {}, Protocol.AUTO) as hf:
            q, before = hf.queue("q"), chosen(hf).current
            await q.enqueue(1)
            first.process.kill()
            first.process.wait()
            with Served(*data, "--port", port):
                [message] = await soon(q.claim())
                assert message.json() == 1
                assert chosen(hf).current is not before


async def test_closing_while_the_protocol_is_chosen_leaves_nothing_open(hf: AsyncHoldfast, gate: Gate) -> None:
    gate.is_deaf = True  # the health check has no response
    choosing = asyncio.ensure_future(chosen(hf).is_replaced(chosen(hf).current))
    await asyncio.sleep(0)
    await soon(hf.close())
    assert not await soon(choosing)


async def test_a_cancelled_caller_does_not_end_the_choice_of_the_others(hf: AsyncHoldfast, gate: Gate) -> None:
    transport, before = chosen(hf), chosen(hf).current
    gate.lets_frames = False
    one, other = (asyncio.ensure_future(transport.is_replaced(before)) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    assert await soon(other)
    assert one.cancelled()
