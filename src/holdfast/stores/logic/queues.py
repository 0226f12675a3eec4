"""Look up the queue that a step works on."""

from holdfast.model.names import QueueRef
from holdfast.stores.logic.results import being_deleted, no_such_queue
from holdfast.stores.unit import ChangeUnit, E, Q


async def require(unit: ChangeUnit[Q, E], ref: QueueRef) -> Q:
    """Return the queue, or raise `QueueNotFound`."""
    queue = await unit.find(ref)
    if queue is None:
        raise no_such_queue(ref)
    return queue


async def require_open(unit: ChangeUnit[Q, E], ref: QueueRef) -> Q:
    """Return the queue, or raise `QueueNotFound`, or `Draining` if it is being deleted."""
    queue = await require(unit, ref)
    if queue.row.drain_until is not None:
        raise being_deleted(ref)
    return queue
