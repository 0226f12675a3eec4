"""The journal, which has one event for each transition (SPEC 9.1)."""

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.model.errors import HoldfastError, OverQuota
from holdfast.model.events import JournalEvent
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject

DAY_MS = 86_400_000


async def events_of(hf: AsyncHoldfast, after: str | None = None, tenant: str | None = None) -> list[JournalEvent]:
    """Return all events after a position, read page by page."""
    events: list[JournalEvent] = []
    while page := await hf.journal(after=after, tenant=tenant):
        # Without this check, a position that moves back would make the loop endless.
        assert not {(each.shard, each.seq) for each in events} & {(each.shard, each.seq) for each in page}
        events += page
        after = page.next
    return events


class JournalLaws:
    @proves("9.1")
    async def test_every_transition_appends_one_event_with_its_facts(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, start = hf.queue("q", tenant="acme"), subject.clock.now_ms()
            [id] = await q.enqueue(b"12345", priority=7, headers={"ab": "c"}, correlation_id="c-1", max_retries=1)
            subject.clock.advance(10)
            [message] = await q.claim()
            subject.clock.advance(10)
            await message.extend(5)
            subject.clock.advance(10)
            await message.nack("first", delay=0)
            [message] = await q.claim()
            await message.release()
            [message] = await q.claim()
            subject.clock.advance(10)
            await message.nack("second")
            await q.redrive()
            [message] = await q.claim()
            await message.ack()
            events = await events_of(hf)
            assert [event.event for event in events] == [
                *("enqueued", "claimed", "extended", "retried", "claimed", "released"),
                *("claimed", "failed", "redriven", "claimed", "succeeded"),
            ]
            assert [event.at - start for event in events] == [0, 10, 20, 30, 30, 30, 30, 40, 40, 40, 40]
            assert [event.attempt for event in events] == [0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4]
            assert [event.version for event in events] == [0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4]
            assert {(event.tenant, event.queue, event.id) for event in events} == {("acme", "q", str(id))}
            assert {(event.priority, event.bytes, event.correlation_id) for event in events} == {(7, 8, "c-1")}
            assert {event.enqueued_at for event in events} == {start}
            assert {event.event: event.error for event in events if event.error} == {
                "retried": "first",
                "failed": "second",
            }
            # Waiting and working times are computed from the event alone, so it has the time of its claim.
            worked = [
                event for event in events if event.event in ("claimed", "extended", "retried", "failed", "succeeded")
            ]
            assert [(event.claimed_at or 0) - start for event in worked] == [10, 10, 10, 30, 30, 30, 40, 40]
            assert events[0].claimed_at is None

    async def test_the_event_of_an_expired_lease_precedes_the_event_of_the_next_claim(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"", max_retries=1)
            await q.claim(lease=1)
            subject.clock.advance(1_000)
            await q.claim(lease=1)
            subject.clock.advance(1_000)
            await subject.sweep(hf)
            events = await events_of(hf)
            assert [event.event for event in events] == ["enqueued", "claimed", "expired", "claimed", "failed"]
            assert [event.attempt for event in events] == [0, 1, 1, 2, 2]
            assert events[-1].reason is not None

    @proves("2.11")
    async def test_the_end_of_a_ttl_writes_an_event_for_kept_and_dropped_messages(self, subject: Subject) -> None:
        async with subject.open() as hf:
            kept, dropped = hf.queue("kept"), hf.queue("dropped")
            await dropped.set_policy(on_ttl="drop")
            for q in (kept, dropped):
                await q.enqueue(b"", ttl=1)
            subject.clock.advance(1_000)
            await subject.sweep(hf)
            ends = {event.queue: event for event in await events_of(hf) if event.event != "enqueued"}
            assert {name: event.event for name, event in ends.items()} == {"kept": "failed", "dropped": "removed"}
            assert {event.reason for event in ends.values()} == {"ttl"}

    @proves("9.1")
    async def test_operators_verbs_write_an_event_for_each_message(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue([b""] * 6)
            await q.remove(ids[0])
            await q.cancel({"ids": [ids[1]]})
            await q.move("other", filter={"ids": [ids[2]]})
            position = (await hf.journal()).next
            await q.purge()
            events = await events_of(hf)
            gone = [event.id for event in events if event.event == "removed"]
            assert gone == [ids[0], ids[1], *ids[3:]]
            assert {event.id for event in events if event.event == "moved"} == {ids[2]}
            assert [event.id for event in await events_of(hf, after=position)] == ids[3:]

    @proves("9.1")
    async def test_a_call_that_changes_nothing_writes_no_event(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await hf.tenant().set(quotas={"max_messages": 1})
            await q.enqueue(b"", key="k")
            await q.enqueue(b"", key="k")
            [message] = await q.claim()
            await message.ack()
            before = await events_of(hf)
            await q.claim()
            await q.ack([message])
            await q.purge()
            await q.redrive()
            await q.pause()
            await q.resume()
            await subject.sweep(hf)
            with pytest.raises(OverQuota):
                await q.enqueue([b"", b""])
            with pytest.raises(HoldfastError):
                await q.remove(message.id)
            assert await events_of(hf) == before
            assert [event.event for event in before] == ["enqueued", "claimed", "succeeded"]

    @proves("9.1")
    async def test_reading_from_a_position_returns_exactly_the_later_events(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            empty = await hf.journal()
            assert empty == []
            ids = await q.enqueue([b""] * 5)
            first = await hf.journal(limit=2)
            second = await hf.journal(after=first.next, limit=2)
            third = await hf.journal(after=second.next, limit=2)
            assert [[event.id for event in page] for page in (first, second, third)] == [ids[:2], ids[2:4], ids[4:]]
            end = await hf.journal(after=third.next)
            assert end == []
            ids += await q.enqueue(b"")
            assert [event.id for event in await hf.journal(after=end.next)] == ids[5:]
            assert [event.id for event in await hf.journal(after=third.next)] == ids[5:]
            # A position can be read from more than once.
            assert [event.id for event in await hf.journal(after=first.next)] == ids[2:]
            if empty.next:
                assert [event.id for event in await hf.journal(after=empty.next)] == ids

    async def test_the_sequence_increases_in_each_shard(self, subject: Subject) -> None:
        async with subject.open() as hf:
            for name in ("a", "b", "c"):
                q = hf.queue(name)
                await q.enqueue([b""] * 3)
                for message in await q.claim(limit=3):
                    await message.ack()
            sequences: dict[int, list[int]] = {}
            for event in await events_of(hf):
                sequences.setdefault(event.shard, []).append(event.seq)
            for seen in sequences.values():
                assert seen == sorted(set(seen))
            assert sum(map(len, sequences.values())) == 27

    async def test_a_tenant_s_events_can_be_read_separately(self, subject: Subject) -> None:
        async with subject.open() as hf:
            for number in range(30):
                await hf.queue("q", tenant="acme" if number % 10 == 0 else "other").enqueue(str(number))
            mine = await events_of(hf, tenant="acme")
            assert len(mine) == 3
            assert {event.tenant for event in mine} == {"acme"}
            assert [event for event in await events_of(hf) if event.tenant == "acme"] == mine
            # A page of any size has only events of the tenant, and its position advances.
            pages = [await hf.journal(limit=1, tenant="acme")]
            while pages[-1] and len(pages) < 10:
                pages.append(await hf.journal(after=pages[-1].next, limit=1, tenant="acme"))
            assert [event for page in pages for event in page] == mine
            assert await events_of(hf, tenant="nobody") == []

    @proves("9.1")
    async def test_a_tenant_s_own_retention_limits_what_it_reads(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(journal_retention_ms=60_000)
            for tenant in ("acme", "other"):
                await hf.queue("q", tenant=tenant).enqueue(b"")
            subject.clock.advance(60_001)
            [late] = await hf.queue("q", tenant="acme").enqueue(b"")
            assert [event.id for event in await events_of(hf, tenant="acme")] == [late]
            assert len(await events_of(hf, tenant="other")) == 1
            assert len(await events_of(hf)) == 3

    @proves("9.1")
    async def test_events_are_kept_for_seven_days_and_then_swept(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b""] * 2_500)
            old = (await hf.journal(limit=10)).next
            subject.clock.advance(7 * DAY_MS - 1)
            [late] = await q.enqueue(b"")
            await subject.sweep(hf)
            assert len(await events_of(hf)) == 2_501
            subject.clock.advance(2)
            await subject.sweep(hf)
            assert [event.id for event in await events_of(hf)] == [late]
            # A reader that returns after the retention continues with the remaining events.
            assert [event.id for event in await events_of(hf, after=old)] == [late]
