"""Moves between store processes: a message is in one queue, whatever process is killed at whatever step."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.client.client import AsyncHoldfast, AsyncQueue
from holdfast.model.errors import OverQuota, StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.rocks.portions.calls import Arrive, CopyPiece, EndTransfer, HasArrived, PortionCall
from holdfast.stores.rocks.transfers import ShardTransfers
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing import ManualClock
from tests.crash.rocks import copy_store, open_store
from tests.doors.serving import serve_backend
from tests.server.store_processes.divided import Divided, backend_of, divided

LARGE = os.urandom(3 << 20)


class Killed(StoreUnavailable):
    """The error of a call to a process that was killed."""


async def two_queues(server: Divided, hf: AsyncHoldfast, tenant: str = "default") -> tuple[AsyncQueue, AsyncQueue]:
    """Return queues of two processes."""
    found: dict[int, AsyncQueue] = {}
    for number in range(50):
        queue = hf.queue(f"queue-{number}", tenant=tenant)
        await queue.set_policy(max_retries=100)
        found.setdefault(server.portion_with(QueueRef(tenant, f"queue-{number}")), queue)
        if len(found) == 2:
            return found[0], found[1]
    raise AssertionError("50 queues are all in one process")


async def payloads(queue: AsyncQueue) -> list[bytes]:
    return [message.payload for message in await queue.claim(1_000)]


async def test_a_message_moves_to_another_process_complete(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        divided(tmp_path / "store", clock, max_payload=8 << 20) as server,
        serve_backend(backend_of(server), server.settings) as url,
        holdfast.open_async(url, retries=0) as hf,
    ):
        for source, target in ((pair := await two_queues(server, hf)), pair[::-1]):
            [id] = await source.enqueue(b"work", headers={"a": "b"}, priority=7, group="g")
            await source.enqueue(LARGE)
            [message] = await source.claim()
            await message.save_state({"page": 3})
            await message.release()
            assert (await source.move(target.ref.queue)).changed == 2
            assert (await source.stats()).ready == 0
            moved, large = await target.claim(2, state=True)
            assert (moved.id, moved.payload, moved.headers, moved.attempt) == (id, b"work", {"a": "b"}, 2)
            assert moved.state == {"page": 3}
            assert moved.version > message.version
            assert large.payload == LARGE
            await target.ack([moved, large])
            for core in server.cores.values():
                while await core.sweeper.sweep_once():
                    pass
        moved_events = [each for each in await hf.journal(limit=100) if each.event.value == "moved"]
        assert len(moved_events) == 8
    report = verify(tmp_path / "store")
    assert report.violations == []
    assert not report.unfinished


async def test_a_move_wakes_a_claim_that_waits_in_the_other_process(tmp_path: Path) -> None:
    import asyncio

    clock = ManualClock()
    async with (
        divided(tmp_path / "store", clock) as server,
        serve_backend(backend_of(server), server.settings) as url,
        holdfast.open_async(url, retries=0, wait_round=None) as hf,
    ):
        source, target = await two_queues(server, hf)
        await source.enqueue(b"work")
        waiting = asyncio.create_task(target.claim(wait=60))
        while not (await target.stats()).waiters:
            await asyncio.sleep(0)
        await source.move(target.ref.queue)
        assert [message.payload for message in await waiting] == [b"work"]


STEPS: list[tuple[str, type[PortionCall] | str, bool]] = [
    ("before the target is asked", HasArrived, False),
    ("after the target was asked", HasArrived, True),
    ("before a piece of a payload", CopyPiece, False),
    ("after a piece of a payload", CopyPiece, True),
    ("before the messages arrive", Arrive, False),
    ("after the messages have arrived", Arrive, True),
    ("before the source forgets the transfer", "finish", False),
    ("after the source has forgotten the transfer", "finish", True),
    ("before the coordinator knows of the end", EndTransfer, False),
]


@pytest.mark.parametrize(("step", "is_after"), [each[1:] for each in STEPS], ids=[each[0] for each in STEPS])
async def test_a_kill_at_any_step_leaves_each_message_in_one_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: type[PortionCall] | str, is_after: bool
) -> None:
    """The directory at this step is what a kill of all processes leaves; it is then opened as a whole."""
    path, copied, clock = tmp_path / "store", tmp_path / "killed", ManualClock()
    async with (
        divided(path, clock, max_payload=8 << 20) as server,
        serve_backend(backend_of(server), server.settings) as url,
        holdfast.open_async(url, retries=0) as hf,
    ):
        source, target = await two_queues(server, hf)
        await source.enqueue([b"%d" % number for number in range(20)])
        await source.enqueue(LARGE)

        async def copying(work: Callable[[], Awaitable[Any]]) -> Any:
            result = await work() if is_after else None
            if not copied.exists():
                copy_store(path, copied)
            return result if is_after else await work()

        if isinstance(step, str):
            finish = ShardTransfers.finish
            monkeypatch.setattr(
                ShardTransfers, "finish", lambda self, transfer: copying(lambda: finish(self, transfer))
            )
        else:
            coordinator = server.coordinator
            ask = coordinator.ask
            wanted = step
            monkeypatch.setattr(
                coordinator, "ask", lambda call: copying(lambda: ask(call)) if isinstance(call, wanted) else ask(call)
            )
        assert (await source.move(target.ref.queue)).changed == 21
        names = source.ref.queue, target.ref.queue
    with open_store(copied, ManualClock(), settings={"max_payload": 8 << 20}) as after:
        left, arrived = [[each.payload for each in after.queue(name).claim(1_000)] for name in names]
        assert left == []  # every one of these steps comes after the messages have left
        assert sorted(arrived) == sorted([*(b"%d" % number for number in range(20)), LARGE])
        assert after.tenant("default").stats().in_flight == 21
    assert verify(copied).violations == []


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", [HasArrived, CopyPiece, Arrive])
async def test_a_move_ends_once_the_target_has_been_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: type[PortionCall], is_after: bool
) -> None:
    path, clock = tmp_path / "store", ManualClock()
    async with (
        divided(path, clock, max_payload=8 << 20) as server,
        serve_backend(backend_of(server), server.settings) as url,
        holdfast.open_async(url, retries=0) as hf,
    ):
        source, target = await two_queues(server, hf)
        assert server.portion_with(QueueRef("default", target.ref.queue)) == 1
        await hf.tenant("default").set(quotas={"max_messages": 30})
        await source.enqueue([b"%d" % number for number in range(20)])
        await source.enqueue(LARGE)
        ask, has_failed = server.coordinator.ask, False

        async def failing(call: PortionCall) -> Any:
            nonlocal has_failed
            if has_failed or not isinstance(call, step):
                return await ask(call)
            has_failed = True
            if is_after:
                await ask(call)
            await server.stop(1)
            raise Killed("the process was killed")

        monkeypatch.setattr(server.coordinator, "ask", failing)
        with pytest.raises(StoreUnavailable, match="messages have left") as raised:
            await source.move(target.ref.queue)
        assert raised.value.facts["outcome"] == "unknown"
        # The messages between the two processes count for the quota.
        await source.enqueue([b"x"] * 9)
        with pytest.raises(OverQuota):
            await source.enqueue(b"x")
        # A backup, or another move from this shard, must wait for them.
        with pytest.raises(StoreUnavailable):
            await source.move(target.ref.queue)
        await server.start(1)
        departures = server.portions[0].departures
        [number] = [shard.number for shard in server.portions[0].shards if shard.transfers.unfinished()]
        await departures.resume_once(number)
        assert sorted(await payloads(target)) == sorted([*(b"%d" % number for number in range(20)), LARGE])
        assert len(await payloads(source)) == 9
        with pytest.raises(OverQuota):
            await source.enqueue(b"x")
        assert (await hf.tenant("default").stats()).in_flight == 30
    assert verify(path).violations == []


async def test_a_move_goes_on_after_its_own_process_has_been_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "store", ManualClock()
    async with (
        divided(path, clock) as server,
        serve_backend(backend_of(server), server.settings) as url,
        holdfast.open_async(url, retries=0) as hf,
    ):
        target, source = await two_queues(server, hf)
        await source.enqueue([b"%d" % number for number in range(20)])
        ask, is_stopped = server.coordinator.ask, True

        async def failing(call: PortionCall) -> Any:
            if is_stopped and isinstance(call, HasArrived):
                raise Killed("the process was killed")
            return await ask(call)

        monkeypatch.setattr(server.coordinator, "ask", failing)
        with pytest.raises(StoreUnavailable, match="messages have left"):
            await source.move(target.ref.queue)
        await server.stop(1)
        is_stopped = False
        await server.start(1)
        for shard in server.portions[1].shards:
            await server.portions[1].departures.resume_once(shard.number)
        assert len(await payloads(target)) == 20
        assert await payloads(source) == []
    assert verify(path).violations == []


async def test_a_move_to_another_tenant_must_fit_into_its_quotas(tmp_path: Path) -> None:
    path, clock = tmp_path / "store", ManualClock()
    async with (
        divided(path, clock) as server,
        serve_backend(backend_of(server), server.settings) as url,
        holdfast.open_async(url, retries=0) as hf,
    ):
        source, _ = await two_queues(server, hf)
        _, target = await two_queues(server, hf, "acme")
        await hf.tenant("acme").set(quotas={"max_messages": 10})
        await source.enqueue([b"x"] * 11)
        with pytest.raises(OverQuota):
            await source.move(target.ref.queue, tenant="acme")
        assert (await source.stats()).ready == 11
        [message] = await source.claim()
        await message.ack()
        assert (await source.move(target.ref.queue, tenant="acme")).changed == 10
        with pytest.raises(OverQuota):
            await target.enqueue(b"x")
    assert verify(path).violations == []


async def test_messages_of_a_deleted_target_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, clock = tmp_path / "store", ManualClock()
    async with (
        divided(path, clock) as server,
        serve_backend(backend_of(server), server.settings) as url,
        holdfast.open_async(url, retries=0) as hf,
    ):
        source, target = await two_queues(server, hf)
        await source.enqueue([b"x"] * 3)
        ask = server.coordinator.ask

        async def deleting(call: PortionCall) -> Any:
            if isinstance(call, Arrive):
                await target.delete(force_after=0)
                while await server.cores[1].sweeper.sweep_once():
                    pass
            return await ask(call)

        monkeypatch.setattr(server.coordinator, "ask", deleting)
        assert (await source.move(target.ref.queue)).changed == 3
        assert (await hf.tenant("default").stats()).ready == 0
    assert verify(path).violations == []
