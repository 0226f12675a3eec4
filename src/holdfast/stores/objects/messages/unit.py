"""Run steps of the shared logic on a bucket: verdicts, bulk verbs, ends of leases and TTLs, and the deletion of queues.

The caller finds the messages and gives them to the unit. The unit collects the changes, and the caller writes them:
`write` writes all of them or none, `write_ends` each on its own. Both write only messages that the bucket still has as
they were given to the unit.

Enqueueing, claims, state documents and ledgers do not use this unit: each writes several objects in an order that makes
a crash between two of them harmless, and a failure of the second write does not undo the first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from msgspec.structs import replace

from holdfast.model.message import Envelope, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter
from holdfast.model.rules.lifecycle import Change, Life
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.sweep import end_by_time
from holdfast.stores.objects.buckets.retries import run_concurrently
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import MessageBody, is_small
from holdfast.stores.objects.documents.cas_documents import CasWrite
from holdfast.stores.objects.messages.counts import QueueCounts
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import MessageMove, ObjectMessages
from holdfast.stores.objects.messages.queue_windows import ObjectQueueState
from holdfast.stores.unit import Sized
from holdfast.stores.values import QueueRow


class OpenQueue(NamedTuple):
    """A queue of a unit. The default TTL is set where a bulk verb needs it."""

    row: QueueRow
    default_ttl_ms: int | None = None


@dataclass(slots=True)
class LoadedEntry:
    """A message as it is stored, and as the unit has changed it. `payload` replaces the stored one, unless the changed
    metadata has it."""

    stored: IndexedMessage
    body: MessageBody
    payload: bytes | None = None

    @property
    def envelope(self) -> Envelope:
        """The message's envelope, as changed."""
        return self.body.envelope()

    @property
    def life(self) -> Life:
        """The message's life, as changed."""
        return self.body.life

    @property
    def key(self) -> str:
        """The key where the metadata belongs. A failed message stays in msg/ until `ObjectBulkVerbs.move_dead_letters`
        moves it."""
        stored, is_failed = self.stored, self.life.state is State.FAILED
        is_revived = layout.is_dead(stored.document.key) and self.body.is_message and not is_failed
        if is_revived or self.body.ref != stored.body.ref:
            return layout.message_after_move(self.body.ref, stored.id, stored.body.stubs, dead=is_failed)
        return stored.document.key

    # Last, because the name hides the type `bytes` from here on.
    @property
    def bytes(self) -> int:
        """The size of payload and headers, as changed."""
        return self.body.bytes


def _loaded(entry: IndexedMessage) -> LoadedEntry:
    return LoadedEntry(entry, entry.body)


@dataclass(slots=True)
class ObjectUnit:
    """A `ChangeUnit`. `entries` are the messages that the caller has found, by id."""

    messages: ObjectMessages
    queue_counts: QueueCounts
    now_ms: int
    notices: Notices
    queues: Sequence[OpenQueue]
    entries: dict[int, LoadedEntry]
    is_durable: bool = True
    # Changes caused by time alone.
    ends: list[tuple[LoadedEntry, Change]] = field(default_factory=list)
    # By tenant: the writes that make concurrent checks of its quotas fail.
    quota_writes: dict[str, list[CasWrite]] = field(default_factory=dict)

    # --- Queues ----------------------------------------------------------------------------------------------

    async def find(self, ref: QueueRef) -> OpenQueue | None:
        return next((queue for queue in self.queues if queue.row.ref == ref), None)

    def default_ttl_ms(self, queue: OpenQueue) -> int | None:
        return queue.default_ttl_ms

    async def check_quotas(self, ref: QueueRef, added: Sequence[Sized], freed: Sequence[Sized] = ()) -> None:
        sizes, freed_sizes = [each.bytes for each in added], [each.bytes for each in freed]
        self.quota_writes[ref.tenant] = await self.queue_counts.reserve_quota(
            ref.tenant, sizes, self.now_ms, freed=freed_sizes
        )

    # --- Finding messages ------------------------------------------------------------------------------------

    async def load(self, queue: OpenQueue, ids: Iterable[int]) -> dict[int, LoadedEntry]:
        """Return the messages that the caller has found, and read the others."""
        wanted = dict.fromkeys(ids)
        unknown = [id for id in wanted if id not in self.entries]
        read = await run_concurrently(unknown, lambda id: self.messages.read(queue.row.ref, id, self.now_ms))
        self.entries |= {entry.id: _loaded(entry) for entry in read if entry is not None}
        return {id: self.entries[id] for id in wanted if id in self.entries}

    async def ended(self, queue: OpenQueue, limit: int) -> tuple[list[LoadedEntry], list[LoadedEntry]]:
        index = self.messages.queues.get(queue.row.ref).index
        expired = index.ended(index.leases, limit, self.now_ms)
        overdue = index.ended(index.ttls, limit - len(expired), self.now_ms)
        return list(map(_loaded, expired)), list(map(_loaded, overdue))

    async def oldest(self, queue: OpenQueue, limit: int) -> list[LoadedEntry]:
        return list(self.entries.values())[:limit]

    async def matching(
        self, queue: OpenQueue, states: frozenset[State], which: Filter, after: int | None, limit: int
    ) -> tuple[list[LoadedEntry], int | None]:
        found = await self.oldest(queue, limit)
        return found, found[-1].stored.id if len(found) == limit else None

    # --- Changing messages -----------------------------------------------------------------------------------

    def apply(self, queue: OpenQueue, changes: Sequence[tuple[LoadedEntry, Change]], *, by_time: bool = False) -> None:
        if by_time:
            self.ends += changes
            return
        for entry, change in changes:
            entry.body = self.messages.changes.after(entry.body, change, self.now_ms)

    async def move(self, queue: OpenQueue, target: OpenQueue, changes: Sequence[tuple[LoadedEntry, Change]]) -> None:
        source, goal, noted = queue.row.ref, target.row.ref, self.messages.changes.add_event
        for entry, change in changes:
            assert change.event is not None
            assert change.life is not None
            body = noted(entry.body, change.event, self.now_ms, reason=f"to {goal}", ref=source)
            body = noted(body, change.event, self.now_ms, reason=f"from {source}", ref=goal)
            entry.body = replace(body, life=change.life, tenant=goal.tenant, queue=goal.queue)

    async def edit(self, queue: OpenQueue, entry: LoadedEntry, envelope: Envelope) -> None:
        content_type, is_json = envelope.content_type, envelope.is_json
        size, checksum = len(envelope.payload), crc32(envelope.payload)
        is_inline = is_small(size)
        entry.body = replace(
            entry.body,
            size=size,
            checksum=checksum,
            content_type=content_type,
            is_json=is_json,
            is_inline=is_inline,
            payload=envelope.payload if is_inline else b"",
        )
        entry.payload = None if is_inline else envelope.payload

    def notify_ready(self, queue: OpenQueue) -> None:
        """Do nothing: the caller notifies the listener once the changes are written."""

    # --- Writing ---------------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Write all changes, or none. Raise `PreconditionFailed` or `Busy` if another process came first."""
        changed = [each for each in self.entries.values() if each.body is not each.stored.body]
        moved = [each for each in changed if each.key != each.stored.document.key]
        if moved:
            # A verb moves all of its messages or none, and all of them come from one queue.
            assert len(moved) == len(changed)
            source = moved[0].stored.body.tenant
            if source not in self.quota_writes:
                self.quota_writes[source] = await self.queue_counts.quota_guard(source)
            moves = [MessageMove(each.stored, each.key, each.body, each.payload) for each in moved]
            guards = [write for writes in self.quota_writes.values() for write in writes]
            await self.messages.move_all(moves, self.now_ms, self.notices, guards=guards)
        elif changed:
            await self.messages.write_all([(each.stored, each.body) for each in changed], self.now_ms, self.notices)

    async def write_ends(self) -> int:
        """Write each change caused by time, and return their number. Messages that another process has changed stay as
        they are."""

        async def end(loaded: LoadedEntry, change: Change) -> bool:
            loaded.stored.is_taken = True
            try:
                return await self.messages.change(loaded.stored, change, self.now_ms, self.notices) is not None
            finally:
                loaded.stored.is_taken = False

        return sum(await run_concurrently(self.ends, lambda each: end(*each)))


class ObjectUnits:
    """A factory of the units of a store."""

    def __init__(self, messages: ObjectMessages, queue_counts: QueueCounts) -> None:
        self._messages = messages
        self._queue_counts = queue_counts

    def begin(
        self, now_ms: int, notices: Notices, *queues: OpenQueue, found: Iterable[IndexedMessage] = ()
    ) -> ObjectUnit:
        """Return a new unit on these queues and found messages."""
        entries = {entry.id: _loaded(entry) for entry in found}
        return ObjectUnit(self._messages, self._queue_counts, now_ms, notices, queues, entries)

    async def end_overdue(
        self, row: QueueRow, queue: ObjectQueueState, limit: int, now_ms: int, notices: Notices
    ) -> int:
        """End expired leases and TTLs in the window, and return how many."""
        async with queue.ending:
            unit = self.begin(now_ms, notices)
            await end_by_time(unit, OpenQueue(row), limit)
            return await unit.write_ends()
