"""Waiting claims, and the passes that serve them.

A claim that finds nothing joins the waiters of its queue and sleeps. The store notifies the dispatcher which queue may
have messages, and from when (`ready`). The waiters of that queue then get a turn: one pass over the store serves them
in order, each with leases of its own. Waiters never poll. A queue without notifications still gets a turn from time to
time (`Polling`), because a store may miss some changes. A notification wakes no waiter of another queue.

The turns of each shard are background work of their own, so a slow pass on one shard delays no waiters of another.

Passes run in the background, so a caller that leaves never interrupts the store. Messages that were claimed for it
meanwhile are given back at once.
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
from holdfast.stores.contract import Store
from holdfast.stores.values import Claims

# The maximum number of messages that one pass claims. Tenants are served fairly to within one such batch.
PASS_LIMIT = 100

# The pause after a pass that found nothing although the store says that messages are ready.
_PAUSE_MS = 50


class Dispatcher:
    """The waiting claims of all queues of one store."""

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
        self._is_notified = store.capabilities.pushes_wakeups and self._polling.heeds_wakeups
        self._dice = dice or SystemDice()
        self._weight_of = weight_of
        self._shard_of = shard_of
        self._shards: dict[int, ShardTurns] = {}
        self._waiters: dict[QueueRef, QueueWaiters] = {}
        self._watchers = Watchers(store, runtime)
        self._claimed_this_turn: set[QueueRef] = set()
        # The number of patient waiters. A claim with `wait_ms` 0 does not count towards `max_consumers`.
        self._waiting = 0
        self._giving_back = Backoff("give_back")
        self._is_closed = False

    def count_waiters(self, ref: QueueRef) -> int:
        """Return the number of waiting claims on a queue."""
        waiters = self._waiters.get(ref)
        return 0 if waiters is None else len(waiters)

    def count_tenant_waiters(self, tenant: str) -> int:
        """Return the number of waiting claims on all queues of a tenant."""
        return sum(len(waiters) for ref, waiters in self._waiters.items() if ref.tenant == tenant)

    async def claim(self, ref: QueueRef, request: ClaimRequest, wait_ms: int | None) -> list[Delivery]:
        """Claim ready messages, at most `request.limit`. If none is ready, wait for at least one.

        Wait at most `wait_ms` (None: without limit), then return an empty list. If the caller is cancelled, messages
        that were claimed for it are given back.

        Raise `RateLimited` if too many claims wait already, `StoreUnavailable` after `close`, and the errors of
        `Store.claim`.
        """
        is_inline = self._claims_inline and request.ledger is None
        # The first claim on a queue in a turn of the runtime is served at once. Further claims of the same turn are
        # served together by one pass, which needs only one write.
        if is_inline and ref not in self._waiters and (not self._has_turns or self._is_first_in_turn(ref)):
            claims = await self._store.claim(ref, [request], self._runtime.clock.now_ms())
            if self._watchers:
                self._watchers.claimed(ref, claims)
            if claims.per_ask[0] or wait_ms == 0 or claims.is_reread:
                return claims.per_ask[0]
            waiters, waiter = self._join(ref, request, wait_ms)
            waiter.awaits_store = False
            self._arm(waiters, claims.next_at)
            # A waiter that joins later begins a pass, which sets the timer of the next poll.
            self._arm_next_poll(waiters, wait_ms)
        else:
            waiters, waiter = self._join(ref, request, wait_ms)
            self._give_turn(waiters)
        try:
            return await waiter.ticket
        except BaseException:
            self._abandon(ref, waiter)
            raise

    def _is_first_in_turn(self, ref: QueueRef) -> bool:
        """Return whether this is the first claim on the queue in the current turn of the runtime."""
        if ref in self._claimed_this_turn:
            return False
        if not self._claimed_this_turn:
            self._runtime.at_turn_end(self._claimed_this_turn.clear)
        self._claimed_this_turn.add(ref)
        return True

    def is_waited_for(self, ref: QueueRef) -> bool:
        """Return whether the queue has a waiter or a watcher."""
        return ref in self._waiters or ref in self._watchers

    def ready(self, ref: QueueRef, at_ms: int) -> None:
        """Take note that a claim on this queue may find a message from `at_ms` on. The store calls it."""
        waiters = self._waiters.get(ref)
        if waiters is not None and self._polling.heeds_wakeups:
            self._arm(waiters, at_ms)
        if self._watchers:
            self._watchers.ready(ref, at_ms)

    def watch(self, ref: QueueRef, callback: Callback) -> Callback:
        """Call `callback` soon after messages may have become ready on a queue, also when a delayed message comes due.

        The callback never runs within a step of the store. There is no polling for watches: if the store does not
        notify of all changes, only those of this process are noticed. Return a function that ends the watch.
        """
        return self._watchers.watch(ref, callback)

    def wake_all(self) -> None:
        """Give the waiters of every queue a turn. After the store has stopped, they get its error that way."""
        for waiters in list(self._waiters.values()):
            self._give_turn(waiters)

    def reopened(self) -> None:
        """Wake every waiter and every watcher, because the store takes calls again."""
        self.wake_all()
        self._watchers.wake_all()

    def fail_waiters(self, ref: QueueRef, error: HoldfastError) -> None:
        """Raise `error` for all waiters of a queue that is being deleted."""
        waiters = self._waiters.get(ref)
        if waiters is not None:
            self._fail(ref, list(waiters), error)

    def close(self) -> None:
        """Return an empty list to every waiter, and refuse new ones."""
        self._is_closed = True
        self._watchers.close()
        for ref, waiters in list(self._waiters.items()):
            for waiter in list(waiters):
                self._complete(ref, waiter, [])

    # --- Joining and leaving ---------------------------------------------------------------------------------

    def _join(self, ref: QueueRef, request: ClaimRequest, wait_ms: int | None) -> tuple[QueueWaiters, Waiter]:
        if self._is_closed:
            raise StoreUnavailable("the store was closed: open it again")
        is_patient = wait_ms != 0
        if is_patient and self._waiting >= self._polling.max_consumers:
            raise RateLimited(
                f"{self._waiting} claims are waiting, the maximum of queue_max_consumers: claim again later",
                limit="queue_max_consumers",
                of="server",
            )
        waiter = Waiter(request, self._runtime.ticket(), is_patient)
        if wait_ms:
            give_up_at = self._runtime.clock.now_ms() + wait_ms
            waiter.timer = self._runtime.call_at(give_up_at, lambda: self._time_out(ref, waiter))
        waiters = self._waiters.get(ref)
        if waiters is None:
            waiters = self._waiters[ref] = QueueWaiters(ref)
        waiters.join(waiter)
        self._waiting += is_patient
        return waiters, waiter

    def _remove(self, ref: QueueRef, waiter: Waiter) -> bool:
        """Remove a waiter; return False if it had left already. Without waiters the queue's entry is removed too."""
        waiters = self._waiters.get(ref)
        if waiters is None or not waiters.leave(waiter):
            return False
        self._waiting -= waiter.is_patient
        if waiter.timer is not None:
            waiter.timer.cancel()
        if not waiters and not waiters.has_turn:
            self._drop(waiters)
        return True

    def _time_out(self, ref: QueueRef, waiter: Waiter) -> None:
        """End the wait of a waiter.

        If the store is claiming for it, or has not yet, the waiter stays until that claim returns. Otherwise callers
        that wait for less time than the store takes would never get a message.
        """
        if waiter.awaits_store:
            waiter.is_patient, waiter.timer = False, None
            self._waiting -= 1
        else:
            self._complete(ref, waiter, [])

    def _complete(self, ref: QueueRef, waiter: Waiter, deliveries: list[Delivery]) -> bool:
        """Return deliveries to a waiter; return False if the waiter had left."""
        # The ticket of a cancelled caller is done before the caller has had a turn to leave.
        if not self._remove(ref, waiter) or waiter.ticket.done():
            return False
        waiter.ticket.set_result(deliveries)
        return True

    def _abandon(self, ref: QueueRef, waiter: Waiter) -> None:
        """Remove the waiter of a caller that left, and give back messages that were claimed for it."""
        if self._remove(ref, waiter):
            return
        if not waiter.ticket.cancelled() and not waiter.ticket.exception() and (unseen := waiter.ticket.result()):
            self._give_back_undelivered(ref, waiter, unseen)

    def _give_back_undelivered(self, ref: QueueRef, waiter: Waiter, deliveries: list[Delivery]) -> None:
        """Give back the deliveries of a waiter that left, unless the claim has a ledger.

        A ledger's claim can be read again by its number. The consumer may already have done so before the messages
        would be given back.
        """
        if waiter.request.ledger is None:
            self.give_back(ref, deliveries)

    def give_back(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        """Make messages that did not reach their caller ready again, in the background."""
        if deliveries:
            self._runtime.spawn(self._give_back(ref, [each.receipt for each in deliveries]))

    async def _give_back(self, ref: QueueRef, receipts: list[Receipt]) -> None:
        verdicts = [Verdict(settle=Settle.UNSEND, receipt=receipt) for receipt in receipts]
        try:
            await self._store.settle(ref, verdicts, self._runtime.clock.now_ms())
        except Exception as error:
            # No retry: the leases expire by themselves, and closing the store waits for this task.
            self._giving_back.failed(error, **ref._asdict(), messages=len(receipts))
        else:
            self._giving_back.succeeded()

    # --- Turns -----------------------------------------------------------------------------------------------

    def _arm(self, waiters: QueueWaiters, at_ms: int | None) -> None:
        """Give the waiters a turn at `at_ms` at the latest."""
        if at_ms is None:
            return
        if at_ms <= self._runtime.clock.now_ms():
            self._give_turn(waiters)
        elif waiters.wakes_at is None or at_ms < waiters.wakes_at:
            self._disarm(waiters)
            waiters.wakes_at = at_ms
            waiters.timer = self._runtime.call_at(at_ms, lambda: self._wake(waiters))

    def _arm_next_poll(self, waiters: QueueWaiters, wait_ms: int | None = None) -> None:
        """Give the waiters a turn after the polling interval, unless their only wait, of `wait_ms`, ends before."""
        pause_ms = self._polling.pause_ms(
            is_notified=self._is_notified, roll=0.0 if self._is_notified else self._dice.roll()
        )
        if pause_ms is not None and (wait_ms is None or pause_ms < wait_ms):
            self._arm(waiters, self._runtime.clock.now_ms() + pause_ms)

    def _wake(self, waiters: QueueWaiters) -> None:
        waiters.timer = waiters.wakes_at = None
        if self._waiters.get(waiters.ref) is waiters:
            self._give_turn(waiters)

    def _disarm(self, waiters: QueueWaiters) -> None:
        if waiters.timer is not None:
            waiters.timer.cancel()
        waiters.timer = waiters.wakes_at = None

    def _drop(self, waiters: QueueWaiters) -> None:
        self._disarm(waiters)
        del self._waiters[waiters.ref]

    def _give_turn(self, waiters: QueueWaiters) -> None:
        number = self._shard_of(waiters.ref)
        shard = self._shards.get(number)
        if shard is None:
            shard = self._shards[number] = ShardTurns(self._runtime, self._weight_of, self._serve)
        shard.give_turn(waiters)

    async def _serve(self, waiters: QueueWaiters) -> int:
        """Run one pass: claim for the next waiters of a queue. Return the cost of the pass."""
        # Cleared before the claim, so that a notification during the claim leads to another turn.
        waiters.has_turn = False
        served = waiters.next_batch(PASS_LIMIT)
        cost = 0
        if served:
            for waiter in served:
                waiter.awaits_store = True
            asked_at = self._runtime.clock.now_ms()
            try:
                claims = await self._store.claim(waiters.ref, [each.request for each in served], asked_at)
            except Exception as error:  # raised for the waiters, whatever it is
                self._fail(waiters.ref, served, error)
                if waiters:
                    self._give_turn(waiters)  # the notification was for the remaining waiters too
                return cost_of(1, 0)
            if self._watchers:
                self._watchers.claimed(waiters.ref, claims)
            for waiter, deliveries in zip(served, claims.per_ask, strict=True):
                waiter.awaits_store = False
                cost += cost_of(len(deliveries), sum(each.bytes for each in deliveries))
                if deliveries or claims.is_reread or not waiter.is_patient:
                    self._deliver(waiters.ref, waiter, deliveries)
            if waiters:
                self._plan_next_pass(waiters, claims, asked_at, made_progress=cost > 0)
        if not waiters and not waiters.has_turn and self._waiters.get(waiters.ref) is waiters:
            self._drop(waiters)
        return cost

    def _deliver(self, ref: QueueRef, waiter: Waiter, deliveries: list[Delivery]) -> None:
        if not self._complete(ref, waiter, deliveries):
            # The waiter left during the claim.
            self._give_back_undelivered(ref, waiter, deliveries)

    def _plan_next_pass(self, waiters: QueueWaiters, claims: Claims, asked_at: int, *, made_progress: bool) -> None:
        """Plan the next pass for the remaining waiters: at once if it may find more messages, or else for later."""
        if waiters.has_turn:
            return  # a waiter or a notification came during the claim, so another pass follows anyway
        now_ms, next_at = self._runtime.clock.now_ms(), claims.next_at
        is_due = next_at is not None and next_at <= now_ms
        # A message that came due during the claim was not seen by it, so another pass may find it.
        if waiters.has_ledger_claims or (is_due and (made_progress or (next_at is not None and next_at > asked_at))):
            self._give_turn(waiters)
            return
        # The remaining claims that do not wait would find nothing either.
        for waiter in [each for each in waiters if not each.is_patient]:
            self._complete(waiters.ref, waiter, [])
        if next_at is not None:
            # If a pass found nothing and the store still says "now", another server is working on the message. Pause,
            # so that this server does not spin.
            self._arm(waiters, max(next_at, now_ms + _PAUSE_MS) if next_at <= now_ms else next_at)
        if waiters:
            self._arm_next_poll(waiters)

    def _fail(self, ref: QueueRef, waiters: list[Waiter], error: Exception) -> None:
        for waiter in waiters:
            if self._remove(ref, waiter) and not waiter.ticket.done():
                waiter.ticket.set_exception(error)
