"""Node numbers for message ids, leased from the first database of the store (specification 1.4).

Two servers with one number could make the same id twice. A server whose lease has ended keeps its number for a while,
because the first database may be down for as long; it stops making ids well before the database gives the number away.
"""

import logging
from typing import Any
from uuid import uuid4

from holdfast.background import Backoff, run_forever, sleep_for
from holdfast.clock import Clock
from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import NODES, IdMaker
from holdfast.stores.postgres.cluster.cluster import PostgresCluster

_log = logging.getLogger("holdfast")

_LEASE_S = 60
_RENEW_MS = 15_000
# A server without a number cannot take messages, so it asks more often.
_RETRY_MS = 500
# A number whose lease ended is given to another server only after this long, because the previous holder may be cut
# off, not dead.
_REST_S = 600
# A server that could not renew its lease for this long makes no more ids. The number is given away after 660 s by the
# database's clock. A server's clock that is catching up with the wall clock runs a tenth slower.
_STOP_MS = 540_000

_TAKE = f"""
WITH free AS (
    SELECT n AS node, coalesce(highest_id, 0) AS highest_id FROM generate_series(0, {NODES - 1}) AS n
    LEFT JOIN nodes ON nodes.node = n
    WHERE nodes.node IS NULL OR holder IS NULL OR ends_at < clock_timestamp() - interval '{_REST_S} seconds'
    ORDER BY nodes.ends_at NULLS FIRST, n LIMIT 1
)
INSERT INTO nodes (node, holder, ends_at, highest_id)
SELECT node, $1, clock_timestamp() + interval '{_LEASE_S} seconds', highest_id FROM free
ON CONFLICT (node) DO UPDATE SET holder = excluded.holder, ends_at = excluded.ends_at
RETURNING node, highest_id
"""
_RENEW = f"""
UPDATE nodes SET ends_at = clock_timestamp() + interval '{_LEASE_S} seconds', highest_id = greatest(highest_id, $3)
WHERE node = $1 AND holder = $2 RETURNING node
"""
_RELEASE = "UPDATE nodes SET holder = NULL, highest_id = greatest(highest_id, $3) WHERE node = $1 AND holder = $2"
# One server at a time: otherwise two servers would see the same number as free.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('holdfast nodes'))"


class PostgresNodeNumbers:
    """This server's node number, and the ids made with it."""

    def __init__(self, cluster: PostgresCluster) -> None:
        self._cluster = cluster
        self._holder = uuid4()
        self._ids: IdMaker | None = None
        self._clock: Clock | None = None
        # When the last successful request for the lease was sent.
        self._leased_at = 0

    @property
    def number(self) -> int:
        """The node number; -1 before the first lease."""
        return -1 if self._ids is None else self._ids.node

    def take_ids(self, number: int, now_ms: int, above: int = 0) -> list[int]:
        """Return `number` new ids above all ids this node has given and above the id `above` of any node. Raise
        `StoreUnavailable` without a node number, or if it may soon be another server's."""
        if self._ids is None or self._clock is None:
            raise StoreUnavailable("this server has no node number yet, because the store's first database is down")
        if self._is_stale(self._clock):
            raise StoreUnavailable(
                f"this server could not renew its node number for {_STOP_MS // 60_000} minutes, because the store's "
                "first database is down; it takes new messages again once that database is back"
            )
        ids = self._ids.take(number, now_ms)
        if ids and ids[0] <= above:
            self._ids = IdMaker(self._ids.node, max(self._ids.highest, above | 0xFFF))
            ids = self._ids.take(number, now_ms)
        return ids

    async def confirm(self) -> None:
        """Renew the lease before new messages, if it was not renewed for a long time. Raise `StoreUnavailable` if
        it still is not."""
        if self._clock is not None and self._is_stale(self._clock):
            await self.renew()

    async def lease(self, clock: Clock) -> None:
        """Lease a free node number. Raise `StoreUnavailable` if all are taken."""
        self._clock = clock
        asked_at = clock.now_ms()

        async def take(connection: Any) -> Any:
            await connection.execute(_LOCK)
            return await connection.fetchrow(_TAKE, self._holder)

        row = await self._cluster.shards[0].step(take)
        if row is None:
            raise StoreUnavailable(f"all {NODES} node numbers are taken; stop servers that are not needed")
        highest = row["highest_id"] if self._ids is None else max(row["highest_id"], self._ids.highest)
        self._ids = IdMaker(row["node"], highest)
        self._leased_at = asked_at

    async def renew(self) -> None:
        """Renew the lease, or lease another number if it was lost. The first lease must have been taken."""
        assert self._clock is not None
        if self._ids is None:
            await self.lease(self._clock)
            return
        asked_at = self._clock.now_ms()
        rows = await self._cluster.shards[0].fetch(_RENEW, self._ids.node, self._holder, self._ids.highest)
        if rows:
            self._leased_at = asked_at
        else:
            _log.warning("node_number_lost number=%d: another server has it; leasing a new one", self._ids.node)
            await self.lease(self._clock)

    def _is_stale(self, clock: Clock) -> bool:
        """Return whether the number may soon be another server's."""
        return clock.now_ms() - self._leased_at > _STOP_MS

    async def run(self, clock: Clock) -> None:
        """Renew the lease in time, until cancelled."""
        await run_forever(
            self.renew,
            Backoff("node_number"),
            clock,
            lambda: sleep_for(clock, _RETRY_MS if self._ids is None else _RENEW_MS),
        )

    async def release(self) -> None:
        """Give the number back."""
        if self._ids is not None:
            await self._cluster.shards[0].fetch(_RELEASE, self._ids.node, self._holder, self._ids.highest)
