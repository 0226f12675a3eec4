"""A legacy database opened as a read-only store, to inspect it before its migration.

Its messages are those of the queue default/default. A message whose id is not a valid id of this format is shown under
an id derived from it; the migration gives it another id.
"""

import logging
import os
from bisect import bisect_right, insort
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, NoReturn

from holdfast.model import ids
from holdfast.model.answers import Counts, Enqueued, Found, Result, Saved
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.message import Envelope, State, headers_bytes
from holdfast.model.names import DEFAULT, QueueRef
from holdfast.model.requests import Filter, StateDocument
from holdfast.model.rules.lifecycle import Lease, Life
from holdfast.runtime import Runtime
from holdfast.stores.contract import Listener
from holdfast.stores.logic.results import no_such_queue
from holdfast.stores.rocks.legacy.entries import LegacyMessage
from holdfast.stores.rocks.legacy.legacy_database import LegacyDatabase
from holdfast.stores.rocks.legacy.message_import import LEGACY_ID, LEGACY_QUEUE, own_id
from holdfast.stores.rocks.legacy.store_parts import LegacyDirectory, LegacyLedgers, LegacyPayloads, LegacySchedules
from holdfast.stores.values import Capabilities, JournalPage, Listing, Swept
from holdfast.telemetry.figures import Figures

_log = logging.getLogger("holdfast")


class _Entry(NamedTuple):
    """A message in the index, without its payload."""

    shown_id: int
    id: bytes
    # The instant from which it can be claimed. For a message under a lease it is not before the end of the lease.
    ready_at: int
    lease_expires_at: int | None


class _Index:
    """All messages of the database. When a lease ends, its message becomes ready, though nothing is written."""

    def __init__(self, entries: list[_Entry], bytes: int) -> None:
        self.entries = sorted(entries)
        self.bytes = bytes
        self._ready = sorted((entry for entry in entries if entry.lease_expires_at is None), key=_claim_order)
        self._held = sorted(
            (entry for entry in entries if entry.lease_expires_at is not None), key=_lease_end, reverse=True
        )

    def ready(self, now_ms: int) -> list[_Entry]:
        """Return the messages that are not under a lease, in the order of claims."""
        while self._held and _lease_end(self._held[-1]) <= now_ms:
            insort(self._ready, self._held.pop(), key=_claim_order)
        return self._ready

    def due(self, now_ms: int) -> int:
        """Return the number of `ready` messages that can be claimed now."""
        return bisect_right(self.ready(now_ms), now_ms, key=lambda entry: entry.ready_at)

    def in_flight(self, now_ms: int) -> int:
        """Return the number of messages under a lease that has not ended."""
        return len(self.entries) - len(self.ready(now_ms))


class LegacyStore:
    """A `Store` that refuses every change. `stores/contract.py` documents the methods."""

    capabilities = Capabilities(is_durable=True)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._database: LegacyDatabase | None = None
        self._index: _Index | None = None
        self.directory = LegacyDirectory(self._refuse)
        self.schedules = LegacySchedules(self._refuse)
        self.ledgers = LegacyLedgers(self._refuse)
        self.payloads = LegacyPayloads(self._refuse)

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._runtime = runtime
        self._database = LegacyDatabase(self._path)
        _log.warning(
            "legacy_store_opened path=%s queue=%s order=%r: it is read-only",
            self._path,
            LEGACY_QUEUE,
            str(self._database.order),
        )

    async def close(self) -> None:
        database, self._database, self._index = self._database, None, None
        if database is not None:
            database.close()

    def shard_of(self, ref: QueueRef) -> int:
        return 0

    # --- Inspection --------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        _require(ref)
        entries = (await self._read()).entries
        at = bisect_right(entries, id, key=_shown_id) - 1
        return self._found(entries[at], self._now_ms()) if at >= 0 and entries[at].shown_id == id else None

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        _require(ref)
        index = await self._read()
        return [self._found(entry, now_ms) for entry in index.ready(now_ms)[: min(limit, index.due(now_ms))]]

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        _require(ref)
        entries = (await self._read()).entries
        page: list[Found] = []
        for at in range(0 if after is None else bisect_right(entries, after, key=_shown_id), len(entries)):
            found = self._found(entries[at], now_ms)
            if state in (None, found.life.state) and which.matches(found.envelope, found.life, now_ms):
                if len(page) == limit:
                    return Listing(page, page[-1].envelope.id)
                page.append(found)
        return Listing(page, None)

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        if queue is not None:
            _require(QueueRef(tenant, queue))
        return await self._counts(now_ms) if tenant == DEFAULT else Counts()

    async def _counts(self, now_ms: int) -> Counts:
        index = await self._read()
        ready, due = index.ready(now_ms), index.due(now_ms)
        return Counts(
            ready=due,
            delayed=len(ready) - due,
            in_flight=index.in_flight(now_ms),
            bytes=index.bytes,
            oldest_ready_at=ready[0].ready_at if due else None,
        )

    # --- Empty results -----------------------------------------------------------------------------------------

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

    # --- Changes, which are refused ----------------------------------------------------------------------------

    async def enqueue(self, *_: Any, auto_create: bool) -> list[Enqueued]:
        self._refuse()

    async def claim(self, *_: Any) -> Any:
        self._refuse()

    async def settle(self, *_: Any) -> list[Result]:
        self._refuse()

    async def save_state(self, *_: Any) -> Saved:
        self._refuse()

    async def alter(self, *_: Any) -> Any:
        self._refuse()

    async def backup(self, target: str) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidArgument(
            f"{self._path} is of the legacy layout and opened read-only: open it without legacy_read_only, or make it "
            f"a store with `holdfast db migrate {self._path}`",
            field="url",
        )

    # --- Reading -----------------------------------------------------------------------------------------------

    async def _read(self) -> _Index:
        """Return the index, built by the first call on another thread. It stays valid, because the database is locked
        against writers."""
        if self._index is None:
            database = self._opened()
            self._index = await self._runtime.offload(lambda: _index_of(database))
        return self._index

    def _found(self, entry: _Entry, now_ms: int) -> Found:
        message = self._opened().find(entry.id)
        if message is None:
            raise StoreUnavailable(f"{self._path} changed while it was read: open it again", path=str(self._path))
        envelope = Envelope(
            id=entry.shown_id, enqueued_at=message.visible_at, payload=message.payload, headers=_headers_of(message)
        )
        expires_at = message.lease_expires_at
        if expires_at is None or not message.is_held(now_ms):
            return Found(envelope, Life(visible_at=message.ready_at()), StateDocument())
        lease = Lease(token=b"", claimed_at=0, expires_at=expires_at, ends_at=expires_at)
        life = Life(state=State.IN_FLIGHT, visible_at=message.visible_at, attempt=1, version=1, lease=lease)
        return Found(envelope, life, StateDocument())

    def _now_ms(self) -> int:
        return self._runtime.clock.now_ms()

    def _opened(self) -> LegacyDatabase:
        if self._database is None:
            raise StoreUnavailable("this store was closed: open it again")
        return self._database


def _index_of(database: LegacyDatabase) -> _Index:
    entries: list[_Entry] = []
    size = unreadable = 0
    for _, found in database.read():
        if isinstance(found, LegacyMessage):
            entries.append(_Entry(_shown(found.id), found.id, found.ready_at(), found.lease_expires_at))
            size += len(found.payload) + headers_bytes(_headers_of(found))
        elif found is not None:
            unreadable += found.is_unreadable
    if unreadable:
        _log.warning(
            "legacy_keys_unreadable path=%s number=%d: they are left out; `holdfast db migrate %s` names some",
            database.path,
            unreadable,
            database.path,
        )
    return _Index(entries, size)


def _claim_order(entry: _Entry) -> tuple[int, int]:
    return entry.ready_at, entry.shown_id


def _lease_end(entry: _Entry) -> int:
    return entry.lease_expires_at or 0


def _shown_id(entry: _Entry) -> int:
    return entry.shown_id


def _shown(id: bytes) -> int:
    own = own_id(id)
    return int.from_bytes(blake2b(id, digest_size=8).digest(), "big") & ids.MAX_ID if own is None else own


def _headers_of(message: LegacyMessage) -> dict[str, str]:
    return {} if own_id(message.id) is not None else {LEGACY_ID: message.id.hex()}


def _require(ref: QueueRef) -> None:
    if ref != LEGACY_QUEUE:
        raise no_such_queue(ref)
