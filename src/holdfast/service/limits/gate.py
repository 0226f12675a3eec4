"""A limit on the number of concurrent calls. Further calls wait for their turn (SPEC 7.3, 8.8)."""

from collections.abc import Callable

from holdfast.dispatch.fairness import FairTurns
from holdfast.runtime import Runtime, Ticket

# The maximum numbers of calls that may wait at a gate, of one tenant and of all. Further calls are refused at once. The
# limit per tenant keeps one that floods the gate from filling it up for others.
MAX_WAITING_OF_TENANT = 1_024
MAX_WAITING = 65_536


class _Turn:
    __slots__ = ("cost", "ticket")

    def __init__(self, cost: int, ticket: Ticket[bool]) -> None:
        self.cost = cost
        self.ticket = ticket


class Gate:
    """A semaphore with fair turns: tenants by weight and cost, and the calls of a tenant in their order.

    A new call never overtakes waiting ones. After `try_enter` or `enter` succeeded, use the gate in a `with` statement,
    which leaves it at the end and admits the next calls.
    """

    __slots__ = ("_runtime", "_turns", "in_hand", "size")

    def __init__(self, runtime: Runtime, size: int, weight_of: Callable[[str], int]) -> None:
        self._runtime = runtime
        self.size = size
        self.in_hand = 0
        self._turns: FairTurns[_Turn] = FairTurns(weight_of)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        # The same as `leave`, without the call, because every enqueue ends here.
        self.in_hand -= 1
        if self._turns.size:
            self._admit_next()

    @property
    def is_idle(self) -> bool:
        """Return whether no call is in the gate or waits for it."""
        return not self.in_hand and not self._turns

    def try_enter(self) -> bool:
        """Enter without waiting; return False if the gate is full or other calls wait."""
        if self.in_hand >= self.size or self._turns.size:
            return False
        self.in_hand += 1
        return True

    def is_full(self, tenant: str) -> bool:
        """Return whether no further call of this tenant may wait."""
        return self._turns.waiting(tenant) >= MAX_WAITING_OF_TENANT or len(self._turns) >= MAX_WAITING

    async def enter(self, tenant: str, cost: int, until_ms: int) -> bool:
        """Wait for a turn until `until_ms`; return False if it did not come. A cancelled call gives its turn back."""
        turn = _Turn(cost, self._runtime.ticket())
        self._turns.push(tenant, turn)
        # The gate may have become larger since the others began to wait.
        self._admit_next()
        timer = self._runtime.call_at(until_ms, lambda: self._time_out(tenant, turn))
        try:
            return await turn.ticket
        except BaseException:
            # It is still waiting, unless it was admitted just before the cancellation.
            if not self._turns.remove(tenant, turn) and _was_admit_next(turn.ticket):
                self.leave()
            raise
        finally:
            timer.cancel()

    def leave(self) -> None:
        """End a call, and admit the next ones."""
        self.in_hand -= 1
        if self._turns.size:
            self._admit_next()

    def _admit_next(self) -> None:
        while self.in_hand < self.size and (popped := self._turns.pop()) is not None:
            tenant, turn = popped
            if turn.ticket.done():  # cancelled, but its caller has not run since
                self._turns.charge(tenant, 0)
                continue
            self._turns.charge(tenant, turn.cost)
            self.in_hand += 1
            turn.ticket.set_result(True)

    def _time_out(self, tenant: str, turn: _Turn) -> None:
        if self._turns.remove(tenant, turn) and not turn.ticket.done():
            turn.ticket.set_result(False)


def _was_admit_next(ticket: Ticket[bool]) -> bool:
    return ticket.done() and not ticket.cancelled() and ticket.result()
