"""Operations on a queue: pause, bulk verbs, policy, and deletion in two phases (SPEC 3.8, 8.11)."""

import asyncio
from typing import Any

import pytest

from holdfast.client.queue import AsyncQueue
from holdfast.model.errors import Draining, MessageNotFound, PayloadTooLarge, QueueNotFound, StaleLease
from holdfast.model.ids import MessageId
from holdfast.testing.laws.operating.inspection import list_all
from holdfast.testing.laws.waiting_tasks import finish, run_others
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject

# Bulk verbs work in atomic steps of 1,000 messages: none, one, one full step, two steps and one message.
SIZES = [0, 1, 1_000, 2_001]


async def add_failed(q: AsyncQueue, number: int, **options: Any) -> list[MessageId]:
    """Add `number` dead letters to the queue and return their ids."""
    await q.set_policy()
    ids = await q.enqueue([b"bad"] * number, **options)
    if ids:
        await q.nack(await q.claim(limit=number), "broken", final=True)
    return ids


class OperatorLaws:
    # --- Pause -----------------------------------------------------------------------------------------------

    @proves("3.8")
    async def test_pause_stops_claims_and_nothing_else(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b""] * 3)
            acked, nacked = await q.claim(limit=2)
            await q.pause()
            assert (await q.stats()).paused
            assert await q.claim(limit=10) == []
            await q.enqueue(b"")
            await acked.extend(60)
            await acked.ack()
            await nacked.nack(final=True)
            assert (await q.redrive()).redriven == 1
            assert await q.claim(limit=10) == []
            await q.resume()
            assert not (await q.stats()).paused
            assert len(await q.claim(limit=10)) == 3

    async def test_pause_affects_one_queue(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, other = hf.queue("q"), hf.queue("other")
            for each in (q, other):
                await each.enqueue(b"")
            await q.pause()
            assert len(await other.claim()) == 1

    # --- Purge and cancel ------------------------------------------------------------------------------------

    @proves("3.8")
    @pytest.mark.parametrize("size", SIZES)
    async def test_purge_deletes_ready_and_delayed_messages_but_none_in_flight(
        self, subject: Subject, size: int
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await add_failed(q, 2)
            await q.enqueue([b"held"] * 2)
            held = await q.claim(limit=2)
            await q.enqueue([b"x"] * size)
            await q.enqueue(b"delayed", delay=60)
            purged = await q.purge()
            assert (purged.matched, purged.changed) == (size + 1, size + 1)
            stats = await q.stats()
            assert (stats.ready, stats.delayed, stats.in_flight, stats.failed) == (0, 0, 2, 2)
            assert all(each.ok for each in await q.ack(held))

    @proves("3.8")
    @pytest.mark.parametrize("size", SIZES)
    async def test_purge_deletes_failed_messages_on_request(self, subject: Subject, size: int) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await add_failed(q, size)
            await q.enqueue([b"x"] * 2)
            await q.claim()
            assert (await q.purge("failed")).changed == size
            stats = await q.stats()
            assert (stats.ready, stats.in_flight, stats.failed) == (1, 1, 0)

    @proves("3.8")
    @pytest.mark.parametrize("size", SIZES)
    async def test_cancel_deletes_ready_messages_that_match(self, subject: Subject, size: int) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b""] * 2, headers={"kind": "bad"}, priority=0)
            [held] = await q.claim()
            await q.enqueue([b""] * size, headers={"kind": "bad"}, delay=1)
            await q.enqueue([b""] * 3, headers={"kind": "good"})
            cancelled = await q.cancel({"headers": {"kind": "bad"}})
            assert (cancelled.matched, cancelled.changed) == (size + 1, size + 1)
            assert {each.headers["kind"] for each in await q.list(state="ready")} == {"good"}
            await held.ack()

    # --- Reprioritise and move -------------------------------------------------------------------------------

    @proves("3.8")
    @pytest.mark.parametrize("size", SIZES)
    async def test_reprioritise_changes_the_order_of_matching_messages(self, subject: Subject, size: int) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            others = await q.enqueue([b""] * 2)
            ids = await q.enqueue([b""] * size, priority=200)
            assert (await q.reprioritise(1, {"priority": 200})).changed == size
            claimed = await q.claim(limit=10_000)
            assert [each.id for each in claimed] == ids + others
            assert {each.priority for each in claimed[:size]} <= {1}

    @proves("3.8")
    @pytest.mark.parametrize("size", SIZES)
    async def test_move_keeps_every_field_of_the_moved_messages(self, subject: Subject, size: int) -> None:
        async with subject.open() as hf:
            q, target = hf.queue("q"), hf.queue("target", tenant="acme")
            [first] = await q.enqueue(b"x", priority=3, headers={"a": "b"}, delay=60, group="g")
            ids = await q.enqueue([b"x"] * size)
            before = await q.get(first, payload=True)
            moved = await q.move("target", tenant="acme")
            assert (moved.matched, moved.changed) == (size + 1, size + 1)
            assert [each.id for each in await list_all(target)] == [first, *ids]
            assert await target.get(first, payload=True) == before
            assert await q.list() == []
            assert (await hf.tenant("default").stats()).bytes == 0
            assert (await hf.tenant("acme").stats()).bytes == size + 3

    async def test_move_moves_matching_messages_of_the_given_state(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, target = hf.queue("q"), hf.queue("target")
            dead = await add_failed(q, 3)
            await q.enqueue([b""] * 2)
            [held] = await q.claim()
            assert (await q.move("target", state="failed", filter={"ids": dead[:2]})).changed == 2
            assert [(each.id, each.state, each.last_error) for each in await target.list()] == [
                (id, "failed", "broken") for id in dead[:2]
            ]
            assert (await q.move("target")).changed == 1
            assert [each.id for each in await q.list()] == [dead[2], held.id]
            assert (await target.redrive()).redriven == 2

    # --- Redrive ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", SIZES)
    async def test_redrive_makes_every_failed_message_ready(self, subject: Subject, size: int) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await add_failed(q, size)
            redriven = await q.redrive()
            assert (redriven.matched, redriven.redriven) == (size, size)
            claimed = await q.claim(limit=10_000)
            assert [each.id for each in claimed] == ids
            assert {(each.attempt, each.version) for each in claimed} <= {(2, 2)}
            assert (await q.stats()).failed == 0

    @proves("3.8")
    async def test_redrive_gives_a_full_retry_budget_and_ttl(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue(b"", ttl=10, max_retries=1)
            subject.clock.advance(9_000)
            for _ in range(2):
                [message] = await q.claim()
                await message.nack(delay=0)
            await q.redrive()
            info = await q.get(id)
            assert (info.state, info.failures, info.version) == ("ready", 0, 2)
            assert info.expires_at == subject.clock.now_ms() + 10_000
            for state in ("ready", "failed"):
                [message] = await q.claim()
                assert (await message.nack(delay=0)).state == state

    @pytest.mark.parametrize("verb", ["redrive", "move", "remove", "purge"])
    async def test_a_dead_letter_of_a_group_can_be_redriven_moved_and_deleted(
        self, subject: Subject, verb: str
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await add_failed(q, 1, group="g")
            match verb:
                case "redrive":
                    await q.redrive()
                case "move":
                    await q.move("target", state="failed")
                case "remove":
                    await q.remove(id)
                case _:
                    await q.purge("failed")
            assert (await q.stats()).failed == 0
            assert (await q.stats()).ready == (verb == "redrive")

    @proves("3.8")
    async def test_redrive_takes_matching_messages_and_a_dry_run_changes_nothing(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await add_failed(q, 3, headers={"kind": "a"})
            await add_failed(q, 1_200, headers={"kind": "b"})
            for filter, meant in ((None, 1_203), ({"headers": {"kind": "a"}}, 3), ({"error_contains": "no"}, 0)):
                dry = await q.redrive(filter, dry_run=True)
                assert (dry.matched, dry.redriven) == (meant, 0)
            assert (await q.stats()).failed == 1_203
            assert (await q.redrive({"headers": {"kind": "a"}})).redriven == 3
            assert {each.headers["kind"] for each in await q.claim(limit=10)} == {"a"}

    @proves("3.8")
    async def test_redrive_can_edit_one_message_and_takes_only_that_one(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await add_failed(q, 3)
            redriven = await q.redrive(edit={"id": ids[1], "payload": b"mended"})
            assert (redriven.matched, redriven.redriven) == (1, 1)
            [message] = await q.claim(limit=10)
            assert (message.id, message.payload, message.attempt) == (ids[1], b"mended", 2)
            assert (await q.stats()).bytes == 3 + 6 + 3
            assert (await hf.tenant().stats()).bytes == 3 + 6 + 3

    async def test_an_edit_that_is_too_large_is_refused(self, subject: Subject) -> None:
        async with subject.open(max_payload=10) as hf:
            q = hf.queue("q")
            [id] = await add_failed(q, 1)
            with pytest.raises(PayloadTooLarge):
                await q.redrive(edit={"id": id, "payload": b"x" * 11})
            assert (await q.get(id, payload=True)).payload == b"bad"
            assert (await q.stats()).failed == 1

    @proves("3.8")
    async def test_redrive_keeps_to_its_rate(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await add_failed(q, 10)
            redriving = asyncio.create_task(q.redrive(rate_per_s=2))
            for step in range(10):
                # The rate allows one message each half second.
                while (ready := (await q.stats()).ready) <= step and not redriving.done():
                    await run_others()
                assert ready == step + 1
                await run_others()
                assert (await q.stats()).ready == step + 1
                subject.clock.advance(500)
            changed = await finish(redriving)
            assert (changed.matched, changed.redriven) == (10, 10)

    @proves("3.8")
    async def test_a_second_redrive_completes_a_cancelled_one(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await add_failed(q, 10)
            redriving = asyncio.create_task(q.redrive(rate_per_s=1))
            for step in range(3):
                while (await q.stats()).ready <= step:
                    await run_others()
                subject.clock.advance(1_000)
            redriving.cancel()
            await asyncio.wait([redriving])
            done = (await q.stats()).ready
            assert 3 <= done <= 4
            assert (await q.redrive()).redriven == 10 - done
            redriven = [event.id for event in await hf.journal() if event.event == "redriven"]
            assert len(redriven) == len(set(redriven)) == 10

    # --- Policy ----------------------------------------------------------------------------------------------

    @proves("3.8")
    async def test_set_policy_changes_only_the_given_fields_and_returns_the_whole_policy(
        self, subject: Subject
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            policy = await q.set_policy(max_retries=5)
            assert (policy.lease_ms, policy.max_lease_ms, policy.max_retries) == (5_000, 12 * 3_600_000, 5)
            assert (policy.backoff_base_ms, policy.backoff_cap_ms, policy.ttl_ms) == (500, 30_000, None)
            assert (policy.dedup_window_ms, policy.keep_succeeded_ms) == (86_400_000, 0)
            again = await q.set_policy(lease_ms=60_000, limits={"read_ops_per_s": 10})
            assert (again.max_retries, again.lease_ms, again.limits.read_ops_per_s) == (5, 60_000, 10)
            assert await q.policy() == again
            assert (await hf.queue("other").set_policy()).max_retries == 3

    async def test_a_changed_policy_applies_to_stored_messages(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b""] * 2)
            await q.set_policy(lease_ms=60_000, max_retries=0)
            [message] = await q.claim()
            assert message.lease_expires_at == subject.clock.now_ms() + 60_000
            assert (await message.nack()).state == "failed"

    # --- Deletion --------------------------------------------------------------------------------------------

    @proves("8.11")
    async def test_a_draining_queue_refuses_enqueues_and_claims_and_accepts_verdicts(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await hf.queue("other").enqueue(b"")
            await q.enqueue([b""] * 4)
            acked, nacked, extended = await q.claim(limit=3, lease=10)
            await q.delete()
            assert (await q.stats()).draining
            await subject.sweep(hf)
            with pytest.raises(Draining):
                await q.enqueue(b"")
            with pytest.raises(Draining):
                await q.claim()
            with pytest.raises(Draining):
                await q.claim(wait=None)
            with pytest.raises(Draining):
                await hf.queue("other").move("q")
            await extended.extend(20)
            await acked.ack()
            await nacked.nack("no")
            await subject.sweep(hf)
            assert (await q.stats()).in_flight == 1
            await extended.ack()
            await subject.sweep(hf)
            with pytest.raises(QueueNotFound):
                await q.stats()
            assert [each.queue for each in await hf.queues()] == ["other"]

    @proves("8.11")
    async def test_leases_are_revoked_after_force_after(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            [message] = await q.claim(lease=3_600)
            await q.delete(force_after=10)
            subject.clock.advance(9_999)
            await subject.sweep(hf)
            await message.extend(3_600)
            subject.clock.advance(1)
            await subject.sweep(hf)
            with pytest.raises(QueueNotFound):
                await q.stats()
            with pytest.raises(StaleLease):
                await message.ack()

    @proves("8.11")
    async def test_force_after_is_thirty_seconds_by_default(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            await q.claim(lease=3_600)
            await q.delete()
            subject.clock.advance(29_999)
            await subject.sweep(hf)
            assert (await q.stats()).in_flight == 1
            subject.clock.advance(1)
            await subject.sweep(hf)
            assert await hf.queues() == []

    @proves("8.11")
    async def test_a_deleted_queue_leaves_only_its_journal_events(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q", tenant="acme")
            await add_failed(q, 2)
            ids = await q.enqueue([b"x"] * 2_500)
            await q.enqueue(b"", delay=60)
            await q.delete()
            await subject.sweep(hf)
            assert await hf.queues(tenant="acme") == []
            total = await hf.tenant("acme").stats()
            assert (total.ready, total.delayed, total.failed, total.bytes) == (0, 0, 0, 0)
            removed = [event.id for event in await hf.journal(limit=10_000) if event.event == "removed"]
            assert len(removed) == len(set(removed)) == 2_503
            assert set(ids) < set(removed)

    @proves("8.11")
    async def test_a_deleted_queue_s_name_can_be_reused_for_a_new_queue(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_retries=9)
            ids = await q.enqueue([b""] * 2, group="g")
            [old] = await q.claim(lease=3_600, ledger=("spark", 1))
            [keyed] = await q.enqueue(b"", key="k")
            await q.pause()
            await q.delete(force_after=0)
            await subject.sweep(hf)
            [fresh] = await q.enqueue(b"fresh", key="k", group="g")
            assert not fresh.duplicate
            assert fresh not in (*ids, keyed)
            assert (await q.policy()).max_retries == 3
            stats = await q.stats()
            assert (stats.ready, stats.in_flight, stats.paused, stats.draining) == (1, 0, False, False)
            with pytest.raises(MessageNotFound):
                await q.get(ids[0])
            with pytest.raises(StaleLease):
                await old.ack()
            assert await q.ledger("spark") == []
            assert [each.payload for each in await q.claim(limit=10)] == [b"fresh"]

    async def test_deleting_an_unknown_queue_raises_queue_not_found(self, subject: Subject) -> None:
        async with subject.open() as hf:
            with pytest.raises(QueueNotFound):
                await hf.queue("q").delete()
