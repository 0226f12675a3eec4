"""The order in which every transaction of this store takes its locks:

    1. `arrivals`    the move that is ended, if one is
    2. `queues`      of every queue whose groups may be touched, or that messages go to or come from; by key
    3. UPKEEP_LOCK   of the queue to which this brings its first group: `admit_groups`
    4. `items`
    5. `tenants`     before messages are added for a tenant with quotas; an enqueue takes it before 3

Only upkeep begins with UPKEEP_LOCK, and takes the queue's row after it. This cannot deadlock. A transaction that waits
for UPKEEP_LOCK holds the row, and has seen in it that the queue has no groups. The upkeep that it waits for has seen
the same, so it does not ask for the row, and it holds none of the later locks of this queue yet. Once the queue has
groups, only upkeep takes UPKEEP_LOCK.
"""

from typing import Any

from holdfast.stores.postgres.schema.statements import SQL

# One for each queue. Upkeep holds it, and so does a transaction that brings a queue its first group: an upkeep that
# began before the queue had groups holds no lock on them, and must not see any. A head that it showed would be counted
# again by a transaction that shows the same head beside it.
UPKEEP_LOCK = "SELECT pg_advisory_xact_lock(1751739236, ($1::bigint & 2147483647)::integer)"


async def admit_groups(connection: Any, key: int) -> None:
    """Before messages in groups come to a queue, and before any of its messages is touched: lock its row, and if they
    are its first, wait until no upkeep is under way that knows of none."""
    if not await connection.fetchval(SQL["lock_queue"], key):
        await connection.execute(UPKEEP_LOCK, key)
