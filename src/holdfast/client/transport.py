"""What the client needs of whatever carries its calls: the service itself when embedded, a network otherwise."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

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
from holdfast.model.errors import HoldfastError
from holdfast.model.message import Draft, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import Ask, Edit, Filter, StateChange, Verdict
from holdfast.model.schedules import Change, ScheduleInfo


class Interrupted(Exception):
    """An upload was lost on its way, and may be written again from its first byte. `error`: for those who cannot."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(str(error))
        self.error = error


class Upload(Protocol):
    """An enqueue whose payload comes bit by bit. However it ends, whoever began it calls `abandon`."""

    async def write(self, part: bytes) -> None:
        """A refusal is raised as soon as it is known. `Interrupted`."""

    async def enqueue(self) -> Enqueued:
        """The payload is whole. `Interrupted`."""

    async def abandon(self) -> None:
        """What was not enqueued is gone. Does nothing to what was."""


class Messages(Protocol):
    async def enqueue(self, ref: QueueRef, drafts: list[Draft]) -> list[Enqueued]: ...

    async def upload(self, ref: QueueRef, draft: Draft, size: int | None = None) -> Upload:
        """Of the message all but its payload, which is to come; its length where it is known."""

    async def claim(self, ref: QueueRef, ask: Ask, wait_ms: int | None) -> list[Delivery]: ...

    async def exchange(self, ref: QueueRef, verdicts: list[Verdict], ask: Ask) -> Exchanged:
        """Settle, then claim what is ready, in one round trip. It does not wait: the verdicts are to be heard of,
        also where the claim is refused for now."""

    def stream(self, ref: QueueRef, ask: Ask, prefetch: int) -> AsyncIterator[Delivery]:
        """Deliveries as they become ready, for ever; at most `prefetch` are under way or unsettled."""

    async def settle(self, ref: QueueRef, verdicts: list[Verdict]) -> list[Result]: ...

    async def read_part(self, ref: QueueRef, receipt: Receipt, offset: int, limit: int) -> Part:
        """Of a payload that a claim left where it is (`Ask.streams`), as long as the receipt holds. `StaleLease`."""

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange) -> str | None: ...

    async def get(self, ref: QueueRef, id: object, *, with_payload: bool = False) -> Info: ...

    async def peek(self, ref: QueueRef, limit: int) -> list[Info]: ...

    async def browse(
        self,
        ref: QueueRef,
        state: State | None,
        which: Filter,
        cursor: str | None,
        limit: int,
        *,
        with_payload: bool = False,
    ) -> Page[Info]: ...

    async def stats(self, ref: QueueRef) -> Stats: ...

    async def journal(self, after: str | None, limit: int, tenant: str | None) -> Events: ...

    async def ledger(self, ref: QueueRef, consumer: str, number: int | None = None) -> list[LedgerEntry]: ...

    async def ledger_ack(self, ref: QueueRef, consumer: str, upto: int) -> list[Result]: ...

    async def ledger_extend(self, ref: QueueRef, consumer: str, lease_ms: int | None) -> list[Result]: ...


class Admin(Protocol):
    async def tenants(self) -> list[TenantSummary]: ...

    async def tenant(self, tenant: str) -> TenantConfig: ...

    async def set_tenant(self, tenant: str, changes: Mapping[str, Any]) -> TenantConfig: ...

    async def tenant_stats(self, tenant: str) -> Stats: ...

    async def queues(self, tenant: str) -> list[QueueSummary]: ...

    async def policy(self, ref: QueueRef) -> QueuePolicy: ...

    async def set_policy(self, ref: QueueRef, changes: Mapping[str, Any]) -> QueuePolicy: ...

    async def pause(self, ref: QueueRef, is_paused: bool) -> None: ...

    async def delete(self, ref: QueueRef, force_after_ms: int) -> None: ...

    async def schedules(self, ref: QueueRef) -> list[ScheduleInfo]: ...

    async def schedule(self, ref: QueueRef, name: str, *, with_payload: bool = False) -> ScheduleInfo: ...

    async def set_schedule(self, ref: QueueRef, name: str, change: Change) -> ScheduleInfo: ...

    async def delete_schedule(self, ref: QueueRef, name: str) -> None: ...

    async def backup(self, target: str) -> None: ...

    async def purge(self, ref: QueueRef, state: State) -> Changed: ...

    async def cancel(self, ref: QueueRef, which: Filter) -> Changed: ...

    async def reprioritise(self, ref: QueueRef, which: Filter, priority: int) -> Changed: ...

    async def move(self, ref: QueueRef, to: QueueRef, which: Filter, state: State) -> Changed: ...

    async def remove(self, ref: QueueRef, id: object) -> None: ...

    async def redrive(
        self,
        ref: QueueRef,
        which: Filter,
        *,
        rate_per_s: float | None = None,
        dry_run: bool = False,
        edit: Edit | None = None,
    ) -> Changed: ...


class Transport(Protocol):
    @property
    def messages(self) -> Messages: ...

    @property
    def admin(self) -> Admin: ...

    async def close(self) -> None: ...
