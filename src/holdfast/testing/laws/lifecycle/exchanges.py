"""Exchanges: verdicts and a claim in one call. Each verdict has its own result, and none stops the claim."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.client.client import AsyncHoldfast
from holdfast.client.message import AsyncMessage
from holdfast.client.queue import AsyncQueue
from holdfast.model.answers import Result
from holdfast.model.errors import InvalidArgument
from holdfast.model.events import Event
from holdfast.model.message import State
from holdfast.testing.laws.cases import note_case
from holdfast.testing.laws.lifecycle.states import message_events
from holdfast.testing.laws.waiting_tasks import finish, run_others, until_started
from holdfast.testing.subject import Subject

_Exchange = asyncio.Task[tuple[list[Result], list[AsyncMessage]]]

# Each of these exchanges is refused as a whole, including its valid verdict.
_MALFORMED: dict[str, Callable[[AsyncMessage], tuple[list[Any], dict[str, Any]]]] = {
    "no receipt": lambda m: ([m, "not a receipt"], {}),
    "no verdict": lambda m: ([m, {"receipt": m}], {}),
    "an unknown verdict": lambda m: ([m, {"receipt": m, "verdict": "burn"}], {}),
    "an unknown field": lambda m: ([m, {"receipt": m, "verdict": "ack", "colour": "red"}], {}),
    "a negative delay": lambda m: ([m, {"receipt": m, "verdict": "nack", "delay_ms": -1}], {}),
    "deferred and final": lambda m: ([m, {"receipt": m, "verdict": "nack", "defer": True, "final": True}], {}),
    "a limit of 0": lambda m: ([m], {"limit": 0}),
    "a negative wait": lambda m: ([m], {"wait": -1}),
    "an unknown option": lambda m: ([m], {"colour": "red"}),
}


async def _cancel(exchange: _Exchange) -> bool:
    """Cancel an exchange. Return true if it had already ended, so that the caller holds its messages."""
    exchange.cancel()
    await finish(asyncio.wait({exchange}))
    return not exchange.cancelled()


async def _held(q: AsyncQueue) -> list[AsyncMessage]:
    await q.enqueue(["a", "b", "c"])
    return await q.claim(limit=3, lease=3_600)


class ExchangeLaws:
    async def test_an_exchange_applies_each_verdict_and_claims(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            await q.set_policy(keep_succeeded_ms=60_000, max_retries=9)
            ids = await q.enqueue(list(range(7)))
            acked, nacked, deferred, failed, released = await q.claim(limit=5, lease=60)
            results, messages = await q.exchange(
                [
                    acked,
                    {"receipt": nacked, "verdict": "nack", "error": "broken", "delay_ms": 60_000},
                    {"receipt": deferred, "verdict": "nack", "error": "later", "delay_ms": 60_000, "defer": True},
                    {"receipt": failed.receipt, "verdict": "nack", "error": "no such user", "final": True},
                    {"receipt": released, "verdict": "release"},
                ],
                limit=10,
                lease=60,
                owner="next",
            )
            assert [(each.id, each.ok, each.error) for each in results] == [(id, True, None) for id in ids[:5]]
            assert [each.id for each in messages] == ids[4:]
            assert [each.attempt for each in messages] == [2, 1, 1]
            infos = [await q.get(id) for id in ids]
            assert [(info.state, info.failures, info.last_error) for info in infos] == [
                (State.SUCCEEDED, 0, None),
                (State.READY, 1, "broken"),
                (State.READY, 0, "later"),
                (State.FAILED, 1, "no such user"),
                *[(State.IN_FLIGHT, 0, None)] * 3,
            ]
            assert [info.owner for info in infos[4:]] == ["next"] * 3
            assert [results[1].retry_at, results[2].retry_at] == [info.visible_at for info in infos[1:3]]

    async def test_each_verdict_of_an_exchange_has_its_own_error_and_none_stops_the_claim(
        self, subject: Subject
    ) -> None:
        unwritable: set[int] = set()
        async with subject.open(unwritable=unwritable) as hf:
            q = hf.queue("q")
            stale, unwritten, fine = await _held(q)
            [waiting] = await q.enqueue("d")
            await stale.ack()
            unwritable.add(unwritten.id.snowflake)
            results, messages = await q.exchange([stale, unwritten, fine])
            assert [(each.id, each.ok, each.error) for each in results] == [
                (stale.id, False, "stale_lease"),
                (unwritten.id, False, "store_unavailable"),
                (fine.id, True, None),
            ]
            assert [each.id for each in messages] == [waiting]
            assert [each.is_lost for each in (stale, unwritten, fine)] == [True, False, False]
            unwritable.clear()
            [again], _ = await q.exchange([unwritten])
            assert again.ok

    async def test_the_same_receipt_twice_in_an_exchange_settles_once(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            m, *_ = await _held(q)
            results, _ = await q.exchange([m, {"receipt": m, "verdict": "nack", "error": "twice"}])
            assert [(each.ok, each.error) for each in results] == [(True, None), (False, "stale_lease")]
            assert (await message_events(hf, m.id))[-1] is Event.SUCCEEDED

    async def test_an_exchange_can_claim_messages_that_its_verdicts_made_ready(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue([1, 2], group="g")
            [first] = await q.claim(lease=60)
            assert await q.claim() == []
            results, messages = await q.exchange([first], lease=60)
            assert [each.ok for each in results] == [True]
            assert [each.id for each in messages] == ids[1:]

    async def test_an_exchange_on_a_paused_queue_settles_and_claims_nothing(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            m, *_ = await _held(q)
            await q.enqueue("d")
            await q.pause()
            results, messages = await q.exchange([m], limit=10)
            assert ([each.ok for each in results], messages) == ([True], [])
            stats = await q.stats()
            assert (stats.in_flight, stats.ready) == (2, 1)

    async def test_a_malformed_exchange_settles_nothing_and_claims_nothing(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            m, *_ = await _held(q)
            await q.enqueue("d")
            for name, malformed in _MALFORMED.items():
                with note_case(name):
                    verdicts, options = malformed(m)
                    with pytest.raises(InvalidArgument):
                        await q.exchange(verdicts, **options)
                    stats = await q.stats()
                    assert (stats.in_flight, stats.ready) == (3, 1)
            assert not m.is_lost

    async def test_the_verdicts_of_an_exchange_are_applied_before_it_waits(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            m, *others = await _held(q)
            exchange = asyncio.create_task(q.exchange([m], wait=60))
            await until_started(hf)
            assert (await q.stats()).in_flight == len(others)
            [id] = await q.enqueue("d")
            results, messages = await finish(exchange)
            assert ([each.ok for each in results], [each.id for each in messages]) == ([True], [id])

    async def test_an_exchange_returns_its_results_when_its_wait_ends(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            m, *_ = await _held(q)
            exchange = asyncio.create_task(q.exchange([m], wait=60))
            await until_started(hf)
            subject.clock.advance(60_000)
            results, messages = await finish(exchange)
            assert ([each.ok for each in results], messages) == ([True], [])

    async def test_an_exchange_cancelled_while_it_waits_has_applied_its_verdicts_and_claims_nothing(
        self, subject: Subject
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            m, *others = await _held(q)
            exchange = asyncio.create_task(q.exchange([m], wait=60))
            await until_started(hf)
            assert not await _cancel(exchange)
            await run_others(10)
            stats = await q.stats()
            assert (stats.in_flight, stats.waiters) == (len(others), 0)
            await q.enqueue("d")
            # A claim that was under way for the exchange may have to return this message first.
            [again] = await finish(q.claim(wait=None))
            assert (again.json(), again.attempt) == ("d", 1)

    @pytest.mark.parametrize("after_turns", range(6))
    async def test_an_exchange_cancelled_at_any_moment_leaves_no_message_leased(
        self, subject: Subject, after_turns: int
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            m, *others = await _held(q)
            ids = await q.enqueue(["d", "e"])
            exchange = asyncio.create_task(q.exchange([m], limit=2, lease=3_600))
            await run_others(after_turns)
            if await _cancel(exchange):
                assert [each.id for each in exchange.result()[1]] == ids  # too late: the caller holds them
                return
            again: list[AsyncMessage] = []
            while len(again) < 2:
                again += await finish(q.claim(limit=2, wait=None, lease=3_600))
            assert [(each.id, each.attempt) for each in again] == [(id, 1) for id in ids]
            # The caller does not know whether the verdict was applied. It is safe to retry and is applied once.
            await q.exchange([m])
            await _is_settled_once(hf, m)
            assert (await q.stats()).in_flight == len(others) + 2


async def _is_settled_once(hf: AsyncHoldfast, m: AsyncMessage) -> None:
    assert (await message_events(hf, m.id)).count(Event.SUCCEEDED) == 1
