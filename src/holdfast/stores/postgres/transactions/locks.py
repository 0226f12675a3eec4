"""The order in which every transaction of this store takes its locks:

    1. `arrivals`    the row of the move that is being finished, if any
    2. `queues`      the rows of every queue whose groups may be touched, or that messages leave or enter; by key
    3. SWEEP_LOCK    of the queue that this transaction gives its first group: `admit_groups`
    4. `items`
    5. `tenants`     before messages are added for a tenant with quotas; an enqueue takes it before 3

Only a sweep takes SWEEP_LOCK first and the queue's row after it. This cannot deadlock. A transaction that waits for
SWEEP_LOCK holds the row, in which it has seen that the queue has no groups. The sweep that it waits for has seen the
same, so it does not ask for the row, and it holds none of the later locks of this queue yet. Once the queue has groups,
only sweeps take SWEEP_LOCK.
"""

from typing import Any

from holdfast.stores.postgres.schema.statements import SQL

# One lock for each queue. A sweep holds it, and so does a transaction that gives a queue its first group. A sweep that
# began before the queue had groups holds no lock on them and must not see any: a group's head that it made claimable
# would be counted twice if another transaction did the same beside it.
SWEEP_LOCK = "SELECT pg_advisory_xact_lock(1751739236, ($1::bigint & 2147483647)::integer)"


async def admit_groups(connection: Any, key: int) -> None:
    """Lock a queue's row before it receives messages in groups, and before any of its messages is touched. If they are
    its first, wait until no sweep is running that still assumes a queue without groups."""
    if not await connection.fetchval(SQL["lock_queue"], key):
        await connection.execute(SWEEP_LOCK, key)
