"""Verdicts and a claim in one call: the verdicts come first, each has a result of its own, and none stops the claim."""

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
from holdfast.testing.laws.cases import told
from holdfast.testing.laws.lifecycle.states import events_of
from holdfast.testing.laws.waiting_tasks import soon, started, turns
from holdfast.testing.subject import Subject

_Exchange = asyncio.Task[tuple[list[Result], list[AsyncMessage]]]

# Each is refused as a whole, whatever else the call holds.
_MALFORMED: dict[str, Callable[[AsyncMessage], tuple[list[Any], dict[str, Any]]]] = {
    "no receipt": lambda m: ([m, "not a receipt"], {}),
    "no verdict": lambda m: ([m, {"receipt": m}], {}),
    "an unknown verdict": lambda m: ([m, {"receipt": m, "verdict": "burn"}], {}),
    "an unknown field": lambda m: ([m, {"receipt": m, "verdict": "ack", "colour": "red"}], {}),
    "a negative delay": lambda m: ([m, {"receipt": m, "verdict": "nack", "delay_ms": -1}], {}),
    "deferred and final": lambda m: ([m, {"receipt": m, "verdict": "nack", "defer": True, "final": True}], {}),
    "a limit of none": lambda m: ([m], {"limit": 0}),
    "a negative wait": lambda m: ([m], {"wait": -1}),
    "an unknown option": lambda m: ([m], {"colour": "red"}),
}


async def _leave(exchange: _Exchange) -> bool:
    """Cancel an exchange; return whether it had ended before, so that its messages are the caller's."""
    exchange.cancel()
    await soon(asyncio.wait({exchange}))
    return not exchange.cancelled()


async def _held(q: AsyncQueue) -> list[AsyncMessage]:
    await q.enqueue(["a", "b", "c"])
    return await q.claim(limit=3, lease=3_600)


class ExchangeLaws:
    async def test_an_exchange_carries_out_each_verdict_and_claims(self, subject: Subject) -> None:
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

    async def test_each_verdict_of_an_exchange_has_an_error_of_its_own_and_none_stops_the_claim(
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
            assert (await events_of(hf, m.id))[-1] is Event.SUCCEEDED

    async def test_an_exchange_claims_what_its_own_verdicts_set_free(self, subject: Subject) -> None:
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
                with told(name):
                    verdicts, options = malformed(m)
                    with pytest.raises(InvalidArgument):
                        await q.exchange(verdicts, **options)
                    stats = await q.stats()
                    assert (stats.in_flight, stats.ready) == (3, 1)
            assert not m.is_lost

    async def test_verdicts_are_settled_before_an_exchange_waits(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            m, *others = await _held(q)
            exchange = asyncio.create_task(q.exchange([m], wait=60))
            await started(hf)
            assert (await q.stats()).in_flight == len(others)
            [id] = await q.enqueue("d")
            results, messages = await soon(exchange)
            assert ([each.ok for each in results], [each.id for each in messages]) == ([True], [id])

    async def test_an_exchange_whose_wait_is_over_returns_its_results(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            m, *_ = await _held(q)
            exchange = asyncio.create_task(q.exchange([m], wait=60))
            await started(hf)
            subject.clock.advance(60_000)
            results, messages = await soon(exchange)
            assert ([each.ok for each in results], messages) == ([True], [])

    async def test_an_exchange_that_is_cancelled_while_it_waits_has_settled_and_takes_nothing(
        self, subject: Subject
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            m, *others = await _held(q)
            exchange = asyncio.create_task(q.exchange([m], wait=60))
            await started(hf)
            assert not await _leave(exchange)
            await turns(10)
            stats = await q.stats()
            assert (stats.in_flight, stats.waiters) == (len(others), 0)
            await q.enqueue("d")
            # A look for messages that had begun for it may have to give this one back first.
            [again] = await soon(q.claim(wait=None))
            assert (again.json(), again.attempt) == ("d", 1)

    @pytest.mark.parametrize("after_turns", range(6))
    async def test_an_exchange_cancelled_at_any_moment_leaves_its_messages_held_by_nobody(
        self, subject: Subject, after_turns: int
    ) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            m, *others = await _held(q)
            ids = await q.enqueue(["d", "e"])
            exchange = asyncio.create_task(q.exchange([m], limit=2, lease=3_600))
            await turns(after_turns)
            if await _leave(exchange):
                assert [each.id for each in exchange.result()[1]] == ids  # too late: they are its own
                return
            again: list[AsyncMessage] = []
            while len(again) < 2:
                again += await soon(q.claim(limit=2, wait=None, lease=3_600))
            assert [(each.id, each.attempt) for each in again] == [(id, 1) for id in ids]
            # Whether the verdict was carried out, its caller cannot know: giving it again is safe, and it holds once.
            await q.exchange([m])
            await _is_settled_once(hf, m)
            assert (await q.stats()).in_flight == len(others) + 2


async def _is_settled_once(hf: AsyncHoldfast, m: AsyncMessage) -> None:
    assert (await events_of(hf, m.id)).count(Event.SUCCEEDED) == 1
