"""A store refuses calls in a forked child of the process that opened it (SPEC 4.9)."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

from holdfast.client.client import AsyncHoldfast
from holdfast.client.message import AsyncMessage
from holdfast.client.queue import AsyncQueue
from holdfast.model.errors import StoreUnavailable
from holdfast.testing.children import in_child
from holdfast.testing.specification import proves
from holdfast.testing.subject import Subject


class ForkLaws:
    @proves("4.9")
    async def test_a_forked_child_is_refused_and_its_parent_continues(self, subject: Subject) -> None:
        async with subject.open() as hf:
            q = hf.queue("q")
            ids = await q.enqueue([b"held", b"ready"])
            [held] = await q.claim()
            ended = in_child(lambda: _try_calls(hf, q, held))
            assert not ended.hangs, "a call in the child never returned"
            assert ended.error is None, ended.error
            assert ended.result == []
            [ready] = await q.claim()
            assert [held.id, ready.id] == ids
            assert [each.ok for each in await q.ack([held, ready])] == [True, True]
            await q.enqueue(b"later")
            stats = await q.stats()
            assert (stats.ready, stats.in_flight) == (1, 0)


def _try_calls(hf: AsyncHoldfast, q: AsyncQueue, held: AsyncMessage) -> list[str]:
    """Make each call; return those that were not refused with the error for forked processes."""
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "enqueue": lambda: q.enqueue(b"child"),
        "claim": lambda: q.claim(wait=None),
        "ack": held.ack,
        "stats": q.stats,
        "policy": q.policy,
        "queues": hf.queues,
        "journal": hf.journal,
        "a queue of its own": lambda: hf.queue("child").enqueue(b"child"),
        "subscribe": lambda: anext(aiter(q.subscribe())),
    }

    async def try_all() -> list[str]:
        wrong = []
        for name, call in calls.items():
            try:
                answer = await call()
            except StoreUnavailable as error:
                if "opened before the process forked" not in error.message:
                    wrong.append(f"{name}: {error!r}")
            else:
                wrong.append(f"{name}: {answer!r}")
        await hf.close()  # has no effect in the child
        gc.collect()
        return wrong

    return asyncio.run(try_all())
