"""Connections and tenants in the async API."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, Unpack

from holdfast.client.options import TenantOptions
from holdfast.client.queue import AsyncQueue
from holdfast.client.queue_operations import location
from holdfast.client.tracebacks import trim_class_tracebacks
from holdfast.client.transport import Transport
from holdfast.model.answers import HotQueue, JournalEvents, NumberedTenant, QueueSummary, Stats, TenantSummary
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import check_position
from holdfast.model.message import MAX_BATCH
from holdfast.model.names import DEFAULT, QueueRef, parse_name, parse_ref
from holdfast.model.parsing.checks import check_integer
from holdfast.model.policy import TenantConfig
from holdfast.wire import operations, requests


@trim_class_tracebacks
class AsyncTenant:
    """A tenant, made by `AsyncHoldfast.tenant`. The methods are those of `Tenant`; await each call.

    await hf.tenant("acme").set(weight=2)
    """

    def __init__(self, transport: Transport, name: str, url: str = "") -> None:
        self._transport = transport
        self._ref = QueueRef(name)
        self._url = url
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{location(self._url)}>"

    async def stats(self) -> Stats:
        """Return the counts of all queues of the tenant together; see `Queue.stats` for the fields."""
        return await self._transport.call(operations.TENANT_STATS, self._ref, requests.Nothing())

    async def get(self) -> TenantConfig:
        """Return the tenant's weight, limits, quotas and journal retention. A new tenant has the defaults."""
        return await self._transport.call(operations.TENANT, self._ref, requests.Nothing())

    async def set(self, **changes: Unpack[TenantOptions]) -> TenantConfig:
        """Change the given fields, keep the others, and return the whole configuration.

        - `weight`: the tenant's share of the claims while several tenants wait, by default 1.
        - `limits`: rates of operations and bytes. A request above them raises `RateLimited`.
        - `quotas`: the largest number of messages, bytes and queues. An enqueue above them raises `OverQuota`.
        - `journal_retention_ms`: how far back the tenant can read the journal.

        Raise `InvalidArgument`, which names the field, for an unknown field or a value out of range; nothing is changed
        then. Raise `Forbidden` unless the caller is an operator.

            hf.tenant("acme").set(weight=2, quotas={"max_messages": 100_000})
        """
        request = requests.ConfigureRequest(changes={**changes})
        return await self._transport.call(operations.SET_TENANT, self._ref, request)


@trim_class_tracebacks
class AsyncHoldfast:
    """A connection to a store or a server, made by `holdfast.open_async` and open inside `async with`.

    async with holdfast.open_async("http://localhost:7077") as hf:
        await hf.queue("mail").enqueue({"to": "ada"})
    """

    def __init__(self, connect: Callable[[], Awaitable[Transport]], url: str = "") -> None:
        """`url` is shown by `repr`, also that of queues and tenants; it has no secrets in it."""
        self._connect = connect
        self._url = url
        self._transport: Transport | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{location(self._url)}{', not connected' if self._transport is None else ''}>"

    def queue(self, name: str = DEFAULT, *, tenant: str = DEFAULT) -> AsyncQueue:
        """Return the queue of a tenant, without a call to the server.

        The queue need not exist: its first message creates it. Raise `InvalidName` for a name that is not 1 to 128
        characters of `A-Z a-z 0-9 . _ -`, or that begins with a dot.

            q = hf.queue("payments", tenant="acme")
        """
        return AsyncQueue(self._connected(), parse_ref(tenant, name), self._url)

    def tenant(self, name: str = DEFAULT) -> AsyncTenant:
        """Return a tenant, without a call to the server. Raise `InvalidName` for a malformed name.

        hf.tenant("acme").stats()
        """
        return AsyncTenant(self._connected(), parse_name("tenant", name), self._url)

    async def queues(self, tenant: str = DEFAULT) -> list[QueueSummary]:
        """Return the queues of a tenant, each with its counts; an empty list for a tenant without queues."""
        transport, ref = self._connected(), QueueRef(parse_name("tenant", tenant))
        return await transport.call(operations.QUEUES, ref, requests.Nothing())

    async def tenants(self) -> list[TenantSummary]:
        """Return the tenants that the caller may see, each with its configuration. An operator sees all of them."""
        return await self._connected().call(operations.TENANTS, QueueRef(), requests.Nothing())

    async def names(self, tenant: str | None = None, queue: str | None = None) -> list[NumberedTenant]:
        """Return the numbers of tenants and queues, by which a server's logs and metrics can name them.

        An operator gets all tenants, or `tenant` alone; any other caller gets its own. With `queue`, only that queue is
        in the answer. A tenant or queue that does not exist is left out.

            for each in hf.names():
                print(each.tenant, each.tenant_id, [(queue.queue, queue.queue_id) for queue in each.queues])
        """
        request = requests.NamesRequest(
            tenant=None if tenant is None else parse_name("tenant", tenant),
            queue=None if queue is None else parse_name("queue", queue),
        )
        return await self._connected().call(operations.NAMES, QueueRef(), request)

    async def hot_queues(self) -> list[HotQueue]:
        """Return the queues that read and write most of the keys of each column family, the busiest first.

        The shares are estimated from samples of about the last minute. Only an embedded store has column families; the
        others return an empty list. Raise `Forbidden` unless the caller is an operator.
        """
        return await self._connected().call(operations.HOT_QUEUES, QueueRef(), requests.Nothing())

    async def journal(
        self, after: str | None = None, limit: int = 1_000, *, tenant: str | None = None
    ) -> JournalEvents:
        """Return up to `limit` journal events in order, starting after the position `after`.

        Without `after`, start at the oldest event that is still kept. The result's `.next` is the position to continue
        from. An operator sees the events of every tenant, or of `tenant` alone; any other caller sees its own.

        Raise `InvalidArgument` for a malformed position.

            events = hf.journal(limit=100)
            later = hf.journal(after=events.next)
        """
        parsed = None if tenant is None else parse_name("tenant", tenant)
        check_integer("limit", limit, 1, MAX_BATCH)
        check_position(after)
        request = requests.JournalRequest(after=after, limit=limit, tenant=parsed)
        return await self._connected().call(operations.JOURNAL, QueueRef(), request)

    async def backup(self, target: str) -> None:
        """Copy the whole embedded store into the new directory `target`, while the store stays in use.

        The copy is consistent: it holds the store as it was at one instant. Open it like any other directory. Raise
        `InvalidArgument` over a network; use `holdfast backup` on the server's machine instead.
        """
        await self._connected().call(operations.BACKUP, QueueRef(), requests.BackupRequest(target=target))

    async def close(self) -> None:
        """Disconnect. The leases of claimed messages are kept and expire at their time. Safe to call again."""
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
