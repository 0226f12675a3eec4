"""The async API: a connection to wherever the queues are."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from holdfast.client.queue import AsyncQueue
from holdfast.client.tracebacks import raises_plainly
from holdfast.client.transport import Transport
from holdfast.model.answers import Events, QueueSummary, Stats, TenantSummary
from holdfast.model.checks import check_integer
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import check_position
from holdfast.model.message import MAX_BATCH
from holdfast.model.names import DEFAULT, QueueRef, parse_name, parse_ref
from holdfast.model.policy import TenantConfig
from holdfast.wire import operations, requests


@raises_plainly
class AsyncTenant:
    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._ref = QueueRef(name)
        self.name = name

    async def stats(self) -> Stats:
        """The counts of all its queues together."""
        return await self._transport.call(operations.TENANT_STATS, self._ref, requests.Nothing())

    async def get(self) -> TenantConfig:
        return await self._transport.call(operations.TENANT, self._ref, requests.Nothing())

    async def set(self, **changes: Any) -> TenantConfig:
        """Change the fields given: weight, limits, quotas, journal_retention_ms; answers the whole."""
        request = requests.ConfigureRequest(changes=changes)
        return await self._transport.call(operations.SET_TENANT, self._ref, request)


@raises_plainly
class AsyncHoldfast:
    """Made by `holdfast.open_async`; connected inside `async with`."""

    def __init__(self, connect: Callable[[], Awaitable[Transport]]) -> None:
        self._connect = connect
        self._transport: Transport | None = None

    def queue(self, name: str = DEFAULT, *, tenant: str = DEFAULT) -> AsyncQueue:
        return AsyncQueue(self._connected(), parse_ref(tenant, name))

    def tenant(self, name: str = DEFAULT) -> AsyncTenant:
        return AsyncTenant(self._connected(), parse_name("tenant", name))

    async def queues(self, tenant: str = DEFAULT) -> list[QueueSummary]:
        transport, ref = self._connected(), QueueRef(parse_name("tenant", tenant))
        return await transport.call(operations.QUEUES, ref, requests.Nothing())

    async def tenants(self) -> list[TenantSummary]:
        return await self._connected().call(operations.TENANTS, QueueRef(), requests.Nothing())

    async def journal(self, after: str | None = None, limit: int = 1_000, *, tenant: str | None = None) -> Events:
        """Events behind the position `after` (left out: the oldest kept); `.next` is the position after them."""
        parsed = None if tenant is None else parse_name("tenant", tenant)
        check_integer("limit", limit, 1, MAX_BATCH)
        check_position(after)
        request = requests.JournalRequest(after=after, limit=limit, tenant=parsed)
        return await self._connected().call(operations.JOURNAL, QueueRef(), request)

    async def backup(self, target: str) -> None:
        """A consistent copy of the whole store in a new directory, while it is in use."""
        await self._connected().call(operations.BACKUP, QueueRef(), requests.BackupRequest(target=target))

    async def close(self) -> None:
        if self._transport is not None:
            transport, self._transport = self._transport, None
            await transport.close()

    def _connected(self) -> Transport:
        if self._transport is None:
            raise StoreUnavailable("not connected: use `async with holdfast.open_async(url) as hf:`")
        return self._transport

    async def __aenter__(self) -> Self:
        self._transport = await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
