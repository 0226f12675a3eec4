"""Work that time brings: ends of leases and TTLs, and the deletion of a queue's messages."""

from collections.abc import Sequence

from holdfast.model.rules import lifecycle
from holdfast.stores.unit import ChangeUnit, E, Q, Unit


async def end_by_time(unit: ChangeUnit[Q, E], queue: Q, limit: int) -> int:
    """Return expired leases and end overdue TTLs, up to `limit` messages in all; return how many."""
    expired, overdue = await unit.ended(queue, limit)
    if expired:
        end_leases(unit, queue, expired)
    if overdue:
        end_ttls(unit, queue, overdue)
    return len(expired) + len(overdue)


def end_leases(unit: ChangeUnit[Q, E], queue: Q, expired: Sequence[E]) -> None:
    """Return messages whose lease has ended, or end them where the retry budget or the TTL is used up."""
    policy, now_ms = queue.row.policy, unit.now_ms
    changes = [(entry, lifecycle.expire(entry.life, entry.envelope, policy, now_ms)) for entry in expired]
    unit.apply(queue, changes, by_time=True)


def end_ttls(unit: ChangeUnit[Q, E], queue: Q, overdue: Sequence[E]) -> None:
    """End Ready messages whose TTL has ended."""
    policy, now_ms = queue.row.policy, unit.now_ms
    unit.apply(queue, [(entry, lifecycle.end_by_ttl(entry.life, policy, now_ms)) for entry in overdue], by_time=True)


async def remove_oldest(unit: ChangeUnit[Q, E], queue: Q, limit: int) -> int:
    """Remove up to `limit` messages of a queue that is deleted; return how many."""
    doomed = await unit.oldest(queue, limit)
    if doomed:
        unit.apply(queue, [(entry, lifecycle.remove(entry.life, "queue deleted")) for entry in doomed])
    return len(doomed)


async def delete_some(unit: Unit[Q, E], queue: Q, limit: int) -> int:
    """Continue the deletion of a queue: remove up to `limit` messages, and the queue once it is empty. Return the
    number of messages plus 1, so that a sweep with a limit always makes progress."""
    removed = await remove_oldest(unit, queue, limit)
    await unit.remove_if_empty(queue)
    return removed + 1
