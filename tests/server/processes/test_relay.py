"""The link between a door process and the store process: what the laws over it do not show."""

import asyncio
import inspect
from collections.abc import AsyncIterator

import pytest

from holdfast.dice import SeededDice
from holdfast.model.errors import Forbidden, OverQuota, QueueNotFound, StoreUnavailable
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.runtime import LoopRuntime
from holdfast.server.compose import Core, make_store
from holdfast.server.processes.link import LinkAddress, StoreLink
from holdfast.server.processes.relay import RelaySession
from holdfast.server.settings import parse_settings
from holdfast.service.access import ANYONE, Caller
from holdfast.service.session import Session
from holdfast.testing import ManualClock
from holdfast.wire import operations
from holdfast.wire.requests import ConfigureRequest, Nothing
from tests.doors.serving import caller
from tests.server.processes.relayed import SECRET, Relayed, relay

REF = QueueRef("acme", "jobs")
READER = caller("acme", "read")
WRITER = caller("acme", "read", "write", subject="alice")


@pytest.fixture
async def core() -> AsyncIterator[Core]:
    clock = ManualClock()
    runtime = LoopRuntime(clock, clock)
    core = Core(make_store("memory://", parse_settings({}), SeededDice(0)), runtime, parse_settings({}))
    await core.open()
    yield core
    await core.close()
    await runtime.aclose()


@pytest.fixture
async def relayed(core: Core) -> AsyncIterator[Relayed]:
    async with relay(core) as relayed:
        yield relayed


def session(relayed: Relayed, who: Caller = WRITER) -> Session:
    return relayed.backend.open_session(who)


async def stats(relayed: Relayed) -> tuple[int, int]:
    found = await session(relayed).call(operations.STATS, REF, Nothing())
    return found.ready, found.in_flight


async def until(relayed: Relayed, ready: int, in_flight: int) -> None:
    async with asyncio.timeout(30):
        while await stats(relayed) != (ready, in_flight):
            await asyncio.sleep(0)


def test_every_public_method_of_a_session_goes_to_the_store_process() -> None:
    methods = {name for name, _ in inspect.getmembers(Session, inspect.isfunction) if not name.startswith("_")}
    assert {name for name in methods if name not in vars(RelaySession)} == {"check_metrics"}


async def test_the_store_process_decides_what_a_caller_may_do(relayed: Relayed) -> None:
    reader = session(relayed, READER)
    with pytest.raises(Forbidden):
        await reader.enqueue(REF, [Draft(payload=b"x")])
    with pytest.raises(Forbidden):
        await reader.claim(QueueRef("other", "jobs"), ClaimRequest(), 0)
    with pytest.raises(Forbidden):
        await reader.read_delivered_part(QueueRef("other", "jobs"), 1, 0, 1)
    with pytest.raises(Forbidden):
        reader.check_metrics()


async def test_a_lease_belongs_to_the_caller_of_the_door_process(relayed: Relayed) -> None:
    alice = session(relayed)
    [enqueued] = await alice.enqueue(REF, [Draft(payload=b"x")])
    [delivery] = await alice.claim(REF, ClaimRequest(), 0)
    assert await alice.held_by(REF, enqueued.id) == delivery.receipt


async def test_messages_of_several_queues_go_in_one_call(relayed: Relayed) -> None:
    other = QueueRef("acme", "mail")
    enqueued = await session(relayed).enqueue_each({REF: [Draft(payload=b"1")], other: [Draft(payload=b"2")] * 2})
    assert {ref: len(each) for ref, each in enqueued.items()} == {REF: 1, other: 2}


async def test_an_upload_is_enqueued_with_its_payload(relayed: Relayed) -> None:
    writer = session(relayed)
    upload = await writer.upload(REF, Draft(payload=b"", key="k"))
    for part in (b"one ", b"two"):
        await upload.write(part)
    draft = await upload.finish()
    assert draft.payload_bytes == 7
    await writer.enqueue(REF, [draft, Draft(payload=b"inline")])
    upload.close()
    deliveries = await writer.claim(REF, ClaimRequest(limit=2), 0)
    assert [each.payload for each in deliveries] == [b"one two", b"inline"]
    await relayed.link.idle()
    assert not relayed.peer.uploads


async def test_a_cancelled_claim_leaves_its_message_held_by_nobody(relayed: Relayed) -> None:
    writer = session(relayed)
    for wait_ms in (0, 60_000):
        for rounds in range(12):
            claim = asyncio.create_task(writer.claim(REF, ClaimRequest(), wait_ms))
            adding = asyncio.create_task(writer.enqueue(REF, [Draft(payload=b"x")]))
            for _ in range(rounds):
                await asyncio.sleep(0)
            claim.cancel()
            await adding
            try:
                taken = await claim
            except asyncio.CancelledError:
                taken = []
            await until(relayed, 1 - len(taken), len(taken))
            if not taken:
                [delivery] = await writer.claim(REF, ClaimRequest(), 0)
                assert delivery.attempt == 1
                taken = [delivery]
            await writer.settle(REF, [Verdict(settle=Settle.ACK, receipt=each.receipt) for each in taken])


async def test_a_cancelled_next_of_a_subscription_leaves_its_message_held_by_nobody(relayed: Relayed) -> None:
    writer = session(relayed)
    subscription = await writer.subscribe(REF, ClaimRequest(), 4, releases_at_end=True)
    waiting = asyncio.create_task(subscription.next(None))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await writer.enqueue(REF, [Draft(payload=b"x")])
    await until(relayed, 1, 0)
    [delivery] = await subscription.next(0)
    assert await stats(relayed) == (0, 1)
    subscription.give_back([delivery])
    await until(relayed, 1, 0)
    assert [each.attempt for each in await subscription.next(0)] == [1]
    await subscription.end()
    assert await stats(relayed) == (1, 0)
    assert not relayed.peer.subscriptions


async def test_a_drain_of_the_door_process_ends_its_waits_and_no_others(core: Core, relayed: Relayed) -> None:
    writer = session(relayed)
    subscription = await writer.subscribe(REF, ClaimRequest(), 4)
    watch = await writer.watch(REF)
    beside = asyncio.create_task(core.open_session(WRITER).claim(REF, ClaimRequest(), None))
    waits = [
        asyncio.create_task(writer.claim(REF, ClaimRequest(), None)),
        asyncio.create_task(subscription.next(None)),
        asyncio.create_task(watch.next(60_000)),
    ]
    while core.dispatcher.count_waiters(REF) < 3:
        await asyncio.sleep(0)
    relayed.backend.begin_drain()
    assert await asyncio.gather(*waits) == [[], [], False]
    assert watch.is_closed
    assert await writer.claim(REF, ClaimRequest(), None) == []
    assert core.dispatcher.count_waiters(REF) == 1
    await core.open_session(WRITER).enqueue(REF, [Draft(payload=b"x")])
    assert [each.payload for each in await beside] == [b"x"]


async def test_streams_of_a_door_process_that_is_gone_end(core: Core, relayed: Relayed) -> None:
    writer = session(relayed)
    await writer.enqueue(REF, [Draft(payload=b"x")])
    subscription = await writer.subscribe(REF, ClaimRequest(), 4, releases_at_end=True)
    watch = await writer.watch(REF)
    assert await watch.next(0) is False
    assert len(await subscription.next(None)) == 1
    await relayed.links.dismiss(relayed.peer)
    assert await core.open_session(WRITER).call(operations.STATS, REF, Nothing()) is not None
    [delivery] = await core.open_session(WRITER).claim(REF, ClaimRequest(), 0)
    assert delivery.payload == b"x"


async def test_a_tenant_that_floods_the_link_does_not_delay_the_others(core: Core) -> None:
    async with relay(core, most_at_once=4) as relayed:
        flood, quiet = session(relayed, caller("flood", "write")), session(relayed, caller("quiet", "write"))
        done: list[str] = []

        async def enqueue(who: Session, tenant: str) -> None:
            await who.enqueue(QueueRef(tenant, "jobs"), [Draft(payload=b"x")])
            done.append(tenant)

        flooding = [asyncio.create_task(enqueue(flood, "flood")) for _ in range(200)]
        await asyncio.sleep(0)
        await enqueue(quiet, "quiet")
        assert len(done) < 20
        await asyncio.gather(*flooding)


async def test_cancelled_calls_that_waited_for_their_turn_make_room(core: Core) -> None:
    async with relay(core, most_at_once=1) as relayed:
        writer = session(relayed)
        calls = [asyncio.create_task(writer.enqueue(REF, [Draft(payload=b"x")])) for _ in range(20)]
        await asyncio.sleep(0)
        for call in calls[1::2]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert len(await writer.enqueue(REF, [Draft(payload=b"last")])) == 1


async def test_quotas_of_the_store_reach_the_caller_with_their_facts(core: Core, relayed: Relayed) -> None:
    operator = session(relayed, ANYONE)
    changes = ConfigureRequest(changes={"quotas": {"max_messages": 1}})
    await operator.call(operations.SET_TENANT, QueueRef("acme"), changes)
    await operator.enqueue(REF, [Draft(payload=b"x")])
    refusals = []
    for each in (operator, core.open_session(ANYONE)):
        with pytest.raises(OverQuota) as refused:
            await each.enqueue(REF, [Draft(payload=b"x")])
        refusals.append((refused.value.message, refused.value.facts))
    assert refusals[0] == refusals[1]


async def test_a_wrong_secret_is_refused(relayed: Relayed) -> None:
    link = StoreLink(LinkAddress(path=relayed.path, secret=SECRET[::-1]), lambda tenant: 1, 4)
    with pytest.raises(StoreUnavailable):
        await RelaySession(ANYONE, link).enqueue(REF, [Draft(payload=b"x")])
    link.close()
    with pytest.raises(QueueNotFound):
        await stats(relayed)
