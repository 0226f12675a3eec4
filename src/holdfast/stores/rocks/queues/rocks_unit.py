"""Atomic steps on RocksDB: each change of a message, with its keys, its indexes and its event.

A step is one part of the open commit (see `engine.py`). Reading hands that commit to the operating system first, so a
step reads all that its changes need before it puts their first key: `apply`, `add`, `move` and `edit` are each written
as a whole. No step suspends before its end.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Self, TypeVar

from holdfast.model.answers import Delivery, Enqueued
from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import consecutive_to_bytes
from holdfast.model.message import Draft, Envelope, State, seal
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, StateDocument
from holdfast.model.rules.lifecycle import TRANSITIONS, Cause, Change, Life, first_life, is_over
from holdfast.stores.contract import Listener
from holdfast.stores.logic.results import delivery_of
from holdfast.stores.logic.sweep import end_ttls
from holdfast.stores.payloads.pieces import PIECES_ABOVE
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.queue_catalog import QueueCatalog
from holdfast.stores.rocks.directory.store_facts import ShardFacts
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.journal.journal import RocksJournal
from holdfast.stores.rocks.payloads.pieces import load_payload, store_large_payload
from holdfast.stores.rocks.payloads.staging import RocksStaging
from holdfast.stores.rocks.queues.idempotency_keys import SeenKeys
from holdfast.stores.rocks.queues.ledgers import LedgerKeys
from holdfast.stores.rocks.queues.message_cache import MessageCache
from holdfast.stores.rocks.queues.message_reads import MessageReads
from holdfast.stores.rocks.queues.plain_messages import form_of
from holdfast.stores.rocks.queues.publisher import Publisher
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.queues.sweep_plan import SweepPlan
from holdfast.stores.rocks.queues.window import Window
from holdfast.stores.unit import OpenClaim, Sized

T = TypeVar("T")

# Read once: to find a member in its class costs as much as the rest of a loop over a batch.
_READY, _IN_FLIGHT, _SUCCEEDED = State.READY, State.IN_FLIGHT, State.SUCCEEDED
_ENQUEUED = TRANSITIONS[None, Cause.ENQUEUE].event
_CLAIMED = TRANSITIONS[_READY, Cause.CLAIM].event
_ACKED = TRANSITIONS[_IN_FLIGHT, Cause.ACK].event

# A step that changes fewer messages changes them one by one.
MANY = 4


class RocksUnits:
    """The unit of work of every step: steps never overlap, so one object serves them all."""

    def __init__(
        self,
        engine: Engine,
        board: Publisher,
        catalog: QueueCatalog,
        entries: MessageCache,
        reader: MessageReads,
        journal: RocksJournal,
        seen: SeenKeys,
        staging: RocksStaging,
        facts: ShardFacts,
        upkeep: SweepPlan,
        listener: Listener,
    ) -> None:
        self._engine = engine
        self._board = board
        self._catalog = catalog
        self._entries = entries
        self._reader = reader
        self._journal = journal
        self._seen = seen
        self._staging = staging
        self._ledgers = LedgerKeys(engine)
        self._facts = facts
        self._upkeep = upkeep
        self._listener = listener
        self.now_ms = 0
        self.is_durable = self.notifies_ready = True
        self._has_changed = False
        # The queue in which the step gave or moved a lease, or that is being deleted: a sweep must visit it in time.
        self._to_visit: QueueState | None = None
        # The queue that the step has created: nothing of it is on disk, and nothing need be read.
        self._created: QueueState | None = None
        # The units of a second shard, while a step changes both; and the places of payloads that were copied there.
        self._other: RocksUnits | None = None
        self._copied: Collection[int] = ()

    async def run(
        self, ref: QueueRef, work: Callable[[Self], Awaitable[T]], now_ms: int, *, target: QueueRef | None = None
    ) -> T:
        engine = self._engine
        self.begin(now_ms)
        try:
            result = await work(self)
        except BaseException:
            if not self._has_changed:
                engine.end()  # it was refused
            raise
        queue = self._to_visit
        if self.is_durable:
            if queue is not None:
                self._upkeep.note_after_commit(queue, now_ms)
            ticket = engine.commit()
            if ticket is not None:
                await engine.wait(ticket)
        else:
            engine.written()
            if queue is not None:
                self._upkeep.note(queue, now_ms)
        return result

    async def run_across(
        self,
        other: "RocksUnits",
        commit: Callable[[], Awaitable[None]],
        work: Callable[[Self], Awaitable[T]],
        now_ms: int,
        copied: Collection[int],
    ) -> T:
        """Run a step that moves messages to a queue of another shard. `commit` ends it in both shards. Payloads in
        pieces are moved only if they were copied (`RocksStaging.copy`): their places are in `copied`."""
        both = (self, other)
        for units in both:
            # What is open belongs to other steps: the frame that the link may give up is to hold nothing of theirs.
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

    def begin(self, now_ms: int) -> None:
        """Begin a step. A sweep, for which nobody waits, ends its own by `Engine.end`."""
        self._engine.begin()
        self.now_ms = now_ms
        self.is_durable = True
        self._has_changed = False
        self._to_visit = self._created = None

    # --- Queues ------------------------------------------------------------------------------------------------

    async def find(self, ref: QueueRef) -> QueueState | None:
        queue = self._catalog.find(ref)
        if queue is not None:
            queue.begin(self.now_ms)
        elif self._other is not None:
            return await self._other.find(ref)
        return queue

    async def create(self, ref: QueueRef) -> QueueState:
        self._catalog.tenants.check_room_for_queue(ref.tenant)
        self._has_changed = True
        self._created = queue = self._catalog.create(ref)
        queue.begin(self.now_ms)
        return queue

    async def remove_if_empty(self, queue: QueueState) -> None:
        if queue.counters.messages:
            return
        self._has_changed = True
        for space in keys.PER_QUEUE_SPACES:
            self._engine.delete_range(space + queue.p, keys.after(space + queue.p), keys.INDEXES)
        self._board.forget(queue)
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
        return self._entries.by_id(queue, ids)

    load_whole = load

    async def take_due(self, queue: QueueState, limits: list[int]) -> list[list[StoredMessage]]:
        return [self._take_due(queue, limit) for limit in limits]

    def _take_due(self, queue: QueueState, limit: int) -> list[StoredMessage]:
        """Take due messages, and their keys out of the windows. On the way, index entries without a Ready message
        behind them are dropped, and overdue TTLs ended."""
        taken: list[StoredMessage] = []
        now_ms = self.now_ms
        bound = keys.instant(now_ms + 1)
        for priority in queue.priorities():
            while len(taken) < limit and (candidates := queue.pop_due(priority, limit - len(taken), bound)):
                places = keys.parse_instants_and_ids(candidates)
                entries = self._entries.load(queue, [id for _, id in places])
                for key, (visible_at, _), entry in zip(candidates, places, entries, strict=True):
                    if entry is None or not queue.is_shown(entry, priority, visible_at):
                        queue.heal_visible(priority, key)
                    elif len(taken) >= limit:
                        queue.show(priority, key)  # a group's batch took its place
                    elif is_over(entry.life, now_ms):
                        end_ttls(self, queue, [entry])
                    elif entry.envelope.group is None:
                        taken.append(entry)
                    else:
                        taken += self._take_group(queue, entry.envelope.group, limit - len(taken))
        return taken

    def _take_group(self, queue: QueueState, name: str, limit: int) -> list[StoredMessage]:
        """Return the group's oldest due messages: one batch, in order of id, up to the first that is not due."""
        taken: list[StoredMessage] = []
        ids = [keys.parse_id(id16) for id16 in queue.group_batch(name, limit)]
        for entry in self._entries.load(queue, ids):
            if entry is None:
                raise StoreUnavailable(f"group {name!r} of {queue.row.ref} names a message that is not there")
            if entry.life.visible_at > self.now_ms or not self._board.is_committed(entry):
                break
            if not is_over(entry.life, self.now_ms):
                taken.append(entry)
        return taken

    async def ended(self, queue: QueueState, limit: int) -> tuple[Sequence[StoredMessage], Sequence[StoredMessage]]:
        expired = self._expired(queue, limit) if queue.has_expired(self.now_ms) else ()
        left = limit - len(expired)
        overdue = [
            entry
            for key in self._board.overdue_ttls(queue, left, self.now_ms)
            if (entry := self._overdue(queue, key)) is not None
        ]
        return expired, overdue

    def _expired(self, queue: QueueState, limit: int) -> list[StoredMessage]:
        popped = queue.pop_expired(limit, self.now_ms)
        expired = []
        for key, entry in zip(
            popped, self._entries.load(queue, [keys.parse_id(key[8:]) for key in popped]), strict=True
        ):
            lease = None if entry is None else entry.life.lease
            if entry is None or lease is None or lease.expires_at != keys.parse_instant(key):
                queue.heal_expiry(key)
            else:
                expired.append(entry)
        return expired

    def _overdue(self, queue: QueueState, key: bytes) -> StoredMessage | None:
        """Return the Ready message behind the end of a TTL; an index entry without one is dropped."""
        entry = self._entries.get(queue, keys.parse_id(key[16:]))
        if entry is not None and entry.life.state is _READY and entry.life.expires_at == keys.parse_instant(key):
            return entry
        self._heal(self._board.ttls, keys.TTLS, key)
        return None

    def _heal(self, window: Window, space: bytes, key: bytes) -> None:
        """Drop an index entry that has no message behind it."""
        window.discard(key)
        self._engine.delete(space + key, keys.INDEXES)

    async def oldest(self, queue: QueueState, limit: int) -> list[StoredMessage]:
        return self._reader.first(queue, limit)

    async def matching(
        self, queue: QueueState, states: frozenset[State], which: Filter, after: int | None, limit: int
    ) -> tuple[list[StoredMessage], int | None]:
        found = self._reader.matching(queue, states, which, after, limit, self.now_ms)
        if self._other is not None:
            for place, entry in enumerate(found):
                pieces = entry.envelope.pieces
                if pieces is not None and pieces.place not in self._copied:
                    return found[:place], entry.envelope.id - 1
        return found, found[-1].envelope.id if len(found) == limit else None

    async def next_at(self, queue: QueueState) -> int | None:
        return self._board.next_at(queue)

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
            made.append(delivery_of(envelope, entry.life, self._entries.state(queue, entry) if with_state else None))
        return made

    async def states(self, queue: QueueState, entries: list[StoredMessage]) -> list[StateDocument]:
        return [self._entries.state(queue, entry) for entry in entries]

    # --- Changing messages -------------------------------------------------------------------------------------

    def apply(
        self, queue: QueueState, changes: Sequence[tuple[StoredMessage, Change]], *, by_time: bool = False
    ) -> None:
        if not changes:
            return
        for entry, _ in changes:
            if entry.envelope.group is not None:
                self._prepare_groups(queue, [each for each, _ in changes])
                break
        self._has_changed = self._engine.is_mid_change = True
        if len(changes) >= MANY and self._apply_many(queue, changes):
            self._engine.is_mid_change = False
            return
        self._board.ends_by_time = by_time
        entries, append, now_ms = self._entries, self._journal.append, self.now_ms
        has_lease = False
        for entry, change in changes:
            life, event, reason, error = change
            if event is not None:
                append(queue, entry, event, now_ms, life, reason, error)
            if life is None or (life.keep_until is None and life.state is _SUCCEEDED):  # `Life.is_gone`
                entries.forget(entry)
                queue.drop(entry)
                continue
            queue.change(entry, life)
            if life.lease is not None:
                has_lease = True
                entries.remember(entry)
            elif life.keep_until is not None:
                self._listener.deadline(life.keep_until)
            elif life.expires_at is not None and life.state is _READY:
                self._listener.deadline(life.expires_at)
        if has_lease or queue.row.drain_until is not None:
            self._to_visit = queue
        self._engine.is_mid_change = self._board.ends_by_time = False

    def _apply_many(self, queue: QueueState, changes: Sequence[tuple[StoredMessage, Change]]) -> bool:
        """Claim or ack many plain messages at once. Return False, with nothing done, if the changes are anything else.

        What each change is was decided by `model.lifecycle`; this only keeps the indexes, as `apply` does one by one.
        """
        event = changes[0][1].event
        if event is None or (event is not _CLAIMED and event is not _ACKED):
            return False
        entries: list[StoredMessage] = []
        lives: list[Life] = []
        is_claim = event is _CLAIMED
        is_plain, keyless, state = (
            queue.is_plain,
            self._engine.database.commit.layer.keyless,
            _READY if is_claim else _IN_FLIGHT,
        )
        for entry, (life, its_event, reason, _) in changes:
            if (
                its_event is not event
                or life is None
                or reason is not None
                or entry.life.state is not state
                or life.keep_until is not None
                or not (entry.envelope.id in keyless or is_plain(entry))
            ):
                return False
            entries.append(entry)
            lives.append(life)
        self._journal.append_changed(queue, entries, lives, event, self.now_ms)
        if is_claim:
            queue.claim_all(entries, lives)
            self._entries.remember_all(entries)
        else:
            self._entries.forget_all(entries)
            queue.drop_all(entries)
        if is_claim or queue.row.drain_until is not None:
            self._to_visit = queue
        return True

    def _prepare_groups(self, queue: QueueState, entries: Sequence[StoredMessage]) -> None:
        """Read all that changes of these messages need: once the first key is put, a read would part what belongs
        together."""
        queue.prepare([group for entry in entries if (group := entry.envelope.group) is not None], len(entries))

    def drop(self, queue: QueueState, entries: Sequence[StoredMessage]) -> None:
        self._prepare_groups(queue, entries)
        self._has_changed = self._engine.is_mid_change = True
        for entry in entries:
            self._entries.forget(entry)
            queue.drop(entry)
        self._engine.is_mid_change = False

    async def move(
        self, queue: QueueState, target: QueueState, changes: Sequence[tuple[StoredMessage, Change]]
    ) -> None:
        if not changes:
            return
        there = self if self._other is None or self._catalog.find(target.row.ref) is target else self._other
        entries, now_ms = self._entries, self.now_ms
        states = [entries.state(queue, entry) for entry, _ in changes]
        for each in (queue, target):
            self._prepare_groups(each, [entry for entry, _ in changes])
        self._has_changed = self._engine.is_mid_change = there._engine.is_mid_change = True
        for (entry, change), state in zip(changes, states, strict=True):
            assert change.event is not None
            entries.forget(entry)
            queue.drop(entry, is_moved=there is self)
            if there is not self and entry.envelope.pieces is not None:
                there._staging.attach_copy(entry.envelope.pieces)
            entry.has_life = False
            target.put(entry)
            if entry.has_state:
                there._entries.put_state(target, entry, state)
            self._journal.append(queue, entry, change.event, now_ms, None, f"to {target.row.ref}")
            there._journal.append(target, entry, change.event, now_ms, None, f"from {queue.row.ref}")
        self._engine.is_mid_change = there._engine.is_mid_change = False

    async def edit(self, queue: QueueState, entry: StoredMessage, envelope: Envelope) -> None:
        self._prepare_groups(queue, [entry])
        self._has_changed = self._engine.is_mid_change = True
        self._entries.forget(entry)
        queue.edit(entry, envelope)
        self._engine.is_mid_change = False

    async def put_state(self, queue: QueueState, entry: StoredMessage, state: StateDocument) -> None:
        self._has_changed = True
        self._entries.put_state(queue, entry, state)

    # --- New messages ------------------------------------------------------------------------------------------

    async def known_keys(
        self, queue: QueueState, drafts: list[Draft], firsts: Mapping[str, int]
    ) -> dict[str, Enqueued]:
        return self._seen.known(queue, list(firsts), self.now_ms)

    async def add(self, queue: QueueState, drafts: list[Draft], reason: str | None) -> Sequence[int]:
        for draft in drafts:
            if draft.group is not None:
                groups = {each.group for each in drafts if each.group is not None}
                # Nothing of a queue that was just created lies on disk.
                (queue.start_empty if queue is self._created else queue.prepare)(groups)
                break
        now_ms, default_ttl_ms = self.now_ms, self._catalog.default_ttl_ms(queue)
        append, remember = self._journal.append, self._entries.remember
        assert _ENQUEUED is not None
        self._has_changed = self._engine.is_mid_change = True
        ids = self._facts.take_ids(len(drafts), now_ms)
        many = len(drafts) >= MANY and default_ttl_ms is None and reason is None
        if many and (form := form_of(drafts)) is not None:
            life = first_life(drafts[0], None, now_ms)
            p = queue.p
            fresh = [
                StoredMessage(p, seal(draft, id, now_ms), life, id16, draft.bytes)
                for draft, id, id16 in zip(drafts, ids, consecutive_to_bytes(ids), strict=True)
            ]
            queue.put_all(fresh, form)
            self._entries.remember_all(fresh)
            self._journal.append_fresh(queue, fresh, _ENQUEUED, now_ms, life)
            self._engine.is_mid_change = False
            return ids
        for draft, id in zip(drafts, ids, strict=True):
            envelope = seal(draft, id, now_ms)
            if draft.pieces is not None:
                self._staging.attach(draft.pieces)
            elif len(draft.payload) > PIECES_ABOVE:
                envelope = store_large_payload(self._engine, envelope)
            life = first_life(draft, default_ttl_ms, now_ms)
            entry = StoredMessage(queue.p, envelope, life, keys.id_bytes(id), draft.bytes)
            if draft.group is not None:
                self._board.note_uncommitted(entry)
            queue.put(entry)
            remember(entry)
            append(queue, entry, _ENQUEUED, now_ms, life, reason)
            if life.expires_at is not None:
                self._listener.deadline(life.expires_at)
            if draft.key is not None:
                until = now_ms + queue.row.policy.dedup_window_ms
                self._seen.remember(queue, draft.key, entry, until)
                self._listener.deadline(until)
        self._engine.is_mid_change = False
        return ids

    # --- Ledgers -----------------------------------------------------------------------------------------------

    async def closed_upto(self, queue: QueueState, consumer: str) -> int:
        return self._ledgers.closed_upto(queue, consumer)

    async def open_claims(
        self, queue: QueueState, consumer: str, *, number: int | None = None, upto: int | None = None
    ) -> list[OpenClaim]:
        return self._ledgers.open_claims(queue, consumer, number, upto)

    async def put_claim(self, queue: QueueState, consumer: str, claim: OpenClaim) -> None:
        self._has_changed = True
        self._ledgers.put(queue, consumer, claim)

    async def close_claims(self, queue: QueueState, consumer: str, numbers: list[int], closed_upto: int) -> None:
        self._has_changed = True
        self._ledgers.close(queue, consumer, numbers, closed_upto)

    # --- Telling -----------------------------------------------------------------------------------------------

    def notify_ready(self, queue: QueueState) -> None:
        self._board.tell_after_commit(queue)

    # --- Deadlines of all queues -------------------------------------------------------------------------------

    def end_overdue(self, overdue: list[bytes]) -> None:
        """End the TTLs of Ready messages in any queue, by their keys in the index of ends."""
        for key in overdue:
            queue = self._catalog.find_by_prefix(key[8:16])
            if queue is None:
                self._heal(self._board.ttls, keys.TTLS, key)
            elif (entry := self._overdue(queue, key)) is not None:
                queue.begin(self.now_ms)
                end_ttls(self, queue, [entry])

    def end_kept(self, limit: int) -> int:
        """Forget succeeded messages in any queue that were kept long enough; return how many index entries went."""
        ended = 0
        kept = self._board.kept
        while ended < limit and (key := kept.peek()) is not None and keys.parse_instant(key) <= self.now_ms:
            queue = self._catalog.find_by_prefix(key[8:16])
            entry = None if queue is None else self._entries.get(queue, keys.parse_id(key[16:]))
            if queue is None or entry is None or entry.life.keep_until != keys.parse_instant(key):
                self._heal(kept, keys.KEPT, key)
            else:
                queue.begin(self.now_ms)
                self.drop(queue, [entry])
            ended += 1
        return ended
