"""What a flush job calls: calls out of servers' logs into the databases, from any thread or process.

Blocking, over connections of its own. It may be killed at any point and done again, by several at once and beside the
servers that wrote the logs: what has landed is written down with its rows, and is not stored twice.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.model.errors import StoreUnavailable
from holdfast.model.names import QueueRef
from holdfast.stores.formats.logged_enqueue import LoggedBatch
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.landing.land import Landed, LogShard, landed_numbers
from holdfast.stores.postgres.landing.owners import land_on_owners
from holdfast.stores.postgres.notifier import ring_for


class FlushResult(NamedTuple):
    """What a flush did: messages that it stored, calls that had landed before, messages whose queue is gone."""

    stored: int
    skipped: int
    dropped: int


def flush(
    urls: list[str], batches: Iterable[LoggedBatch], *, durability: str = "fsync", shard_map: str = "slots"
) -> FlushResult:
    """Store these, each batch in one transaction. A batch's log_shard is the number of a database of the store; a queue
    that has gone to another since is found there.

    A database that is down keeps nothing from the others: what can land does, and then it is `StoreUnavailable`.
    """
    return asyncio.run(_flush(PostgresCluster(urls, durability=durability, shard_map=shard_map), batches))


def landed(urls: list[str], node: UUID, epoch: int, shard: int) -> list[range]:
    """The places of a log_shard that are stored."""
    return asyncio.run(_landed(urls, LogShard(node, epoch, shard)))


async def _flush(cluster: PostgresCluster, batches: Iterable[LoggedBatch]) -> FlushResult:
    stored = skipped = dropped = 0
    failure: StoreUnavailable | None = None
    try:
        await cluster.open()
        for batch in batches:
            try:
                log_shard = LogShard(batch.node, batch.epoch, batch.shard)
                every = await land_on_owners(cluster, log_shard, batch.calls, span=batch.span, given_now=None)
                await _ring(cluster, every)
            except StoreUnavailable as error:
                failure = error
                continue
            for done in every:
                stored += sum(queue.stored for queue in done.queues)
                skipped += done.skipped
                dropped += sum(done.dropped.values())
    finally:
        await cluster.close()
    if failure is not None:
        raise failure
    return FlushResult(stored, skipped, dropped)


async def _ring(cluster: PostgresCluster, every: list[Landed]) -> None:
    by_shard: defaultdict[int, dict[QueueRef, int]] = defaultdict(dict)
    for done in every:
        for queue in done.queues:
            if not queue.is_paused:
                by_shard[cluster.number_of(queue.ref)][queue.ref] = queue.visible_at
    for number, ready in by_shard.items():
        await cluster.shards[number].use(partial(_ring_for, ready))


async def _ring_for(ready: dict[QueueRef, int], connection: Any) -> None:
    await ring_for(connection, ready)


async def _landed(urls: list[str], log_shard: LogShard) -> list[range]:
    cluster = PostgresCluster(urls)
    try:
        await cluster.open()
        return await cluster.numbered(log_shard.shard).use(lambda each: landed_numbers(each, log_shard))
    finally:
        await cluster.close()
