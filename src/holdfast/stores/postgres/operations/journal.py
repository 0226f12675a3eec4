"""The journal, read in the order of transactions, and only up to the oldest transaction that may still write."""

from collections import deque
from typing import Any

from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import Event, JournalEvent, format_positions, parse_positions
from holdfast.stores.contract import JOURNAL_STEP
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.schema.rows import EVENTS, decode_error
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.values import JournalPage

# How often a reader looks again, with a pause before each look, while transactions that were open when it came are
# still open: for about one second in all. Most of them end within a millisecond, and a caller that just got its
# response then finds its own events. A long transaction delays readers only. The pause is the database's own, because
# its transactions do not end by a clock that a test moves.
_TRIES = 500
_PAUSE = "SELECT pg_sleep(0.002)"


class PostgresJournal:
    """The journal of all databases."""

    def __init__(self, cluster: PostgresCluster, retention_ms: int) -> None:
        self._cluster = cluster
        self._retention_ms = retention_ms

    async def read(
        self, after: str | None, limit: int, tenant: str | None, oldest_at: int, until: str | None = None
    ) -> JournalPage:
        """Return a page of events.

        Events of one database come in its order; events of several are merged by time, as far as known. With `until`,
        all databases must be up, because that range is not asked for again.
        """
        position = parse_positions(after, len(self._cluster.shards))
        last = None if until is None else parse_positions(until, len(self._cluster.shards))
        room = limit if tenant is None else JOURNAL_STEP // len(position)
        waiting = [
            deque(await self._rows_if_up(shard, position[shard.number], room))
            if last is None
            else deque(await self._rows_upto(shard, position[shard.number], last[shard.number], room))
            for shard in self._cluster.shards
        ]
        events: list[JournalEvent] = []
        while len(events) < limit and any(waiting):
            shard = min(
                (number for number, rows in enumerate(waiting) if rows), key=lambda number: _merge_key(waiting[number])
            )
            row = waiting[shard].popleft()
            position[shard] = row["seq"]
            if (tenant is None or row["tenant"] == tenant) and row["at"] >= oldest_at:
                events.append(_event(row, shard))
        return JournalPage(events, format_positions(position))

    async def _rows_if_up(self, shard: PostgresDatabase, after: int, limit: int) -> list[Any]:
        """Return rows of a database, none if it is down: its events come when it is back."""
        try:
            return await self._rows(shard, after, limit)
        except StoreUnavailable:
            if len(self._cluster.shards) == 1:
                raise
            return []

    async def _rows_upto(self, shard: PostgresDatabase, after: int, last: int, limit: int) -> list[Any]:
        """Return rows of a range that was read before, into which no open transaction can write."""
        return await shard.fetch(SQL["journal"], after, last + 1, limit) if last > after else []

    async def _rows(self, shard: PostgresDatabase, after: int, limit: int) -> list[Any]:
        """Return rows up to the oldest open transaction. Wait a moment for transactions that were open at the start."""
        [start] = await shard.fetch(SQL["horizon"])
        ends, tries_left = start["ends"], _TRIES
        while ends <= start["last"] and tries_left:
            tries_left -= 1
            await shard.fetch(_PAUSE)
            [now] = await shard.fetch(SQL["horizon"])
            ends = now["ends"]
        return await shard.fetch(SQL["journal"], after, ends, limit)

    async def trim(self, shard: PostgresDatabase, limit: int, now_ms: int) -> int:
        """Delete events older than the retention, at most `limit`. Return how many were deleted."""

        async def work(connection: Any) -> int:
            status = await connection.execute(SQL["trim"], now_ms - self._retention_ms, limit)
            return int(status.rpartition(" ")[2])

        return await shard.use(work)

    async def next_trim_at(self, shard: PostgresDatabase) -> int | None:
        """Return when the oldest event expires; None without events."""
        rows = await shard.fetch("SELECT at FROM journal ORDER BY seq LIMIT 1")
        return rows[0]["at"] + self._retention_ms if rows else None


def _merge_key(rows: deque[Any]) -> tuple[int, bool]:
    """Return the sort key of a database's next event among those of other databases: an arrival sorts after the
    departure."""
    at: int = rows[0]["at"]
    return at, EVENTS[rows[0]["event"]] is Event.MOVED and rows[0]["reason"].startswith("from ")


def _event(row: Any, shard: int) -> JournalEvent:
    return JournalEvent(
        seq=row["seq"],
        shard=shard,
        at=row["at"],
        event=EVENTS[row["event"]],
        tenant=row["tenant"],
        queue=row["queue"],
        snowflake=row["id"],
        given_correlation_id=row["correlation_id"],
        attempt=row["attempt"],
        version=row["version"],
        priority=row["priority"],
        enqueued_at=row["created_at"],
        claimed_at=row["claimed_at"],
        bytes=row["bytes"],
        error=decode_error(row["error"]),
        reason=row["reason"],
    )
