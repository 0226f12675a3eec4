"""What a flush job calls: calls out of servers' logs into the databases, from any thread or process.

Blocking, over connections of its own. It may be killed at any point and done again, by several at once and beside the
servers that wrote the logs: what has landed is written down with its rows, and is not stored twice.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.logged import LoggedBatch
from holdfast.stores.postgres.bell import ring_for
from holdfast.stores.postgres.cluster import Cluster
from holdfast.stores.postgres.landing import Landed, Lane, land, landed_places


class Flushed(NamedTuple):
    """What a flush did: messages that it stored, calls that had landed before, messages whose queue is gone."""

    stored: int
    skipped: int
    dropped: int


def flush(urls: list[str], batches: Iterable[LoggedBatch], *, durability: str = "fsync") -> Flushed:
    """Store these, each batch in one transaction. A batch's lane is the number of a database of the store.

    A database that is down keeps nothing from the others: what can land does, and then it is `StoreUnavailable`.
    """
    return asyncio.run(_flush(urls, batches, durability))


def landed(urls: list[str], node: UUID, epoch: int, lane: int) -> list[range]:
    """The places of a lane that are stored."""
    return asyncio.run(_landed(urls, Lane(node, epoch, lane)))


async def _flush(urls: list[str], batches: Iterable[LoggedBatch], durability: str) -> Flushed:
    cluster = Cluster(urls, durability=durability)
    stored = skipped = dropped = 0
    failure: StoreUnavailable | None = None
    try:
        await cluster.open()
        for batch in batches:
            try:
                done = await cluster.numbered(batch.lane).use(partial(_land, batch))
            except StoreUnavailable as error:
                failure = error
                continue
            stored += sum(queue.stored for queue in done.queues)
            skipped += done.skipped
            dropped += sum(done.dropped.values())
    finally:
        await cluster.close()
    if failure is not None:
        raise failure
    return Flushed(stored, skipped, dropped)


async def _land(batch: LoggedBatch, connection: Any) -> Landed:
    done = await land(connection, Lane(batch.node, batch.epoch, batch.lane), batch.calls, span=batch.span)
    await ring_for(connection, {queue.ref: queue.visible_at for queue in done.queues if not queue.is_paused})
    return done


async def _landed(urls: list[str], lane: Lane) -> list[range]:
    cluster = Cluster(urls)
    try:
        await cluster.open()
        return await cluster.numbered(lane.lane).use(lambda each: landed_places(each, lane))
    finally:
        await cluster.close()
