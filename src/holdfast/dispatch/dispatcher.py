"""Claims that wait and what wakes them.

A claim that finds nothing joins its queue's line and sleeps. The store says which queue may have something, and from
when (`ready`); the line gets a turn, and one pass over the store serves its waiters in order, each with leases of its
own. Nobody polls: a line without news costs nothing, and news of one queue touches no other queue's line.

A pass runs as the runtime's own work. A caller that gives up therefore never interrupts the store; what was claimed for
it meanwhile is given back at once.
"""

from collections.abc import Callable

from holdfast.dispatch.fairness import FairTurns, cost_of
from holdfast.dispatch.waiters import Line, Waiter
from holdfast.model.answers import Delivery
from holdfast.model.errors import HoldfastError, RateLimited, StoreUnavailable
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import Ask, Settle, Verdict
from holdfast.runtime import Runtime
from holdfast.stores.contract import Claims, Store

# Messages one pass may claim for a line's waiters: the batch by which tenants' service may differ.
PASS_LIMIT = 100

_BACK_OFF_MS = 50


class Dispatcher:
    def __init__(
        self, store: Store, runtime: Runtime, *, max_waiters: int, weight_of: Callable[[str], int] = lambda tenant: 1
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._max_waiters = max_waiters
        self._lines: dict[QueueRef, Line] = {}
        self._watchers: dict[QueueRef, set[Callable[[], None]]] = {}
        self._turns: FairTurns[Line] = FairTurns(weight_of)
        self._waiting = 0
        self._is_serving = False
        self._is_closed = False

    def waiters(self, ref: QueueRef) -> int:
        line = self._lines.get(ref)
        return 0 if line is None else len(line)

    def tenant_waiters(self, tenant: str) -> int:
        return sum(len(line) for ref, line in self._lines.items() if ref.tenant == tenant)

    async def claim(self, ref: QueueRef, ask: Ask, wait_ms: int | None) -> list[Delivery]:
        """What is ready up to the ask's limit; if nothing is, wait up to `wait_ms` (None: for ever) for one."""
        if self._store.capabilities.claims_inline and ref not in self._lines:
            claims = await self._store.claim(ref, [ask], self._runtime.clock.now_ms())
            if claims.per_ask[0] or wait_ms == 0 or claims.is_reread:
                return claims.per_ask[0]
            line, waiter = self._join(ref, ask, wait_ms)
            self._arm(line, claims.next_at)
        else:
            line, waiter = self._join(ref, ask, wait_ms)
            self._give_turn(line)
        try:
            return await waiter.ticket
        except BaseException:
            self._abandon(ref, waiter)
            raise

    def is_waited_for(self, ref: QueueRef) -> bool:
        return ref in self._lines or ref in self._watchers

    def ready(self, ref: QueueRef, at_ms: int) -> None:
        """The store's news: a claim on this queue may find something from `at_ms` on."""
        line = self._lines.get(ref)
        if line is not None:
            self._arm(line, at_ms)
        for callback in self._watchers.get(ref, ()):
            self._runtime.call_at(at_ms, callback)

    def watch(self, ref: QueueRef, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called whenever a claim on this queue may find something; answers how to end it."""
        self._watchers.setdefault(ref, set()).add(callback)

        def unwatch() -> None:
            self._watchers[ref].discard(callback)
            if not self._watchers[ref]:
                del self._watchers[ref]

        return unwatch

    def wake_all(self) -> None:
        """Every line gets a turn: the store has stopped, and its refusal is the answer."""
        for line in list(self._lines.values()):
            self._give_turn(line)

    def fail_waiters(self, ref: QueueRef, error: HoldfastError) -> None:
        """Let a queue's waiters go: it is being deleted."""
        line = self._lines.get(ref)
        if line is not None:
            self._fail(ref, list(line), error)

    def close(self) -> None:
        """Every waiter goes away with nothing, and none joins any more."""
        self._is_closed = True
        for ref, line in list(self._lines.items()):
            for waiter in list(line):
                self._answer(ref, waiter, [])

    # --- Joining and leaving a line --------------------------------------------------------------------------

    def _join(self, ref: QueueRef, ask: Ask, wait_ms: int | None) -> tuple[Line, Waiter]:
        if self._is_closed:
            raise StoreUnavailable("this queue was closed: open it again")
        if self._waiting >= self._max_waiters:
            raise RateLimited(f"{self._waiting} claims are waiting, the most allowed: claim again later")
        waiter = Waiter(ask, self._runtime.ticket(), is_patient=wait_ms != 0)
        if wait_ms:
            give_up_at = self._runtime.clock.now_ms() + wait_ms
            waiter.timer = self._runtime.call_at(give_up_at, lambda: self._give_up(ref, waiter))
        line = self._lines.get(ref)
        if line is None:
            line = self._lines[ref] = Line(ref)
        line.join(waiter)
        self._waiting += 1
        return line, waiter

    def _dismiss(self, ref: QueueRef, waiter: Waiter) -> bool:
        """Out of the line; false if it was no longer in it. The last one takes the line with it."""
        line = self._lines.get(ref)
        if line is None or not line.leave(waiter):
            return False
        self._waiting -= 1
        if waiter.timer is not None:
            waiter.timer.cancel()
        if not line and not line.has_turn:
            self._drop(line)
        return True

    def _give_up(self, ref: QueueRef, waiter: Waiter) -> None:
        self._answer(ref, waiter, [])

    def _answer(self, ref: QueueRef, waiter: Waiter, deliveries: list[Delivery]) -> bool:
        """Hand over and let go; false if the waiter had gone."""
        # A cancelled ticket is done before its owner has had a turn to leave the line.
        if not self._dismiss(ref, waiter) or waiter.ticket.done():
            return False
        waiter.ticket.set_result(deliveries)
        return True

    def _abandon(self, ref: QueueRef, waiter: Waiter) -> None:
        """The caller left: out of the line, and back with what it was handed but never saw."""
        if self._dismiss(ref, waiter):
            return
        if not waiter.ticket.cancelled() and not waiter.ticket.exception() and (unseen := waiter.ticket.result()):
            self.give_back(ref, unseen)

    def give_back(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        """What never reached its claimer is claimable again at once. The runtime's own work: nobody can cut it off."""
        if deliveries:
            self._runtime.spawn(self._give_back(ref, [each.receipt for each in deliveries]))

    async def _give_back(self, ref: QueueRef, receipts: list[Receipt]) -> None:
        verdicts = [Verdict(settle=Settle.UNSEND, receipt=receipt) for receipt in receipts]
        await self._store.settle(ref, verdicts, self._runtime.clock.now_ms())

    # --- Turns -----------------------------------------------------------------------------------------------

    def _arm(self, line: Line, at_ms: int | None) -> None:
        """See to it that the line gets a turn at that time, if not sooner."""
        if at_ms is None:
            return
        if at_ms <= self._runtime.clock.now_ms():
            self._give_turn(line)
        elif line.wakes_at is None or at_ms < line.wakes_at:
            self._disarm(line)
            line.wakes_at = at_ms
            line.timer = self._runtime.call_at(at_ms, lambda: self._wake(line))

    def _wake(self, line: Line) -> None:
        line.timer = line.wakes_at = None
        if self._lines.get(line.ref) is line:
            self._give_turn(line)

    def _disarm(self, line: Line) -> None:
        if line.timer is not None:
            line.timer.cancel()
        line.timer = line.wakes_at = None

    def _drop(self, line: Line) -> None:
        self._disarm(line)
        del self._lines[line.ref]

    def _give_turn(self, line: Line) -> None:
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
                self._turns.charge(tenant, await self._serve(line))
        finally:
            self._is_serving = False

    async def _serve(self, line: Line) -> int:
        """One pass: claim for the first waiters of the line. Answers what it cost."""
        # Cleared before the store is asked: news that comes while it works is worth another turn.
        line.has_turn = False
        served = line.first(PASS_LIMIT)
        cost = 0
        if served:
            try:
                claims = await self._store.claim(line.ref, [each.ask for each in served], self._runtime.clock.now_ms())
            except Exception as error:  # whatever it is, those who wait must hear it
                self._fail(line.ref, served, error)
                if line:
                    self._give_turn(line)  # the news was for those behind them too
                return cost_of(1, 0)
            for waiter, deliveries in zip(served, claims.per_ask, strict=True):
                cost += cost_of(len(deliveries), sum(each.bytes for each in deliveries))
                if deliveries or claims.is_reread or not waiter.is_patient:
                    self._hand_over(line.ref, waiter, deliveries)
            if line:
                self._go_on(line, claims, made_progress=cost > 0)
        if not line and not line.has_turn and self._lines.get(line.ref) is line:
            self._drop(line)
        return cost

    def _hand_over(self, ref: QueueRef, waiter: Waiter, deliveries: list[Delivery]) -> None:
        if not self._answer(ref, waiter, deliveries):
            # It left while the store was at work.
            self.give_back(ref, deliveries)

    def _go_on(self, line: Line, claims: Claims, *, made_progress: bool) -> None:
        """After a pass that left waiters: another at once if it may find more, else when that may be."""
        now_ms, next_at = self._runtime.clock.now_ms(), claims.next_at
        if line.has_unasked or (made_progress and next_at is not None and next_at <= now_ms):
            self._give_turn(line)
            return
        # What this pass did not find, those behind it will not find either.
        for waiter in [each for each in line if not each.is_patient]:
            self._answer(line.ref, waiter, [])
        if next_at is not None:
            # "Now" from a pass that found nothing: another server holds it for the moment. Do not spin on it.
            self._arm(line, max(next_at, now_ms + _BACK_OFF_MS) if next_at <= now_ms else next_at)

    def _fail(self, ref: QueueRef, waiters: list[Waiter], error: Exception) -> None:
        for waiter in waiters:
            if self._dismiss(ref, waiter) and not waiter.ticket.done():
                waiter.ticket.set_exception(error)
