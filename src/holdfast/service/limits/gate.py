"""A gate: so many calls in hand at once, the others wait their turn (SPEC 7.3, 8.8)."""

from collections.abc import Callable

from holdfast.dispatch.fairness import FairTurns
from holdfast.runtime import Runtime, Ticket

# Calls of one tenant that may wait at a gate, and of all: beyond, a call is refused at once. Each tenant has its own
# part, so that one that floods the gate fills only that.
MAX_LINE_OF_TENANT = 1_024
MAX_LINE = 65_536


class _Turn:
    __slots__ = ("cost", "ticket")

    def __init__(self, cost: int, ticket: Ticket[bool]) -> None:
        self.cost = cost
        self.ticket = ticket


class Gate:
    """Tenants take turns by weight and cost, each tenant's calls first come first served.

    Nobody passes those who wait. Whoever was let in leaves at the end of a `with`, and lets the next ones in.
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
        # `leave`, spelled out: every enqueue ends here.
        self.in_hand -= 1
        if self._turns.size:
            self._let_in()

    @property
    def is_idle(self) -> bool:
        return not self.in_hand and not self._turns

    def try_enter(self) -> bool:
        if self.in_hand >= self.size or self._turns.size:
            return False
        self.in_hand += 1
        return True

    def is_line_full(self, tenant: str) -> bool:
        return self._turns.waiting(tenant) >= MAX_LINE_OF_TENANT or len(self._turns) >= MAX_LINE

    async def enter(self, tenant: str, cost: int, until_ms: int) -> bool:
        """Wait for a turn; false if it did not come by `until_ms`. One that is cancelled leaves no trace."""
        turn = _Turn(cost, self._runtime.ticket())
        self._turns.push(tenant, turn)
        # It may be larger than it was when the others joined the line.
        self._let_in()
        timer = self._runtime.call_at(until_ms, lambda: self._give_up(tenant, turn))
        try:
            return await turn.ticket
        except BaseException:
            # Unless it was let in and did not know it yet, it still stands in the line.
            if not self._turns.remove(tenant, turn) and _was_let_in(turn.ticket):
                self.leave()
            raise
        finally:
            timer.cancel()

    def leave(self) -> None:
        self.in_hand -= 1
        if self._turns.size:
            self._let_in()

    def _let_in(self) -> None:
        while self.in_hand < self.size and (popped := self._turns.pop()) is not None:
            tenant, turn = popped
            if turn.ticket.done():  # cancelled, and its owner has not run again yet
                self._turns.charge(tenant, 0)
                continue
            self._turns.charge(tenant, turn.cost)
            self.in_hand += 1
            turn.ticket.set_result(True)

    def _give_up(self, tenant: str, turn: _Turn) -> None:
        if self._turns.remove(tenant, turn) and not turn.ticket.done():
            turn.ticket.set_result(False)


def _was_let_in(ticket: Ticket[bool]) -> bool:
    return ticket.done() and not ticket.cancelled() and ticket.result()
