"""Schedules, which enqueue one message at each tick (SPEC 3.9)."""

import asyncio
from typing import Any

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.client.queue import AsyncQueue
from holdfast.model.errors import Draining, InvalidArgument, InvalidName, MessageNotFound, OverQuota, QueueNotFound
from holdfast.model.schedules import MAX_SCHEDULES, ScheduleInfo
from holdfast.testing.laws.cases import note_case
from holdfast.testing.laws.waiting_tasks import finish, start_claim
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS

# Invalid arguments of a schedule, and the field that the error names.
_UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"payload": b""}, "cron"),
    ({"cron": "* * * * *", "every": 60, "payload": b""}, "every_ms"),
    ({"cron": "* * * * *"}, "message"),
    ({"cron": "61 * * * *", "payload": b""}, "cron"),
    ({"cron": "* * * *", "payload": b""}, "cron"),
    ({"cron": "0 0 * * * *", "payload": b""}, "cron"),
    ({"cron": "@daily", "payload": b""}, "cron"),
    ({"cron": "", "payload": b""}, "cron"),
    ({"cron": "0 0 30 2 *", "payload": b""}, "cron"),
    ({"cron": "0 0 31 4,6 *", "payload": b""}, "cron"),
    ({"cron": "\u0660 * * * *", "payload": b""}, "cron"),
    ({"cron": "* * * * * " * 60, "payload": b""}, "cron"),
    ({"cron": "* * * * *", "timezone": "Mars/Olympus", "payload": b""}, "timezone"),
    ({"cron": "* * * * *", "timezone": "../../etc/passwd", "payload": b""}, "timezone"),
    ({"cron": "* * * * *", "timezone": "Europe", "payload": b""}, "timezone"),
    ({"cron": "* * * * *", "timezone": "localtime", "payload": b""}, "timezone"),
    ({"every": 60, "timezone": "UTC", "payload": b""}, "timezone"),
    ({"every": 0.999, "payload": b""}, "every_ms"),
    ({"every": 60, "payload": b"", "key": "k"}, "key"),
    ({"every": 60, "payload": b"", "delay": 1}, "delay"),
    ({"every": 60, "payload": b"", "priority": 256}, "priority"),
    ({"every": 60, "payload": b"", "headers": {"schedule": "x"}}, "message.headers"),
    ({"every": 60, "payload": b"", "headers": {"scheduled-at": "x"}}, "message.headers"),
    ({"every": 60, "priority": 1}, "payload"),
]


async def _advance(subject: Subject, hf: AsyncHoldfast, ms: int) -> None:
    subject.clock.advance(ms)
    await subject.fire(hf)


async def _enqueued_ticks(q: AsyncQueue) -> list[int]:
    """Return the ticks that enqueued the messages in the queue, in order of id."""
    return [int(each.headers["scheduled-at"]) for each in await q.list(limit=10_000)]


async def _only_schedule(q: AsyncQueue) -> ScheduleInfo:
    [schedule] = await q.schedules()
    return schedule


class ScheduleLaws:
    # --- Ticks -----------------------------------------------------------------------------------------------

    @proves("3.9")
    async def test_each_tick_of_an_interval_enqueues_one_message(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, start = hf.queue("q"), subject.clock.now_ms()
            put = await q.schedule("often", every=5, payload={"n": 1}, priority=7, headers={"a": "b"}, group="g")
            assert (put.next_at, put.every_ms, put.cron) == (start + 5_000, 5_000, None)
            await _advance(subject, hf, 4_999)
            assert await _enqueued_ticks(q) == []
            await _advance(subject, hf, 1)
            await subject.fire(hf)
            await _advance(subject, hf, 5_000)
            # This tick fires late, but the next one is still computed from the anchor.
            await _advance(subject, hf, 5_900)
            await _advance(subject, hf, 4_099)
            assert await _enqueued_ticks(q) == [start + 5_000, start + 10_000, start + 15_000]
            [first, *_] = await q.claim(limit=1)
            assert (first.json(), first.priority) == ({"n": 1}, 7)
            assert first.headers == {"a": "b", "schedule": "often", "scheduled-at": str(start + 5_000)}

    @proves("3.9")
    async def test_a_cron_line_ticks_by_its_own_time_zone(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, start = hf.queue("q"), subject.clock.now_ms()
            # The clock starts at 15:06:40 UTC on a day of summer time, which is 17:06:40 in Berlin.
            await q.schedule("berlin", cron="30 17 * * *", timezone="Europe/Berlin", payload=b"")
            await q.schedule("utc", cron="30 17 * * *", payload=b"")
            at = {each.name: (each.next_at or 0) - start for each in await q.schedules()}
            assert at == {"berlin": 23 * MINUTE_MS + 20_000, "utc": 2 * HOUR_MS + 23 * MINUTE_MS + 20_000}
            await _advance(subject, hf, HOUR_MS)
            await _advance(subject, hf, 2 * HOUR_MS)
            fired = [each.headers["schedule"] for each in await q.list()]
            assert fired == ["berlin", "utc"]

    async def test_a_tick_wakes_a_waiting_claim(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.schedule("s", every=1, payload="tick")
            waiting = await start_claim(q)
            subject.clock.advance(1_000)
            [message] = await finish(waiting)
            assert message.json() == "tick"

    async def test_only_the_latest_of_several_missed_ticks_fires(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, start = hf.queue("q"), subject.clock.now_ms()
            await q.schedule("often", every=10, payload=b"")
            subject.clock.step_to(start + 95_000)
            await subject.fire(hf)
            assert await _enqueued_ticks(q) == [start + 90_000]
            await _advance(subject, hf, 5_000)
            assert await _enqueued_ticks(q) == [start + 90_000, start + 100_000]

    async def test_only_the_latest_of_several_missed_cron_ticks_fires(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, start = hf.queue("q"), subject.clock.now_ms()
            first = (await q.schedule("minutely", cron="* * * * *", payload=b"")).next_at or 0
            subject.clock.step_to(start + 400 * 24 * HOUR_MS)
            await subject.fire(hf)
            now = subject.clock.now_ms()
            assert await _enqueued_ticks(q) == [first + (now - first) // MINUTE_MS * MINUTE_MS]
            assert (await _only_schedule(q)).next_at == now // MINUTE_MS * MINUTE_MS + MINUTE_MS

    @proves("3.9")
    async def test_concurrent_passes_fire_each_tick_once(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, start = hf.queue("q"), subject.clock.now_ms()
            for name in ("a", "b", "c"):
                await q.schedule(name, every=1, payload=b"")
            for _ in range(3):
                subject.clock.advance(1_000)
                await asyncio.gather(*(subject.fire(hf) for _ in range(5)))
            assert sorted(await _enqueued_ticks(q)) == sorted([start + 1_000, start + 2_000, start + 3_000] * 3)

    async def test_many_schedules_of_one_tick_all_fire(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            for number in range(150):
                await q.schedule(f"s-{number}", every=60, payload=number)
            await _advance(subject, hf, 60_000)
            assert sorted(int(each.headers["schedule"][2:]) for each in await q.list(limit=1_000)) == list(range(150))

    async def test_the_journal_says_which_tick_enqueued_a_message(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, start = hf.queue("q"), subject.clock.now_ms()
            await q.schedule("s", every=1, payload=b"")
            await _advance(subject, hf, 1_000)
            [event] = await hf.journal()
            assert (event.event, event.id) == ("enqueued", (await _only_schedule(q)).last_id)
            assert event.reason == f"schedule s, tick {start + 1_000}"

    # --- Creating and changing -------------------------------------------------------------------------------

    async def test_a_listing_shows_the_last_and_the_next_tick(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, start = hf.queue("q"), subject.clock.now_ms()
            await q.schedule("b", cron="0 3 * * *", timezone="Asia/Tokyo", payload={"big": "x" * 100}, ttl=60)
            await q.schedule("a", every="1m", payload=b"bytes", paused=True)
            a, b = await q.schedules()
            assert (a.name, a.every_ms, a.cron, a.paused, a.next_at) == ("a", 60_000, None, True, None)
            assert (b.name, b.cron, b.timezone, b.paused) == ("b", "0 3 * * *", "Asia/Tokyo", False)
            assert (b.last_at, b.last_id, b.last_error) == (None, None, None)
            assert (b.message.payload, b.message.bytes, b.message.ttl_ms) == (None, 110, 60_000)
            assert b.next_at is not None
            await _advance(subject, hf, b.next_at - start)
            [message] = await q.list()
            after = (await q.schedules())[1]
            assert (after.last_at, after.last_id) == (b.next_at, message.id)
            assert after.next_at == b.next_at + 24 * HOUR_MS

    async def test_scheduling_again_changes_only_the_given_fields(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, start = hf.queue("q"), subject.clock.now_ms()
            await q.schedule("s", every=60, payload="old", priority=3)
            subject.clock.advance(10_000)
            # The interval is unchanged and keeps its anchor.
            same = await q.schedule("s", every=60, payload="new")
            assert (same.next_at, same.message.priority) == (start + 60_000, 100)
            await _advance(subject, hf, 50_000)
            changed = await q.schedule("s", cron="*/5 * * * *")
            assert (changed.every_ms, changed.cron) == (None, "*/5 * * * *")
            await _advance(subject, hf, 300_000)
            assert [each.json() for each in await q.claim(limit=10)] == ["new", "new"]
            moved = await q.schedule("s", timezone="Asia/Kolkata")
            assert (moved.cron, moved.timezone) == ("*/5 * * * *", "Asia/Kolkata")
            assert (await q.schedule("s")) == moved

    async def test_a_paused_schedule_skips_its_ticks_and_keeps_its_anchor(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, start = hf.queue("q"), subject.clock.now_ms()
            await q.schedule("s", every=10, payload=b"")
            assert (await q.schedule("s", paused=True)).next_at is None
            await _advance(subject, hf, 25_000)
            assert await _enqueued_ticks(q) == []
            assert (await q.schedule("s", paused=False)).next_at == start + 30_000
            await subject.fire(hf)
            assert await _enqueued_ticks(q) == []
            await _advance(subject, hf, 5_000)
            assert await _enqueued_ticks(q) == [start + 30_000]

    async def test_a_paused_queue_still_receives_scheduled_messages(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.schedule("s", every=10, payload=b"")
            await q.pause()
            await _advance(subject, hf, 10_000)
            assert (await q.stats()).ready == 1
            assert await q.claim() == []

    async def test_a_removed_schedule_does_not_fire(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.schedule("s", every=10, payload=b"")
            await q.schedule("t", every=10, payload=b"")
            await q.unschedule("s")
            with pytest.raises(MessageNotFound):
                await q.unschedule("s")
            await _advance(subject, hf, 10_000)
            assert [each.headers["schedule"] for each in await q.list()] == ["t"]

    async def test_deleting_a_queue_deletes_its_schedules(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [held] = await q.claim(lease=3_600)
            await q.schedule("s", every=10, payload=b"")
            await q.delete(force_after=60)
            assert await q.schedules() == []
            with pytest.raises(Draining):
                await q.schedule("s", every=10, payload=b"")
            await _advance(subject, hf, 20_000)
            assert (await q.stats()).ready == 0
            await held.ack()
            await subject.sweep(hf)
            with pytest.raises(QueueNotFound):
                await q.schedules()
            await q.enqueue(b"")
            assert await q.schedules() == []
            await _advance(subject, hf, 20_000)
            assert (await q.stats()).ready == 1

    async def test_each_queue_has_its_own_schedule_names(self, subject: Subject) -> None:
        async with subject.open() as hf:
            one, two = hf.queue("one"), hf.queue("two", tenant="acme")
            await one.schedule("s", every=10, payload=1)
            await two.schedule("s", every=10, payload=2)
            await one.unschedule("s")
            await _advance(subject, hf, 10_000)
            assert ((await one.stats()).ready, (await two.stats()).ready) == (0, 1)

    # --- Refusals --------------------------------------------------------------------------------------------

    async def test_an_invalid_schedule_is_refused_with_the_name_of_the_field(self, subject: Subject) -> None:
        async with subject.open() as hf:
            for given, field in _UNFIT:
                with note_case(given):
                    with pytest.raises(InvalidArgument) as refused:
                        await hf.queue("q").schedule("s", **given)
                    assert refused.value.facts["field"] == field
                    # The refused call has not created the queue.
                    assert await hf.queues() == []

    async def test_an_invalid_schedule_name_is_refused(self, subject: Subject) -> None:
        async with subject.open() as hf:
            for name in ("", ".s", "a/b", "a b", "x" * 129):
                with pytest.raises(InvalidName):
                    await hf.queue("q").schedule(name, every=60, payload=b"")

    async def test_a_tick_beyond_a_quota_is_skipped_and_its_error_shown(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(quotas={"max_messages": 1})
            q, start = hf.queue("q", tenant="acme"), subject.clock.now_ms()
            await q.schedule("s", every=10, payload=b"")
            await _advance(subject, hf, 10_000)
            await _advance(subject, hf, 10_000)
            after = await _only_schedule(q)
            assert (after.last_at, after.next_at) == (start + 10_000, start + 30_000)
            assert (after.last_error or "").startswith("over_quota: ")
            await q.purge()
            await _advance(subject, hf, 10_000)
            assert await _enqueued_ticks(q) == [start + 30_000]
            assert (await _only_schedule(q)).last_error is None

    async def test_a_tick_beyond_a_rate_is_skipped_and_its_error_shown(self, subject: Subject) -> None:
        async with subject.open() as hf:
            await hf.tenant("acme").set(limits={"write_ops_per_s": 0})
            q = hf.queue("q", tenant="acme")
            await q.schedule("s", every=10, payload=b"")
            await _advance(subject, hf, 10_000)
            assert (await q.stats()).ready == 0
            assert ((await _only_schedule(q)).last_error or "").startswith("rate_limited: ")

    async def test_a_queue_has_a_bounded_number_of_schedules(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await asyncio.gather(*(q.schedule(f"s-{n}", every=60, payload=b"") for n in range(MAX_SCHEDULES)))
            with pytest.raises(OverQuota):
                await q.schedule("one-more", every=60, payload=b"")
            await q.schedule("s-1", paused=True)
            await q.unschedule("s-2")
            await q.schedule("one-more", every=60, payload=b"")
            assert len(await q.schedules()) == MAX_SCHEDULES
