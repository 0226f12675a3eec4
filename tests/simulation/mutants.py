"""Deliberate faults of the store, the dispatcher, the service and the machine: the simulation must see each.

A mutant changes a few lines of the real thing, as a slip would.
"""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.dispatch.sweeper import Sweeper
from holdfast.dispatch.waiters import Waiter
from holdfast.model.message import Receipt
from holdfast.model.rules import lifecycle
from holdfast.service import session
from holdfast.service.limits.gate import Gate
from holdfast.stores.logic import verdicts as verdicts_logic
from holdfast.stores.memory.queue import MemoryQueue
from tests.machinery.simulation.memory import DurableMemoryStore, DurableUnits

Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[apply.__name__] = apply
    return apply


def _wrap(patch: Patch, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    patch.setattr(owner, name, make(getattr(owner, name)))


# --- The store -----------------------------------------------------------------------------------------------------


@mutant
def a_verdict_needs_no_token(patch: Patch) -> None:
    """Neither the token nor the version of a receipt is looked at: a late ack ends another's lease."""
    patch.setattr(
        lifecycle,
        "holds",
        lambda life, receipt, now_ms: life.lease is not None and now_ms < life.lease.expires_at,
    )


@mutant
def a_lease_that_ran_out_still_acks(patch: Patch) -> None:
    patch.setattr(
        lifecycle,
        "holds",
        lambda life, receipt, now_ms: life.lease is not None and life.version == receipt.version,
    )


@mutant
def an_extension_is_answered_and_not_kept(patch: Patch) -> None:
    def apply(original: Any) -> Any:
        def skip(self: DurableUnits, queue: Any, entry: Any, change: Any) -> None:
            if change.event is not lifecycle.Event.EXTENDED:
                original(self, queue, entry, change)

        return skip

    _wrap(patch, DurableUnits, "apply_one", apply)


@mutant
def a_key_is_not_remembered(patch: Patch) -> None:
    patch.setattr(DurableUnits, "remember_key", lambda *given: None)


@mutant
def a_group_goes_on_while_a_batch_is_in_flight(patch: Patch) -> None:
    def show_head(original: Any) -> Any:
        def show(self: MemoryQueue, name: str, group: Any) -> None:
            in_flight, group.in_flight = group.in_flight, set()
            try:
                original(self, name, group)
            finally:
                group.in_flight = in_flight

        return show

    _wrap(patch, MemoryQueue, "_show_head", show_head)


@mutant
def an_expired_lease_gives_the_message_back_to_its_place_for_ever(patch: Patch) -> None:
    """Expiries are not counted: a message that kills its worker is delivered without end."""

    def make(expire: Any) -> Any:
        def forget(life: lifecycle.Life, *rest: Any) -> lifecycle.Change:
            return expire(lifecycle.replace(life, expiries=-1_000, failures=0), *rest)

        return forget

    _wrap(patch, lifecycle, "expire", make)


@mutant
def a_power_cut_undoes_an_ack(patch: Patch) -> None:
    async def settle(self: DurableMemoryStore, ref: Any, verdicts: Any, now_ms: int) -> Any:
        async def work(unit: DurableUnits) -> Any:
            results = await verdicts_logic.settle(unit, ref, verdicts, self._dice.roll)
            unit.is_durable = False
            return results

        return await self._units.run(ref, work, now_ms)

    patch.setattr(DurableMemoryStore, "settle", settle)


@mutant
def versions_go_back_with_the_power(patch: Patch) -> None:
    def crash(original: Any) -> Any:
        def forget(self: DurableMemoryStore, undone: int) -> None:
            original(self, undone)
            self._units.floor = 0

        return forget

    _wrap(patch, DurableMemoryStore, "crash", crash)


@mutant
def a_crash_forgets_the_leases_deadlines(patch: Patch) -> None:
    """The dispatcher gets no deadlines at the opening, so earlier leases run out unnoticed."""

    async def open(self: DurableMemoryStore, listener: Any, runtime: Any) -> None:
        self._directory.is_closed = False
        self._units.open(listener)

    patch.setattr(DurableMemoryStore, "open", open)


@mutant
def a_deletion_is_not_carried_on(patch: Patch) -> None:
    """The sweeper is not informed of the deletion of a queue."""

    def next_deadline(original: Any) -> Any:
        def forget(self: MemoryQueue, now_ms: int) -> Any:
            row, self.row = self.row, lifecycle.replace(self.row, drain_until=None)
            try:
                return original(self, now_ms)
            finally:
                self.row = row

        return forget

    _wrap(patch, MemoryQueue, "next_deadline", next_deadline)


# --- The dispatcher and the sweeper --------------------------------------------------------------------------------


@mutant
def what_its_caller_left_is_not_given_back(patch: Patch) -> None:
    patch.setattr(Dispatcher, "give_back", lambda *given: None)


@mutant
def one_who_leaves_takes_along_what_it_was_handed(patch: Patch) -> None:
    def abandon(self: Dispatcher, ref: Any, waiter: Waiter) -> None:
        self._remove(ref, waiter)

    patch.setattr(Dispatcher, "_abandon", abandon)


@mutant
def a_ledgers_claim_is_given_back(patch: Patch) -> None:
    """Deliveries that were read again by their number belong to the reader."""

    def give_back(self: Dispatcher, ref: Any, waiter: Waiter, deliveries: Any) -> None:
        self.give_back(ref, deliveries)

    patch.setattr(Dispatcher, "_give_back_undelivered", give_back)


@mutant
def a_wake_up_is_lost_while_the_line_is_served(patch: Patch) -> None:
    """News that comes while the store is asked is taken for seen."""
    served: list[Any] = []

    async def serve(self: Dispatcher, line: Any) -> int:
        served.append(line.ref)
        try:
            cost: int = await serve_line(self, line)
        finally:
            served.remove(line.ref)
        return cost

    def ready(self: Dispatcher, ref: Any, at_ms: int) -> None:
        if ref not in served:
            tell(self, ref, at_ms)

    serve_line, tell = Dispatcher._serve, Dispatcher.ready
    patch.setattr(Dispatcher, "_serve", serve)
    patch.setattr(Dispatcher, "ready", ready)


@mutant
def nobody_is_woken_when_a_message_comes(patch: Patch) -> None:
    patch.setattr(Dispatcher, "ready", lambda *given: None)


@mutant
def a_line_forgets_when_its_next_message_is_due(patch: Patch) -> None:
    def arm(self: Dispatcher, line: Any, at_ms: int | None) -> None:
        if at_ms is not None and at_ms <= self._runtime.clock.now_ms():
            self._give_turn(line)

    patch.setattr(Dispatcher, "_arm", arm)


@mutant
def a_sweep_that_failed_is_the_last(patch: Patch) -> None:
    async def sweep(self: Sweeper) -> None:
        await self.sweep_once()

    async def sweep_and_forget(self: Sweeper) -> int:
        changed: int = await once(self)
        self._not_before = 1 << 60
        return changed

    once = Sweeper.sweep_once
    patch.setattr(Sweeper, "_sweep", sweep)
    patch.setattr(Sweeper, "sweep_once", sweep_and_forget)


# --- The service ---------------------------------------------------------------------------------------------------


@mutant
def every_tenant_may_do_everything(patch: Patch) -> None:
    patch.setattr(session, "permit", lambda *given: None)


@mutant
def one_who_leaves_a_full_queue_keeps_its_place(patch: Patch) -> None:
    patch.setattr(Gate, "leave", lambda self: None)


@mutant
def a_message_is_handed_to_two(patch: Patch) -> None:
    """A claim answers what is ready and takes only part of it away."""

    async def claim(self: DurableMemoryStore, ref: Any, asks: Any, now_ms: int) -> Any:
        claims = await original(self, ref, asks, now_ms)
        shelf = self._directory.find(ref)
        for delivery in claims.per_ask[0][1:2]:
            entry = shelf.entries[delivery.snowflake]
            shelf.change(entry, lifecycle.replace(entry.life, state=lifecycle.State.READY, lease=None))
        return claims

    original = DurableMemoryStore.claim
    patch.setattr(DurableMemoryStore, "claim", claim)


@mutant
def a_receipt_of_another_message_will_do(patch: Patch) -> None:
    """The id is taken from the oldest lease instead of the receipt."""

    def make(original: Any) -> Any:
        async def settle(self: DurableMemoryStore, ref: Any, verdicts: Any, now_ms: int) -> Any:
            queue = self._directory.find(ref)
            if queue is not None and queue.leases:
                entry = queue.entries[queue.leases[0][1]]
                assert entry.life.lease is not None
                receipt = Receipt(entry.envelope.id, entry.life.lease.token, entry.life.version)
                verdicts = [lifecycle.replace(verdict, receipt=receipt) for verdict in verdicts]
            return await original(self, ref, verdicts, now_ms)

        return settle

    _wrap(patch, DurableMemoryStore, "settle", make)
