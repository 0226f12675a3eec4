"""Session: the services as one caller may use them. What every door holds.

Each operation is permitted before anything else is looked at, so that a refusal tells nothing of what exists.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from holdfast.model.answers import (
    Changed,
    Delivery,
    Enqueued,
    Events,
    Exchanged,
    Info,
    LedgerEntry,
    Page,
    Part,
    QueueSummary,
    Result,
    Stats,
    TenantSummary,
)
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import Ask, Edit, Filter, StateChange, Verdict
from holdfast.model.schedules import Change, ScheduleInfo
from holdfast.service.access import ANYONE, EVERY_TENANT, Caller, permit
from holdfast.service.admin import AdminService
from holdfast.service.queues import QueueService
from holdfast.service.subscriptions import Subscription
from holdfast.service.uploads import Upload
from holdfast.service.watches import Watch
from holdfast.stores.contract import PayloadReader


class Session:
    def __init__(self, caller: Caller, messages: QueueService, admin: AdminService) -> None:
        self.caller = caller
        self._messages = messages
        self._admin = admin

    # --- Messages --------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]:
        permit(self.caller, "enqueue", ref.tenant)
        return await self._messages.enqueue(ref, drafts)

    async def enqueue_each(self, batches: Mapping[QueueRef, list[Draft]]) -> dict[QueueRef, list[Enqueued]]:
        """To several queues: all is permitted and checked before anything is taken, then each queue takes its own
        messages, all or none."""
        for ref in batches:
            permit(self.caller, "enqueue_each", ref.tenant)
        return await self._messages.enqueue_each(batches)

    async def upload(self, ref: QueueRef, draft: Draft) -> Upload:
        permit(self.caller, "upload", ref.tenant)
        return await self._messages.upload(ref, draft)

    async def claim(self, ref: QueueRef, ask: Ask, wait_ms: int | None) -> list[Delivery]:
        permit(self.caller, "claim", ref.tenant)
        return await self._messages.claim(ref, self._owned(ask), wait_ms)

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]:
        permit(self.caller, "settle", ref.tenant)
        return await self._messages.settle(ref, verdicts)

    async def exchange(self, ref: QueueRef, verdicts: list[Verdict], ask: Ask) -> Exchanged:
        permit(self.caller, "exchange", ref.tenant)
        return await self._messages.exchange(ref, verdicts, self._owned(ask))

    async def held_by(self, ref: QueueRef, id: object) -> Receipt:
        """The receipt of a message that this caller holds, for protocols in which it names the message alone. Where
        nobody says who they are, whoever asks is its holder."""
        permit(self.caller, "held_by", ref.tenant)
        owner = None if self.caller == ANYONE else self.caller.subject
        return await self._messages.held_by(ref, id, owner)

    async def subscribe(self, ref: QueueRef, ask: Ask, prefetch: int) -> Subscription:
        permit(self.caller, "subscribe", ref.tenant)
        return await self._messages.subscribe(ref, self._owned(ask), prefetch)

    async def watch(self, ref: QueueRef) -> Watch:
        permit(self.caller, "watch", ref.tenant)
        return await self._messages.watch(ref)

    async def read_payload(self, ref: QueueRef, delivery: Delivery) -> PayloadReader:
        """Of a delivery of this session that has its payload in pieces."""
        permit(self.caller, "read_payload", ref.tenant)
        return await self._messages.read_payload(ref, delivery)

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> Part:
        """Of the payload of a message that the receipt holds, whoever claimed it."""
        permit(self.caller, "read_part", ref.tenant)
        return await self._messages.read_part(ref, receipt, offset, limit)

    def give_back(self, ref: QueueRef, deliveries: list[Delivery]) -> None:
        """What was claimed in this session and could not be sent: it is claimable again at once, and counts nothing."""
        self._messages.give_back(ref, deliveries)

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange) -> str | None:
        permit(self.caller, "save_state", ref.tenant)
        return await self._messages.save_state(ref, receipt, change)

    def _owned(self, ask: Ask) -> Ask:
        """A lease is its claimer's: by the name it gave, else by the credential's."""
        return replace(ask, owner=self.caller.subject) if ask.owner is None and self.caller.subject else ask

    async def get(self, ref: QueueRef, id: object, *, with_payload: bool = False) -> Info:
        permit(self.caller, "get", ref.tenant)
        return await self._messages.get(ref, id, with_payload=with_payload)

    async def peek(self, ref: QueueRef, limit: int) -> list[Info]:
        permit(self.caller, "peek", ref.tenant)
        return await self._messages.peek(ref, limit)

    async def browse(
        self,
        ref: QueueRef,
        state: State | None,
        which: Filter,
        cursor: str | None,
        limit: int,
        *,
        with_payload: bool = False,
    ) -> Page[Info]:
        permit(self.caller, "browse", ref.tenant)
        return await self._messages.browse(ref, state, which, cursor, limit, with_payload=with_payload)

    async def stats(self, ref: QueueRef) -> Stats:
        permit(self.caller, "stats", ref.tenant)
        return await self._messages.stats(ref)

    async def journal(
        self,
        after: str | None,
        limit: int,
        *,
        tenant: str | None = None,
        wait_ms: int = 0,
        until: str | None = None,
    ) -> Events:
        """An operator sees every tenant's events, or those of the one it names; anybody else its own."""
        permit(self.caller, "journal", tenant)
        seen = tenant if self.caller.is_operator else self.caller.tenant
        return await self._messages.journal(after, limit, seen, wait_ms, until)

    async def ledger(self, ref: QueueRef, consumer: str, number: int | None = None) -> list[LedgerEntry]:
        permit(self.caller, "ledger", ref.tenant)
        return await self._messages.ledger(ref, consumer, number)

    async def ledger_ack(self, ref: QueueRef, consumer: str, upto: int) -> list[Result]:
        permit(self.caller, "ledger_ack", ref.tenant)
        return await self._messages.ledger_ack(ref, consumer, upto)

    async def ledger_extend(self, ref: QueueRef, consumer: str, lease_ms: int | None) -> list[Result]:
        permit(self.caller, "ledger_extend", ref.tenant)
        return await self._messages.ledger_extend(ref, consumer, lease_ms)

    # --- Administration --------------------------------------------------------------------------------------

    async def tenants(self) -> list[TenantSummary]:
        """All of them to an operator, to anybody else its own."""
        permit(self.caller, "tenants", None)
        every = await self._admin.tenants()
        return [each for each in every if self.caller.tenant in (each.tenant, EVERY_TENANT)]

    async def tenant(self, tenant: str) -> TenantConfig:
        permit(self.caller, "tenant", tenant)
        return await self._admin.tenant(tenant)

    async def set_tenant(self, tenant: str, changes: Mapping[str, Any]) -> TenantConfig:
        permit(self.caller, "set_tenant", tenant)
        return await self._admin.set_tenant(tenant, changes)

    async def tenant_stats(self, tenant: str) -> Stats:
        permit(self.caller, "tenant_stats", tenant)
        return await self._admin.tenant_stats(tenant)

    async def queues(self, tenant: str) -> list[QueueSummary]:
        permit(self.caller, "queues", tenant)
        return await self._admin.queues(tenant)

    async def queue(self, ref: QueueRef) -> tuple[Stats, QueuePolicy]:
        permit(self.caller, "queue", ref.tenant)
        return await self._messages.stats(ref), await self._admin.policy(ref)

    async def policy(self, ref: QueueRef) -> QueuePolicy:
        permit(self.caller, "policy", ref.tenant)
        return await self._admin.policy(ref)

    async def set_policy(self, ref: QueueRef, changes: Mapping[str, Any]) -> QueuePolicy:
        permit(self.caller, "set_policy", ref.tenant)
        return await self._admin.set_policy(ref, changes)

    async def pause(self, ref: QueueRef, is_paused: bool) -> None:
        permit(self.caller, "pause", ref.tenant)
        await self._admin.pause(ref, is_paused)

    async def delete(self, ref: QueueRef, force_after_ms: int) -> None:
        permit(self.caller, "delete", ref.tenant)
        await self._admin.delete(ref, force_after_ms)

    async def schedules(self, ref: QueueRef) -> list[ScheduleInfo]:
        permit(self.caller, "schedules", ref.tenant)
        return await self._admin.schedules(ref)

    async def schedule(self, ref: QueueRef, name: str, *, with_payload: bool = False) -> ScheduleInfo:
        permit(self.caller, "schedule", ref.tenant)
        return await self._admin.schedule(ref, name, with_payload=with_payload)

    async def set_schedule(self, ref: QueueRef, name: str, change: Change) -> ScheduleInfo:
        permit(self.caller, "set_schedule", ref.tenant)
        return await self._admin.set_schedule(ref, name, change)

    async def delete_schedule(self, ref: QueueRef, name: str) -> None:
        permit(self.caller, "delete_schedule", ref.tenant)
        await self._admin.delete_schedule(ref, name)

    async def backup(self, target: str) -> None:
        permit(self.caller, "backup", None)
        await self._admin.backup(target)

    async def metrics(self) -> None:
        """Whoever shows the server's figures asks here first: they tell of every tenant."""
        permit(self.caller, "metrics", None)

    async def purge(self, ref: QueueRef, state: State) -> Changed:
        permit(self.caller, "purge", ref.tenant)
        return await self._admin.purge(ref, state)

    async def cancel(self, ref: QueueRef, which: Filter) -> Changed:
        permit(self.caller, "cancel", ref.tenant)
        return await self._admin.cancel(ref, which)

    async def reprioritise(self, ref: QueueRef, which: Filter, priority: int) -> Changed:
        permit(self.caller, "reprioritise", ref.tenant)
        return await self._admin.reprioritise(ref, which, priority)

    async def move(self, ref: QueueRef, to: QueueRef, which: Filter, state: State) -> Changed:
        permit(self.caller, "move", ref.tenant)
        permit(self.caller, "move", to.tenant)
        return await self._admin.move(ref, to, which, state)

    async def remove(self, ref: QueueRef, id: object) -> None:
        permit(self.caller, "remove", ref.tenant)
        await self._admin.remove(ref, id)

    async def redrive(
        self,
        ref: QueueRef,
        which: Filter,
        *,
        rate_per_s: float | None = None,
        dry_run: bool = False,
        edit: Edit | None = None,
    ) -> Changed:
        permit(self.caller, "redrive", ref.tenant)
        return await self._admin.redrive(ref, which, rate_per_s=rate_per_s, dry_run=dry_run, edit=edit)
