"""Reads that change nothing: get, peek, list and exact counts (SPEC 3.7)."""

import random
from typing import Any

import pytest
from msgspec.structs import asdict

from holdfast.client.queue import AsyncQueue
from holdfast.model.answers import Info, Stats
from holdfast.model.errors import MessageNotFound
from holdfast.model.message import NewMessage
from holdfast.testing.laws.waiting_tasks import start_claim
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject


async def list_all(q: AsyncQueue, limit: int = 100, **selection: Any) -> list[Info]:
    """Return the messages of all pages of a listing."""
    found: list[Info] = []
    cursor: str | None = None
    while True:
        page = await q.list(limit=limit, cursor=cursor, **selection)
        assert len(page) <= limit
        # Without this check, a cursor that moves back would make the loop endless.
        assert not {each.id for each in found} & {each.id for each in page}
        found += page
        cursor = page.cursor
        if cursor is None:
            return found


async def _recount(q: AsyncQueue, now_ms: int) -> dict[str, int]:
    everything = await list_all(q)
    due = [each.visible_at for each in everything if each.state == "ready" and each.visible_at <= now_ms]
    states = [each.state.value for each in everything]
    return {
        "ready": len(due),
        "delayed": states.count("ready") - len(due),
        "in_flight": states.count("in_flight"),
        "failed": states.count("failed"),
        "bytes": sum(each.bytes for each in everything),
        "oldest_ready_age_ms": now_ms - min(due, default=now_ms),
    }


def _counts(stats: Stats) -> dict[str, int]:
    return {
        "ready": stats.ready,
        "delayed": stats.delayed,
        "in_flight": stats.in_flight,
        "failed": stats.failed,
        "bytes": stats.bytes,
        "oldest_ready_age_ms": stats.oldest_ready_age_ms,
    }


class InspectionLaws:
    # --- Get and peek ----------------------------------------------------------------------------------------

    @proves("3.7")
    async def test_get_shows_a_message_at_every_stage_of_its_life(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, start = hf.queue("q"), subject.clock.now_ms()
            [id] = await q.enqueue(b"12345", headers={"ab": "c"}, ttl=3_600, max_retries=1)
            info = await q.get(id)
            assert (info.id, info.snowflake, info.state) == (id, id.snowflake, "ready")
            assert (info.priority, info.attempt, info.version, info.bytes) == (100, 0, 0, 8)
            assert (info.failures, info.expiries, info.releases) == (0, 0, 0)
            assert (info.enqueued_at, info.visible_at, info.expires_at) == (start, start, start + 3_600_000)
            assert (info.lease_expires_at, info.last_error, info.reason, info.settled_at) == (None, None, None, None)
            subject.clock.advance(10)
            [message] = await q.claim(lease=30)
            info = await q.get(id)
            assert (info.state, info.attempt, info.version) == ("in_flight", 1, 1)
            assert info.lease_expires_at == start + 30_010
            await message.release()
            [message] = await q.claim()
            await message.nack("why", delay=2)
            info = await q.get(id)
            assert (info.state, info.last_error, info.visible_at) == ("ready", "why", start + 2_010)
            assert (info.failures, info.expiries, info.releases, info.attempt) == (1, 0, 1, 2)
            assert info.lease_expires_at is None
            subject.clock.advance(2_000)
            await q.claim(lease=1)
            subject.clock.advance(1_000)
            await subject.sweep(hf)
            info = await q.get(id)
            assert (info.state, info.attempt, info.version) == ("failed", 3, 3)
            assert (info.failures, info.expiries, info.releases) == (1, 1, 1)
            assert info.reason is not None
            assert info.settled_at == start + 3_010

    async def test_a_look_up_returns_the_payload_on_request_and_never_the_receipt(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue(b"secret")
            [message] = await q.claim()
            assert (await q.get(id)).payload is None
            assert (await q.get(id, payload=True)).payload == b"secret"
            assert [each.payload for each in await q.list()] == [None]
            for info in (await q.get(id, payload=True), *await q.list()):
                assert message.receipt not in repr(info)

    async def test_an_unknown_id_raises_message_not_found(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [id] = await q.enqueue(b"")
            with pytest.raises(MessageNotFound):
                await q.get(id.snowflake + 1)
            [message] = await q.claim()
            await message.ack()
            with pytest.raises(MessageNotFound):
                await q.get(id)

    @proves("3.7")
    async def test_peek_returns_the_next_messages_without_claiming_them(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([NewMessage(b"low", priority=200), b"first", b"second", NewMessage(b"top", priority=0)])
            await q.enqueue(b"delayed", delay=60)
            before = await q.stats()
            assert [each.payload for each in await q.peek()] == [b"top"]
            peeked = await q.peek(10)
            assert [each.payload for each in peeked] == [b"top", b"first", b"second", b"low"]
            assert [each.id for each in await q.peek(2)] == [each.id for each in peeked[:2]]
            assert await q.stats() == before
            assert [(each.id, each.attempt) for each in await q.claim(limit=10)] == [(each.id, 1) for each in peeked]
            assert await q.peek(10) == []

    # --- List ------------------------------------------------------------------------------------------------

    @proves("3.7")
    async def test_list_returns_the_messages_of_a_state(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(keep_succeeded_ms=60_000)
            ids = await q.enqueue([b""] * 4)
            [delayed] = await q.enqueue(b"", delay=60)
            succeeded, failed, _ = await q.claim(limit=3)
            await succeeded.ack()
            await failed.nack(final=True)
            for state, expected in {
                "succeeded": [ids[0]],
                "failed": [ids[1]],
                "in_flight": [ids[2]],
                "ready": [ids[3], delayed],
                None: [*ids, delayed],
            }.items():
                assert [each.id for each in await q.list(state=state)] == expected

    @proves("3.7")
    @pytest.mark.parametrize("limit", [1, 7, 10, 25, 26, 10_000])
    async def test_a_listing_in_pages_has_each_message_once_by_id(self, subject: Subject, limit: int) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            # A listing is not ordered by priority or delay.
            ids = await q.enqueue([NewMessage(b"", priority=255 - n, delay=n % 3) for n in range(25)])
            assert [each.id for each in await list_all(q, limit)] == ids
            assert [each.id for each in await list_all(q, limit, state="ready")] == ids

    async def test_a_listing_continues_while_messages_are_added_and_removed(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue([b""] * 20)
            page = await q.list(limit=5)
            assert page.cursor is not None
            for id in ids[3:8]:
                await q.remove(id)
            later = await q.enqueue(b"")
            found = await q.list(limit=100, cursor=page.cursor)
            assert [each.id for each in found] == ids[8:] + later
            assert found.cursor is None

    @proves("3.7")
    async def test_a_filter_selects_messages_that_match_every_given_field(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            [old] = await q.enqueue(b"", headers={"kind": "a", "n": "1"}, priority=5)
            subject.clock.advance(1_000)
            [mid] = await q.enqueue(b"", headers={"kind": "a", "n": "2"})
            [new] = await q.enqueue(b"", headers={"kind": "b"}, priority=5)
            # Three failures: `old` first for its priority, then `new`, then `mid`.
            for error in ("Timeout: 7 s", "KeyError: 'x'", "Timeout: 9 s"):
                [message] = await q.claim()
                await message.nack(error, final=True)
            meant: list[tuple[dict[str, Any], list[str]]] = [
                ({}, [old, mid, new]),
                ({"ids": [new, old.snowflake]}, [old, new]),
                ({"ids": []}, []),
                ({"error_contains": "Timeout"}, [old, mid]),
                ({"error_contains": "timeout"}, []),
                ({"older_than_ms": 1_000}, [old]),
                ({"older_than_ms": 0}, [old, mid, new]),
                ({"headers": {"kind": "a"}}, [old, mid]),
                ({"headers": {"kind": "a", "n": "2"}}, [mid]),
                ({"headers": {"absent": ""}}, []),
                ({"priority": 5}, [old, new]),
                ({"priority": 5, "headers": {"kind": "a"}}, [old]),
                ({"priority": 5, "error_contains": "KeyError", "ids": [old, new]}, [new]),
            ]
            for filter, expected in meant:
                assert [each.id for each in await q.list(state="failed", filter=filter)] == expected, filter
                assert [each.id for each in await list_all(q, 1, filter=filter)] == expected, filter

    # --- Counts ----------------------------------------------------------------------------------------------

    @proves("3.7")
    async def test_stats_count_each_state_and_the_bytes_of_payloads_and_headers(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b"12345"] * 3, headers={"é": "12"})
            await q.enqueue(b"1", delay=60)
            await q.enqueue({"a": 1})
            held, failed = await q.claim(limit=2)
            await failed.nack(final=True)
            waiting_elsewhere = hf.queue("elsewhere")
            await waiting_elsewhere.set_policy()
            await start_claim(waiting_elsewhere)
            stats = await q.stats()
            assert (stats.ready, stats.delayed, stats.in_flight, stats.failed) == (2, 1, 1, 1)
            assert stats.bytes == 3 * (5 + 2 + 2) + 1 + 7
            assert (stats.waiters, stats.paused, stats.draining) == (0, False, False)
            assert (await waiting_elsewhere.stats()).waiters == 1
            await held.ack()
            assert (await q.stats()).bytes == 2 * 9 + 1 + 7

    @proves("3.7")
    async def test_a_delayed_message_is_counted_ready_once_it_is_due(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"", delay=5)
            subject.clock.advance(4_999)
            assert ((await q.stats()).ready, (await q.stats()).delayed) == (0, 1)
            subject.clock.advance(1)
            assert ((await q.stats()).ready, (await q.stats()).delayed) == (1, 0)

    @proves("3.7")
    async def test_an_expired_lease_counts_in_flight_until_swept_and_never_twice(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(b"")
            await q.claim(lease=1)
            subject.clock.advance(1_000)
            stats = await q.stats()
            # The store may already have swept by itself.
            assert (stats.in_flight, stats.ready) in [(1, 0), (0, 1)]
            await subject.sweep(hf)
            stats = await q.stats()
            assert (stats.in_flight, stats.ready) == (0, 1)

    @proves("3.7")
    async def test_the_oldest_ready_age_counts_from_when_it_was_visible(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy()
            assert (await q.stats()).oldest_ready_age_ms == 0
            await q.enqueue(b"", delay=5)
            subject.clock.advance(4_000)
            assert (await q.stats()).oldest_ready_age_ms == 0
            await q.enqueue(b"low", priority=255)
            subject.clock.advance(3_000)
            assert (await q.stats()).oldest_ready_age_ms == 3_000
            # The delayed message is first by priority, but the age is that of the oldest message.
            await q.claim()
            assert (await q.stats()).oldest_ready_age_ms == 3_000
            await q.claim()
            assert (await q.stats()).oldest_ready_age_ms == 0

    @proves("3.7")
    async def test_a_tenant_s_stats_are_the_sum_of_its_queues(self, subject: Subject) -> None:
        async with subject.open() as hf:
            queues = [hf.queue(name, tenant="acme") for name in ("a", "b", "c")]
            await hf.queue("a", tenant="other").enqueue([b"not mine"] * 10)
            for number, q in enumerate(queues, 1):
                await q.enqueue([b"12"] * 3 * number)
                await q.enqueue(b"3", delay=60)
                subject.clock.advance(100)
                for message in (await q.claim(limit=number + 1))[1:]:
                    await message.nack(final=True)
                await start_claim(await _empty(hf.queue(f"idle-{number}", tenant="acme")))
            total = await hf.tenant("acme").stats()
            each = [await q.stats() for q in queues]
            assert (total.ready, total.delayed, total.in_flight, total.failed) == (9, 3, 3, 6)
            assert total.bytes == sum(stats.bytes for stats in each) == 18 * 2 + 3
            assert total.oldest_ready_age_ms == max(stats.oldest_ready_age_ms for stats in each) == 300
            assert total.waiters == 3
            listed = {summary.queue: asdict(summary) for summary in await hf.queues(tenant="acme")}
            assert [listed[name] for name in "abc"] == [
                {**asdict(stats), "queue": name} for name, stats in zip("abc", each, strict=True)
            ]

    @proves("3.7")
    @pytest.mark.parametrize("seed", range(3))
    async def test_counts_equal_a_recount_after_random_calls(self, subject: Subject, seed: int) -> None:
        dice = random.Random(seed)
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_retries=1)
            for _ in range(150):
                match dice.randrange(9):
                    case 0 | 1 | 2:
                        group = dice.choice([None, "g"])
                        batch = [NewMessage(b"x" * dice.randrange(9), group=group) for _ in range(dice.randrange(4))]
                        await q.enqueue(batch, delay=dice.choice([0, 1]), headers={"a": "b"}, ttl=dice.choice([2, 60]))
                    case 3 | 4:
                        for message in await q.claim(limit=dice.randrange(1, 5), lease=1):
                            match dice.randrange(5):
                                case 0:
                                    await message.ack()
                                case 1:
                                    await message.nack(delay=0)
                                case 2:
                                    await message.nack(final=True)
                                case 3:
                                    await message.release()
                                case _:
                                    pass  # its lease expires later
                    case 5:
                        subject.clock.advance(dice.choice([1, 500, 1_000]))
                        await subject.sweep(hf)
                    case 6:
                        await q.redrive({"ids": [each.id for each in (await q.list(state="failed"))[:2]]})
                    case 7:
                        for info in dice.sample(everything := await list_all(q), min(1, len(everything))):
                            await q.remove(info.id)
                    case _:
                        await q.move(dice.choice(["away", "back"]), filter={"priority": dice.randrange(99, 101)})
                        await hf.queue("away").set_policy()
                        await hf.queue("away").move("q")
                now_ms = subject.clock.now_ms()
                assert _counts(await q.stats()) == await _recount(q, now_ms)

    # --- Numbers ---------------------------------------------------------------------------------------------

    @proves("1.3", "8.10")
    async def test_names_has_the_number_of_each_tenant_and_queue(self, subject: Subject) -> None:
        async with subject.open() as hf:
            for tenant, queue in (("acme", "a"), ("acme", "b"), ("other", "a")):
                await hf.queue(queue, tenant=tenant).enqueue(b"")
            every = await hf.names()
            assert {each.tenant: [queue.queue for queue in each.queues] for each in every} == {
                "acme": ["a", "b"],
                "other": ["a"],
            }
            assert len({each.tenant_id for each in every}) == 2
            acme = every[0]
            assert len({queue.queue_id for queue in acme.queues}) == 2
            assert await hf.names() == every
            assert await hf.names("acme") == [acme]
            [only] = await hf.names("acme", "b")
            assert (only.tenant_id, only.queues) == (acme.tenant_id, acme.queues[1:])
            assert [each.queues for each in await hf.names("acme", "missing")] == [[]]
            assert await hf.names("missing") == []

    @proves("1.3", "8.11")
    async def test_a_new_queue_never_has_the_number_of_a_deleted_one(self, subject: Subject) -> None:
        async with subject.open() as hf:
            numbers = []
            for _ in range(3):
                await hf.queue("q").enqueue(b"")
                [tenant] = await hf.names(queue="q")
                numbers += [queue.queue_id for queue in tenant.queues]
                await hf.queue("q").delete()
                await subject.sweep(hf)
            assert len(set(numbers)) == 3


async def _empty(q: AsyncQueue) -> AsyncQueue:
    await q.set_policy()
    return q
