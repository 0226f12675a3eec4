"""Verdicts that could not be written (SPEC 3.4, 6.2). The lease is still valid, so the verdict can be retried."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.client.message import AsyncMessage
from holdfast.client.queue import AsyncQueue
from holdfast.model.errors import StaleLease, StoreUnavailable
from holdfast.model.message import State
from holdfast.testing.laws.cases import note_case
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject

_VERDICTS: dict[str, Callable[[AsyncQueue, AsyncMessage], Awaitable[Any]]] = {
    "ack": lambda q, m: m.ack(),
    "nack": lambda q, m: m.nack("no"),
    "extend": lambda q, m: m.extend(60),
    "release": lambda q, m: m.release(),
    "close": lambda q, m: m.close(),
    "remove": lambda q, m: q.remove(m),
}


class UnwritableLaws:
    async def test_a_verdict_that_could_not_be_written_raises_store_unavailable_and_keeps_the_lease(
        self, subject: Subject
    ) -> None:
        unwritable: set[int] = set()
        async with subject.open(unwritable=unwritable) as hf:
            for name, verdict in _VERDICTS.items():
                with note_case(name):
                    q = hf.queue(name)
                    await q.enqueue(b"work")
                    [m] = await q.claim()
                    unwritable.add(m.id.snowflake)
                    with pytest.raises(StoreUnavailable) as refused:
                        await verdict(q, m)
                    assert str(m.id) in refused.value.message
                    assert not m.is_lost
                    assert (await q.get(m.id)).state is State.IN_FLIGHT
                    unwritable.clear()
                    await m.ack()
                    assert (await q.stats()).in_flight == 0

    async def test_a_message_block_whose_ack_could_not_be_written_can_be_acked_again(self, subject: Subject) -> None:
        unwritable: set[int] = set()
        async with subject.open(unwritable=unwritable) as hf:
            q = hf.queue("q")
            await q.enqueue(b"work")
            [m] = await q.claim()
            unwritable.add(m.id.snowflake)
            with pytest.raises(StoreUnavailable):
                async with m:
                    pass
            unwritable.clear()
            await m.ack()
            with pytest.raises(StaleLease):
                await m.ack()

    @proves("3.4")
    async def test_each_verdict_of_a_list_gets_its_own_error(self, subject: Subject) -> None:
        unwritable: set[int] = set()
        async with subject.open(unwritable=unwritable) as hf:
            for name, settle in (("ack", AsyncQueue.ack), ("nack", AsyncQueue.nack), ("release", AsyncQueue.release)):
                with note_case(name):
                    q = hf.queue(name)
                    await q.enqueue([b"fine", b"stale", b"unwritable"])
                    fine, stale, unwritten = await q.claim(limit=3)
                    await stale.ack()
                    unwritable.add(unwritten.id.snowflake)
                    results = await settle(q, [fine, stale, unwritten])
                    assert [(each.ok, each.error) for each in results] == [
                        (True, None),
                        (False, "stale_lease"),
                        (False, "store_unavailable"),
                    ]
                    assert [each.is_lost for each in (fine, stale, unwritten)] == [False, True, False]
                    unwritable.clear()
                    [again] = await settle(q, [unwritten])
                    assert again.ok
