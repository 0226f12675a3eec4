"""The async API: connections and tenants."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, Unpack

from holdfast.client.options import TenantOptions
from holdfast.client.queue import AsyncQueue
from holdfast.client.tracebacks import raises_plainly
from holdfast.client.transport import Transport
from holdfast.model.answers import JournalEvents, QueueSummary, Stats, TenantSummary
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import check_position
from holdfast.model.message import MAX_BATCH
from holdfast.model.names import DEFAULT, QueueRef, parse_name, parse_ref
from holdfast.model.parsing.checks import check_integer
from holdfast.model.policy import TenantConfig
from holdfast.wire import operations, requests


@raises_plainly
class AsyncTenant:
    """A tenant, made by `AsyncHoldfast.tenant`. The methods are those of `Tenant`; await each call."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._ref = QueueRef(name)
        self.name = name

    async def stats(self) -> Stats:
        """Return the counts of all queues of the tenant together."""
        return await self._transport.call(operations.TENANT_STATS, self._ref, requests.Nothing())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    async def get(self) -> TenantConfig:
        """Return the tenant's weight, limits, quotas and journal retention."""
        return await self._transport.call(operations.TENANT, self._ref, requests.Nothing())

    async def set(self, **changes: Unpack[TenantOptions]) -> TenantConfig:
        """Change the given fields, keep the others, and return the whole configuration.

        - `weight`: the tenant's share while several tenants wait, by default 1.
        - `limits`: rates of operations and bytes; a request over them raises `RateLimited`.
        - `quotas`: the most messages, bytes and queues to keep; an enqueue over them raises `OverQuota`.
        - `journal_retention_ms`: how far back the tenant may read the journal.

        Raise `InvalidArgument`, which names the field, for an unknown field or a value out of range.

            hf.tenant("acme").set(weight=2, quotas={"max_messages": 100_000})
        """
        request = requests.ConfigureRequest(changes={**changes})
        return await self._transport.call(operations.SET_TENANT, self._ref, request)


@raises_plainly
class AsyncHoldfast:
    """A store or a server, made by `holdfast.open_async` and connected inside `async with`.

    async with holdfast.open_async("http://localhost:7077") as hf:
        await hf.queue("mail").enqueue({"to": "ada"})
    """

    def __init__(self, connect: Callable[[], Awaitable[Transport]]) -> None:
        self._connect = connect
        self._transport: Transport | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'connected' if self._transport is not None else 'not connected'}>"

    def queue(self, name: str = DEFAULT, *, tenant: str = DEFAULT) -> AsyncQueue:
        """Return a queue by its name, without a call to the server.

        The queue need not exist: its first message creates it. Raise `InvalidName` for a name that is not 1 to 128
        characters of `A-Z a-z 0-9 . _ -`, or that begins with a dot.
        """
        return AsyncQueue(self._connected(), parse_ref(tenant, name))

    def tenant(self, name: str = DEFAULT) -> AsyncTenant:
        """Return a tenant by its name, without a call to the server. Raise `InvalidName`."""
        return AsyncTenant(self._connected(), parse_name("tenant", name))

    async def queues(self, tenant: str = DEFAULT) -> list[QueueSummary]:
        """Return the queues of a tenant, each with its counts."""
        transport, ref = self._connected(), QueueRef(parse_name("tenant", tenant))
        return await transport.call(operations.QUEUES, ref, requests.Nothing())

    async def tenants(self) -> list[TenantSummary]:
        """Return the tenants that you may see, each with its configuration."""
        return await self._connected().call(operations.TENANTS, QueueRef(), requests.Nothing())

    async def journal(
        self, after: str | None = None, limit: int = 1_000, *, tenant: str | None = None
    ) -> JournalEvents:
        """Return up to `limit` journal events in order, beginning behind the position `after`.

        Without `after` the oldest event that is kept comes first. The result's `.next` is the position to continue
        from. An operator sees the events of every tenant, or those of `tenant`; any other caller sees its own.

            events = hf.journal(limit=100)
            later = hf.journal(after=events.next)
        """
        parsed = None if tenant is None else parse_name("tenant", tenant)
        check_integer("limit", limit, 1, MAX_BATCH)
        check_position(after)
        request = requests.JournalRequest(after=after, limit=limit, tenant=parsed)
        return await self._connected().call(operations.JOURNAL, QueueRef(), request)

    async def backup(self, target: str) -> None:
        """Copy the whole embedded store, while it is in use, into the new directory `target`.

        The copy is consistent: it holds the store as it was at one instant. Open it like any other directory.
        """
        await self._connected().call(operations.BACKUP, QueueRef(), requests.BackupRequest(target=target))

    async def close(self) -> None:
        """Disconnect. Leases of claimed messages stay as they are and run out in their time."""
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
