"""Atomic steps on the queues of a shard.

A step is a part of the open commit (see `engine.py`). It never suspends before its end, so no other step can come
between two of its calls.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Self, TypeVar

from holdfast.model.answers import Delivery, Enqueued
from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, StateDocument
from holdfast.model.rules.lifecycle import is_over
from holdfast.stores.logic.results import delivery_of
from holdfast.stores.logic.sweep import end_ttls
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.payloads.pieces import load_payload
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.queues.unit_writes import UnitWrites
from holdfast.stores.rocks.queues.window import Window
from holdfast.stores.unit import OpenClaim, Sized

T = TypeVar("T")

_READY = State.READY


class RocksUnits(UnitWrites):
    """The unit of work of every step on a shard, as `stores/unit.py` documents it.

    Steps never overlap, so one object serves them all.
    """

    async def run(
        self, ref: QueueRef, work: Callable[[Self], Awaitable[T]], now_ms: int, *, target: QueueRef | None = None
    ) -> T:
        """Run a step, and return its result once the step is as durable as it requires.

        A step that raises before its first change leaves nothing behind.
        """
        engine = self._engine
        self.begin(now_ms)
        try:
            result = await work(self)
        except BaseException:
            if not self._has_changed:
                engine.end()  # the step refused without a change
            raise
        queue = self._to_visit
        if self.is_durable:
            if queue is not None:
                self._sweep_plan.note_after_commit(queue, now_ms)
            ticket = engine.commit()
            if ticket is not None:
                await engine.wait(ticket)
        else:
            engine.written()
            if queue is not None:
                self._sweep_plan.note(queue, now_ms)
        return result

    async def run_across(
        self,
        other: Self,
        commit: Callable[[], Awaitable[None]],
        work: Callable[[Self], Awaitable[T]],
        now_ms: int,
        copied: Collection[int],
    ) -> T:
        """Run a step that moves messages to a queue of another shard.

        `commit` ends the step in both shards. Payloads in pieces are moved only if `RocksStaging.copy` has copied them
        before; `copied` has their blob ids.
        """
        both = (self, other)
        for units in both:
            # The open commits belong to other steps. The frame of this step may be discarded if the other half is lost,
            # so it must contain no changes of other steps.
            units._engine.write()
        for units in both:
            units.begin(now_ms)
        self._other, self._copied = other, copied
        try:
            result = await work(self)
        except BaseException:
            if not self._has_changed:
                for units in both:
                    units._engine.end()
            raise
        finally:
            self._other, self._copied = None, ()
        if self._has_changed:
            await commit()
        else:
            for units in both:
                units._engine.end()
        return result

    # --- Queues ------------------------------------------------------------------------------------------------

    async def find(self, ref: QueueRef) -> QueueState | None:
        queue = self._catalog.find(ref)
        if queue is not None:
            queue.begin(self.now_ms)
        elif self._other is not None:
            return await self._other.find(ref)
        return queue

    async def create(self, ref: QueueRef) -> QueueState:
        """Create a queue. Raise `OverQuota` if its tenant may have no more queues."""
        self._catalog.tenants.check_room_for_queue(ref.tenant)
        self._has_changed = True
        self._created = queue = self._catalog.create(ref)
        queue.begin(self.now_ms)
        return queue

    async def remove_if_empty(self, queue: QueueState) -> None:
        if queue.counters.messages or queue.row.ref in self._catalog.retained:
            return
        self._has_changed = True
        for space in keys.PER_QUEUE_SPACES:
            self._engine.delete_range(space + queue.p, keys.after(space + queue.p), keys.INDEXES)
        self._publisher.forget(queue)
        self._catalog.remove(queue)

    def default_ttl_ms(self, queue: QueueState) -> int | None:
        return self._catalog.default_ttl_ms(queue)

    async def check_quotas(self, ref: QueueRef, added: Sequence[Sized], freed: Sequence[Sized] = ()) -> None:
        tenants = self._catalog.tenants
        if tenants.has_quotas(ref.tenant):
            sizes = [each.bytes for each in added]
            tenants.check_quotas(ref.tenant, sizes, freed=[each.bytes for each in freed])

    # --- Finding messages --------------------------------------------------------------------------------------

    async def load(self, queue: QueueState, ids: Iterable[int]) -> dict[int, StoredMessage]:
        return self._cache.by_id(queue, ids)

    load_whole = load

    async def take_due(self, queue: QueueState, limits: list[int]) -> list[list[StoredMessage]]:
        return [self._take_due(queue, limit) for limit in limits]

    def _take_due(self, queue: QueueState, limit: int) -> list[StoredMessage]:
        """Remove up to `limit` due messages from the windows and return them.

        On the way, delete index entries that point to no Ready message, and end TTLs that have passed.
        """
        taken: list[StoredMessage] = []
        now_ms = self.now_ms
        bound = keys.instant(now_ms + 1)
        for priority in queue.priorities():
            while len(taken) < limit and (candidates := queue.pop_due(priority, limit - len(taken), bound)):
                positions = keys.parse_instants_and_ids(candidates)
                entries = self._cache.load(queue, [id for _, id in positions])
                for key, (visible_at, _), entry in zip(candidates, positions, entries, strict=True):
                    if entry is None or not queue.is_listed(entry, priority, visible_at):
                        queue.delete_stale_visible(priority, key)
                    elif len(taken) >= limit:
                        queue.publish(priority, key)  # a group's batch has filled the limit
                    elif is_over(entry.life, now_ms):
                        end_ttls(self, queue, [entry])
                    elif entry.envelope.group is None:
                        taken.append(entry)
                    else:
                        taken += self._take_group(queue, entry.envelope.group, limit - len(taken))
        return taken

    def _take_group(self, queue: QueueState, name: str, limit: int) -> list[StoredMessage]:
        """Return the group's first due messages in order of id: one batch, up to the first that is delayed or
        uncommitted."""
        taken: list[StoredMessage] = []
        ids = [keys.parse_id(id16) for id16 in queue.group_batch(name, limit)]
        for entry in self._cache.load(queue, ids):
            if entry is None:
                raise StoreUnavailable(
                    f"group {name!r} of {queue.row.ref} lists a message that does not exist; run `holdfast verify` "
                    "on a copy, or restore a backup"
                )
            if entry.life.visible_at > self.now_ms or not self._publisher.is_committed(entry):
                break
            if not is_over(entry.life, self.now_ms):
                taken.append(entry)
        return taken

    async def ended(self, queue: QueueState, limit: int) -> tuple[Sequence[StoredMessage], Sequence[StoredMessage]]:
        expired = self._expired(queue, limit) if queue.has_expired(self.now_ms) else ()
        left = limit - len(expired)
        overdue = [
            entry
            for key in self._publisher.overdue_ttls(queue, left, self.now_ms)
            if (entry := self._overdue(queue, key)) is not None
        ]
        return expired, overdue

    def _expired(self, queue: QueueState, limit: int) -> list[StoredMessage]:
        popped = queue.pop_expired(limit, self.now_ms)
        expired = []
        for key, entry in zip(popped, self._cache.load(queue, [keys.parse_id(key[8:]) for key in popped]), strict=True):
            lease = None if entry is None else entry.life.lease
            if entry is None or lease is None or lease.expires_at != keys.parse_instant(key):
                queue.delete_stale_expiry(key)
            else:
                expired.append(entry)
        return expired

    def _overdue(self, queue: QueueState, key: bytes) -> StoredMessage | None:
        """Return the Ready message of a TTL deadline. Delete the deadline and return None if there is none."""
        entry = self._cache.get(queue, keys.parse_id(key[16:]))
        if entry is not None and entry.life.state is _READY and entry.life.expires_at == keys.parse_instant(key):
            return entry
        self._delete_stale(self._publisher.ttls, keys.TTLS, key)
        return None

    def _delete_stale(self, window: Window, space: bytes, key: bytes) -> None:
        """Delete an index entry that points to no message."""
        window.discard(key)
        self._engine.delete(space + key, keys.INDEXES)

    async def oldest(self, queue: QueueState, limit: int) -> list[StoredMessage]:
        return self._reader.first(queue, limit)

    async def matching(
        self, queue: QueueState, states: frozenset[State], which: Filter, after: int | None, limit: int
    ) -> tuple[list[StoredMessage], int | None]:
        found = self._reader.matching(queue, states, which, after, limit, self.now_ms)
        if self._other is not None:
            for index, entry in enumerate(found):
                pieces = entry.envelope.pieces
                if pieces is not None and pieces.blob_id not in self._copied:
                    return found[:index], entry.envelope.id - 1
        return found, found[-1].envelope.id if len(found) == limit else None

    async def next_at(self, queue: QueueState) -> int | None:
        return self._publisher.next_at(queue)

    def version_floor(self, entry: StoredMessage) -> int:
        facts = self._facts
        return facts.floor if entry.envelope.id <= facts.floor_id else 0

    # --- Reading messages --------------------------------------------------------------------------------------

    async def deliveries(
        self, queue: QueueState, entries: list[StoredMessage], *, with_state: bool, streams: bool
    ) -> list[Delivery]:
        made: list[Delivery] = []
        for entry in entries:
            envelope = entry.envelope
            if envelope.pieces is not None and not streams:
                envelope = load_payload(self._engine, envelope)
            made.append(delivery_of(envelope, entry.life, self._cache.state(queue, entry) if with_state else None))
        return made

    async def states(self, queue: QueueState, entries: list[StoredMessage]) -> list[StateDocument]:
        return [self._cache.state(queue, entry) for entry in entries]

    async def known_keys(
        self, queue: QueueState, drafts: list[Draft], firsts: Mapping[str, int]
    ) -> dict[str, Enqueued]:
        return self._seen.known(queue, list(firsts), self.now_ms)

    # --- Ledgers -----------------------------------------------------------------------------------------------

    async def closed_upto(self, queue: QueueState, consumer: str) -> int:
        return self._ledgers.closed_upto(queue, consumer)

    async def open_claims(
        self, queue: QueueState, consumer: str, *, number: int | None = None, upto: int | None = None
    ) -> list[OpenClaim]:
        return self._ledgers.open_claims(queue, consumer, number, upto)

    # --- Notifications -----------------------------------------------------------------------------------------

    def notify_ready(self, queue: QueueState) -> None:
        """Notify the queue's waiters after the commit."""
        self._publisher.notify_after_commit(queue)

    # --- Deadlines of all queues -------------------------------------------------------------------------------

    def end_overdue(self, overdue: list[bytes]) -> None:
        """End the TTLs of Ready messages in any queue, given by their keys in the index of TTLs."""
        for key in overdue:
            queue = self._catalog.find_by_prefix(key[8:16])
            if queue is None:
                self._delete_stale(self._publisher.ttls, keys.TTLS, key)
            elif (entry := self._overdue(queue, key)) is not None:
                queue.begin(self.now_ms)
                end_ttls(self, queue, [entry])

    def end_kept(self, limit: int) -> int:
        """Remove succeeded messages whose retention has ended, in any queue. Return the number of index entries
        handled."""
        ended = 0
        kept = self._publisher.kept
        while ended < limit and (key := kept.peek()) is not None and keys.parse_instant(key) <= self.now_ms:
            queue = self._catalog.find_by_prefix(key[8:16])
            entry = None if queue is None else self._cache.get(queue, keys.parse_id(key[16:]))
            if queue is None or entry is None or entry.life.keep_until != keys.parse_instant(key):
                self._delete_stale(kept, keys.KEPT, key)
            else:
                queue.begin(self.now_ms)
                self.drop(queue, [entry])
            ended += 1
        return ended
