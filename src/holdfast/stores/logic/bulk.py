"""Bulk verbs: operators cancel, remove, redrive, move and reprioritise the messages of a queue, in atomic steps."""

from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, Move, Redrive, Verb, states_of
from holdfast.model.rules.verdicts import apply_verb
from holdfast.stores.logic.queues import require, require_open
from holdfast.stores.logic.results import edited
from holdfast.stores.unit import ChangeUnit, E, Q
from holdfast.stores.values import AlterStep


async def alter(
    unit: ChangeUnit[Q, E], ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int
) -> AlterStep:
    """Change up to `limit` messages after the id `after` that match the filter. The target of a move must have been
    given to `Units.run`."""
    queue = await require(unit, ref)
    target = await require_open(unit, verb.to) if isinstance(verb, Move) else queue
    entries, after = await unit.matching(queue, states_of(verb), which, after, limit)
    if target.row.tenant_id != queue.row.tenant_id:
        await unit.check_quotas(target.row.ref, entries)
    if isinstance(verb, Redrive) and verb.edit is not None and entries:
        # An edit names exactly one message.
        [entry] = entries
        envelope = edited(entry.envelope, verb.edit)
        await unit.check_quotas(ref, [envelope], freed=[entry])
        await unit.edit(queue, entry, envelope)
    default_ttl_ms, now_ms = unit.default_ttl_ms(queue), unit.now_ms
    changes = [(entry, apply_verb(entry.life, entry.envelope, verb, default_ttl_ms, now_ms)) for entry in entries]
    if isinstance(verb, Move):
        await unit.move(queue, target, changes)
    else:
        unit.apply(queue, changes)
    unit.notify_ready(queue)
    return AlterStep(len(entries), len(entries), after)
