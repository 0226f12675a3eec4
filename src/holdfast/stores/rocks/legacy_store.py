"""A legacy database opened as a store: its messages are read as those of default/default, and nothing is changed.

For a look before the migration. Ids that are not ours are shown as others made from them; what the migration gives them
is not known before it.
"""

import logging
import os
from bisect import bisect_right
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, NoReturn

from holdfast.model import ids
from holdfast.model.answers import Counts, Enqueued, Found, LedgerEntry, Result
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.lifecycle import Lease, Life
from holdfast.model.message import Envelope, State, headers_bytes
from holdfast.model.names import DEFAULT, QueueRef
from holdfast.model.requests import Filter, StateDocument
from holdfast.model.schedules import Schedule
from holdfast.runtime import Runtime
from holdfast.stores.answers import no_such_queue
from holdfast.stores.contract import (
    Capabilities,
    DueSchedules,
    JournalPage,
    Listener,
    Listing,
    PayloadReader,
    QueueRow,
    Swept,
    TenantRow,
)
from holdfast.stores.rocks.legacy import LegacyDatabase, LegacyMessage
from holdfast.stores.rocks.legacy_intake import LEGACY_ID, LEGACY_QUEUE, own_id
from holdfast.telemetry.figures import Figures

_log = logging.getLogger("holdfast")

_TENANT = TenantRow(tenant=DEFAULT, tenant_id=1)
_QUEUE = QueueRow(ref=LEGACY_QUEUE, tenant_id=1, queue_id=1)


class _Line(NamedTuple):
    """What is held of a message: all but its payload."""

    shown_id: int
    visible_at: int
    id: bytes
    is_held: bool


class _Index(NamedTuple):
    # By the id that is shown.
    lines: list[_Line]
    # Of those that are ready, in the order in which they would be claimed.
    ready: list[tuple[int, int, bytes]]
    in_flight: int
    bytes: int


class LegacyStore:
    """`Store`, of which all that changes anything is refused."""

    capabilities = Capabilities(is_durable=True)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._database: LegacyDatabase | None = None
        self._index: _Index | None = None

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._runtime = runtime
        self._database = LegacyDatabase(self._path)
        _log.warning(
            "%s is of the legacy layout: it is read as the queue %s, and cannot be changed. To make it a store: "
            "holdfast db migrate %s",
            self._path,
            LEGACY_QUEUE,
            self._path,
        )

    async def close(self) -> None:
        database, self._database, self._index = self._database, None, None
        if database is not None:
            database.close()

    def shard_of(self, ref: QueueRef) -> int:
        return 0

    # --- What is there -----------------------------------------------------------------------------------------

    async def find_tenant(self, tenant: str) -> TenantRow | None:
        return _TENANT if tenant == DEFAULT else None

    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        return _QUEUE if ref == LEGACY_QUEUE else None

    async def list_tenants(self) -> list[TenantRow]:
        return [_TENANT]

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        return [_QUEUE] if tenant == DEFAULT else []

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        _require(ref)
        lines = (await self._read()).lines
        at = bisect_right(lines, id, key=_shown_id) - 1
        return self._found(lines[at]) if at >= 0 and lines[at].shown_id == id else None

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        _require(ref)
        index = await self._read()
        due = index.ready[: min(limit, _count_due(index, now_ms))]
        return [self._found(_Line(shown, visible_at, id, False)) for visible_at, shown, id in due]

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        _require(ref)
        lines = (await self._read()).lines
        page: list[Found] = []
        for at in range(0 if after is None else bisect_right(lines, after, key=_shown_id), len(lines)):
            found = self._found(lines[at])
            if state in (None, found.life.state) and which.matches(found.envelope, found.life, now_ms):
                if len(page) == limit:
                    return Listing(page, page[-1].envelope.id)
                page.append(found)
        return Listing(page, None)

    async def counts(self, ref: QueueRef, now_ms: int) -> Counts:
        _require(ref)
        return await self._counts(now_ms)

    async def tenant_counts(self, tenant: str, now_ms: int) -> Counts:
        return await self._counts(now_ms) if tenant == DEFAULT else Counts()

    async def _counts(self, now_ms: int) -> Counts:
        index = await self._read()
        due = _count_due(index, now_ms)
        return Counts(
            ready=due,
            delayed=len(index.ready) - due,
            in_flight=index.in_flight,
            bytes=index.bytes,
            oldest_ready_at=index.ready[0][0] if due else None,
        )

    # --- What there is none of ---------------------------------------------------------------------------------

    async def ledger(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        return []

    async def find_schedule(self, ref: QueueRef, name: str) -> Schedule | None:
        return None

    async def list_schedules(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        return []

    async def due_schedules(self, limit: int, now_ms: int) -> DueSchedules:
        return DueSchedules([], None)

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        return Swept(0, None)

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        return JournalPage([], after or "0")

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        return {}

    async def figures(self) -> Figures:
        return Figures()

    # --- What is refused ---------------------------------------------------------------------------------------

    async def put_tenant(self, *_: Any) -> TenantRow:
        self._refuse()

    async def create_queue(self, *_: Any) -> QueueRow:
        self._refuse()

    async def put_policy(self, *_: Any) -> QueueRow:
        self._refuse()

    async def pause(self, *_: Any) -> QueueRow:
        self._refuse()

    async def drain(self, *_: Any) -> QueueRow:
        self._refuse()

    async def enqueue(self, *_: Any, auto_create: bool) -> list[Enqueued]:
        self._refuse()

    async def stage(self, *_: Any, auto_create: bool) -> Any:
        self._refuse()

    async def read_payload(self, *_: Any) -> PayloadReader:
        self._refuse()

    async def claim(self, *_: Any) -> Any:
        self._refuse()

    async def settle(self, *_: Any) -> list[Result]:
        self._refuse()

    async def save_state(self, *_: Any) -> str | None:
        self._refuse()

    async def alter(self, *_: Any) -> Any:
        self._refuse()

    async def ledger_ack(self, *_: Any) -> list[Result]:
        self._refuse()

    async def ledger_extend(self, *_: Any) -> list[Result]:
        self._refuse()

    async def put_schedule(self, *_: Any) -> bool:
        self._refuse()

    async def fire_schedule(self, *_: Any) -> Enqueued | None:
        self._refuse()

    async def delete_schedule(self, *_: Any) -> bool:
        self._refuse()

    async def backup(self, target: str) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidArgument(
            f"{self._path} is of the legacy layout, and is only read: make it a store with `holdfast db migrate "
            f"{self._path}`",
            field="url",
        )

    # --- Reading -----------------------------------------------------------------------------------------------

    async def _read(self) -> _Index:
        """Once: nobody can write to it meanwhile. Large ones take a while, and nobody else waits for that."""
        if self._index is None:
            database = self._opened()
            self._index = await self._runtime.offload(lambda: _index_of(database))
        return self._index

    def _found(self, line: _Line) -> Found:
        message = self._opened().find(line.id)
        if message is None:
            raise StoreUnavailable(f"{self._path} changed while it was read: open it again", path=str(self._path))
        envelope = Envelope(
            id=line.shown_id, enqueued_at=message.visible_at, payload=message.payload, headers=_headers_of(message)
        )
        expires_at = message.lease_expires_at
        if expires_at is None:
            return Found(envelope, Life(visible_at=message.visible_at), StateDocument())
        lease = Lease(token=b"", claimed_at=0, expires_at=expires_at, ends_at=expires_at)
        life = Life(state=State.IN_FLIGHT, visible_at=message.visible_at, attempt=1, version=1, lease=lease)
        return Found(envelope, life, StateDocument())

    def _opened(self) -> LegacyDatabase:
        if self._database is None:
            raise StoreUnavailable("this store was closed: open it again")
        return self._database


def _index_of(database: LegacyDatabase) -> _Index:
    lines: list[_Line] = []
    size = 0
    for _, found in database.read():
        if isinstance(found, LegacyMessage):
            is_held = found.lease_expires_at is not None
            lines.append(_Line(_shown(found.id), found.visible_at, found.id, is_held))
            size += len(found.payload) + headers_bytes(_headers_of(found))
    lines.sort()
    ready = sorted((line.visible_at, line.shown_id, line.id) for line in lines if not line.is_held)
    return _Index(lines, ready, len(lines) - len(ready), size)


def _count_due(index: _Index, now_ms: int) -> int:
    return bisect_right(index.ready, now_ms, key=lambda each: each[0])


def _shown_id(line: _Line) -> int:
    return line.shown_id


def _shown(id: bytes) -> int:
    own = own_id(id)
    return int.from_bytes(blake2b(id, digest_size=8).digest(), "big") & ids.MAX_ID if own is None else own


def _headers_of(message: LegacyMessage) -> dict[str, str]:
    return {} if own_id(message.id) is not None else {LEGACY_ID: message.id.hex()}


def _require(ref: QueueRef) -> None:
    if ref != LEGACY_QUEUE:
        raise no_such_queue(ref)
