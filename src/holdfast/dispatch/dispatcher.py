"""Claims that wait and what wakes them.

A claim that finds nothing joins its queue's line and sleeps. The store says which queue may have something, and from
when (`ready`); the line gets a turn, and one pass over the store serves its waiters in order, each with leases of its
own. Waiters never poll. A line without news gets a turn now and then all the same (`Polling`), for a store may not hear
of everything; news of one queue touches no other queue's line.

Each shard's turns are served as work of their own: a slow pass on one delays no other's waiters.

A pass runs as the runtime's own work. A caller that gives up therefore never interrupts the store; what was claimed for
it meanwhile is given back at once.
"""

from collections.abc import Callable

from holdfast.background import Backoff
from holdfast.dice import Dice, SystemDice
from holdfast.dispatch.fairness import cost_of
from holdfast.dispatch.polling import Polling
from holdfast.dispatch.turns import ShardTurns
from holdfast.dispatch.waiters import QueueWaiters, Waiter
from holdfast.dispatch.watchers import Callback, Watchers
from holdfast.model.answers import Delivery
from holdfast.model.errors import HoldfastError, RateLimited, StoreUnavailable
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest, Settle, Verdict
from holdfast.runtime import Runtime
from holdfast.stores.contract import Claims, Store

# Messages one pass may claim for a line's waiters: the batch by which tenants' service may differ.
PASS_LIMIT = 100

_BACK_OFF_MS = 50


class Dispatcher:
    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        polling: Polling | None = None,
        dice: Dice | None = None,
        weight_of: Callable[[str], int] = lambda tenant: 1,
        shard_of: Callable[[QueueRef], int] = lambda ref: 0,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._polling = polling or Polling()
        self._claims_inline = store.capabilities.claims_inline
        self._has_turns = runtime.has_turns
        self._is_told = store.capabilities.pushes_wakeups and self._polling.heeds_wakeups
        self._dice = dice or SystemDice()
        self._weight_of = weight_of
        self._shard_of = shard_of
        self._shards: dict[int, ShardTurns] = {}
        self._lines: dict[QueueRef, QueueWaiters] = {}
        self._watchers = Watchers(store, runtime)
        self._asked_this_turn: set[QueueRef] = set()
        # Patient waiters: a claim that does not wait is no consumer held up.
        self._waiting = 0
        self._giving_back = Backoff("give_back")
        self._is_closed = False

    def waiters(self, ref: QueueRef) -> int:
        line = self._lines.get(ref)
        return 0 if line is None else len(line)

    def tenant_waiters(self, tenant: str) -> int:
        return sum(len(line) for ref, line in self._lines.items() if ref.tenant == tenant)

    async def claim(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        """What is ready up to the ask's limit; if nothing is, wait up to `wait_ms` (None: for ever) for one."""
        is_inline = self._claims_inline and ask.ledger is None
        # A lone claim need not wait for a pass; of a crowd's in one turn the others are served by one, and share its
        # write.
        if is_inline and ref not in self._lines and (not self._has_turns or self._is_first_of_turn(ref)):
            claims = await self._store.claim(ref, [ask], self._runtime.clock.now_ms())
            if self._watchers:
                self._watchers.claimed(ref, claims)
            if claims.per_ask[0] or wait_ms == 0 or claims.is_reread:
                return claims.per_ask[0]
            line, waiter = self._join(ref, ask, wait_ms)
            waiter.is_due_an_answer = False
            self._arm(line, claims.next_at)
            # Whoever joins it later begins a pass, which arms the next one.
            self._arm_poll(line, wait_ms)
        else:
            line, waiter = self._join(ref, ask, wait_ms)
            self._give_turn(line)
        try:
            return await waiter.ticket
        except BaseException:
            self._abandon(ref, waiter)
            raise

    def _is_first_of_turn(self, ref: QueueRef) -> bool:
        """Return whether no other claim on this queue came in the runtime's turn."""
        if ref in self._asked_this_turn:
            return False
        if not self._asked_this_turn:
            self._runtime.at_turn_end(self._asked_this_turn.clear)
        self._asked_this_turn.add(ref)
        return True

    def is_waited_for(self, ref: QueueRef) -> bool:
        return ref in self._lines or ref in self._watchers

    def ready(self, ref: QueueRef, at_ms: int) -> None:
        """The store's news: a claim on this queue may find something from `at_ms` on."""
        line = self._lines.get(ref)
        if line is not None and self._polling.heeds_wakeups:
            self._arm(line, at_ms)
        if self._watchers:
            self._watchers.ready(ref, at_ms)

    def watch(self, ref: QueueRef, callback: Callback) -> Callback:
        """Have `callback` called soon after the store says that something may be claimed on this queue, and when a
        delayed message comes due; never within a step of the store. It costs no polling, so a store that does not
        push tells only of what came through this process. Answers how to stop."""
        return self._watchers.watch(ref, callback)

    def wake_all(self) -> None:
        """Give every line a turn: the store has stopped, and its refusal is the answer."""
        for line in list(self._lines.values()):
            self._give_turn(line)

    def reopened(self) -> None:
        """The store takes calls again: every waiter and watcher is to look for itself what is ready."""
        self.wake_all()
        self._watchers.wake_all()

    def fail_waiters(self, ref: QueueRef, error: HoldfastError) -> None:
        """Let a queue's waiters go: it is being deleted."""
        line = self._lines.get(ref)
        if line is not None:
            self._fail(ref, list(line), error)

    def close(self) -> None:
        """Every waiter goes away with nothing, and none joins any more."""
        self._is_closed = True
        self._watchers.close()
        for ref, line in list(self._lines.items()):
            for waiter in list(line):
                self._answer(ref, waiter, [])

    # --- Joining and leaving a line --------------------------------------------------------------------------

    def _join(self, ref: QueueRef, ask: ClaimRequest, wait_ms: int | None) -> tuple[QueueWaiters, Waiter]:
        if self._is_closed:
            raise StoreUnavailable("this queue was closed: open it again")
        is_patient = wait_ms != 0
        if is_patient and self._waiting >= self._polling.max_consumers:
            raise RateLimited(
                f"{self._waiting} claims are waiting, the most that queue_max_consumers allows: claim again later",
                limit="queue_max_consumers",
                of="server",
            )
        waiter = Waiter(ask, self._runtime.ticket(), is_patient)
        if wait_ms:
            give_up_at = self._runtime.clock.now_ms() + wait_ms
            waiter.timer = self._runtime.call_at(give_up_at, lambda: self._give_up(ref, waiter))
        line = self._lines.get(ref)
        if line is None:
            line = self._lines[ref] = QueueWaiters(ref)
        line.join(waiter)
        self._waiting += is_patient
        return line, waiter

    def _dismiss(self, ref: QueueRef, waiter: Waiter) -> bool:
        """Out of the line; false if it was no longer in it. The last one takes the line with it."""
        line = self._lines.get(ref)
        if line is None or not line.leave(waiter):
            return False
        self._waiting -= waiter.is_patient
        if waiter.timer is not None:
            waiter.timer.cancel()
        if not line and not line.has_turn:
            self._drop(line)
        return True

    def _give_up(self, ref: QueueRef, waiter: Waiter) -> None:
        """The wait is over. However short it was, the store is asked once, and what it is asked for is waited for: else
        with a store that takes longer than its callers wait nobody would ever be given anything."""
        if waiter.is_due_an_answer:
            waiter.is_patient, waiter.timer = False, None
            self._waiting -= 1
        else:
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
            self._give_back_unseen(ref, waiter, unseen)

    def _give_back_unseen(self, ref: QueueRef, waiter: Waiter, deliveries: list[Delivery]) -> None:
        """Not so a ledger's claim: whoever left reads it again by its number, and may hold it already when the giving
        back gets through."""
        if waiter.ask.ledger is None:
            self.give_back(ref, deliveries)

    def give_back(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        """What never reached its claimer is claimable again at once. The runtime's own work: nobody can cut it off."""
        if deliveries:
            self._runtime.spawn(self._give_back(ref, [each.receipt for each in deliveries]))

    async def _give_back(self, ref: QueueRef, receipts: list[Receipt]) -> None:
        verdicts = [Verdict(settle=Settle.UNSEND, receipt=receipt) for receipt in receipts]
        try:
            await self._store.settle(ref, verdicts, self._runtime.clock.now_ms())
        except Exception as error:
            # Not tried again: the leases end by themselves, and a store that closes waits for this.
            self._giving_back.failed(error, queue=ref, messages=len(receipts))
        else:
            self._giving_back.succeeded()

    # --- Turns -----------------------------------------------------------------------------------------------

    def _arm(self, line: QueueWaiters, at_ms: int | None) -> None:
        """See to it that the line gets a turn at that time, if not sooner."""
        if at_ms is None:
            return
        if at_ms <= self._runtime.clock.now_ms():
            self._give_turn(line)
        elif line.wakes_at is None or at_ms < line.wakes_at:
            self._disarm(line)
            line.wakes_at = at_ms
            line.timer = self._runtime.call_at(at_ms, lambda: self._wake(line))

    def _arm_poll(self, line: QueueWaiters, wait_ms: int | None = None) -> None:
        """Arm a turn for a line that hears nothing meanwhile, unless all of it has left by then, after `wait_ms`."""
        pause_ms = self._polling.pause_ms(is_told=self._is_told, roll=0.0 if self._is_told else self._dice.roll())
        if pause_ms is not None and (wait_ms is None or pause_ms < wait_ms):
            self._arm(line, self._runtime.clock.now_ms() + pause_ms)

    def _wake(self, line: QueueWaiters) -> None:
        line.timer = line.wakes_at = None
        if self._lines.get(line.ref) is line:
            self._give_turn(line)

    def _disarm(self, line: QueueWaiters) -> None:
        if line.timer is not None:
            line.timer.cancel()
        line.timer = line.wakes_at = None

    def _drop(self, line: QueueWaiters) -> None:
        self._disarm(line)
        del self._lines[line.ref]

    def _give_turn(self, line: QueueWaiters) -> None:
        number = self._shard_of(line.ref)
        shard = self._shards.get(number)
        if shard is None:
            shard = self._shards[number] = ShardTurns(self._runtime, self._weight_of, self._serve)
        shard.give_turn(line)

    async def _serve(self, line: QueueWaiters) -> int:
        """One pass: claim for the first waiters of the line. Answers what it cost."""
        # Cleared before the store is asked: news that comes while it works is worth another turn.
        line.has_turn = False
        served = line.first(PASS_LIMIT)
        cost = 0
        if served:
            for waiter in served:
                waiter.is_due_an_answer = True
            asked_at = self._runtime.clock.now_ms()
            try:
                claims = await self._store.claim(line.ref, [each.ask for each in served], asked_at)
            except Exception as error:  # whatever it is, those who wait must hear it
                self._fail(line.ref, served, error)
                if line:
                    self._give_turn(line)  # the news was for those behind them too
                return cost_of(1, 0)
            if self._watchers:
                self._watchers.claimed(line.ref, claims)
            for waiter, deliveries in zip(served, claims.per_ask, strict=True):
                waiter.is_due_an_answer = False
                cost += cost_of(len(deliveries), sum(each.bytes for each in deliveries))
                if deliveries or claims.is_reread or not waiter.is_patient:
                    self._hand_over(line.ref, waiter, deliveries)
            if line:
                self._go_on(line, claims, asked_at, made_progress=cost > 0)
        if not line and not line.has_turn and self._lines.get(line.ref) is line:
            self._drop(line)
        return cost

    def _hand_over(self, ref: QueueRef, waiter: Waiter, deliveries: list[Delivery]) -> None:
        if not self._answer(ref, waiter, deliveries):
            # It left while the store was at work.
            self._give_back_unseen(ref, waiter, deliveries)

    def _go_on(self, line: QueueWaiters, claims: Claims, asked_at: int, *, made_progress: bool) -> None:
        """After a pass that left waiters: another at once if it may find more, else when that may be."""
        if line.has_turn:
            return  # somebody came, or something, after the store was asked: the next pass sees to all of them
        now_ms, next_at = self._runtime.clock.now_ms(), claims.next_at
        is_due = next_at is not None and next_at <= now_ms
        # What came due while the store was at work is as good as what it has not given yet.
        if line.has_unasked or (is_due and (made_progress or (next_at is not None and next_at > asked_at))):
            self._give_turn(line)
            return
        # What this pass did not find, those behind it will not find either.
        for waiter in [each for each in line if not each.is_patient]:
            self._answer(line.ref, waiter, [])
        if next_at is not None:
            # "Now" from a pass that found nothing: another server holds it for the moment. Do not spin on it.
            self._arm(line, max(next_at, now_ms + _BACK_OFF_MS) if next_at <= now_ms else next_at)
        if line:
            self._arm_poll(line)

    def _fail(self, ref: QueueRef, waiters: list[Waiter], error: Exception) -> None:
        for waiter in waiters:
            if self._dismiss(ref, waiter) and not waiter.ticket.done():
                waiter.ticket.set_exception(error)
