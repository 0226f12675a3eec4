"""The waiting claims of a queue, in the order in which they came."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from holdfast.clock import Timer
from holdfast.model.answers import Delivery
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.runtime import Ticket


class Waiter:
    """One waiting claim.

    Attributes:
        is_patient: False if the claim takes the result of the next pass, even if that is nothing.
        awaits_store: True while the store is claiming for it, and until it first has.
    """

    __slots__ = ("awaits_store", "is_patient", "request", "ticket", "timer")

    def __init__(self, request: ClaimRequest, ticket: Ticket[Any], is_patient: bool) -> None:
        self.request = request
        self.ticket: Ticket[list[Delivery]] = ticket
        self.is_patient = is_patient
        self.awaits_store = True
        self.timer: Timer | None = None


class QueueWaiters:
    """The waiters of one queue, and the time of the next pass that may find messages for them."""

    __slots__ = ("_ledger_claims", "_waiters", "has_turn", "ref", "timer", "wakes_at")

    def __init__(self, ref: QueueRef) -> None:
        self.ref = ref
        # A dict, used as an ordered set: leaving takes constant time.
        self._waiters: dict[Waiter, None] = {}
        # Claims with a ledger that no pass has served yet. Each gets a pass of its own before the other waiters,
        # because its result does not depend on ready messages: its number may be open already, or be refused.
        self._ledger_claims: deque[Waiter] = deque()
        self.timer: Timer | None = None
        self.wakes_at: int | None = None
        # True while the queue waits for its turn.
        self.has_turn = False

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiters)

    def join(self, waiter: Waiter) -> None:
        """Add a waiter behind the others."""
        self._waiters[waiter] = None
        if waiter.request.ledger is not None:
            self._ledger_claims.append(waiter)

    def leave(self, waiter: Waiter) -> bool:
        """Remove a waiter; return False if it had left already."""
        return self._waiters.pop(waiter, self) is None

    def next_batch(self, limit: int) -> list[Waiter]:
        """Return the waiters for one pass: at least one, and no more than want `limit` messages in all."""
        while self._ledger_claims:
            waiter = self._ledger_claims.popleft()
            if waiter in self._waiters:
                return [waiter]
        chosen: list[Waiter] = []
        asked = 0
        for waiter in self._waiters:
            if chosen and (asked + waiter.request.limit > limit or waiter.request.ledger or chosen[0].request.ledger):
                break
            chosen.append(waiter)
            asked += waiter.request.limit
        return chosen

    @property
    def has_ledger_claims(self) -> bool:
        """Return whether a claim with a ledger has not been served yet."""
        return bool(self._ledger_claims)
