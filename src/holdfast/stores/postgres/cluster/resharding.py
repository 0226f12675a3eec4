"""Resharding: choose the slots that must move, and move them. It blocks, and needs no server.

`slot_moves.py` describes how one slot moves.
"""

import asyncio

from holdfast.model.errors import InvalidArgument
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.slot_moves import MovedSlot, Progress, Resharding
from holdfast.stores.postgres.cluster.slots import SLOTS
from holdfast.stores.postgres.queues.quota_grants import QuotaGrants


def even_plan(slots: list[int], databases: int) -> dict[int, int]:
    """Return slot → database for the slots that must move so that each of the first `databases` databases owns the same
    number. No more slots move than needed."""
    shares = [SLOTS // databases + (number < SLOTS % databases) for number in range(databases)]
    owned = [[slot for slot, owner in enumerate(slots) if owner == number] for number in range(databases)]
    spare = [slot for owner, slot in ((owner, slot) for slot, owner in enumerate(slots)) if owner >= databases]
    for number, share in enumerate(shares):
        spare += owned[number][share:]
    plan: dict[int, int] = {}
    for number, share in enumerate(shares):
        for _ in range(share - len(owned[number])):
            plan[spare.pop()] = number
    return plan


def reshard(
    urls: list[str],
    plan: dict[int, int] | None = None,
    progress: Progress = lambda text: None,
    *,
    onto: int | None = None,
) -> list[MovedSlot]:
    """Finish interrupted moves, and move the slots of `plan` to their databases. Without a plan, spread the slots
    evenly over the first `onto` databases, or over all.

    It may be killed at any point and repeated. Every server must run this version and be given all databases.
    `progress` is called with the name of each queue before its rows are copied.
    """

    async def work() -> list[MovedSlot]:
        cluster = PostgresCluster(urls)
        try:
            await cluster.open()
            resharding = Resharding(cluster, QuotaGrants(cluster))
            async with resharding.lock():
                done = [await resharding.move(*each, progress) for each in (await resharding.unfinished()).items()]
                wanted = wanted_moves(cluster, onto) if plan is None else plan
                return done + [await resharding.move(slot, to, progress) for slot, to in sorted(wanted.items())]
        finally:
            await cluster.close()

    return asyncio.run(work())


def wanted_moves(cluster: PostgresCluster, onto: int | None) -> dict[int, int]:
    """Return slot → database for an even spread over the first `onto` databases of an open cluster, or over all. Raise
    `InvalidArgument`."""
    databases = len(cluster.shards)
    if onto is not None and not 1 <= onto <= databases:
        raise InvalidArgument(
            f"this store has {databases} databases; --onto must be between 1 and {databases}, not {onto}", field="onto"
        )
    return even_plan(cluster.slot_table()[1], databases if onto is None else onto)
