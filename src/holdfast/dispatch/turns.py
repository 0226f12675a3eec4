"""The turns of one shard's lines."""

from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.background import Backoff
from holdfast.dispatch.fairness import FairTurns
from holdfast.dispatch.waiters import QueueWaiters
from holdfast.runtime import Runtime


class ShardTurns:
    """Serves its lines one after the other, as work of its own: a slow pass delays no other shard's waiters."""

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

    def give_turn(self, line: QueueWaiters) -> None:
        if line.has_turn:
            return
        line.has_turn = True
        self._turns.push(line.ref.tenant, line)
        if not self._is_serving:
            self._is_serving = True
            self._runtime.spawn(self._serve_turns())

    async def _serve_turns(self) -> None:
        try:
            while (turn := self._turns.pop()) is not None:
                tenant, line = turn
                try:
                    cost = await self._serve(line)
                except Exception as error:
                    # Not the store's refusal, which goes to the waiters: the other lines must have their turns.
                    self._backoff.failed(error, queue=line.ref)
                    cost = 1
                else:
                    self._backoff.succeeded()
                self._turns.charge(tenant, cost)
        finally:
            self._is_serving = False
