"""Settings of a tenant, changed by an operator of a served process."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast
from tests.server.served import Caller, Served

pytestmark = pytest.mark.slow

PATIENCE_S = 60


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():
            await asyncio.sleep(0.01)


# --- A default TTL -----------------------------------------------------------------------------------------------


@pytest.mark.spec("8.9", "2.11")
async def test_a_tenant_s_default_ttl_ends_messages_that_have_none_of_their_own(tmp_path: Path) -> None:
    data = ("--data", tmp_path / "data", "--durability", "os")
    with Served(*data) as served:
        async with holdfast.open_async(served.url) as hf:
            await hf.tenant("acme").set(quotas={"default_ttl_ms": 200})
            assert (await hf.tenant("acme").get()).quotas.default_ttl_ms == 200
        served.process.kill()
        served.process.wait()

    # The setting outlives the server.
    with Served(*data) as served:
        async with holdfast.open_async(served.url) as hf:
            mail, other = hf.queue("mail", tenant="acme"), hf.queue("mail", tenant="globex")
            await hf.queue("kept", tenant="acme").set_policy(ttl_ms=3_600_000)
            await hf.queue("dropped", tenant="acme").set_policy(on_ttl="drop")
            [by_default] = await mail.enqueue("ends")
            [by_itself] = await mail.enqueue("stays", ttl=3_600)
            [by_queue] = await hf.queue("kept", tenant="acme").enqueue("stays")
            [dropped] = await hf.queue("dropped", tenant="acme").enqueue("ends")
            [of_another] = await other.enqueue("stays")

            await until(lambda: is_failed(hf, by_default))
            await until(lambda: is_removed(hf, dropped))

            failed = await mail.get(by_default)
            assert (failed.reason, failed.attempt) == ("ttl", 0)
            assert [message.id for message in await mail.claim(limit=10)] == [by_itself]
            assert [message.id for message in await hf.queue("kept", tenant="acme").claim(limit=10)] == [by_queue]
            assert [message.id for message in await other.claim(limit=10)] == [of_another]

            await hf.tenant("acme").set(quotas={"default_ttl_ms": None})
            [lasting] = await mail.enqueue("stays")
            assert [message.id for message in await mail.claim(limit=10)] == [lasting]
            assert (await mail.get(lasting)).expires_at is None


async def is_failed(hf: AsyncHoldfast, id: str) -> bool:
    return (await hf.queue("mail", tenant="acme").get(id)).state == "failed"


async def is_removed(hf: AsyncHoldfast, id: str) -> bool:
    return any(event.event == "removed" and event.id == id for event in await hf.journal(limit=1_000))


async def all_wait(hf: AsyncHoldfast, number: int) -> bool:
    """Return whether this number of claims wait on queues that exist."""
    waiters = 0
    for tenant in WEIGHTS:
        waiters += (await hf.tenant(tenant).stats()).waiters
    return waiters == number


async def has_passed(at_s: float) -> bool:
    return time.time() > at_s


# --- Turns by weight ---------------------------------------------------------------------------------------------

FLOOD, QUIET = 120, 45
WEIGHTS = {"flood": 1, "quiet": 3}


async def waiting_claim(served: Served, tenant: str, number: int) -> Caller:
    caller = await served.connect()
    caller.send("/v1/queue/dequeue", {"tenant": tenant, "queue": f"q{number}", "wait_ms": 120_000, "lease_ms": 600_000})
    return caller


@pytest.mark.spec("7.3")
async def test_waiting_claims_are_served_by_the_weights_of_their_tenants(tmp_path: Path) -> None:
    """All messages come due while the server stands still, so that every waiting claim gets its turn at once.

    The journal then says in which order they were served.
    """
    places = [(tenant, number) for tenant, count in (("flood", FLOOD), ("quiet", QUIET)) for number in range(count)]
    with Served("--data", tmp_path / "data", "--durability", "os", "--queue-max-consumers", "1000") as served:
        async with holdfast.open_async(served.url) as hf:
            for tenant, weight in WEIGHTS.items():
                await hf.tenant(tenant).set(weight=weight)
            callers = [await waiting_claim(served, *place) for place in places]
            await until(lambda: all_wait(hf, len(places)))
            due_at_s = time.time() + 6
            due_at = datetime.fromtimestamp(due_at_s, UTC).isoformat()
            # One call for all queues, so that it ends long before they are due.
            items = [
                {"namespace": tenant, "topic": f"q{n}", "payload": "", "deliver_after": due_at} for tenant, n in places
            ]
            assert (await served.call("/enqueue", items)).status == 200
            served.signal(signal.SIGSTOP)
            assert time.time() < due_at_s, "the messages came due before the server was stopped"
            await until(lambda: has_passed(due_at_s + 0.1))
            served.signal(signal.SIGCONT)
            for caller in callers:
                assert len((await caller.answer()).json["messages"]) == 1
            order = [event.tenant for event in await hf.journal(limit=10_000) if event.event == "claimed"]

    assert len(order) == FLOOD + QUIET
    served_so_far = dict.fromkeys(WEIGHTS, 0)
    for tenant in order:
        served_so_far[tenant] += 1
        if served_so_far["quiet"] == QUIET:
            break
        # A batch is one message here.
        assert abs(served_so_far["flood"] / WEIGHTS["flood"] - served_so_far["quiet"] / WEIGHTS["quiet"]) <= 1
    assert served_so_far["flood"] in (QUIET // 3, QUIET // 3 + 1)
