"""Leases: each belongs to one caller for a limited time, and a lost lease is refused (SPEC 2.5, 2.6, 2.9)."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.client.message import AsyncMessage
from holdfast.client.queue import AsyncQueue
from holdfast.model.errors import StaleLease
from holdfast.model.message import Receipt, State
from holdfast.testing.laws.cases import note_case
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject

_VERDICTS: dict[str, Callable[[AsyncMessage], Awaitable[Any]]] = {
    "ack": lambda m: m.ack(),
    "nack": lambda m: m.nack("late", delay=0),
    "defer": lambda m: m.nack("late", delay=0, defer=True),
    "final nack": lambda m: m.nack("late", final=True),
    "extend": lambda m: m.extend(60),
    "release": lambda m: m.release(),
    "save_state": lambda m: m.save_state({"late": True}),
    "progress": lambda m: m.progress(50, "late"),
}


async def _run_out(subject: Subject, q: AsyncQueue, m: AsyncMessage) -> None:
    subject.clock.advance(5_000)


async def _run_out_once_shortened(subject: Subject, q: AsyncQueue, m: AsyncMessage) -> None:
    await m.extend("1ms")
    subject.clock.advance(1)


async def _acked(subject: Subject, q: AsyncQueue, m: AsyncMessage) -> None:
    await m.ack()


async def _acked_and_kept(subject: Subject, q: AsyncQueue, m: AsyncMessage) -> None:
    await q.set_policy(keep_succeeded_ms=60_000)
    await m.ack()


async def _nacked(subject: Subject, q: AsyncQueue, m: AsyncMessage) -> None:
    await m.nack("no", delay=0)


async def _deferred(subject: Subject, q: AsyncQueue, m: AsyncMessage) -> None:
    await m.nack(delay=0, defer=True)


async def _failed(subject: Subject, q: AsyncQueue, m: AsyncMessage) -> None:
    await m.nack("never", final=True)


async def _redriven(subject: Subject, q: AsyncQueue, m: AsyncMessage) -> None:
    await m.nack("never", final=True)
    await q.redrive()


async def _released(subject: Subject, q: AsyncQueue, m: AsyncMessage) -> None:
    await m.release()


async def _removed(subject: Subject, q: AsyncQueue, m: AsyncMessage) -> None:
    await q.remove(m.id)


_Loss = Callable[[Subject, AsyncQueue, AsyncMessage], Awaitable[None]]
_GIVEN_BACK: list[_Loss] = [_run_out, _run_out_once_shortened, _nacked, _deferred, _redriven, _released]
_LOST: list[_Loss] = [*_GIVEN_BACK, _acked, _acked_and_kept, _failed, _removed]


def _name(loss: _Loss) -> str:
    return loss.__name__.strip("_")


def _each_verdict(hf: AsyncHoldfast) -> Iterator[tuple[str, AsyncQueue]]:
    """Yield each verdict with its own queue."""
    for verdict in _VERDICTS:
        yield verdict, hf.queue(verdict.replace(" ", "-"))


async def _visible_state(hf: AsyncHoldfast, q: AsyncQueue) -> tuple[object, ...]:
    """Return everything visible in the queue, to check that a call changed nothing."""
    return await q.list(), await q.stats(), (await hf.journal()).next


async def _refuse(m: AsyncMessage, verdict: str) -> None:
    with pytest.raises(StaleLease):
        await _VERDICTS[verdict](m)


class LeaseLaws:
    # --- Ownership ---------------------------------------------------------------------------------------------

    @proves("2.5")
    async def test_each_claim_raises_the_version_by_one_and_makes_a_new_receipt(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("a")
            versions, receipts = [], set()
            for _ in range(5):
                [m] = await q.claim()
                versions.append(m.version)
                receipts.add(m.receipt)
                await m.release()
            assert versions == [1, 2, 3, 4, 5]
            assert len(receipts) == 5

    @proves("2.5")
    async def test_each_lease_has_its_own_token_of_128_bits(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue([b""] * 200)
            tokens = {Receipt.parse(m.receipt).token for m in await q.claim(limit=200)}
            assert {len(token) for token in tokens} == {16}
            assert len(tokens) == 200

    @proves("2.5")
    async def test_a_receipt_that_differs_in_any_part_is_refused(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(["a", "b"])
            m, other = await q.claim(limit=2)
            mine, theirs = Receipt.parse(m.receipt), Receipt.parse(other.receipt)
            forged = [
                mine._replace(token=bytes(16)),
                mine._replace(token=theirs.token),
                mine._replace(version=mine.version + 1),
                mine._replace(id=theirs.id),
            ]
            assert [result.ok for result in await q.ack(forged)] == [False] * 4
            assert [result.ok for result in await q.ack([str(mine), str(theirs)])] == [True, True]

    # --- Fencing -----------------------------------------------------------------------------------------------

    @proves("2.6")
    async def test_an_expired_lease_is_refused_before_any_sweep(self, subject: Subject) -> None:
        async with subject.open() as hf:
            for verdict, q in _each_verdict(hf):
                with note_case(verdict):
                    [id] = await q.enqueue("a")
                    [m] = await q.claim()
                    subject.clock.advance(5_000)
                    await _refuse(m, verdict)
                    # The store may have swept already. Either way, the message has expired only once.
                    await subject.sweep(hf)
                    info = await q.get(id)
                    assert (info.state, info.visible_at) == (State.READY, m.lease_expires_at)
                    assert (info.attempt, info.failures, info.expiries, info.releases) == (1, 0, 1, 0)
                    assert (info.last_error, info.progress) == (None, None)

    @proves("2.6")
    async def test_a_lease_holds_until_the_last_millisecond(self, subject: Subject) -> None:
        async with subject.open() as hf:
            for verdict, q in _each_verdict(hf):
                with note_case(verdict):
                    await q.enqueue("a")
                    [m] = await q.claim()
                    subject.clock.advance(4_999)
                    await subject.sweep(hf)
                    await _VERDICTS[verdict](m)

    @proves("2.6")
    @pytest.mark.parametrize("lost", _LOST, ids=_name)
    async def test_a_verdict_on_a_lost_lease_is_refused_and_changes_nothing(
        self, subject: Subject, lost: _Loss
    ) -> None:
        async with subject.open() as hf:
            for verdict, q in _each_verdict(hf):
                with note_case(verdict):
                    await q.enqueue("a")
                    [m] = await q.claim()
                    await lost(subject, q, m)
                    await subject.sweep(hf)
                    before = await _visible_state(hf, q)
                    await _refuse(m, verdict)
                    assert await _visible_state(hf, q) == before

    @proves("2.6")
    @pytest.mark.parametrize("lost", _GIVEN_BACK, ids=_name)
    async def test_a_superseded_receipt_is_refused_and_the_new_holder_is_not_disturbed(
        self, subject: Subject, lost: _Loss
    ) -> None:
        async with subject.open() as hf:
            for verdict, q in _each_verdict(hf):
                with note_case(verdict):
                    await q.enqueue("a")
                    [m] = await q.claim()
                    await lost(subject, q, m)
                    [holder] = await q.claim(lease=60, state=True)
                    await subject.sweep(hf)
                    before = await _visible_state(hf, q)
                    await _refuse(m, verdict)
                    assert await _visible_state(hf, q) == before
                    await holder.save_state({"mine": True})
                    await holder.ack()

    @pytest.mark.parametrize("exists", [True, False], ids=["it exists", "it does not exist"])
    @pytest.mark.parametrize(("queue", "tenant"), [("other", "default"), ("q", "other")])
    async def test_a_receipt_is_valid_only_in_its_own_queue_and_tenant(
        self, subject: Subject, queue: str, tenant: str, exists: bool
    ) -> None:
        async with subject.open() as hf:
            q, wrong = hf.queue("q"), hf.queue(queue, tenant=tenant)
            if exists:
                await wrong.enqueue("b")
            await q.enqueue("a")
            [m] = await q.claim()
            before = await _visible_state(hf, q)
            for settle in (wrong.ack, wrong.nack, wrong.extend, wrong.release):
                [result] = await settle([m.receipt])
                assert (result.ok, result.error) == (False, StaleLease.code)
            assert await _visible_state(hf, q) == before
            await m.ack()

    @proves("2.6")
    async def test_only_the_stale_receipt_of_a_batch_fails(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(["a", "b", "c"])
            a, b, c = await q.claim(limit=3)
            await b.release()
            results = await q.ack([a, b, c])
            assert [(each.id, each.ok, each.error) for each in results] == [
                (a.id, True, None),
                (b.id, False, StaleLease.code),
                (c.id, True, None),
            ]

    # --- Duration ----------------------------------------------------------------------------------------------

    @proves("2.9")
    async def test_a_lease_lasts_five_seconds_unless_the_queue_or_the_claim_sets_another(
        self, subject: Subject
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue(["a", "b", "c"])
            [by_default] = await q.claim()
            await q.set_policy(lease_ms=20_000)
            [by_queue] = await q.claim()
            [by_claim] = await q.claim(lease="90s")
            now = subject.clock.now_ms()
            ends = [m.lease_expires_at - now for m in (by_default, by_queue, by_claim)]
            assert ends == [5_000, 20_000, 90_000]
            assert (await q.get(by_claim.id)).lease_expires_at == by_claim.lease_expires_at

    @proves("2.9")
    async def test_extend_sets_the_expiry_to_now_plus_the_lease(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("a")
            [m] = await q.claim()
            subject.clock.advance(3_000)
            assert await m.extend() == m.lease_expires_at == subject.clock.now_ms() + 5_000
            assert await m.extend(30) == m.lease_expires_at == subject.clock.now_ms() + 30_000
            subject.clock.advance(29_999)
            assert await q.claim() == []
            await m.ack()

    async def test_extend_can_shorten_the_lease(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("a")
            [m] = await q.claim(lease=60)
            await m.extend(1)
            subject.clock.advance(1_000)
            [again] = await q.claim()
            assert again.id == m.id

    @proves("2.9")
    async def test_extending_at_every_third_of_the_lease_keeps_it(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("a")
            [m] = await q.claim(lease=3)
            for _ in range(50):
                subject.clock.advance(1_000)
                await m.extend(3)
                await subject.sweep(hf)
                assert await q.claim() == []
            await m.ack()

    @proves("2.9")
    async def test_max_lease_caps_the_total_of_all_extensions(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(max_lease_ms=10_000)
            await q.enqueue("a")
            [m] = await q.claim()
            ends_at = subject.clock.now_ms() + 10_000
            subject.clock.advance(4_000)
            assert await m.extend(5) == ends_at - 1_000
            subject.clock.advance(4_000)
            assert await m.extend(5) == ends_at
            assert await m.extend(3_600) == ends_at
            subject.clock.advance(2_000)
            await _refuse(m, "extend")
            [again] = await q.claim()  # a new lease has the full maximum again
            assert await again.extend(10) == ends_at + 10_000

    @proves("2.9")
    async def test_max_lease_caps_a_claim_and_is_twelve_hours_by_default(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.enqueue("a")
            [m] = await q.claim(lease="7d")
            assert m.lease_expires_at == subject.clock.now_ms() + 12 * 3_600_000
