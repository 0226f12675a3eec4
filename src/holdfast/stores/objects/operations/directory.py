"""Tenants and queues: who has which number, and what is set.

A queue is there if its policy.json says so. The tenant's document gives the numbers, and lists the queues:

    make      tenant.json: name and number      dies here: the next to make it takes that number
              policy.json
    delete    policy.json: deleted              dies here: a sweep goes on
              tenant.json: without the name
"""

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.model.names import QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.stores.contract import QueueChange, QueueRow, TenantRow
from holdfast.stores.event_loop.driver import LoopDriver, on_driver, on_driver_with_notices
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.quotas import check_room_for_queue, default_ttl_ms
from holdfast.stores.logic.results import being_deleted, no_such_queue
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import until_unchanged
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.json_documents import (
    JsonDocuments,
    QueueDocument,
    ReadJsonDocument,
    TenantDocument,
    TenantsDocument,
)

# For how long what another process set may go unseen by claims.
FRESH_MS = 1_000


class ObjectDirectory:
    """`QueueDirectory`, and the queues for the rest of the store."""

    def __init__(
        self,
        driver: LoopDriver,
        papers: JsonDocuments,
        clock: Clock,
        changed: Callable[[QueueRow, QueueChange], Awaitable[None]],
    ) -> None:
        """`changed` is awaited after a change to a queue's row."""
        self.driver = driver
        self._papers = papers
        self._clock = clock
        self._changed = changed
        self._rows: dict[QueueRef, tuple[int, QueueRow | None]] = {}
        self._tenants: dict[str, tuple[int, ReadJsonDocument[TenantDocument] | None]] = {}

    # --- Tenants ---------------------------------------------------------------------------------------------

    @on_driver
    async def find_tenant(self, tenant: str) -> TenantRow | None:
        held = await self._read_tenant(tenant)
        return None if held is None else _tenant_row(tenant, held.paper)

    async def config(self, name: str) -> TenantConfig:
        """As it was a second ago at most."""
        known = self._tenants.get(name)
        held = known[1] if known and self._is_fresh(known[0]) else await self._read_tenant(name)
        return TenantConfig() if held is None else held.paper.config

    @on_driver
    async def list_tenants(self) -> list[TenantRow]:
        rows = [await self.find_tenant(name) for name in sorted(await self._numbers())]
        return [row for row in rows if row is not None]

    async def names(self) -> list[str]:
        return sorted(await self._numbers())

    @on_driver
    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        held = await self._change_tenant(tenant, lambda paper: replace(paper, config=config))
        return _tenant_row(tenant, held.paper)

    async def _numbers(self) -> dict[str, int]:
        held = await self._papers.read(layout.TENANTS, TenantsDocument)
        return {} if held is None else held.paper.tenants

    async def _read_tenant(self, name: str) -> ReadJsonDocument[TenantDocument] | None:
        return self._note_tenant(name, await self._papers.read(layout.tenant(name), TenantDocument))

    def _note_tenant(
        self, name: str, held: ReadJsonDocument[TenantDocument] | None
    ) -> ReadJsonDocument[TenantDocument] | None:
        self._tenants[name] = (self._clock.now_ms(), held)
        return held

    async def _change_tenant(
        self, name: str, change: Callable[[TenantDocument], TenantDocument]
    ) -> ReadJsonDocument[TenantDocument]:
        async def write() -> ReadJsonDocument[TenantDocument]:
            held = await self._read_tenant(name)
            paper = TenantDocument(tenant_id=await self._take_number(name)) if held is None else held.paper
            changed = change(paper)
            if held is not None and changed == paper:
                return held
            written = await self._papers.write(layout.tenant(name), changed, held)
            self._note_tenant(name, written)
            return written

        return await until_unchanged(write, f"tenant {name} is changed by others all the time: later")

    async def _take_number(self, name: str) -> int:
        async def take() -> int:
            held = await self._papers.read(layout.TENANTS, TenantsDocument)
            known = {} if held is None else held.paper.tenants
            if name in known:
                return known[name]
            number = max(known.values(), default=0) + 1
            await self._papers.write(layout.TENANTS, TenantsDocument(tenants={**known, name: number}), held)
            return number

        return await until_unchanged(take, "tenants are made by others all the time: later")

    # --- Queues ----------------------------------------------------------------------------------------------

    @on_driver
    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        return await self.find(ref, fresh=True)

    async def find(self, ref: QueueRef, *, fresh: bool = False) -> QueueRow | None:
        """As it was a second ago at most; `fresh`: as it is."""
        known = self._rows.get(ref)
        if known is not None and known[1] is not None and not fresh and self._is_fresh(known[0]):
            return known[1]
        held = await self._papers.read(layout.policy(ref), QueueDocument)
        if held is None or held.paper.is_deleted:
            self._rows.pop(ref, None)
            return None
        return await self._note_row(ref, held.paper)

    async def require(self, ref: QueueRef, *, fresh: bool = False) -> QueueRow:
        row = await self.find(ref, fresh=fresh)
        if row is None:
            raise no_such_queue(ref)
        return row

    async def require_open(self, ref: QueueRef, *, fresh: bool = False) -> QueueRow:
        row = await self.require(ref, fresh=fresh)
        if row.drain_until is not None:
            raise being_deleted(ref)
        return row

    @on_driver
    async def list_queues(self, tenant: str) -> list[QueueRow]:
        held = await self._read_tenant(tenant)
        names = sorted(held.paper.queues) if held is not None else []
        rows = [await self.find(QueueRef(tenant, name), fresh=True) for name in names]
        return [row for row in rows if row is not None]

    @on_driver
    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        async def write() -> QueueRow:
            held = await self._papers.read(layout.policy(ref), QueueDocument)
            if held is not None and not held.paper.is_deleted:
                return await self._note_row(ref, held.paper)
            used = None if held is None else held.paper.queue_id
            number = await self._take_queue_number(ref, used)
            written = await self._papers.write(layout.policy(ref), QueueDocument(queue_id=number), held)
            return await self._note_row(ref, written.paper)

        return await until_unchanged(write, f"queue {ref} is made and deleted all the time: later")

    async def _take_queue_number(self, ref: QueueRef, used: int | None) -> int:
        """Its number in the tenant's list, if it has one that no deleted queue had; else the next."""

        def add(paper: TenantDocument) -> TenantDocument:
            if paper.queues.get(ref.queue) not in (None, used):
                return paper
            others = len(paper.queues) - (ref.queue in paper.queues)
            check_room_for_queue(ref.tenant, paper.config.quotas, others)
            queues = {**paper.queues, ref.queue: paper.next_queue_id}
            return replace(paper, queues=queues, next_queue_id=paper.next_queue_id + 1)

        return (await self._change_tenant(ref.tenant, add)).paper.queues[ref.queue]

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
            held = await self._papers.read(layout.policy(ref), QueueDocument)
            if held is None or held.paper.is_deleted:
                raise no_such_queue(ref)
            written = await self._papers.write(layout.policy(ref), replace(held.paper, **change.fields()), held)
            return await self._note_row(ref, written.paper)

        return await until_unchanged(write, f"queue {ref} is changed by others all the time: later")

    async def remove(self, row: QueueRow) -> None:
        """The last step of a deletion; may be done again."""
        ref = row.ref
        self._rows.pop(ref, None)
        held = await self._papers.read(layout.policy(ref), QueueDocument)
        if held is not None and held.paper.queue_id == row.queue_id and not held.paper.is_deleted:
            gone = QueueDocument(queue_id=row.queue_id, is_deleted=True)
            try:
                await self._papers.write(layout.policy(ref), gone, held)
            except PreconditionFailed:
                return  # a sweep goes on
        await self._forget(ref, row.queue_id)

    async def _forget(self, ref: QueueRef, queue_id: int) -> None:
        def drop(paper: TenantDocument) -> TenantDocument:
            if paper.queues.get(ref.queue) != queue_id:
                return paper
            return replace(paper, queues={name: id for name, id in paper.queues.items() if name != ref.queue})

        await self._change_tenant(ref.tenant, drop)

    async def default_ttl_ms(self, row: QueueRow) -> int | None:
        return default_ttl_ms(row.policy, (await self.config(row.ref.tenant)).quotas)

    async def _note_row(self, ref: QueueRef, paper: QueueDocument) -> QueueRow:
        tenant = self._tenants.get(ref.tenant)
        held = tenant[1] if tenant and tenant[1] else await self._read_tenant(ref.tenant)
        row = QueueRow(
            ref=ref,
            tenant_id=0 if held is None else held.paper.tenant_id,
            queue_id=paper.queue_id,
            policy=paper.policy,
            is_paused=paper.is_paused,
            drain_until=paper.drain_until,
        )
        self._rows[ref] = (self._clock.now_ms(), row)
        return row

    def _is_fresh(self, read_at: int) -> bool:
        return 0 <= self._clock.now_ms() - read_at < FRESH_MS


def _tenant_row(name: str, paper: TenantDocument) -> TenantRow:
    return TenantRow(tenant=name, tenant_id=paper.tenant_id, config=paper.config)
