"""Verdicts and state documents: the holder of a lease settles its message or saves state for it."""

from collections.abc import Callable

from holdfast.model.answers import Result, Saved
from holdfast.model.message import Receipt
from holdfast.model.names import QueueRef
from holdfast.model.requests import Settle, StateChange, Verdict
from holdfast.model.rules import lifecycle
from holdfast.model.rules.lifecycle import Change
from holdfast.model.rules.state_documents import apply_state_change, lease_lost
from holdfast.model.rules.verdicts import apply_verdict
from holdfast.stores.logic.results import settled, stale
from holdfast.stores.unit import ChangeUnit, E, Q, Unit

# Read once, because looking up an enum member costs as much as the rest of a loop over a batch.
_EXTEND = Settle.EXTEND


async def settle(
    unit: ChangeUnit[Q, E], ref: QueueRef, verdicts: list[Verdict], roll: Callable[[], float]
) -> list[Result]:
    """Settle each verdict whose receipt holds the message's current lease; the others get `stale_lease`.

    Verdicts take effect in order: an extension and an ack of one message both hold, a second ack does not. `roll` gives
    the random part of a backoff."""
    queue = await unit.find(ref)
    if queue is None:
        return [stale(verdict.receipt.id) for verdict in verdicts]
    for verdict in verdicts:
        if verdict.settle is not _EXTEND:
            break
    else:
        unit.is_durable = False
    entries = await unit.load(queue, [verdict.receipt.id for verdict in verdicts])
    return settle_loaded(unit, queue, entries, verdicts, roll)


def settle_loaded(
    unit: ChangeUnit[Q, E], queue: Q, entries: dict[int, E], verdicts: list[Verdict], roll: Callable[[], float]
) -> list[Result]:
    """Settle verdicts on messages that the step has loaded. Missing ones are stale."""
    policy, now_ms = queue.row.policy, unit.now_ms
    holds = lifecycle.holds
    results: list[Result] = []
    changes: dict[int, tuple[E, Change]] = {}
    for verdict in verdicts:
        receipt = verdict.receipt
        id = receipt.id
        if id in changes:
            # An earlier verdict on the same message counts for this one.
            unit.apply(queue, list(changes.values()))
            for changed, (_, made) in changes.items():
                if made.life is None or made.life.is_gone:
                    del entries[changed]
            changes = {}
        entry = entries.get(id)
        life = None if entry is None else entry.life
        if entry is None or life is None or not holds(life, receipt, now_ms):
            results.append(stale(id, None if entry is None else entry.envelope))
            continue
        envelope = entry.envelope
        change = apply_verdict(life, envelope, verdict, policy, now_ms, roll)
        changes[id] = entry, change
        results.append(settled(envelope, change.life))
    if changes:
        unit.apply(queue, list(changes.values()))
    return results


async def save_state(unit: Unit[Q, E], ref: QueueRef, receipt: Receipt, change: StateChange) -> Saved:
    """Save the state document or the progress of a message that the receipt holds.

    Return the document's ETag and the message's correlation id. Raise `StaleLease` if the receipt holds no lease, and
    `Conflict` if the document was changed since it was read.
    """
    queue = await unit.find(ref)
    entry = None if queue is None else (await unit.load(queue, [receipt.id])).get(receipt.id)
    if queue is None or entry is None or not lifecycle.holds(entry.life, receipt, unit.now_ms):
        raise lease_lost(receipt.id)
    [state] = await unit.states(queue, [entry])
    state = apply_state_change(state, change)
    await unit.put_state(queue, entry, state)
    return Saved(etag=state.etag, correlation_id=entry.envelope.correlation_id)
