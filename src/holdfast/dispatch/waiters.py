"""Claims that wait, per queue, first come first served."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from holdfast.clock import Timer
from holdfast.model.answers import Delivery
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.runtime import Ticket


class Waiter:
    """One claim. `is_patient` is false for a claim that takes what the next pass finds, be it nothing.

    `is_due_an_answer`: the store is at work for it, or has never been asked for it.
    """

    __slots__ = ("ask", "is_due_an_answer", "is_patient", "ticket", "timer")

    def __init__(self, ask: ClaimRequest, ticket: Ticket[Any], is_patient: bool) -> None:
        self.ask = ask
        self.ticket: Ticket[list[Delivery]] = ticket
        self.is_patient = is_patient
        self.is_due_an_answer = True
        self.timer: Timer | None = None


class QueueWaiters:
    """The waiters of one queue, and when the next pass over it may find something."""

    __slots__ = ("_unasked", "_waiters", "has_turn", "ref", "timer", "wakes_at")

    def __init__(self, ref: QueueRef) -> None:
        self.ref = ref
        # A dict for its order: leaving from the middle costs no search.
        self._waiters: dict[Waiter, None] = {}
        # Claims in a ledger that no pass has asked for yet. Each is a pass of its own, ahead of the line: it may find
        # its number open, or be refused, whatever the queue holds for the others.
        self._unasked: deque[Waiter] = deque()
        self.timer: Timer | None = None
        self.wakes_at: int | None = None
        # It stands in the turns, or is being served.
        self.has_turn = False

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiters)

    def join(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None
        if waiter.ask.ledger is not None:
            self._unasked.append(waiter)

    def leave(self, waiter: Waiter) -> bool:
        """False if it had left already."""
        return self._waiters.pop(waiter, self) is None

    def first(self, limit: int) -> list[Waiter]:
        """The waiters one pass serves: as many as ask for `limit` messages in all, at least one."""
        while self._unasked:
            waiter = self._unasked.popleft()
            if waiter in self._waiters:
                return [waiter]
        chosen: list[Waiter] = []
        asked = 0
        for waiter in self._waiters:
            if chosen and (asked + waiter.ask.limit > limit or waiter.ask.ledger or chosen[0].ask.ledger):
                break
            chosen.append(waiter)
            asked += waiter.ask.limit
        return chosen

    @property
    def has_unasked(self) -> bool:
        return bool(self._unasked)
