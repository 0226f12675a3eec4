"""The order in which every transaction of this store takes its locks:

    1. `arrivals`    the move that is ended, if one is
    2. `queues`      of every queue whose groups may be touched, or that messages go to or come from; by key
    3. UPKEEP_LOCK   of the queue to which this brings its first group: `admit_groups`
    4. `items`
    5. `tenants`     whoever adds for a tenant with quotas; an enqueue takes it before 3

Upkeep alone begins with UPKEEP_LOCK, and takes the queue's row behind it. That makes no circle. Whoever waits for
UPKEEP_LOCK has the row and has seen in it that the queue has no groups; so has the upkeep it waits for, which therefore
does not ask for the row, and of what lies behind 3 nothing of this queue is held yet. Once the queue has groups nobody
but upkeep takes UPKEEP_LOCK.
"""

from typing import Any

from holdfast.stores.postgres.statements import SQL

# Of one queue. Upkeep holds it, and whoever brings a queue its first group: an upkeep that began before the queue had
# groups holds no lock on them, and must not see any. What it showed would be counted again by whoever shows a head
# beside it.
UPKEEP_LOCK = "SELECT pg_advisory_xact_lock(1751739236, ($1::bigint & 2147483647)::integer)"


async def admit_groups(connection: Any, key: int) -> None:
    """Before messages in groups come to a queue, and before any of its messages is touched: lock its row, and if they
    are its first, wait until no upkeep is under way that knows of none."""
    if not await connection.fetchval(SQL["lock_queue"], key):
        await connection.execute(UPKEEP_LOCK, key)
