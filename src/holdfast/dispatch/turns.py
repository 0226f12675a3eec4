"""The turns of the queues of one shard."""

from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.background import Backoff
from holdfast.dispatch.fairness import FairTurns
from holdfast.dispatch.waiters import QueueWaiters
from holdfast.runtime import Runtime


class ShardTurns:
    """The turns of one shard. They are served one by one in the background, apart from those of other shards."""

    def __init__(
        self,
        runtime: Runtime,
        weight_of: Callable[[str], int],
        serve: Callable[[QueueWaiters], Coroutine[Any, Any, int]],
    ) -> None:
        self._runtime = runtime
        self._serve = serve
        self._turns: FairTurns[QueueWaiters] = FairTurns(weight_of)
        self._is_serving = False
        self._backoff = Backoff("dispatch")

    def give_turn(self, waiters: QueueWaiters) -> None:
        """Serve the waiters of a queue soon, in the fair order of tenants. They have at most one turn at a time."""
        if waiters.has_turn:
            return
        waiters.has_turn = True
        self._turns.push(waiters.ref.tenant, waiters)
        if not self._is_serving:
            self._is_serving = True
            self._runtime.spawn(self._serve_turns())

    async def _serve_turns(self) -> None:
        try:
            while (turn := self._turns.pop()) is not None:
                tenant, waiters = turn
                try:
                    cost = await self._serve(waiters)
                except Exception as error:
                    # This is a bug: `serve` passes the errors of the store to the waiters. Other queues go on.
                    self._backoff.failed(error, **waiters.ref._asdict())
                    cost = 1
                else:
                    self._backoff.succeeded()
                self._turns.charge(tenant, cost)
        finally:
            self._is_serving = False
