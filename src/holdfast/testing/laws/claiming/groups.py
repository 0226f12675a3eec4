"""Message groups: strictly in order of id, one batch at a time, without delaying other messages (SPEC 2.13)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from holdfast.client.message import AsyncMessage
from holdfast.client.queue import AsyncQueue
from holdfast.model.message import NewMessage, State
from holdfast.testing.laws.waiting_tasks import cancel_claim, finish, run_others, until_started
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject

_MIXED = [NewMessage(name, priority=priority) for name, priority in (("a", 200), ("b", 0), ("c", 100), ("d", 0))]


@asynccontextmanager
async def _open_with_group(subject: Subject, payloads: list[Any]) -> AsyncIterator[AsyncQueue]:
    """Open a queue that has one group with these payloads."""
    async with subject.open() as hf:
        q = hf.queue("q")
        await q.enqueue(payloads, group="g")
        yield q


async def _claim(q: AsyncQueue, limit: int = 1) -> dict[str, AsyncMessage]:
    """Claim messages and return them by name, in the order of delivery. Their lease outlasts every law."""
    return {m.json(): m for m in await q.claim(limit=limit, lease=36_000)}


async def _claim_names(q: AsyncQueue, limit: int = 10) -> list[str]:
    return list(await _claim(q, limit))


class GroupLaws:
    # --- Order -------------------------------------------------------------------------------------------------

    @proves("2.13")
    async def test_a_group_is_claimed_in_order_of_id_whatever_the_priorities(self, subject: Subject) -> None:
        async with _open_with_group(subject, _MIXED) as q:
            for name in ("a", "b", "c", "d"):
                taken = await _claim(q)
                assert list(taken) == [name]
                await taken[name].ack()

    @proves("2.13")
    async def test_one_claim_takes_a_batch_of_a_group_in_order_of_id(self, subject: Subject) -> None:
        async with _open_with_group(subject, _MIXED) as q:
            assert await _claim_names(q, limit=3) == ["a", "b", "c"]

    async def test_a_batch_ends_before_the_first_message_that_is_not_due(self, subject: Subject) -> None:
        async with _open_with_group(subject, [NewMessage("a"), NewMessage("b", delay=5), NewMessage("c")]) as q:
            taken = await _claim(q, limit=10)
            assert list(taken) == ["a"]
            await taken["a"].ack()
            assert await _claim_names(q) == []
            subject.clock.advance(5_000)
            assert await _claim_names(q) == ["b", "c"]

    @proves("2.13")
    @pytest.mark.parametrize("priority", [100, 0])
    async def test_a_group_waits_until_its_first_message_is_due(self, subject: Subject, priority: int) -> None:
        async with _open_with_group(subject, [NewMessage("a", delay=5), NewMessage("b", priority=priority)]) as q:
            subject.clock.advance(4_999)
            assert await _claim_names(q) == []
            subject.clock.advance(1)
            assert await _claim_names(q) == ["a", "b"]

    # --- One batch in flight at a time -------------------------------------------------------------------------

    @proves("2.13")
    async def test_a_group_waits_until_its_whole_batch_is_settled(self, subject: Subject) -> None:
        async with _open_with_group(subject, ["a", "b", "c", "d"]) as q:
            batch = await _claim(q, limit=3)
            for name in ("b", "a", "c"):
                assert await _claim_names(q) == []
                await batch[name].ack()
            assert await _claim_names(q) == ["d"]

    @proves("2.13")
    async def test_concurrent_claimers_get_one_batch_of_each_group(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            for number in range(5):
                for group in ("x", "y", "z"):
                    await q.enqueue(f"{group}{number}", group=group)
            shares = await asyncio.gather(*(_claim_names(q, limit=1) for _ in range(20)))
            assert sorted(name for share in shares for name in share) == ["x0", "y0", "z0"]

    async def test_waiters_served_together_do_not_split_a_group(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            first, second = (asyncio.create_task(q.claim(wait=None, lease=3_600)) for _ in range(2))
            await until_started(hf, 2)
            await q.enqueue(["a", "b"], group="g")
            [a] = await finish(first)
            await run_others(10)
            assert (a.json(), (await q.stats()).waiters) == ("a", 1)
            await a.ack()
            [b] = await finish(second)
            assert b.json() == "b"

    @proves("2.13")
    async def test_a_new_message_does_not_join_a_batch_in_flight(self, subject: Subject) -> None:
        async with _open_with_group(subject, ["a"]) as q:
            taken = await _claim(q)
            await q.enqueue("b", group="g", priority=0)
            assert await _claim_names(q) == []
            await taken["a"].ack()
            assert await _claim_names(q) == ["b"]

    async def test_a_group_without_messages_can_be_used_again(self, subject: Subject) -> None:
        async with _open_with_group(subject, ["a"]) as q:
            await (await _claim(q))["a"].ack()
            await q.enqueue("b", group="g")
            assert await _claim_names(q) == ["b"]

    # --- Order across retries ----------------------------------------------------------------------------------

    @proves("2.13")
    @pytest.mark.parametrize("defer", [False, True], ids=["nack", "defer"])
    async def test_a_group_waits_for_the_retry_of_its_first_message(self, subject: Subject, defer: bool) -> None:
        async with _open_with_group(subject, ["a", "b"]) as q:
            taken = await _claim(q)
            await taken["a"].nack("no", delay=5, defer=defer)
            subject.clock.advance(4_999)
            assert await _claim_names(q) == []
            subject.clock.advance(1)
            assert await _claim_names(q) == ["a", "b"]

    @proves("2.13")
    async def test_a_nacked_message_of_a_batch_is_claimed_again_before_later_messages(self, subject: Subject) -> None:
        async with _open_with_group(subject, ["a", "b", "c", "d"]) as q:
            batch = await _claim(q, limit=3)
            await batch["b"].nack("no", delay=5)
            await batch["a"].ack()
            await batch["c"].ack()
            assert await _claim_names(q) == []
            subject.clock.advance(5_000)
            assert await _claim_names(q) == ["b", "d"]

    async def test_a_returned_message_of_a_batch_waits_for_the_rest_of_the_batch(self, subject: Subject) -> None:
        async with _open_with_group(subject, ["a", "b", "c"]) as q:
            batch = await _claim(q, limit=2)
            await batch["a"].nack("no", delay=0)
            assert await _claim_names(q) == []
            await batch["b"].release()
            assert await _claim_names(q) == ["a", "b", "c"]

    async def test_a_released_batch_is_claimed_again_in_its_order(self, subject: Subject) -> None:
        async with _open_with_group(subject, ["a", "b", "c"]) as q:
            batch = await _claim(q, limit=3)
            for name in ("b", "c", "a"):
                await batch[name].release()
            assert await _claim_names(q) == ["a", "b", "c"]

    async def test_an_expired_batch_is_claimed_again_in_its_order(self, subject: Subject) -> None:
        async with _open_with_group(subject, ["a", "b", "c"]) as q:
            a, b = await q.claim(limit=2)
            await b.extend(3)  # b expires first, so by visible time it would precede a
            subject.clock.advance(a.lease_expires_at - subject.clock.now_ms())
            assert await _claim_names(q) == ["a", "b", "c"]

    @pytest.mark.parametrize("swept", [True, False], ids=["swept", "not swept"])
    async def test_an_expiry_in_a_batch_does_not_free_the_group_while_another_lease_holds(
        self, subject: Subject, swept: bool
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(["a", "b", "c"], group="g")
            _, b = await q.claim(limit=2, lease=5)
            await b.extend(60)
            subject.clock.advance(5_000)
            if swept:
                await subject.sweep(hf)
            assert await _claim_names(q) == []
            await b.ack()
            assert await _claim_names(q) == ["a", "c"]

    async def test_a_batch_of_a_cancelled_claim_is_claimed_again_in_its_order(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            waiting = asyncio.create_task(q.claim(limit=2, wait=None, lease=3_600))
            await until_started(hf)
            await q.enqueue(["a", "b", "c"], group="g")
            await run_others(1)
            await q.release(await cancel_claim(waiting))
            again = await finish(q.claim(limit=3, wait=None))
            assert [m.json() for m in again] == ["a", "b", "c"]

    # --- Freeing a group ---------------------------------------------------------------------------------------

    @proves("2.13")
    @pytest.mark.parametrize("how", ["final", "retries", "expiry", "ttl"])
    async def test_a_failed_message_frees_its_group(self, subject: Subject, how: str) -> None:
        async with _open_with_group(subject, [NewMessage("a", max_retries=0, ttl=60), NewMessage("b")]) as q:
            [m] = await q.claim()
            if how in ("final", "retries"):
                await m.nack("no", final=how == "final")
            if how == "expiry":
                subject.clock.advance(5_000)
            if how == "ttl":
                await m.release()
                subject.clock.advance(60_000)
            assert await _claim_names(q) == ["b"]
            assert (await q.get(m.id)).state is State.FAILED

    @pytest.mark.parametrize("swept", [True, False], ids=["swept", "not swept"])
    @pytest.mark.parametrize("on_ttl", ["dead_letter", "drop"])
    async def test_a_first_message_whose_ttl_ends_before_it_is_due_frees_its_group(
        self, subject: Subject, on_ttl: Literal["dead_letter", "drop"], swept: bool
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(on_ttl=on_ttl)
            await q.enqueue("a", group="g", delay=60, ttl=10)
            await q.enqueue("b", group="g")
            subject.clock.advance(10_000)
            if swept:
                await subject.sweep(hf)
            assert await _claim_names(q) == ["b"]

    async def test_a_message_past_its_ttl_is_left_out_of_a_batch(self, subject: Subject) -> None:
        async with _open_with_group(subject, [NewMessage("a"), NewMessage("b", ttl=10), NewMessage("c")]) as q:
            subject.clock.advance(10_000)
            assert await _claim_names(q) == ["a", "c"]

    @pytest.mark.parametrize("verb", ["remove", "cancel", "move"])
    async def test_removing_or_moving_a_delayed_first_message_frees_its_group(
        self, subject: Subject, verb: str
    ) -> None:
        async with _open_with_group(subject, [NewMessage("a", delay=60), NewMessage("b")]) as q:
            assert await _claim_names(q) == []
            head = (await q.list())[0].id
            if verb == "remove":
                await q.remove(head)
            elif verb == "cancel":
                await q.cancel({"ids": [head]})
            else:
                await q.move("other", filter={"ids": [head]})
            assert await _claim_names(q) == ["b"]

    async def test_a_message_removed_in_flight_frees_its_group(self, subject: Subject) -> None:
        async with _open_with_group(subject, ["a", "b"]) as q:
            head = (await _claim(q))["a"]
            await q.remove(head.id)
            assert await _claim_names(q) == ["b"]

    @pytest.mark.parametrize("verdict", ["ack", "final", "release", "expiry", "ttl"])
    async def test_a_freed_group_wakes_a_waiter(self, subject: Subject, verdict: str) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([NewMessage("a", ttl=10, max_retries=0), NewMessage("b")], group="g")
            [m] = await q.claim(lease=60 if verdict == "ttl" else 5)
            if verdict == "ttl":
                await m.nack(delay=60, defer=True)
            waiting = asyncio.create_task(q.claim(wait=None))
            await until_started(hf)
            if verdict in ("expiry", "ttl"):
                subject.clock.advance(10_000)
            else:
                await {"ack": m.ack, "final": lambda: m.nack(final=True), "release": m.release}[verdict]()
            [woken] = await finish(waiting)
            assert woken.json() == ("a" if verdict == "release" else "b")

    # --- Redrive -----------------------------------------------------------------------------------------------

    @proves("2.13")
    async def test_a_redriven_message_joins_its_group_by_id(self, subject: Subject) -> None:
        async with _open_with_group(subject, ["a", "b", "c"]) as q:
            await (await _claim(q))["a"].nack("no", final=True)
            taken = await _claim(q)
            assert list(taken) == ["b"]
            await q.redrive()
            assert await _claim_names(q) == []  # b is in flight
            await taken["b"].ack()
            assert await _claim_names(q) == ["a", "c"]

    # --- Independence of groups --------------------------------------------------------------------------------

    @proves("2.13")
    @pytest.mark.parametrize("held", ["in flight", "delayed"])
    async def test_a_group_s_backlog_does_not_delay_other_messages(self, subject: Subject, held: str) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("head", group="long", priority=0, delay=60 if held == "delayed" else 0)
            await q.enqueue([f"long {number}" for number in range(3_000)], group="long", priority=0)
            await q.enqueue("other", group="short", priority=255)
            await q.enqueue("none", priority=255)
            if held == "in flight":
                assert await _claim_names(q, limit=1) == ["head"]
            assert await _claim_names(q, limit=10) == ["other", "none"]

    async def test_one_claim_takes_batches_of_several_groups(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("plain")
            for name in ("x0", "y0", "x1", "y1"):
                await q.enqueue(name, group=name[0])
            taken = await _claim_names(q, limit=10)
            assert sorted(taken) == ["plain", "x0", "x1", "y0", "y1"]
            assert taken.index("x0") < taken.index("x1")
            assert taken.index("y0") < taken.index("y1")

    async def test_groups_of_one_name_in_two_queues_are_two_groups(self, subject: Subject) -> None:
        async with subject.open() as hf:
            queues = [hf.queue("q"), hf.queue("other"), hf.queue("q", tenant="acme")]
            for q in queues:
                await q.enqueue(["a", "b"], group="g")
            for q in queues:
                assert await _claim_names(q, limit=1) == ["a"]

    async def test_a_moved_message_joins_the_group_of_its_new_queue_by_id(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, other = hf.queue("q"), hf.queue("other")
            await q.enqueue("a", group="g")
            await other.enqueue("b", group="g")
            await q.enqueue("c", group="g")
            await q.move("other")
            assert await _claim_names(other) == ["a", "b", "c"]
