"""Land calls on the database that owns their queue now.

A call is logged for the database that owned its queue at that time. If the queue has moved since, the call lands on the
new owner, under the same record number, and is then noted as landed on the database that the log names. After a crash
between the two, the call is landed again, and the new owner knows that it has it.
"""

from collections import defaultdict
from functools import partial
from typing import Any

from holdfast.stores.formats.logged_enqueue import LoggedCall
from holdfast.stores.postgres.cluster.cluster import PostgresCluster, QueueMoved
from holdfast.stores.postgres.landing.land import Landed, LogShard, land, note_landed


async def land_on_owners(
    cluster: PostgresCluster,
    log_shard: LogShard,
    calls: list[tuple[int, LoggedCall]],
    *,
    span: range | None,
    given_now: int | None,
) -> list[Landed]:
    """Land calls on their owners, and return each database's result. Raise `QueueMoved` while a queue is moving; the
    calls of all other queues have landed then."""
    here = cluster.shard_by_number(log_shard.shard)

    async def once(calls: list[tuple[int, LoggedCall]], span: range | None, connection: Any) -> Landed:
        return await land(connection, log_shard, calls, span=span, given_now=given_now, uses_slots=cluster.uses_slots)

    landed = [await here.use(partial(once, calls, span))]
    if landed[0].moved:
        await cluster.refresh()
        by_owner: defaultdict[int, list[tuple[int, LoggedCall]]] = defaultdict(list)
        for number, call in landed[0].moved:
            by_owner[cluster.number_of(call.ref)].append((number, call))
        for owner, moved in by_owner.items():
            if owner == here.number:
                raise QueueMoved(moved[0][1].ref)
            landed.append(await cluster.shards[owner].use(partial(once, moved, None)))
            if landed[-1].moved:
                raise QueueMoved(landed[-1].moved[0][1].ref)
            await here.use(partial(_note, log_shard, [number for number, _ in moved]))
    return landed


async def _note(log_shard: LogShard, numbers: list[int], connection: Any) -> None:
    """Note calls as landed that another database has stored."""
    await note_landed(connection, log_shard, numbers)
