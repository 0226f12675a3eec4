"""Store messages by the thousand with COPY, under the same rules as `enqueue`.

Each database gets one transaction: keys, messages, events and counts are written together or not at all. Idempotency
keys make a repeat safe. A transaction that offers a key which another is about to take waits for that one's end, so a
retried task, two concurrent attempts, and a whole job with other partitions store each key once.

COPY cannot handle conflicts. Keys are copied as if all of them were new, which they are in the first run of a load. If
one is not, that copy is undone and the keys are inserted by a statement that handles conflicts.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from asyncpg import exceptions

from holdfast.model.names import QueueRef
from holdfast.stores.logic.results import being_deleted
from holdfast.stores.postgres.bulk.binary_copy import copy_rows
from holdfast.stores.postgres.bulk.bulk_messages import BulkMessages
from holdfast.stores.postgres.bulk.table_columns import BulkRows, Keys, split_keys
from holdfast.stores.postgres.cluster.cluster import PostgresCluster, QueueMoved
from holdfast.stores.postgres.cluster.database import PostgresDatabase
from holdfast.stores.postgres.cluster.node_numbers import PostgresNodeNumbers
from holdfast.stores.postgres.queues.queue_info import QueueInfo, decode_queue_info
from holdfast.stores.postgres.queues.quota_grants import QuotaGrants
from holdfast.stores.postgres.queues.registry import Numbered, QueueRegistry
from holdfast.stores.postgres.schema.statements import SQL

# The events of a transaction are numbered with 20 bits.
MAX_ROWS = 1 << 19

_COUNT = ("queue_key", "waiting", "delayed", "in_flight", "failed", "kept", "bytes")


class BulkOutdated(Exception):
    """A queue or tenant has changed since this transaction read it, so the transaction must run again."""


@dataclass(slots=True)
class BulkInserted:
    """The result of one transaction."""

    stored: int = 0
    # When the first message of each queue can be claimed, by the database's clock; without paused queues.
    ready_at: dict[QueueRef, int] = field(default_factory=dict)


class BulkInsert:
    """Bulk inserts into the databases of one cluster."""

    def __init__(
        self, cluster: PostgresCluster, directory: QueueRegistry, nodes: PostgresNodeNumbers, grants: QuotaGrants
    ) -> None:
        self._cluster = cluster
        self._directory = directory
        self._nodes = nodes
        self._grants = grants
        # Whether keys are copied first: until a key was not new.
        self._expects_new = True

    async def insert(
        self,
        connection: Any,
        shard: PostgresDatabase,
        bulk: BulkMessages,
        numbers: Mapping[QueueRef, Numbered | None],
        now_ms: int,
    ) -> BulkInserted:
        """Store the messages in a transaction of the database that owns their queues. Missing queues are created with
        `numbers` from their homes."""
        infos, now = await self._open(connection, shard, bulk.refs, numbers, now_ms)
        ids = pa.array(self._nodes.take_ids(bulk.rows.num_rows, now), pa.int64())
        rows = BulkRows(bulk, [infos[ref] for ref in bulk.refs], ids, now)
        rows = rows.only(await self._find_new(connection, rows))
        await self._check_quotas(connection, rows)
        loaded = await self._copy(connection, rows)
        await self._check_tenants(connection, infos)
        return loaded

    async def _open(
        self,
        connection: Any,
        shard: PostgresDatabase,
        refs: tuple[QueueRef, ...],
        numbers: Mapping[QueueRef, Numbered | None],
        now_ms: int,
    ) -> tuple[dict[QueueRef, QueueInfo], int]:
        """Return the queues, which cannot change until the transaction ends, and the database's time."""
        names = [ref.tenant for ref in refs], [ref.queue for ref in refs], self._cluster.time_argument(now_ms)
        found = await connection.fetch(SQL["loading_queues"], *names)
        if len(found) < len(refs):
            known = {QueueRef(row["tenant"], row["queue"]) for row in found}
            for ref in sorted(refs):
                if ref not in known:
                    await self._directory.make_in(connection, ref, numbers.get(ref))
            found = await connection.fetch(SQL["loading_queues"], *names)
            if len(found) < len(refs):
                raise BulkOutdated
        infos = {}
        for row in found:
            info = decode_queue_info(row, shard)
            if row["moving_to"] is not None:
                raise QueueMoved(info.ref)
            if row["drain_until"] is not None:
                raise being_deleted(info.ref)
            infos[info.ref] = info
        self._cluster.note_now(found[0]["now"], now_ms)
        return infos, found[0]["now"]

    async def _find_new(self, connection: Any, rows: BulkRows) -> pa.Array | None:
        """Remember the keys, and return the ids of the messages with a new key; None if all keys are new."""
        keys = split_keys(rows)
        if keys is None:
            return None
        remembered, passing = keys
        new: list[int] = []
        if len(remembered.ids):
            new += await self._put_keys(connection, remembered, rows.now)
        if len(passing.ids):
            columns = passing.columns()[:3]
            new += [row["id"] for row in await connection.fetch(SQL["load_unknown"], *columns, rows.now)]
        return None if len(new) == rows.keyed else pa.array(new, pa.int64())

    async def _put_keys(self, connection: Any, keys: Keys, now: int) -> list[int]:
        """Insert keys, and return the ids of the new ones."""
        if self._expects_new:
            try:
                async with connection.transaction():
                    await copy_rows(connection, "seen_keys", keys.fields(), len(keys.ids))
            except exceptions.UniqueViolationError:
                self._expects_new = False
            else:
                every: list[int] = keys.ids.to_pylist()
                return every
        new = [row["id"] for row in await connection.fetch(SQL["load_keys"], *keys.columns(), now)]
        self._expects_new = len(new) == len(keys.ids)
        return new

    async def _check_quotas(self, connection: Any, rows: BulkRows) -> None:
        sizes: defaultdict[str, list[int]] = defaultdict(list)
        infos: dict[str, QueueInfo] = {}
        for info, each in rows.sizes():
            sizes[info.ref.tenant] += each
            infos[info.ref.tenant] = info
        for tenant in sorted(sizes):
            await self._grants.check(connection, infos[tenant], sizes[tenant])

    async def _copy(self, connection: Any, rows: BulkRows) -> BulkInserted:
        if not len(rows.ids):
            return BulkInserted()
        seq = await connection.fetchval("SELECT pg_current_xact_id()::text::bigint << 20")
        await copy_rows(connection, "items", rows.items(), len(rows.ids))
        await copy_rows(connection, "journal", rows.events(seq), len(rows.ids))
        await connection.copy_records_to_table(
            "count_lines", records=rows.counts(), columns=_COUNT, schema_name="holdfast"
        )
        return BulkInserted(len(rows.ids), rows.ready_at())

    async def _check_tenants(self, connection: Any, infos: Mapping[QueueRef, QueueInfo]) -> None:
        """Raise `BulkOutdated` if a tenant has changed. The queues' rows are locked; the tenants' are not, because a
        quota check locks them."""
        revisions = {info.ref.tenant: info.tenant_revision for info in infos.values()}
        found = await connection.fetch("SELECT tenant, revision FROM tenants WHERE tenant = ANY($1)", list(revisions))
        if {row["tenant"]: row["revision"] for row in found} != revisions:
            raise BulkOutdated
