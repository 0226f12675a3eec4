"""A change by an operator is completed even if the operator leaves in the middle of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.dice import SeededDice
from holdfast.model.errors import Draining, QueueNotFound, RateLimited
from holdfast.server.embedded import open_on_loop
from holdfast.stores.memory import MemoryStore
from holdfast.testing import HeldCalls, ManualClock, with_faults

WEEK_MS = 7 * 86_400_000
PATIENCE_S = 20.0


@asynccontextmanager
async def held_after(*names: str) -> AsyncIterator[tuple[AsyncHoldfast, HeldCalls]]:
    """A queue over a store that holds back the results of these calls until the test releases them."""
    calls = HeldCalls(asyncio.get_running_loop().create_future, before=set(), after=set(names))
    store = with_faults(MemoryStore(SeededDice(0), WEEK_MS), calls)
    async with open_on_loop("", {}, clock=ManualClock(), store=store) as hf:
        yield hf, calls


async def leave(work: "asyncio.Task[object]", calls: HeldCalls) -> None:
    while not calls.held:
        await asyncio.sleep(0)
    work.cancel()
    await asyncio.sleep(0)
    calls.held = [(name, ticket) for name, ticket in calls.held if not ticket.done()]
    calls.let_go()
    for _ in range(20):
        await asyncio.sleep(0)
    assert work.cancelled()


async def test_a_policy_whose_setter_left_holds() -> None:
    async with held_after("directory.change_queue") as (hf, calls):
        queue = hf.queue("mail")
        await queue.enqueue(b"a")
        limits = {"write_ops_per_s": 1}
        await leave(asyncio.create_task(queue.set_policy(limits=limits)), calls)
        await queue.enqueue(b"b")
        with pytest.raises(RateLimited):
            await queue.enqueue(b"c")


async def test_a_tenants_limits_whose_setter_left_hold() -> None:
    async with held_after("directory.put_tenant") as (hf, calls):
        limits = {"write_ops_per_s": 1}
        await leave(asyncio.create_task(hf.tenant("acme").set(limits=limits)), calls)
        queue = hf.queue("mail", tenant="acme")
        await queue.enqueue(b"a")
        with pytest.raises(RateLimited):
            await queue.enqueue(b"b")


async def test_those_who_wait_for_a_queue_hear_that_it_goes_though_its_deleter_left() -> None:
    async with held_after("directory.change_queue") as (hf, calls):
        queue = hf.queue("mail")
        await queue.enqueue(b"a")
        await queue.purge()
        waiting = asyncio.create_task(queue.claim(wait=None))
        await asyncio.sleep(0)
        await leave(asyncio.create_task(queue.delete(force_after=60)), calls)
        with pytest.raises(Draining):
            await asyncio.wait_for(waiting, PATIENCE_S)


async def test_what_is_refused_is_told_as_before() -> None:
    async with held_after() as (hf, _):
        with pytest.raises(QueueNotFound):
            await hf.queue("mail").delete()
