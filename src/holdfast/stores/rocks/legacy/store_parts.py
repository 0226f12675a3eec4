"""The parts of a `LegacyStore`: one tenant and one queue, without schedules or ledgers. Changes are refused."""

from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.model.answers import Enqueued, LedgerEntry, Result
from holdfast.model.names import DEFAULT, QueueNumbers, QueueRef
from holdfast.model.schedules import Schedule
from holdfast.stores.contract import PayloadReader, PayloadWriter
from holdfast.stores.rocks.legacy.message_import import LEGACY_QUEUE
from holdfast.stores.values import DueSchedules, QueueRow, TenantRow

_TENANT = TenantRow(tenant=DEFAULT, tenant_id=1)
_QUEUE = QueueRow(ref=LEGACY_QUEUE, tenant_id=1, queue_id=1)

Refuse = Callable[[], NoReturn]


class LegacyDirectory:
    """The `QueueDirectory` of a legacy database."""

    def __init__(self, refuse: Refuse) -> None:
        self._refuse = refuse

    async def find_tenant(self, tenant: str) -> TenantRow | None:
        return _TENANT if tenant == DEFAULT else None

    async def list_tenants(self) -> list[TenantRow]:
        return [_TENANT]

    async def put_tenant(self, *_: Any) -> TenantRow:
        self._refuse()

    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        return _QUEUE if ref == LEGACY_QUEUE else None

    def numbers_of(self, ref: QueueRef) -> QueueNumbers | None:
        return QueueNumbers(_QUEUE.tenant_id, _QUEUE.queue_id) if ref == LEGACY_QUEUE else None

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        return [_QUEUE] if tenant == DEFAULT else []

    async def create_queue(self, *_: Any) -> QueueRow:
        self._refuse()

    async def change_queue(self, *_: Any) -> QueueRow:
        self._refuse()


class LegacySchedules:
    """The `ScheduleStore` of a legacy database, which has no schedules."""

    def __init__(self, refuse: Refuse) -> None:
        self._refuse = refuse

    async def find(self, ref: QueueRef, name: str) -> Schedule | None:
        return None

    async def page(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        return []

    async def put(self, *_: Any) -> bool:
        self._refuse()

    async def fire(self, *_: Any) -> Enqueued | None:
        self._refuse()

    async def delete(self, *_: Any) -> bool:
        self._refuse()

    async def due(self, limit: int, now_ms: int) -> DueSchedules:
        return DueSchedules([], None)


class LegacyLedgers:
    """The `LedgerStore` of a legacy database, which has no ledgers."""

    def __init__(self, refuse: Refuse) -> None:
        self._refuse = refuse

    async def entries(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        return []

    async def ack(self, *_: Any) -> list[Result]:
        self._refuse()

    async def extend(self, *_: Any) -> list[Result]:
        self._refuse()


class LegacyPayloads:
    """The `PayloadStore` of a legacy database, which has no payloads in pieces."""

    def __init__(self, refuse: Refuse) -> None:
        self._refuse = refuse

    async def stage(self, *_: Any, auto_create: bool) -> PayloadWriter:
        self._refuse()

    async def read(self, *_: Any) -> PayloadReader:
        self._refuse()
