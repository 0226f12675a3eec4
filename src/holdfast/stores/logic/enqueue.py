"""Enqueueing: new messages, and drafts that repeat a message by its idempotency key."""

from collections.abc import Sequence

from holdfast.model.answers import Enqueued
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.model.rules.idempotency import find_new, index_keys, make_results
from holdfast.stores.logic.results import being_deleted, no_such_queue
from holdfast.stores.unit import E, Q, Unit


async def enqueue(
    unit: Unit[Q, E], ref: QueueRef, drafts: list[Draft], *, auto_create: bool, reason: str | None = None
) -> list[Enqueued]:
    """Enqueue all drafts or none, as `Store.enqueue` says. `reason` is for the journal."""
    queue = await unit.find(ref)
    if queue is None:
        if not auto_create:
            raise no_such_queue(ref)
    elif queue.row.drain_until is not None:
        raise being_deleted(ref)
    firsts = index_keys(drafts)
    seen: dict[str, Enqueued] = {}
    new_indexes: Sequence[int] = range(len(drafts))
    fresh = drafts
    if firsts:
        if queue is not None:
            seen = await unit.known_keys(queue, drafts, firsts)
        remembers_keys = queue is None or queue.row.policy.dedup_window_ms > 0
        new_indexes = find_new(drafts, firsts, seen, remembers_keys=remembers_keys)
        fresh = [drafts[index] for index in new_indexes]
    await unit.check_quotas(ref, fresh)
    ids = await unit.add(queue or await unit.create(ref), fresh, reason)
    return make_results(drafts, new_indexes, ids, seen)
