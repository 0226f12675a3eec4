"""The changes that an atomic step makes: each message's keys, indexes and journal event.

Each of `apply`, `add`, `move` and `edit` first reads everything its changes need, and then puts all their keys without
another read. A read would hand the open commit to the log, and half of a change must never get there.
"""

from collections.abc import Collection, Sequence
from typing import Self

import msgspec

from holdfast.model.ids import consecutive_to_bytes
from holdfast.model.message import Draft, Envelope, State, make_envelope
from holdfast.model.requests import StateDocument
from holdfast.model.rules.lifecycle import Change, Life, first_life, remove
from holdfast.model.rules.transitions import TRANSITIONS, Cause
from holdfast.stores.payloads.pieces import PIECES_ABOVE
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.payloads.pieces import store_large_payload
from holdfast.stores.rocks.payloads.staging import RocksStaging
from holdfast.stores.rocks.queues.ledgers import LedgerKeys
from holdfast.stores.rocks.queues.plain_messages import choose_form
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.stored_message import StoredMessage
from holdfast.stores.rocks.queues.sweep_plan import SweepPlan
from holdfast.stores.rocks.shard_parts import ShardParts
from holdfast.stores.unit import OpenClaim

# Module-level names, because looking up an enum member costs as much as the rest of a loop over a batch.
_READY, _IN_FLIGHT, _SUCCEEDED = State.READY, State.IN_FLIGHT, State.SUCCEEDED
_ENQUEUED = TRANSITIONS[None, Cause.ENQUEUE].event
_CLAIMED = TRANSITIONS[_READY, Cause.CLAIM].event
_ACKED = TRANSITIONS[_IN_FLIGHT, Cause.ACK].event

_encode = msgspec.msgpack.Encoder().encode

# A step that changes at least this many plain messages changes them together, and otherwise one by one.
MANY = 4


class UnitWrites:
    """The state of the current step, and the changes it can make."""

    def __init__(self, parts: ShardParts, staging: RocksStaging, sweep_plan: SweepPlan) -> None:
        self._engine = parts.engine
        self._publisher = parts.publisher
        self._catalog = parts.catalog
        self._cache = parts.cache
        self._reader = parts.reader
        self._journal = parts.journal
        self._seen = parts.seen
        self._facts = parts.facts
        self._listener = parts.listener
        self._ledgers = LedgerKeys(parts.engine)
        self._staging = staging
        self._sweep_plan = sweep_plan
        self.now_ms = 0
        self.is_durable = self.notifies_ready = True
        self._has_changed = False
        # The queue in which the step granted or changed a lease, or which is being deleted: the sweep must visit it in
        # time.
        self._to_visit: QueueState | None = None
        # The queue that the step has created. It has nothing on disk, so nothing needs to be read.
        self._created: QueueState | None = None
        # The units of the second shard of a step that changes two, and the numbers of the payloads copied there.
        self._other: Self | None = None
        self._copied: Collection[int] = ()

    def begin(self, now_ms: int) -> None:
        """Begin a step. A sweep's step has no waiting caller, and ends with `Engine.end`."""
        self._engine.begin()
        self.now_ms = now_ms
        self.is_durable = True
        self._has_changed = False
        self._to_visit = self._created = None

    def note_change(self) -> None:
        """Take note that the caller has added keys of its own to the open commit."""
        self._has_changed = True

    # --- Existing messages -------------------------------------------------------------------------------------

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
        self._publisher.ends_by_time = by_time
        cache, append, now_ms = self._cache, self._journal.append, self.now_ms
        has_lease = False
        for entry, change in changes:
            life, event, reason, error = change
            if event is not None:
                append(queue, entry, event, now_ms, life, reason, error)
            # `Life.is_gone`, spelled out to save a call for each message.
            if life is None or (life.keep_until is None and life.state is _SUCCEEDED):
                cache.forget(entry)
                queue.drop(entry)
                continue
            queue.change(entry, life)
            if life.lease is not None:
                has_lease = True
                cache.remember(entry)
            elif life.keep_until is not None:
                self._listener.deadline(life.keep_until)
            elif life.expires_at is not None and life.state is _READY:
                self._listener.deadline(life.expires_at)
        if has_lease or queue.row.drain_until is not None:
            self._to_visit = queue
        self._engine.is_mid_change = self._publisher.ends_by_time = False

    def _apply_many(self, queue: QueueState, changes: Sequence[tuple[StoredMessage, Change]]) -> bool:
        """Claim or ack many plain messages at once. Return False, with nothing done, if the changes are anything else.

        `model.rules.lifecycle` has decided the changes; this writes the same keys as `apply` does one by one.
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
            self._cache.remember_all(entries)
        else:
            self._cache.forget_all(entries)
            queue.drop_all(entries)
        if is_claim or queue.row.drain_until is not None:
            self._to_visit = queue
        return True

    def _prepare_groups(self, queue: QueueState, entries: Sequence[StoredMessage]) -> None:
        """Read everything that changes of these messages need. A read between the changes would split the step."""
        queue.prepare([group for entry in entries if (group := entry.envelope.group) is not None], len(entries))

    def drop(self, queue: QueueState, entries: Sequence[StoredMessage]) -> None:
        self._prepare_groups(queue, entries)
        self._has_changed = self._engine.is_mid_change = True
        for entry in entries:
            self._cache.forget(entry)
            queue.drop(entry)
        self._engine.is_mid_change = False

    async def move(
        self, queue: QueueState, target: QueueState, changes: Sequence[tuple[StoredMessage, Change]]
    ) -> None:
        if not changes:
            return
        there = self if self._other is None or self._catalog.find(target.row.ref) is target else self._other
        cache, now_ms = self._cache, self.now_ms
        states = [cache.state(queue, entry) for entry, _ in changes]
        for each in (queue, target):
            self._prepare_groups(each, [entry for entry, _ in changes])
        self._has_changed = self._engine.is_mid_change = there._engine.is_mid_change = True
        for (entry, change), state in zip(changes, states, strict=True):
            assert change.event is not None
            cache.forget(entry)
            queue.drop(entry, is_moved=there is self)
            if there is not self and entry.envelope.pieces is not None:
                there._staging.attach_copy(entry.envelope.pieces)
            entry.has_life = False
            target.put(entry)
            if entry.has_state:
                there._cache.put_state(target, entry, state)
            self._journal.append(queue, entry, change.event, now_ms, None, f"to {target.row.ref}")
            there._journal.append(target, entry, change.event, now_ms, None, f"from {queue.row.ref}")
        self._engine.is_mid_change = there._engine.is_mid_change = False

    def depart(
        self,
        queue: QueueState,
        changes: Sequence[tuple[StoredMessage, Change]],
        reason: str,
        key: bytes,
        transfer: object,
    ) -> None:
        """Take messages out of a queue, and keep them as a transfer under `key` (`transfers.py`)."""
        self._prepare_groups(queue, [entry for entry, _ in changes])
        record = _encode(transfer)
        self._has_changed = self._engine.is_mid_change = True
        for entry, change in changes:
            assert change.event is not None
            self._cache.forget(entry)
            queue.drop(entry, is_moved=True)
            if entry.envelope.pieces is not None:
                self._engine.put(keys.STAGES + keys.pack_blob_id(entry.envelope.pieces.blob_id), b"", keys.INDEXES)
            self._journal.append(queue, entry, change.event, self.now_ms, None, reason)
        self._engine.put(key, record, keys.DIRECTORY)
        self._engine.is_mid_change = False

    def arrive(
        self,
        queue: QueueState | None,
        messages: Sequence[tuple[StoredMessage, StateDocument | None]],
        reason: str,
        key: bytes,
        number: bytes,
    ) -> None:
        """Add the messages of a transfer to a queue, and keep the transfer's number under `key`.

        With `queue` None they are only in the journal: their queue is deleted, and they with it.
        """
        if queue is not None:
            self._prepare_groups(queue, [entry for entry, _ in messages])
        self._has_changed = self._engine.is_mid_change = True
        for entry, state in messages:
            event = TRANSITIONS[entry.life.state, Cause.MOVE].event
            assert event is not None
            if queue is None:
                removal = remove(entry.life, "queue deleted")
                assert removal.event is not None
                self._journal.append(entry, entry, event, self.now_ms, None, reason)
                self._journal.append(entry, entry, removal.event, self.now_ms, None, removal.reason)
                continue
            if entry.envelope.pieces is not None:
                self._staging.attach_copy(entry.envelope.pieces)
            queue.put(entry)
            if state is not None:
                self._cache.put_state(queue, entry, state)
            if entry.life.expires_at is not None:
                self._listener.deadline(entry.life.expires_at)
            self._journal.append(queue, entry, event, self.now_ms, None, reason)
        self._engine.put(key, number, keys.DIRECTORY)
        self._engine.is_mid_change = False

    async def edit(self, queue: QueueState, entry: StoredMessage, envelope: Envelope) -> None:
        self._prepare_groups(queue, [entry])
        self._has_changed = self._engine.is_mid_change = True
        self._cache.forget(entry)
        queue.edit(entry, envelope)
        self._engine.is_mid_change = False

    async def put_state(self, queue: QueueState, entry: StoredMessage, state: StateDocument) -> None:
        self._has_changed = True
        self._cache.put_state(queue, entry, state)

    # --- New messages ------------------------------------------------------------------------------------------

    async def add(self, queue: QueueState, drafts: list[Draft], reason: str | None) -> Sequence[int]:
        for draft in drafts:
            if draft.group is not None:
                groups = {each.group for each in drafts if each.group is not None}
                # A new queue has nothing on disk.
                (queue.start_empty if queue is self._created else queue.prepare)(groups)
                break
        now_ms, default_ttl_ms = self.now_ms, self._catalog.default_ttl_ms(queue)
        append, remember = self._journal.append, self._cache.remember
        assert _ENQUEUED is not None
        self._has_changed = self._engine.is_mid_change = True
        ids = self._facts.take_ids(len(drafts), now_ms)
        many = len(drafts) >= MANY and default_ttl_ms is None and reason is None
        if many and (form := choose_form(drafts)) is not None:
            life = first_life(drafts[0], None, now_ms)
            p = queue.p
            fresh = [
                StoredMessage(p, make_envelope(draft, id, now_ms), life, id16, draft.bytes)
                for draft, id, id16 in zip(drafts, ids, consecutive_to_bytes(ids), strict=True)
            ]
            queue.put_all(fresh, form)
            self._cache.remember_all(fresh)
            self._journal.append_fresh(queue, fresh, _ENQUEUED, now_ms, life)
            self._engine.is_mid_change = False
            return ids
        for draft, id in zip(drafts, ids, strict=True):
            envelope = make_envelope(draft, id, now_ms)
            if draft.pieces is not None:
                self._staging.attach(draft.pieces)
            elif len(draft.payload) > PIECES_ABOVE:
                envelope = store_large_payload(self._engine, envelope)
            life = first_life(draft, default_ttl_ms, now_ms)
            entry = StoredMessage(queue.p, envelope, life, keys.id_bytes(id), draft.bytes)
            if draft.group is not None:
                self._publisher.note_uncommitted(entry)
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

    def add_imported(
        self, queue: QueueState, imported: Sequence[tuple[Draft, int | None, int]], reason: str
    ) -> list[StoredMessage]:
        """Add messages of another layout, and return them.

        Each comes with the id that it keeps, or None for a new id, and with its visible time. `reason` is the reason of
        the events in the journal.
        """
        assert _ENQUEUED is not None
        self._has_changed = self._engine.is_mid_change = True
        now_ms, own = self.now_ms, [id for _, id, _ in imported if id is not None]
        self._facts.skip_ids(max(own, default=0))
        fresh = iter(self._facts.take_ids(len(imported) - len(own), now_ms))
        added: list[StoredMessage] = []
        for draft, own_id, visible_at in imported:
            id = next(fresh) if own_id is None else own_id
            envelope = make_envelope(draft, id, now_ms)
            if len(draft.payload) > PIECES_ABOVE:
                envelope = store_large_payload(self._engine, envelope)
            entry = StoredMessage(queue.p, envelope, Life(visible_at=visible_at), keys.id_bytes(id), draft.bytes)
            queue.put(entry)
            self._cache.remember(entry)
            self._journal.append(queue, entry, _ENQUEUED, now_ms, reason=reason)
            added.append(entry)
        self._engine.is_mid_change = False
        return added

    # --- Ledgers -----------------------------------------------------------------------------------------------

    async def put_claim(self, queue: QueueState, consumer: str, claim: OpenClaim) -> None:
        self._has_changed = True
        self._ledgers.put(queue, consumer, claim)

    async def close_claims(self, queue: QueueState, consumer: str, numbers: list[int], closed_upto: int) -> None:
        self._has_changed = True
        self._ledgers.close(queue, consumer, numbers, closed_upto)
