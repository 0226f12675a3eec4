"""Claims: due messages, in their order, under new leases."""

from collections.abc import Callable

from holdfast.model.answers import Delivery
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.model.rules import lifecycle
from holdfast.model.rules.claims import next_claim_at
from holdfast.model.rules.lifecycle import Change
from holdfast.stores.logic.ledgers import reread
from holdfast.stores.logic.results import being_deleted, receipt_of
from holdfast.stores.logic.sweep import end_leases, end_ttls
from holdfast.stores.unit import E, OpenClaim, Q, Unit
from holdfast.stores.values import Claims

# Number of leases and TTLs that one claim ends before it looks for messages. The next claim or sweep ends the rest.
ENDED_PER_CLAIM = 1_000

# Returns this many new lease tokens: `Dice.tokens`.
Tokens = Callable[[int], list[bytes]]


async def claim(
    unit: Unit[Q, E], ref: QueueRef, asks: list[ClaimRequest], tokens: Tokens, *, ends: int = ENDED_PER_CLAIM
) -> Claims:
    """Serve the asks in order, as `Store.claim` says. An ask with a ledger comes alone.

    `ends` is the number of leases and TTLs to end first; 0 for a store that has ended them in an earlier step."""
    ledger = asks[0].ledger
    unit.is_durable = ledger is not None
    unit.notifies_ready = False
    queue = await unit.find(ref)
    if queue is None:
        return Claims([[] for _ in asks], None)
    if queue.row.drain_until is not None:
        raise being_deleted(ref)
    if ledger is not None:
        held = await reread(unit, queue, *ledger, streams=asks[0].streams)
        if held is not None:
            return Claims([held], await unit.next_at(queue), is_reread=True)
    if ends:
        # The same as `end_by_time`, inlined because every claim runs it and there is mostly nothing to end.
        expired, overdue = await unit.ended(queue, ends)
        if expired:
            end_leases(unit, queue, expired)
        if overdue:
            end_ttls(unit, queue, overdue)
    if queue.row.is_paused:
        return Claims([[] for _ in asks], None)
    taken = await unit.take_due(queue, [ask.limit for ask in asks])
    changes: list[tuple[E, Change]] = []
    for ask, entries in zip(asks, taken, strict=True):
        if entries:
            _lease(unit, queue, ask, entries, tokens(len(entries)), changes)
    if not changes:
        return Claims([[] for _ in asks], await unit.next_at(queue))
    unit.apply(queue, changes)
    if ledger is not None:
        consumer, number = ledger
        receipts = [receipt_of(entry.envelope, entry.life) for entry in taken[0]]
        await unit.put_claim(queue, consumer, OpenClaim(number, unit.now_ms, receipts))
    per_ask: list[list[Delivery]] = []
    for ask, entries in zip(asks, taken, strict=True):
        per_ask.append(await unit.deliveries(queue, entries, with_state=ask.with_state, streams=ask.streams))
    is_served = all(per_ask)
    soonest = None if is_served else await unit.next_at(queue)
    next_at = next_claim_at(is_paused=False, is_served=is_served, now_ms=unit.now_ms, soonest=lambda: soonest)
    return Claims(per_ask, next_at)


def _lease(
    unit: Unit[Q, E],
    queue: Q,
    ask: ClaimRequest,
    entries: list[E],
    tokens: list[bytes],
    changes: list[tuple[E, Change]],
) -> None:
    """Add the changes of the messages that one ask takes."""
    version_floor = unit.version_floor
    made = lifecycle.claim_all(
        [entry.life for entry in entries],
        queue.row.policy,
        unit.now_ms,
        tokens=tokens,
        lease_ms=ask.lease_ms,
        owner=ask.owner,
        ledger=ask.ledger,
        floors=[version_floor(entry) for entry in entries],
    )
    changes += zip(entries, made, strict=True)
