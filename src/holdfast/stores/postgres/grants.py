"""Quotas of a tenant whose queues may lie on several databases (SPEC 8.9)."""

from typing import Any

from holdfast.stores.postgres.cluster import Cluster
from holdfast.stores.postgres.queues import QueueInfo
from holdfast.stores.postgres.statements import SQL
from holdfast.stores.quotas import check_quotas


class Short(Exception):
    """A shard has not been granted enough of its tenant's quota."""


class Grants:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def check(self, connection: Any, info: QueueInfo, sizes: list[int], freed: tuple[int, int] = (0, 0)) -> None:
        """Refuse messages of these sizes if they would take the tenant past a quota, in the transaction that adds
        them. `freed` are messages and bytes that go in the same step."""
        quotas = info.config.quotas
        if not info.has_quotas:
            check_quotas(info.ref.tenant, quotas, 0, 0, sizes)
            return
        # Whoever adds for this tenant waits here: nobody counts what another is about to add.
        await connection.execute(SQL["tenant_locked"], info.ref.tenant)
        used = await connection.fetchrow(SQL["usage"], info.ref.tenant)
        messages, size = used["messages"] - freed[0], used["bytes"] - freed[1]
        check_quotas(info.ref.tenant, quotas, messages, size, sizes)

    async def widen(self, short: Short) -> None:
        raise NotImplementedError
