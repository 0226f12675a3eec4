"""Tenants and queues: their numbers and their settings.

A queue exists if its policy.json says so. The tenant's document assigns the numbers and lists the queues:

    create    tenant.json: name and number      crash: the next creation uses that number
              policy.json
    delete    policy.json: deleted              crash: a sweep continues
              tenant.json: without the name
"""

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.stores.event_loop.driver import LoopDriver, on_driver, on_driver_with_notices
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.quotas import check_room_for_queue, default_ttl_ms
from holdfast.stores.logic.results import being_deleted, no_such_queue
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import retry_conflicts
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.json_documents import (
    JsonDocuments,
    QueueDocument,
    ReadJsonDocument,
    TenantDocument,
    TenantsDocument,
)
from holdfast.stores.values import QueueChange, QueueRow, TenantRow

# Maximum age of cached settings: claims see a change by another process within this time.
FRESH_MS = 1_000


class ObjectDirectory:
    """The `QueueDirectory`, and the queues as the rest of the store reads them."""

    def __init__(
        self,
        driver: LoopDriver,
        json_documents: JsonDocuments,
        clock: Clock,
        changed: Callable[[QueueRow, QueueChange], Awaitable[None]],
        created: Callable[[QueueRef, int], None],
    ) -> None:
        """`changed` is awaited after a change to a queue's row. `created` is called with each queue that this process
        creates, and the time."""
        self.driver = driver
        self._json_documents = json_documents
        self._clock = clock
        self._changed = changed
        self._created = created
        self._rows: dict[QueueRef, tuple[int, QueueRow | None]] = {}
        self._tenants: dict[str, tuple[int, ReadJsonDocument[TenantDocument] | None]] = {}
        self._without_format_1: set[QueueRef] = set()

    # --- Tenants ---------------------------------------------------------------------------------------------

    @on_driver
    async def find_tenant(self, tenant: str) -> TenantRow | None:
        current = await self._read_tenant(tenant)
        return None if current is None else _tenant_row(tenant, current.content)

    async def config(self, name: str) -> TenantConfig:
        """Return a tenant's configuration, at most a second old."""
        known = self._tenants.get(name)
        current = known[1] if known and self._is_fresh(known[0]) else await self._read_tenant(name)
        return TenantConfig() if current is None else current.content.config

    @on_driver
    async def list_tenants(self) -> list[TenantRow]:
        rows = [await self.find_tenant(name) for name in sorted(await self._numbers())]
        return [row for row in rows if row is not None]

    async def names(self) -> list[str]:
        """Return the names of all tenants."""
        return sorted(await self._numbers())

    @on_driver
    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        current = await self._change_tenant(tenant, lambda document: replace(document, config=config))
        return _tenant_row(tenant, current.content)

    async def _numbers(self) -> dict[str, int]:
        current = await self._json_documents.read(layout.TENANTS, TenantsDocument)
        return {} if current is None else current.content.tenants

    async def _read_tenant(self, name: str) -> ReadJsonDocument[TenantDocument] | None:
        return self._note_tenant(name, await self._json_documents.read(layout.tenant(name), TenantDocument))

    def _note_tenant(
        self, name: str, current: ReadJsonDocument[TenantDocument] | None
    ) -> ReadJsonDocument[TenantDocument] | None:
        self._tenants[name] = (self._clock.now_ms(), current)
        return current

    async def _change_tenant(
        self, name: str, change: Callable[[TenantDocument], TenantDocument]
    ) -> ReadJsonDocument[TenantDocument]:
        async def write() -> ReadJsonDocument[TenantDocument]:
            current = await self._read_tenant(name)
            document = TenantDocument(tenant_id=await self._take_number(name)) if current is None else current.content
            changed = change(document)
            if current is not None and changed == document:
                return current
            written = await self._json_documents.write(layout.tenant(name), changed, current)
            self._note_tenant(name, written)
            return written

        return await retry_conflicts(write, f"tenant {name}")

    async def _take_number(self, name: str) -> int:
        async def take() -> int:
            current = await self._json_documents.read(layout.TENANTS, TenantsDocument)
            known = {} if current is None else current.content.tenants
            if name in known:
                return known[name]
            number = max(known.values(), default=0) + 1
            await self._json_documents.write(layout.TENANTS, TenantsDocument(tenants={**known, name: number}), current)
            return number

        return await retry_conflicts(take, "the list of tenants")

    # --- Queues ----------------------------------------------------------------------------------------------

    @on_driver
    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        return await self.find(ref, fresh=True)

    async def find(self, ref: QueueRef, *, fresh: bool = False) -> QueueRow | None:
        """Return a queue, at most a second old; with `fresh`, as it is stored now. None if it does not exist."""
        known = self._rows.get(ref)
        if known is not None and known[1] is not None and not fresh and self._is_fresh(known[0]):
            return known[1]
        current = await self._json_documents.read(layout.policy(ref), QueueDocument)
        if current is None or current.content.is_deleted:
            self._rows.pop(ref, None)
            return None
        return await self._note_row(ref, current.content)

    async def require(self, ref: QueueRef, *, fresh: bool = False) -> QueueRow:
        """Return a queue. Raise `QueueNotFound`."""
        row = await self.find(ref, fresh=fresh)
        if row is None:
            raise no_such_queue(ref)
        return row

    async def require_open(self, ref: QueueRef, *, fresh: bool = False) -> QueueRow:
        """Return a queue that is not being deleted. Raise `QueueNotFound` or `Draining`."""
        row = await self.require(ref, fresh=fresh)
        if row.drain_until is not None:
            raise being_deleted(ref)
        return row

    def numbers_of(self, ref: QueueRef) -> QueueNumbers | None:
        row = self._rows.get(ref, (0, None))[1]
        return None if row is None else QueueNumbers(row.tenant_id, row.queue_id)

    @on_driver
    async def list_queues(self, tenant: str) -> list[QueueRow]:
        current = await self._read_tenant(tenant)
        names = sorted(current.content.queues) if current is not None else []
        rows = [await self.find(QueueRef(tenant, name), fresh=True) for name in names]
        return [row for row in rows if row is not None]

    @on_driver
    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        async def write() -> QueueRow:
            current = await self._json_documents.read(layout.policy(ref), QueueDocument)
            if current is not None and not current.content.is_deleted:
                return await self._note_row(ref, current.content)
            used = None if current is None else current.content.queue_id
            number = await self._take_queue_number(ref, used)
            document = QueueDocument(queue_id=number, may_have_format_1=False)
            written = await self._json_documents.write(layout.policy(ref), document, current)
            row = await self._note_row(ref, written.content)
            self._created(ref, now_ms)
            return row

        return await retry_conflicts(write, f"queue {ref}")

    async def _take_queue_number(self, ref: QueueRef, used: int | None) -> int:
        """Return the queue's number in the tenant's list, unless a deleted queue had it; otherwise assign the next
        number."""

        def add(document: TenantDocument) -> TenantDocument:
            if document.queues.get(ref.queue) not in (None, used):
                return document
            others = len(document.queues) - (ref.queue in document.queues)
            check_room_for_queue(ref.tenant, document.config.quotas, others)
            queues = {**document.queues, ref.queue: document.next_queue_id}
            return replace(document, queues=queues, next_queue_id=document.next_queue_id + 1)

        return (await self._change_tenant(ref.tenant, add)).content.queues[ref.queue]

    @on_driver_with_notices
    async def change_queue(self, notices: Notices, ref: QueueRef, change: QueueChange, now_ms: int) -> QueueRow:
        row = await self._change_queue(ref, change)
        notices.ready(ref, now_ms)
        if row.drain_until is not None:
            notices.deadline(now_ms)
        await self._changed(row, change)
        return row

    async def _change_queue(self, ref: QueueRef, change: QueueChange) -> QueueRow:
        async def write() -> QueueRow:
            current = await self._json_documents.read(layout.policy(ref), QueueDocument)
            if current is None or current.content.is_deleted:
                raise no_such_queue(ref)
            written = await self._json_documents.write(
                layout.policy(ref), replace(current.content, **change.fields()), current
            )
            return await self._note_row(ref, written.content)

        return await retry_conflicts(write, f"queue {ref}")

    async def remove(self, row: QueueRow) -> None:
        """Do the last step of a queue's deletion. Safe to repeat."""
        ref = row.ref
        self._rows.pop(ref, None)
        current = await self._json_documents.read(layout.policy(ref), QueueDocument)
        if current is not None and current.content.queue_id == row.queue_id and not current.content.is_deleted:
            gone = QueueDocument(queue_id=row.queue_id, is_deleted=True, may_have_format_1=False)
            try:
                await self._json_documents.write(layout.policy(ref), gone, current)
            except PreconditionFailed:
                return  # a sweep continues
        await self._forget(ref, row.queue_id)

    async def _forget(self, ref: QueueRef, queue_id: int) -> None:
        def drop(document: TenantDocument) -> TenantDocument:
            if document.queues.get(ref.queue) != queue_id:
                return document
            return replace(document, queues={name: id for name, id in document.queues.items() if name != ref.queue})

        await self._change_tenant(ref.tenant, drop)

    async def default_ttl_ms(self, row: QueueRow) -> int | None:
        """Return the TTL of messages that give none; None: they do not expire."""
        return default_ttl_ms(row.policy, (await self.config(row.ref.tenant)).quotas)

    async def _note_row(self, ref: QueueRef, document: QueueDocument) -> QueueRow:
        tenant = self._tenants.get(ref.tenant)
        current = tenant[1] if tenant and tenant[1] else await self._read_tenant(ref.tenant)
        row = QueueRow(
            ref=ref,
            tenant_id=0 if current is None else current.content.tenant_id,
            queue_id=document.queue_id,
            policy=document.policy,
            is_paused=document.is_paused,
            drain_until=document.drain_until,
        )
        self._rows[ref] = (self._clock.now_ms(), row)
        if document.may_have_format_1:
            self._without_format_1.discard(ref)
        else:
            self._without_format_1.add(ref)
        return row

    def may_have_format_1(self, ref: QueueRef) -> bool:
        """Return whether a queue may have messages that an earlier version named."""
        return ref not in self._without_format_1

    async def note_without_format_1(self, ref: QueueRef) -> None:
        """Record that no message of the queue has a name of an earlier version, so that no look-up tries such names."""

        async def write() -> None:
            current = await self._json_documents.read(layout.policy(ref), QueueDocument)
            if current is not None and not current.content.is_deleted and current.content.may_have_format_1:
                changed = replace(current.content, may_have_format_1=False)
                written = await self._json_documents.write(layout.policy(ref), changed, current)
                await self._note_row(ref, written.content)

        await retry_conflicts(write, f"queue {ref}")

    def _is_fresh(self, read_at: int) -> bool:
        return 0 <= self._clock.now_ms() - read_at < FRESH_MS


def _tenant_row(name: str, document: TenantDocument) -> TenantRow:
    return TenantRow(tenant=name, tenant_id=document.tenant_id, config=document.config)
