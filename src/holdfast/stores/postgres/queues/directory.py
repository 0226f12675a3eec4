"""The directory part of the store: tenants and queues, over all databases."""

from typing import Any

from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.stores.event_loop.driver import LoopDriver, on_driver, on_driver_with_notices
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.results import no_such_queue
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.queues.queue_info import decode_queue_row, encode_config
from holdfast.stores.postgres.queues.quota_grants import QuotaGrants
from holdfast.stores.postgres.queues.registry import QueueRegistry, decode_tenant_row, encode_policy_columns
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.values import QueueChange, QueueRow, TenantRow


class PostgresDirectory:
    """`QueueDirectory`."""

    def __init__(
        self, driver: LoopDriver, cluster: PostgresCluster, directory: QueueRegistry, grants: QuotaGrants
    ) -> None:
        self.driver = driver
        self._cluster = cluster
        self._directory = directory
        self._grants = grants

    # --- Tenants -----------------------------------------------------------------------------------------------

    @on_driver
    async def find_tenant(self, tenant: str) -> TenantRow | None:
        rows = await self._cluster.home_of(tenant).fetch(SQL["tenant"], tenant)
        return decode_tenant_row(rows[0]) if rows else None

    @on_driver
    async def list_tenants(self) -> list[TenantRow]:
        """List the tenants, as far as the databases answer. If one is down, the others still know its tenants that have
        queues with them."""
        found: dict[str, TenantRow] = {}
        for shard, rows in await self._cluster.fetch_all(SQL["tenants"]):
            for row in rows:
                if self._cluster.home_of(row["tenant"]) is shard or row["tenant"] not in found:
                    found[row["tenant"]] = decode_tenant_row(row)
        return [found[name] for name in sorted(found)]

    @on_driver
    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        home = self._cluster.home_of(tenant)
        copies = self._directory.copies

        async def put(connection: Any) -> Any:
            raw = encode_config(config)
            await connection.execute(SQL["make_tenant"], tenant, None, home.number, raw)
            await copies.note(connection, tenant, home)
            return await connection.fetchrow(SQL["put_tenant"], tenant, raw)

        if config.quotas.limits_totals:
            # Without a quota, usage is not noted; it must be noted now, or other databases would be granted the whole
            # quota.
            await self._grants.note_all(tenant)
        row = decode_tenant_row(await home.step(put))
        await copies.send(home, tenant)
        self._directory.forget_tenant(tenant)
        return row

    # --- Queues ------------------------------------------------------------------------------------------------

    @on_driver
    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        info = await self._directory.load(ref)
        return None if info is None else info.row

    def numbers_of(self, ref: QueueRef) -> QueueNumbers | None:
        info = self._directory.remembered(ref)
        return None if info is None else QueueNumbers(info.row.tenant_id, info.row.queue_id)

    @on_driver
    async def list_queues(self, tenant: str) -> list[QueueRow]:
        """List the tenant's queues, as far as the databases answer."""
        rows = [row for _, found in await self._cluster.fetch_all(SQL["queues_of"], tenant) for row in found]
        # A queue that has just moved may be on both databases for a moment.
        found = {row["queue"]: decode_queue_row(row) for row in rows}
        return sorted(found.values(), key=lambda row: row.ref)

    @on_driver
    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        info = await self._directory.load(ref)
        return (info or await self._directory.create(ref)).row

    @on_driver_with_notices
    async def change_queue(self, notices: Notices, ref: QueueRef, change: QueueChange, now_ms: int) -> QueueRow:
        stored_ms = self._cluster.database_time
        row = await self._change(
            ref,
            *((None,) * 4 if change.policy is None else encode_policy_columns(change.policy)),
            change.is_paused,
            None if change.drain_until is None else stored_ms(change.drain_until),
        )
        notices.ready(ref, stored_ms(now_ms))
        if row.drain_until is not None:
            notices.deadline(stored_ms(now_ms))
        return row

    async def _change(self, ref: QueueRef, *columns: Any) -> QueueRow:
        self._directory.forget(ref)
        for _ in range(2):
            rows = await self._cluster.shard_of(ref).fetch(SQL["change_queue"], ref.tenant, ref.queue, *columns)
            if rows:
                return decode_queue_row(rows[0])
            await self._directory.require(ref)  # raises unless the queue has moved to another database
        raise no_such_queue(ref)
