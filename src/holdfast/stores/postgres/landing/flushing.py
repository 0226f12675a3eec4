"""Store calls from servers' logs in the databases, from any thread or process: for flush jobs.

The functions block and use their own connections. A flush may be killed at any point and repeated, several may run at
once, and they may run beside the servers that wrote the logs: landed calls are noted with their rows and never stored
twice.
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
from holdfast.stores.postgres.notifier import notify_ready


class FlushResult(NamedTuple):
    """The result of a flush: stored messages, calls that had landed before, and messages whose queue is gone."""

    stored: int
    skipped: int
    dropped: int


def flush(
    urls: list[str], batches: Iterable[LoggedBatch], *, durability: str = "fsync", shard_map: str = "slots"
) -> FlushResult:
    """Store the batches, each in one transaction. A batch's shard is the number of a database of the store; a queue
    that has moved to another database since is found there.

    Raise `StoreUnavailable` if a database is down, once everything else has landed. Safe to repeat.
    """
    return asyncio.run(_flush(PostgresCluster(urls, durability=durability, shard_map=shard_map), batches))


def landed(urls: list[str], node: UUID, epoch: int, shard: int) -> list[range]:
    """Return the record numbers that are stored, of one database's part of a log."""
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
                await _notify(cluster, every)
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


async def _notify(cluster: PostgresCluster, every: list[Landed]) -> None:
    by_shard: defaultdict[int, dict[QueueRef, int]] = defaultdict(dict)
    for done in every:
        for queue in done.queues:
            if not queue.is_paused:
                by_shard[cluster.number_of(queue.ref)][queue.ref] = queue.visible_at
    for number, ready in by_shard.items():
        await cluster.shards[number].use(partial(_notify_ready, ready))


async def _notify_ready(ready: dict[QueueRef, int], connection: Any) -> None:
    await notify_ready(connection, ready)


async def _landed(urls: list[str], log_shard: LogShard) -> list[range]:
    cluster = PostgresCluster(urls)
    try:
        await cluster.open()
        return await cluster.shard_by_number(log_shard.shard).use(lambda each: landed_numbers(each, log_shard))
    finally:
        await cluster.close()
