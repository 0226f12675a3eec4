"""A server that goes and comes back under load: its callers carry on by themselves."""

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from holdfast.client.queue import AsyncQueue
from holdfast.model.events import Event
from tests.server.served import Served

PRODUCERS = 4
EACH = 150
CONSUMERS = 4
LEASE_S = 2.0
PATIENCE_S = 120

pytestmark = pytest.mark.slow


class Load:
    """Messages with keys, and how often each was acknowledged."""

    def __init__(self) -> None:
        self.enqueued: dict[str, str] = {}
        self.acked: Counter[str] = Counter()
        # Acknowledged or not: the answer was lost, and the message does not tell.
        self.unsure: set[str] = set()
        # Verdicts whose answer has not come.
        self.settling = 0

    async def produce(self, q: AsyncQueue, producer: int) -> None:
        for number in range(EACH):
            key = f"{producer}-{number}"
            [self.enqueued[key]] = await q.enqueue({"key": key}, key=key)
            await asyncio.sleep(0.01)

    async def claim(self, q: AsyncQueue) -> None:
        while True:
            for message in await q.claim(limit=5, wait=None, lease=LEASE_S):
                await self._settle(message.id, message.ack())

    async def subscribe(self, q: AsyncQueue) -> None:
        async for message in q.subscribe(prefetch=5, lease=LEASE_S):
            await self._settle(message.id, message.ack())

    async def _settle(self, id: str, ack) -> None:
        self.settling += 1
        try:
            await ack
        except holdfast.StaleLease as error:
            if error.facts["is_unsure"]:
                self.unsure.add(id)
        else:
            self.acked[id] += 1
        finally:
            self.settling -= 1


@pytest.mark.parametrize("door", ["http", "framed"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_restart_under_load_loses_nothing_and_acknowledges_nothing_twice(
    tmp_path: Path, how: signal.Signals, door: str
) -> None:
    arguments = ("--data", tmp_path / "data", "--durability", "os")
    load = Load()
    port_option = "--port" if door == "http" else "--framed-port"
    served = await asyncio.to_thread(Served(*arguments, port_option, "0").__enter__)
    url, port = served.url, str(served.port)
    try:
        async with asyncio.timeout(PATIENCE_S), holdfast.open_async(url, retries=20) as hf:
            q = hf.queue("jobs")
            await q.set_policy(max_retries=1_000)
            consumers = [asyncio.create_task(load.claim(q)) for _ in range(CONSUMERS - 1)]
            consumers.append(asyncio.create_task(load.subscribe(q)))
            producers = [asyncio.create_task(load.produce(q, number)) for number in range(PRODUCERS)]
            for _ in range(2):
                await asyncio.sleep(0.5)
                served.signal(how)
                await asyncio.to_thread(served.end)
                served = await asyncio.to_thread(Served(*arguments, port_option, port).__enter__)
            await asyncio.gather(*producers)
            while any(counts := await outstanding(q)) or load.settling:
                assert not [each for each in consumers if each.done()], counts
                await asyncio.sleep(0.05)
            for each in consumers:
                each.cancel()
            await asyncio.wait(consumers)
            succeeded = await successes(hf)
    finally:
        served.__exit__(None, None, None)
    ids = set(load.enqueued.values())
    assert len(ids) == PRODUCERS * EACH
    assert succeeded == Counter(ids)  # each message once: none lost, none enqueued twice, none done twice
    assert set(load.acked.values()) == {1}
    assert ids - set(load.acked) <= load.unsure


async def outstanding(q: AsyncQueue) -> tuple[int, int, int]:
    stats = await q.stats()
    return stats.ready, stats.delayed, stats.in_flight


async def successes(hf: holdfast.AsyncHoldfast) -> Counter[str]:
    found: Counter[str] = Counter()
    after = None
    while events := await hf.journal(after):
        found.update(each.id for each in events if each.event is Event.SUCCEEDED)
        after = events.next
    return found
