"""A directory of the legacy layout is used at once: its messages behave as any others while they are moved."""

import asyncio
from pathlib import Path
from typing import cast

import msgspec
import pytest

from holdfast.model.errors import OverQuota, StoreUnavailable
from holdfast.model.ids import from_bytes, to_uuid
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, Verdict
from holdfast.service.access import ANYONE
from holdfast.stores.rocks.legacy.online.moving_store import MovingStore
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing import ManualClock
from tests.stores.rocks.legacy.online.legacy_queue import (
    NO_ROOM,
    NOW_MS,
    core_of,
    list_all,
    make_queue,
    open_moving,
    own_ids,
    wait_until,
    wait_until_moved,
)


@pytest.mark.spec("4.7", "9.9", "2.12")
@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("shards", [1, 4])
async def test_old_and_new_messages_are_claimed_each_once_in_their_order(
    tmp_path: Path, durability: str, shards: int
) -> None:
    path = tmp_path / "old"
    make_queue(path, foreign=150, own=150)
    async with open_moving(path, ManualClock(NOW_MS), durability=durability, shards=shards) as hf:
        queue = hf.queue()
        claimed: list[bytes] = []
        for number in range(40):
            if number < 20:
                await queue.enqueue(b"new %d" % number)
            for message in await queue.claim(9, wait=0):
                claimed.append(message.payload)
                await message.ack()
        await wait_until_moved(hf)
        assert (await queue.stats()).ready == 0
    expected = [b"foreign %d" % n for n in range(150)] + [b"own %d" % n for n in range(150)]
    assert claimed == expected + [b"new %d" % n for n in range(20)]
    assert not (path / "legacy").exists()
    assert verify(path).is_clean


async def test_messages_are_claimed_in_order_with_no_help_of_the_background(tmp_path: Path) -> None:
    make_queue(tmp_path / "old", foreign=300)
    async with open_moving(tmp_path / "old", ManualClock(NOW_MS), low_disk_bytes=NO_ROOM) as hf:
        claimed = [each.payload for _ in range(60) for each in await hf.queue().claim(5, wait=0)]
    assert claimed == [b"foreign %d" % n for n in range(300)]


@pytest.mark.spec("4.7", "3.7")
async def test_each_message_is_counted_once_at_every_moment(tmp_path: Path) -> None:
    make_queue(tmp_path / "old", foreign=900, own=400, delayed=300, held=100)
    clock = ManualClock(NOW_MS)
    async with open_moving(tmp_path / "old", clock) as hf:
        first = await hf.queue().stats()
        assert (first.ready, first.delayed, first.in_flight) == (1_300, 300, 100)
        assert first.oldest_ready_age_ms == 5_000_000
        left = [first.legacy_left]
        while (stats := await hf.queue().stats()).legacy_left is not msgspec.UNSET:
            left.append(stats.legacy_left)
            assert msgspec.structs.replace(stats, legacy_left=0) == msgspec.structs.replace(first, legacy_left=0)
            whole = await hf.tenant("default").stats()
            assert (whole.ready, whole.delayed, whole.in_flight, whole.bytes) == (1_300, 300, 100, first.bytes)
            await asyncio.sleep(0)
        assert left == sorted(left, reverse=True)
        assert left[0] > 0
        assert msgspec.structs.replace(stats, legacy_left=0) == msgspec.structs.replace(first, legacy_left=0)


async def test_delayed_messages_are_counted_as_ready_once_they_are_due(tmp_path: Path) -> None:
    make_queue(tmp_path / "old", foreign=3, delayed=5)
    clock = ManualClock(NOW_MS)
    async with open_moving(tmp_path / "old", clock, low_disk_bytes=NO_ROOM) as hf:
        assert (await hf.queue().stats()).delayed == 5
        clock.advance(3_600_000)
        stats = await hf.queue().stats()
        assert (stats.ready, stats.delayed, stats.legacy_left) == (8, 0, 8)


async def test_a_waiting_claim_gets_an_old_delayed_message_when_it_is_due(tmp_path: Path) -> None:
    make_queue(tmp_path / "old", delayed=1)
    clock = ManualClock(NOW_MS)
    async with open_moving(tmp_path / "old", clock, low_disk_bytes=NO_ROOM) as hf:
        waiting = asyncio.create_task(hf.queue().claim(1, wait=None))
        while core_of(hf).dispatcher.count_waiters(QueueRef()) == 0 or clock.next_alarm_at() is None:
            await asyncio.sleep(0)
        clock.advance(3_599_999)
        assert not waiting.done()
        clock.advance(1)
        [message] = await waiting
        assert message.payload == b"delayed 0"


@pytest.mark.spec("4.7")
async def test_old_leases_hold_until_their_end_and_their_holder_can_settle_by_the_bare_id(tmp_path: Path) -> None:
    make_queue(tmp_path / "old", held=4)
    clock = ManualClock(NOW_MS)
    held = own_ids(4)
    async with open_moving(tmp_path / "old", clock) as hf:
        session = core_of(hf).open_session(ANYONE)
        infos = await list_all(hf)
        assert [each.state for each in infos] == [State.IN_FLIGHT] * 4
        assert {each.lease_expires_at for each in infos} == {NOW_MS + 600_000}
        assert not await hf.queue().claim(10, wait=0)

        ref = QueueRef()
        for id, settle in ((held[0], Settle.ACK), (held[1], Settle.EXTEND)):
            receipt = await session.held_by(ref, from_bytes(id))
            [result] = await session.settle(ref, [Verdict(settle=settle, receipt=receipt, lease_ms=3_600_000)])
            assert result.ok
        clock.advance(600_000)
        late = await session.held_by(ref, from_bytes(held[2]))
        [result] = await session.settle(ref, [Verdict(settle=Settle.ACK, receipt=late)])
        assert result.is_stale
        claimed = {message.payload for message in await hf.queue().claim(10, wait=0)}
        assert claimed == {b"held 2", b"held 3"}


async def test_looking_finds_every_message_that_is_not_moved(tmp_path: Path) -> None:
    make_queue(tmp_path / "old", foreign=40, own=30, delayed=20, held=10)
    async with open_moving(tmp_path / "old", ManualClock(NOW_MS), low_disk_bytes=NO_ROOM) as hf:
        queue = hf.queue()
        [first, second] = await queue.peek(2)
        assert (first.payload, second.payload) == (b"foreign 0", b"foreign 1")
        assert first.headers == {"legacy-id": b"job-00000".hex()}
        own = await queue.get(to_uuid(from_bytes(own_ids(30)[29])), payload=True)
        assert own.payload == b"own 29"
        assert "legacy-id" not in own.headers
        page = await queue.list(limit=5)
        assert len(page) == 5
        every = await list_all(hf)
        assert len({each.payload for each in every}) == len(every) == 100
        assert [each.snowflake for each in every] == sorted(each.snowflake for each in every)
        assert len(await list_all(hf, state="in_flight")) == 10
        assert not await list_all(hf, state="failed")


async def test_own_messages_are_listed_in_their_place_before_they_are_moved(tmp_path: Path) -> None:
    make_queue(tmp_path / "old", own=500)
    async with open_moving(tmp_path / "old", ManualClock(NOW_MS), low_disk_bytes=NO_ROOM) as hf:
        page = await hf.queue().list(limit=3, payload=True)
        assert [each.payload for each in page] == [b"own 0", b"own 1", b"own 2"]
        assert (await hf.queue().stats()).legacy_left >= 300
        assert [each.payload for each in await list_all(hf)] == [b"own %d" % n for n in range(500)]


async def test_bulk_verbs_reach_messages_that_are_not_moved(tmp_path: Path) -> None:
    make_queue(tmp_path / "old", foreign=700, own=500)
    async with open_moving(tmp_path / "old", ManualClock(NOW_MS)) as hf:
        moved = await hf.queue().move("elsewhere")
        assert moved.changed == 1_200
        assert (await hf.queue("elsewhere").stats()).ready == 1_200
        await wait_until_moved(hf)
        assert (await hf.queue().stats()).ready == 0


async def test_a_deleted_queue_takes_its_old_messages_with_it(tmp_path: Path) -> None:
    path = tmp_path / "old"
    make_queue(path, foreign=250, delayed=50)
    clock = ManualClock(NOW_MS)
    async with open_moving(path, clock) as hf:
        await hf.queue().delete()
        core = core_of(hf)
        while any(each.queue == "default" for each in await hf.queues()):
            clock.advance(1_000)
            await core.sweeper.sweep_once()
            await asyncio.sleep(0)
        while (path / "legacy").exists():
            await asyncio.sleep(0)
    assert verify(path).is_clean


async def test_quotas_count_messages_that_are_not_moved(tmp_path: Path) -> None:
    make_queue(tmp_path / "old", foreign=1_000)
    async with open_moving(tmp_path / "old", ManualClock(NOW_MS)) as hf:
        await hf.tenant("default").set(quotas={"max_messages": 1_002})
        for payload in (b"one", b"two"):
            await hf.queue("other").enqueue(payload)
        with pytest.raises(OverQuota):
            await hf.queue("other").enqueue(b"three")
        await wait_until_moved(hf)
        with pytest.raises(OverQuota):
            await hf.queue("other").enqueue(b"three")


@pytest.mark.spec("9.9")
async def test_a_store_that_is_closed_in_the_middle_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "old"
    make_queue(path, foreign=3_000)
    clock = ManualClock(NOW_MS)
    claimed: list[bytes] = []
    for _ in range(5):
        async with open_moving(path, clock) as hf:
            for message in await hf.queue().claim(100, wait=0):
                claimed.append(message.payload)
                await message.ack()
            stats = await hf.queue().stats()
            assert stats.ready == 3_000 - len(claimed)
    report = verify(path)
    assert report.is_clean
    assert report.ready + report.legacy == 2_500
    async with open_moving(path, clock) as hf:
        await wait_until_moved(hf)
        claimed += [each.payload for each in await list_all(hf)]
    assert sorted(claimed) == sorted(b"foreign %d" % n for n in range(3_000))


async def test_a_store_that_stops_in_the_middle_reopens_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "old"
    make_queue(path, foreign=2_000, held=30)
    clock = ManualClock(NOW_MS)
    async with open_moving(path, clock) as hf:
        store = core_of(hf).store
        acked = 0
        for number in range(3):
            for message in await hf.queue().claim(20, wait=0):
                await message.ack()
                acked += 1
            cast(MovingStore, store)._engine.stop(OSError("a planted failure"))
            with pytest.raises(StoreUnavailable, match="a planted failure"):
                await hf.queue().stats()

            async def is_up() -> bool:
                clock.advance(60_000)
                return (await store.figures()).is_up

            await wait_until(is_up)
            stats = await hf.queue().stats()
            assert stats.ready + stats.in_flight == 2_030 - acked, number
        await wait_until_moved(hf)
        stats = await hf.queue().stats()
        assert stats.ready + stats.in_flight == 2_030 - acked
    assert verify(path).is_clean


async def test_a_nearly_full_disk_stops_the_background_and_no_claim_or_ack(tmp_path: Path) -> None:
    make_queue(tmp_path / "old", foreign=400)
    async with open_moving(tmp_path / "old", ManualClock(NOW_MS), low_disk_bytes=NO_ROOM) as hf:
        with pytest.raises(StoreUnavailable, match="enqueues are refused"):
            await hf.queue().enqueue(b"new")
        with pytest.raises(StoreUnavailable, match="enqueues are refused"):
            await hf.queue().purge()
        [message] = await hf.queue().claim(1, wait=0)
        await message.ack()
        stats = await hf.queue().stats()
        assert (stats.ready, stats.legacy_left) == (399, 300)
