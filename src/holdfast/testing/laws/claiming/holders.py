"""The owner, start and end of a lease in look-ups and listings (SPEC 10.8)."""

from typing import Any

import pytest

from holdfast.model.answers import Info
from holdfast.model.errors import InvalidArgument
from holdfast.model.ids import MessageId
from holdfast.testing.subject import Subject


def _hold(info: Info) -> tuple[str | None, int | None, int | None]:
    return info.owner, info.claimed_at, info.lease_expires_at


class HolderLaws:
    async def test_a_look_up_shows_the_owner_and_the_start_and_end_of_a_lease(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue(b"")
            assert _hold(await q.get(id)) == (None, None, None)
            subject.clock.advance(10)
            start = subject.clock.now_ms()
            [message] = await q.claim(lease=30, owner="worker-1")
            held = ("worker-1", start, start + 30_000)
            assert _hold(await q.get(id)) == held
            assert [_hold(each) for each in await q.list(state="in_flight")] == [held]
            subject.clock.advance(20_000)
            await message.extend(60)
            # Extending is not a new claim: the start of the lease still shows a handler that hangs.
            held = ("worker-1", start, start + 80_000)
            assert _hold(await q.get(id)) == held
            assert [_hold(each) for each in await q.list()] == [held]

    async def test_a_message_without_a_lease_has_no_holder(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(keep_succeeded_ms=60_000)
            await q.enqueue([b""] * 4)
            done, failed, released, _ = await q.claim(limit=4, lease=5, owner="worker-1")
            await done.ack()
            await failed.nack("why", final=True)
            await released.release()
            subject.clock.advance(5_000)
            await subject.sweep(hf)
            assert [_hold(each) for each in await q.list()] == [(None, None, None)] * 4

    async def test_a_filter_finds_messages_by_owner_and_by_how_long_they_are_held(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue([b""] * 5)
            await q.claim(limit=2, lease=600, owner="a")
            subject.clock.advance(60_000)
            await q.claim(limit=1, lease=600, owner="b")
            await q.claim(limit=1, lease=600)
            meant: list[tuple[dict[str, Any], list[MessageId]]] = [
                ({"owner": "a"}, ids[:2]),
                ({"owner": "b"}, ids[2:3]),
                ({"owner": "nobody"}, []),
                ({"held_for_ms": 60_000}, ids[:2]),
                ({"held_for_ms": 60_001}, []),
                ({"held_for_ms": 0}, ids[:4]),
                ({"held_for_ms": 60_000, "owner": "b"}, []),
                ({"held_for_ms": 60_000, "ids": [ids[1], ids[4]]}, ids[1:2]),
            ]
            for filter, expected in meant:
                assert [each.id for each in await q.list(filter=filter)] == expected, filter
                assert [each.id for each in await q.list(state="in_flight", filter=filter)] == expected, filter
                assert await q.list(state="ready", filter=filter) == [], filter

    async def test_delayed_messages_can_be_listed_and_filtered(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [due] = await q.enqueue(b"")
            [soon] = await q.enqueue(b"", delay=1)
            [later] = await q.enqueue(b"", delay=60, priority=5)
            [held] = await q.enqueue(b"", priority=0)
            await q.claim()
            assert [each.id for each in await q.list(state="delayed")] == [soon, later]
            assert [each.id for each in await q.list(state="ready", filter={"delayed": True})] == [soon, later]
            assert [each.id for each in await q.list(state="ready", filter={"delayed": False})] == [due]
            assert [each.id for each in await q.list(filter={"delayed": False})] == [due, held]
            assert [each.id for each in await q.list(state="delayed", filter={"priority": 5})] == [later]
            assert [each.state for each in await q.list(state="delayed")] == ["ready", "ready"]
            [first] = page = await q.list(state="delayed", limit=1)
            assert first.id == soon
            assert [each.id for each in await q.list(state="delayed", cursor=page.cursor)] == [later]
            subject.clock.advance(1_000)
            assert [each.id for each in await q.list(state="delayed")] == [later]
            assert [each.id for each in await q.list(state="ready")] == [due, soon, later]

    async def test_delayed_is_refused_as_a_state_of_verbs_and_with_the_opposite_filter(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"", delay=60)
            with pytest.raises(InvalidArgument):
                await q.purge("delayed")
            with pytest.raises(InvalidArgument):
                await q.list(state="delayed", filter={"delayed": False})
            assert (await q.stats()).delayed == 1
