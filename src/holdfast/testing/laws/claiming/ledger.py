"""Numbered claims, which can be read again by their number (SPEC 3.12)."""

import asyncio
from typing import Any

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.client.queue import AsyncQueue
from holdfast.model.errors import InvalidArgument, StaleLease
from holdfast.testing.laws.waiting_tasks import finish, run_others, start_claim
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject


async def _open_numbers(q: AsyncQueue, consumer: str) -> dict[int, list[str]]:
    return {entry.number: [each.id for each in entry.deliveries] for entry in await q.ledger(consumer)}


async def _filled(hf: AsyncHoldfast, number: int) -> tuple[AsyncQueue, list[Any]]:
    q = hf.queue("q")
    return q, list(await q.enqueue([f"m-{n}" for n in range(number)]))


class LedgerLaws:
    @proves("3.12")
    async def test_a_numbered_claim_read_again_returns_the_same_leases(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, ids = await _filled(hf, 5)
            first = await q.claim(limit=3, lease=60, ledger=("spark", 1))
            subject.clock.advance(10_000)
            again = await q.claim(limit=3, lease=60, ledger=("spark", 1))
            assert [each.id for each in first] == ids[:3]
            assert [each.receipt for each in again] == [each.receipt for each in first]
            assert [each.payload for each in again] == [each.payload for each in first]
            assert [each.attempt for each in again] == [1, 1, 1]
            # Reading again is not a claim: it takes no more messages and extends no lease.
            assert (await q.stats()).in_flight == 3
            assert {each.lease_expires_at for each in again} == {each.lease_expires_at for each in first}
            assert len([event for event in await hf.journal() if event.event == "claimed"]) == 3

    @proves("3.12")
    async def test_a_new_number_claims_new_messages(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, ids = await _filled(hf, 5)
            await q.claim(limit=2, ledger=("spark", 1))
            second = await q.claim(limit=2, ledger=("spark", 2))
            assert [each.id for each in second] == ids[2:4]
            assert await _open_numbers(q, "spark") == {1: ids[:2], 2: ids[2:4]}

    async def test_each_consumer_of_each_queue_has_its_own_numbers(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, ids = await _filled(hf, 2)
            other = hf.queue("other")
            [elsewhere] = await other.enqueue(b"")
            await q.claim(ledger=("a", 1))
            await q.claim(ledger=("b", 1))
            await other.claim(ledger=("a", 1))
            assert await _open_numbers(q, "a") == {1: ids[:1]}
            assert await _open_numbers(q, "b") == {1: ids[1:]}
            assert await _open_numbers(other, "a") == {1: [elsewhere]}
            assert await q.ledger("nobody") == []
            await q.ledger_ack("a", 1)
            assert await _open_numbers(q, "b") == {1: ids[1:]}
            assert await _open_numbers(other, "a") == {1: [elsewhere]}

    @proves("3.12")
    async def test_each_message_has_its_own_lease_and_version(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, _ = await _filled(hf, 2)
            [once] = await q.claim()
            await once.release()
            claimed = await q.claim(limit=2, ledger=("spark", 1))
            assert [each.version for each in claimed] == [once.version + 1, 1]
            assert len({each.receipt for each in claimed}) == 2
            await claimed[0].ack()
            assert await _open_numbers(q, "spark") == {1: [claimed[1].id]}

    async def test_one_open_claim_is_read_by_its_number(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, ids = await _filled(hf, 3)
            await q.claim(limit=1, lease=60, ledger=("spark", 1))
            await q.claim(limit=2, lease=60, ledger=("spark", 2))
            [second] = await q.ledger("spark", 2)
            assert (second.number, [each.id for each in second.deliveries]) == (2, ids[1:])
            assert [second] == (await q.ledger("spark"))[1:]
            assert await q.ledger("spark", 3) == []

    @proves("3.12")
    async def test_ledger_ack_acks_every_claim_up_to_its_number(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, ids = await _filled(hf, 6)
            for number in (1, 2, 5):
                await q.claim(limit=2, ledger=("spark", number))
            results = await q.ledger_ack("spark", 4)
            assert [each.id for each in results if each.ok] == ids[:4]
            assert [each.state for each in results] == ["succeeded"] * 4
            assert await _open_numbers(q, "spark") == {5: ids[4:]}
            assert (await q.stats()).in_flight == 2

    @proves("3.12")
    async def test_ledger_ack_acks_only_messages_with_a_current_lease(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, ids = await _filled(hf, 4)
            settled, removed, lost, held = await q.claim(limit=4, lease=10, ledger=("spark", 1))
            await settled.nack(final=True)
            await q.remove(removed.id)
            await held.extend(60)
            subject.clock.advance(10_000)
            [entry] = await q.ledger("spark")
            assert [each.id for each in entry.deliveries] == [held.id]
            [again] = await q.claim(limit=4, ledger=("spark", 1))
            assert again.receipt == held.receipt
            results = await q.ledger_ack("spark", 1)
            assert [each.id for each in results if each.ok] == [ids[3]]
            [redelivered] = await q.claim(limit=4)
            assert (redelivered.id, redelivered.attempt) == (lost.id, 2)
            assert (await q.stats()).failed == 1

    async def test_ledger_ack_does_not_ack_a_message_that_was_claimed_again(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, _ = await _filled(hf, 1)
            await q.claim(lease=1, ledger=("spark", 1))
            subject.clock.advance(1_000)
            [other] = await q.claim()
            assert not any(each.ok for each in await q.ledger_ack("spark", 1))
            await other.ack()

    async def test_a_closed_number_is_refused(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, ids = await _filled(hf, 3)
            await q.claim(ledger=("spark", 7))
            await q.ledger_ack("spark", 7)
            # Lower numbers are closed too, so that a consumer that returns late cannot claim with them.
            for closed in (7, 3, 0):
                with pytest.raises(InvalidArgument):
                    await q.claim(ledger=("spark", closed))
            assert (await q.stats()).ready == 2
            [message] = await q.claim(ledger=("spark", 8))
            assert message.id == ids[1]
            assert await q.ledger_ack("spark", 7) == []
            assert await _open_numbers(q, "spark") == {8: [message.id]}

    @proves("3.12")
    async def test_ledger_extend_extends_every_open_claim_of_a_consumer(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, ids = await _filled(hf, 4)
            await q.claim(limit=2, lease=10, ledger=("spark", 1))
            await q.claim(limit=1, lease=10, ledger=("spark", 2))
            await q.claim(limit=1, lease=10, ledger=("other", 1))
            subject.clock.advance(9_999)
            results = await q.ledger_extend("spark", 30)
            assert {each.lease_expires_at for each in results} == {subject.clock.now_ms() + 30_000}
            subject.clock.advance(29_999)
            await subject.sweep(hf)
            assert await _open_numbers(q, "spark") == {1: ids[:2], 2: ids[2:3]}
            assert await _open_numbers(q, "other") in ({}, {1: []})
            assert [each.ok for each in await q.ledger_ack("spark", 2)] == [True] * 3

    async def test_an_open_claim_can_be_read_while_the_queue_is_paused(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, ids = await _filled(hf, 2)
            await q.claim(lease=60, ledger=("spark", 1))
            await q.pause()
            assert [each.id for each in await q.claim(ledger=("spark", 1))] == ids[:1]
            assert await q.claim(ledger=("spark", 2)) == []

    async def test_a_numbered_claim_waits_like_any_other(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy()
            waiting = await start_claim(q, limit=5, ledger=("spark", 1))
            ids = await q.enqueue([b""] * 2)
            assert [each.id for each in await finish(waiting)] == ids
            assert await _open_numbers(q, "spark") == {1: list(ids)}

    async def test_a_number_that_found_nothing_is_not_open(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, ids = await _filled(hf, 0)
            await q.set_policy()
            assert await q.claim(ledger=("spark", 1)) == []
            assert await q.ledger("spark") == []
            ids = list(await q.enqueue(b""))
            assert [each.id for each in await q.claim(ledger=("spark", 1))] == ids

    async def test_a_refused_number_does_not_use_up_the_wake_up_of_waiting_claims(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, _ = await _filled(hf, 1)
            await q.claim(ledger=("spark", 1))
            await q.ledger_ack("spark", 1)
            waiting = await start_claim(q)
            # It is refused after the enqueue and before a waiter is served.
            refused = asyncio.create_task(q.claim(ledger=("spark", 1)))
            [id] = await q.enqueue(b"")
            with pytest.raises(InvalidArgument):
                await finish(refused)
            assert [each.id for each in await finish(waiting)] == [id]

    async def test_a_waiting_read_of_lost_leases_does_not_delay_later_claims(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q, _ = await _filled(hf, 1)
            [lost] = await q.claim(lease=1, ledger=("spark", 1))
            await q.pause()
            subject.clock.advance(1_000)
            # It may wait, or return at once because no lease is current. Either way it does not delay the other claim.
            read = asyncio.create_task(q.claim(ledger=("spark", 1), wait=3_600))
            behind = asyncio.create_task(q.claim(wait=None))
            while not (await q.stats()).waiters:
                await run_others()
            await q.resume()
            assert [each.id for each in await finish(behind)] == [lost.id]
            with pytest.raises(StaleLease):
                await lost.ack()
            subject.clock.advance(3_600_000)
            assert await finish(read) == []
