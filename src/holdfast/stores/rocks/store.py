"""The embedded store: the contract over the engine, its shelves and its journal."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from holdfast.dice import Dice
from holdfast.model import lifecycle
from holdfast.model.answers import Counts, Delivery, Enqueued, Found, LedgerEntry, Result
from holdfast.model.errors import Conflict, StaleLease, StoreUnavailable
from holdfast.model.lifecycle import TRANSITIONS, Cause, Change, is_over
from holdfast.model.message import Draft, Envelope, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import (
    Ask,
    Filter,
    Move,
    Redrive,
    Settle,
    StateChange,
    StateDocument,
    Verb,
    Verdict,
    states_of,
)
from holdfast.model.verdicts import alter, judge
from holdfast.runtime import Runtime
from holdfast.stores.answers import delivery_of, edited, receipt_of, settled, stale
from holdfast.stores.contract import (
    AlterStep,
    Capabilities,
    Claims,
    JournalPage,
    Listener,
    Listing,
    QueueRow,
    Swept,
    TenantRow,
)
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.catalog import Catalog
from holdfast.stores.rocks.database import Database
from holdfast.stores.rocks.engine import Durability, Engine
from holdfast.stores.rocks.entries import Entries
from holdfast.stores.rocks.facts import Facts
from holdfast.stores.rocks.journal import RocksJournal
from holdfast.stores.rocks.ledgers import Ledgers
from holdfast.stores.rocks.reading import Reader
from holdfast.stores.rocks.seen import SeenKeys
from holdfast.stores.rocks.shelf import CHUNKED_ABOVE, Counters, Entry, Shelf, Totals, encode_counters
from holdfast.stores.rocks.upkeep import Upkeep
from holdfast.stores.rocks.window import Window

# Leases and TTLs that one claim ends before it looks for messages; the rest is found by the next pass.
_ENDED_PER_CLAIM = 1_000
# With less than this left on the disk nothing is taken in: acks must still find room.
LOW_DISK_BYTES = 64 << 20
# How often the free space is looked at, in milliseconds.
_LOOK_AT_DISK_MS = 200

_ENQUEUED = TRANSITIONS[None, Cause.ENQUEUE].event


class RocksStore:
    capabilities = Capabilities(claims_inline=True, is_durable=True)

    def __init__(
        self,
        path: str | os.PathLike[str],
        dice: Dice,
        *,
        durability: Durability = Durability.FSYNC,
        journal_retention_ms: int,
        low_disk_bytes: int = LOW_DISK_BYTES,
    ) -> None:
        self._path = path
        self._dice = dice
        self._durability = durability
        self._journal_retention_ms = journal_retention_ms
        self._low_disk_bytes = low_disk_bytes
        self._database: Database | None = None

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        database = Database(self._path)
        try:
            self._open(database, listener, runtime)
        except BaseException:
            database.close()
            raise

    def _open(self, database: Database, listener: Listener, runtime: Runtime) -> None:
        self._listener = listener
        self._engine = Engine(database, runtime, self._durability)
        self._dirty: dict[bytes, Shelf] = {}
        # Keys of `vi` that are written but not committed: no claim may find them yet.
        self._uncommitted: set[bytes] = set()
        # Queues in which something was shown since the last commit: their waiters are to be told.
        self._shown: dict[bytes, Shelf] = {}
        # The same for messages of groups, which may be taken along behind their head.
        self._uncommitted_ids: set[int] = set()
        self._is_os = self._durability is Durability.OS
        self._ends_by_time = False
        self._disk_is_low = False
        self._looked_at_disk = 0
        self.ttls = Window(self.scanner(keys.INDEXES, keys.TTLS), is_empty=False)
        self.kept = Window(self.scanner(keys.INDEXES, keys.KEPT), is_empty=False)
        self._facts = Facts(self._engine, self._dice)
        self._catalog = Catalog(self._engine, self._make_shelf)
        self._catalog.load()
        self._entries = Entries(self._engine)
        self._reader = Reader(self._engine, self._entries)
        self._journal = RocksJournal(self._engine, self._journal_retention_ms, self._catalog.name_of)
        self._seen = SeenKeys(self._engine, self.scanner(keys.INDEXES, keys.SEEN_ENDS))
        self._ledgers = Ledgers(self._engine)
        self._upkeep = Upkeep(self._catalog, listener)
        self._engine.before_write = self._before_write
        self._engine.publish = self._publish
        self._facts.begin_session()
        database.sync()
        self._database = database
        self._upkeep.note_all(runtime.clock.now_ms())

    async def close(self) -> None:
        if self._database is not None:
            database, self._database = self._database, None
            try:
                if not self._engine.has_stopped:
                    await self._engine.committed()
                    self._facts.end_session()
                    database.sync()
            finally:
                self._engine.close()
                database.close()

    def backup(self, target: str | os.PathLike[str]) -> None:
        """A consistent copy while the store is in use."""
        self._engine.write()
        self._engine.database.checkpoint(target)

    # --- What shelves and engine need --------------------------------------------------------------------------

    def _make_shelf(self, row: QueueRow, counters: Counters, totals: Totals) -> Shelf:
        return Shelf(row, self._engine, counters, totals, self)

    def scanner(self, family: str, prefix: bytes) -> Callable[[bytes, int], list[bytes]]:
        upper, size = keys.after(prefix), len(prefix)

        def scan(from_key: bytes, limit: int) -> list[bytes]:
            self._engine.write()
            found: list[bytes] = []
            for key in self._engine.database.scan(family, prefix + from_key, upper):
                if key not in self._uncommitted:
                    found.append(key[size:])
                    if len(found) == limit:
                        break
            return found

        return scan

    def mark_dirty(self, shelf: Shelf) -> None:
        self._dirty[shelf.p] = shelf

    def show_after_commit(self, shelf: Shelf, priority: int, key: bytes) -> None:
        if self._is_os or (self._ends_by_time and keys.parse_id(key[8:]) not in self._uncommitted_ids):
            # Nobody waits for a commit; or the clock alone says it, and says it again after a crash.
            shelf.show(priority, key)
            self._shown[shelf.p] = shelf
            return
        self._uncommitted.add(keys.level(shelf.p, priority) + key)
        self._engine.publish_after_commit.append((shelf, priority, key))

    def hide(self, shelf: Shelf, priority: int, key: bytes) -> None:
        if self._uncommitted:
            self._uncommitted.discard(keys.level(shelf.p, priority) + key)

    def _before_write(self) -> None:
        for p, shelf in self._dirty.items():
            self._engine.put(keys.COUNTERS + p, encode_counters(shelf.counters), None)
        self._dirty.clear()
        self._facts.write_highest_id()
        self._engine.publish_after_commit.append(self._journal.write_block())

    def _publish(self, published: list[Any]) -> None:
        """What was committed may be claimed; those who wait for it are told, once per queue."""
        shelves, self._shown = self._shown, {}
        for item in published:
            if isinstance(item, int):
                self._journal.durable = item
                continue
            if isinstance(item, Entry):
                self._uncommitted_ids.discard(item.envelope.id)
                continue
            shelf, priority, key = item
            shelves[shelf.p] = shelf
            full_key = keys.level(shelf.p, priority) + key
            if full_key in self._uncommitted:  # else it went before it was ever seen
                self._uncommitted.discard(full_key)
                shelf.show(priority, key)
        for shelf in shelves.values():
            self._tell(shelf)

    def _tell(self, shelf: Shelf) -> None:
        next_at = self._next_at(shelf)
        if next_at is not None:
            self._listener.ready(shelf.row.ref, next_at)

    def _next_at(self, shelf: Shelf) -> int | None:
        next_at = shelf.next_at()
        if shelf.has_groups and not shelf.row.is_paused and (ttl := self.ttls.peek()) is not None:
            # The end of a head that is not due yet frees its group.
            ends_at = keys.parse_instant(ttl)
            return ends_at if next_at is None else min(next_at, ends_at)
        return next_at

    # --- The directory -----------------------------------------------------------------------------------------

    async def find_tenant(self, tenant: str) -> TenantRow | None:
        self._engine.check()
        return self._catalog.tenant(tenant)

    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        self._engine.check()
        shelf = self._catalog.find(ref)
        return None if shelf is None else shelf.row

    async def list_tenants(self) -> list[TenantRow]:
        self._engine.check()
        return self._catalog.tenants()

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        self._engine.check()
        return [shelf.row for shelf in self._catalog.shelves_of(tenant)]

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        self._engine.begin()
        row = self._catalog.put_tenant(tenant, config)
        await self._engine.committed()
        return row

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        self._engine.check()
        if (shelf := self._catalog.find(ref)) is None:
            self._catalog.check_room_for_queue(ref.tenant)
            self._engine.begin()
            shelf = self._catalog.create(ref)
            await self._engine.committed()
        return shelf.row

    async def put_policy(self, ref: QueueRef, policy: QueuePolicy, now_ms: int) -> QueueRow:
        return await self._change_row(ref, now_ms, policy=policy)

    async def pause(self, ref: QueueRef, is_paused: bool, now_ms: int) -> QueueRow:
        return await self._change_row(ref, now_ms, is_paused=is_paused)

    async def drain(self, ref: QueueRef, until_ms: int, now_ms: int) -> QueueRow:
        return await self._change_row(ref, now_ms, drain_until=until_ms)

    async def _change_row(self, ref: QueueRef, now_ms: int, **changes: Any) -> QueueRow:
        self._engine.check()
        shelf = self._catalog.require(ref)
        self._engine.begin()
        shelf.row = replace(shelf.row, **changes)
        self._catalog.write_row(shelf)
        await self._engine.committed()
        self._tell(shelf)
        self._upkeep.note(shelf, now_ms)
        return shelf.row

    # --- Messages ----------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        engine = self._engine
        engine.check()
        self._check_disk(now_ms)
        known = self._catalog.find(ref) if auto_create else self._catalog.require(ref)
        if known is None:
            self._catalog.check_room_for_queue(ref.tenant)
            answers: list[Enqueued | None] = [None] * len(drafts)
        else:
            self._catalog.require_open(ref)
            known.prepare(draft.group for draft in drafts)
            answers = self._seen.answers(known, drafts, now_ms)
        first_of_key = {draft.key: draft for draft in reversed(drafts)}
        fresh = [
            draft
            for draft, answer in zip(drafts, answers, strict=True)
            if answer is None and (draft.key is None or first_of_key[draft.key] is draft)
        ]
        self._catalog.check_quotas(ref.tenant, [draft.bytes for draft in fresh])
        engine.begin()
        shelf = known or self._create(ref, drafts)
        shelf.count_due(now_ms)
        default_ttl_ms = self._catalog.default_ttl_ms(shelf)
        ids = iter(self._facts.ids.take(len(fresh), now_ms))
        own: dict[str, Enqueued] = {}
        enqueued: list[Enqueued] = []
        for draft, seen in zip(drafts, answers, strict=True):
            answer = seen or (own.get(draft.key) if draft.key is not None else None)
            if answer is None:
                answer = self._put_new(shelf, draft, next(ids), default_ttl_ms, now_ms)
                if draft.key is not None:
                    own[draft.key] = replace(answer, duplicate=True)
            enqueued.append(answer)
        await engine.committed()
        return enqueued

    def _create(self, ref: QueueRef, drafts: list[Draft]) -> Shelf:
        """Make a queue in the middle of a step: there is nothing on disk that it would have to read."""
        shelf = self._catalog.create(ref)
        shelf.start_empty(draft.group for draft in drafts)
        return shelf

    def _put_new(self, shelf: Shelf, draft: Draft, id: int, default_ttl_ms: int | None, now_ms: int) -> Enqueued:
        envelope = Envelope(
            id=id,
            enqueued_at=now_ms,
            payload=draft.payload,
            content_type=draft.content_type,
            headers=draft.headers,
            ttl_ms=draft.ttl_ms,
            group=draft.group,
            given_correlation_id=draft.correlation_id,
            max_retries=draft.max_retries,
        )
        life = lifecycle.first_life(draft, default_ttl_ms, now_ms)
        entry = Entry(
            shelf.p, envelope, life, keys.id_bytes(id), draft.bytes, is_chunked=len(draft.payload) > CHUNKED_ABOVE
        )
        shelf.put(entry)
        self._entries.remember(entry)
        if draft.group is not None and not self._is_os:
            self._uncommitted_ids.add(id)
            self._engine.publish_after_commit.append(entry)
        assert _ENQUEUED is not None
        self._journal.append(shelf, entry, _ENQUEUED, now_ms)
        if life.expires_at is not None:
            self._listener.deadline(life.expires_at)
        if draft.key is not None:
            until = now_ms + shelf.row.policy.dedup_window_ms
            self._seen.remember(shelf, draft.key, entry, until)
            self._listener.deadline(until)
        return Enqueued(snowflake=id, given_correlation_id=draft.correlation_id)

    def _check_disk(self, now_ms: int) -> None:
        if abs(now_ms - self._looked_at_disk) >= _LOOK_AT_DISK_MS:
            self._looked_at_disk = now_ms
            self._disk_is_low = self._engine.database.free_bytes() < self._low_disk_bytes
        if self._disk_is_low:
            raise StoreUnavailable(
                f"less than {self._low_disk_bytes} bytes are left on the disk of {self._path}: free some space; acks "
                "still work"
            )

    async def claim(self, ref: QueueRef, asks: list[Ask], now_ms: int) -> Claims:
        self._engine.check()
        if self._catalog.find(ref) is None:
            return Claims([[] for _ in asks], None)
        shelf = self._catalog.require_open(ref)
        ledger = asks[0].ledger
        if ledger is not None and (receipts := self._ledgers.receipts(shelf, *ledger)) is not None:
            held = self._held(shelf, receipts, now_ms)
            deliveries = [self._delivery(shelf, entry, with_state=True) for entry in held]
            return Claims([deliveries], self._next_at(shelf), is_reread=True)
        shelf.prepare()
        self._engine.begin()
        shelf.count_due(now_ms)
        self._end_by_time(shelf, _ENDED_PER_CLAIM, now_ms)
        per_ask = [[] if shelf.row.is_paused else self._claim_for(shelf, ask, now_ms) for ask in asks]
        self._engine.written()
        self._upkeep.note(shelf, now_ms)
        return Claims(per_ask, self._next_at(shelf))

    def _claim_for(self, shelf: Shelf, ask: Ask, now_ms: int) -> list[Delivery]:
        taken = self._take_due(shelf, ask.limit, now_ms)
        if not taken:
            return []
        policy, facts = shelf.row.policy, self._facts
        claimed_event = TRANSITIONS[State.READY, Cause.CLAIM].event
        assert claimed_event is not None
        for entry, token in zip(taken, self._dice.tokens(len(taken)), strict=True):
            change = lifecycle.claim(
                entry.life,
                policy,
                now_ms,
                token=token,
                lease_ms=ask.lease_ms,
                owner=ask.owner,
                ledger=ask.ledger,
                version_floor=facts.version_floor(entry.envelope.id),
            )
            assert change.life is not None
            shelf.change(entry, change.life)
            self._journal.append(shelf, entry, claimed_event, now_ms)
            self._entries.remember(entry)
        if ask.ledger is not None:
            self._ledgers.put(shelf, *ask.ledger, now_ms, [receipt_of(each.envelope, each.life) for each in taken])
        return [self._delivery(shelf, entry, with_state=ask.with_state) for entry in taken]

    def _take_due(self, shelf: Shelf, limit: int, now_ms: int) -> list[Entry]:
        """Due messages in the order of delivery, their keys taken out of the windows.

        On the way, entries without a Ready message behind them are dropped, and what the TTL has ended is ended.
        """
        taken: list[Entry] = []
        for priority in shelf.priorities():
            while len(taken) < limit and (candidates := shelf.pop_due(priority, limit - len(taken), now_ms)):
                entries = self._entries.load(shelf, [keys.parse_id(key[8:]) for key in candidates])
                for key, entry in zip(candidates, entries, strict=True):
                    if entry is None or not shelf.is_shown(entry, priority, key):
                        shelf.heal_visible(priority, key)
                    elif len(taken) >= limit:
                        shelf.show(priority, key)  # a group's batch took its place
                    elif is_over(entry.life, now_ms):
                        change = lifecycle.end_by_ttl(entry.life, shelf.row.policy, now_ms)
                        self._apply(shelf, entry, change, now_ms)
                    elif entry.envelope.group is None:
                        taken.append(entry)
                    else:
                        taken += self._take_group(shelf, entry.envelope.group, limit - len(taken), now_ms)
        return taken

    def _take_group(self, shelf: Shelf, name: str, limit: int, now_ms: int) -> list[Entry]:
        """The group's oldest due messages: one batch, in order of id, up to the first that is not due."""
        taken: list[Entry] = []
        ids = [keys.parse_id(id16) for id16 in shelf.group_batch(name, limit)]
        for entry in self._entries.load(shelf, ids):
            if entry is None:
                raise StoreUnavailable(f"group {name!r} of {shelf.row.ref} names a message that is not there")
            if entry.life.visible_at > now_ms or entry.envelope.id in self._uncommitted_ids:
                break
            if not is_over(entry.life, now_ms):
                taken.append(entry)
        return taken

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        self._engine.check()
        shelf = self._catalog.find(ref)
        if shelf is None:
            return [stale(each.receipt.id) for each in verdicts]
        return await self._settle(shelf, verdicts, now_ms)

    async def _settle(
        self, shelf: Shelf, verdicts: list[Verdict], now_ms: int, also: Callable[[], None] | None = None
    ) -> list[Result]:
        """`also` is written in the same step."""
        shelf.prepare()
        self._entries.warm(shelf, [verdict.receipt.id for verdict in verdicts])
        self._engine.begin()
        shelf.count_due(now_ms)
        results = [self._settle_one(shelf, verdict, now_ms) for verdict in verdicts]
        if also is not None:
            also()
        if also is None and all(verdict.settle is Settle.EXTEND for verdict in verdicts):
            self._engine.written()
        else:
            await self._engine.committed()
        self._upkeep.note(shelf, now_ms)
        return results

    def _settle_one(self, shelf: Shelf, verdict: Verdict, now_ms: int) -> Result:
        entry = self._entries.get(shelf, verdict.receipt.id)
        if entry is None or not lifecycle.holds(entry.life, verdict.receipt, now_ms):
            return stale(verdict.receipt.id, None if entry is None else entry.envelope)
        change = judge(entry.life, entry.envelope, verdict, shelf.row.policy, now_ms, self._dice.roll)
        self._apply(shelf, entry, change, now_ms)
        return settled(entry.envelope, change.life)

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        self._engine.check()
        shelf = self._catalog.find(ref)
        entry = None if shelf is None else self._entries.get(shelf, receipt.id)
        if shelf is None or entry is None or not lifecycle.holds(entry.life, receipt, now_ms):
            raise StaleLease(f"the lease on {receipt.id} is no longer held by this receipt")
        state = self._entries.state(shelf, entry)
        if change.progress is not None:
            state = replace(state, progress=change.progress)
        elif change.etag != state.etag:
            raise Conflict(f"the state's ETag is {state.etag}, not {change.etag}: read it again", etag=state.etag)
        else:
            state = replace(state, document=change.document, etag=str(int(state.etag or 0) + 1))
        self._engine.begin()
        self._entries.put_state(shelf, entry, state)
        await self._engine.committed()
        return state.etag

    # --- Inspection --------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        self._engine.check()
        shelf = self._catalog.require(ref)
        entry = self._entries.get(shelf, id)
        return None if entry is None else self._found(shelf, entry)

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        self._engine.check()
        shelf = self._catalog.require(ref)
        return [self._found(shelf, entry) for entry in self._reader.peek_due(shelf, limit, now_ms)]

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        self._engine.check()
        shelf = self._catalog.require(ref)
        states = frozenset(State) if state is None else frozenset({state})
        page = self._reader.matching(shelf, states, which, after, limit + 1, now_ms)
        more = len(page) > limit
        return Listing(
            [self._found(shelf, each) for each in page[:limit]], page[limit - 1].envelope.id if more else None
        )

    async def counts(self, ref: QueueRef, now_ms: int) -> Counts:
        self._engine.check()
        shelf = self._catalog.require(ref)
        shelf.count_due(now_ms)
        return shelf.counts(now_ms)

    async def tenant_counts(self, tenant: str, now_ms: int) -> Counts:
        self._engine.check()
        every = []
        for shelf in self._catalog.shelves_of(tenant):
            shelf.count_due(now_ms)
            every.append(shelf.counts(now_ms))
        return Counts.total(every)

    # --- Operators ---------------------------------------------------------------------------------------------

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        self._engine.check()
        shelf = self._catalog.require(ref)
        target = self._catalog.require_open(verb.to) if isinstance(verb, Move) else shelf
        meant = self._reader.matching(shelf, states_of(verb), which, after, limit, now_ms)
        if target.row.tenant_id != shelf.row.tenant_id:
            self._catalog.check_quotas(target.row.ref.tenant, [entry.bytes for entry in meant])
        if isinstance(verb, Redrive) and verb.edit is not None and meant:
            self._catalog.check_edit(ref.tenant, meant[0].bytes, edited(meant[0].envelope, verb.edit).bytes)
        for each in {shelf.p: shelf, target.p: target}.values():
            each.prepare((entry.envelope.group for entry in meant), changes=len(meant))
        states = [self._entries.state(shelf, entry) if isinstance(verb, Move) else StateDocument() for entry in meant]
        self._engine.begin()
        shelf.count_due(now_ms)
        target.count_due(now_ms)
        for entry, state in zip(meant, states, strict=True):
            self._alter_one(shelf, target, entry, state, verb, now_ms)
        await self._engine.committed()
        self._upkeep.note(shelf, now_ms)
        self._tell(shelf)
        return AlterStep(len(meant), len(meant), meant[-1].envelope.id if len(meant) == limit else None)

    def _alter_one(
        self, shelf: Shelf, target: Shelf, entry: Entry, state: StateDocument, verb: Verb, now_ms: int
    ) -> None:
        if isinstance(verb, Redrive) and verb.edit is not None:
            self._entries.forget(entry)
            shelf.edit(entry, edited(entry.envelope, verb.edit))
        change = alter(entry.life, entry.envelope, verb, self._catalog.default_ttl_ms(shelf), now_ms)
        if isinstance(verb, Move):
            self._move(shelf, target, entry, state, change, now_ms)
        else:
            self._apply(shelf, entry, change, now_ms)

    def _move(
        self, shelf: Shelf, target: Shelf, entry: Entry, state: StateDocument, change: Change, now_ms: int
    ) -> None:
        """Both queues' journals tell of it, so that each one's counts can be made up from its own events."""
        assert change.event is not None
        self._entries.forget(entry)
        shelf.drop(entry)
        entry.has_life = False
        target.put(entry)
        if entry.has_state:
            self._entries.put_state(target, entry, state)
        self._journal.append(shelf, entry, change.event, now_ms, reason=f"to {target.row.ref}")
        self._journal.append(target, entry, change.event, now_ms, reason=f"from {shelf.row.ref}")

    # --- The claim ledger --------------------------------------------------------------------------------------

    async def ledger(self, ref: QueueRef, consumer: str, now_ms: int) -> list[LedgerEntry]:
        self._engine.check()
        shelf = self._catalog.require(ref)
        entries = []
        for number, claimed_at, receipts in self._ledgers.open_claims(shelf, consumer):
            held = self._held(shelf, receipts, now_ms)
            deliveries = [self._delivery(shelf, entry, with_state=True) for entry in held]
            lost = len(receipts) - len(held)
            entries.append(LedgerEntry(number=number, claimed_at=claimed_at, deliveries=deliveries, lost=lost))
        return entries

    async def ledger_ack(self, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        self._engine.check()
        shelf = self._catalog.require(ref)
        claims = [each for each in self._ledgers.open_claims(shelf, consumer) if each[0] <= upto]
        receipts = [receipt for _, _, receipts in claims for receipt in receipts]
        verdicts = [Verdict(settle=Settle.ACK, receipt=each) for each in receipts]
        closed_upto = self._ledgers.closed_upto(shelf, consumer)

        def close() -> None:
            self._ledgers.close(shelf, consumer, upto, [number for number, _, _ in claims], closed_upto)

        return await self._settle(shelf, verdicts, now_ms, also=close)

    async def ledger_extend(self, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int) -> list[Result]:
        self._engine.check()
        shelf = self._catalog.require(ref)
        verdicts = [
            Verdict(settle=Settle.EXTEND, receipt=receipt, lease_ms=lease_ms)
            for _, _, receipts in self._ledgers.open_claims(shelf, consumer)
            for receipt in receipts
        ]
        return await self._settle(shelf, verdicts, now_ms)

    def _held(self, shelf: Shelf, receipts: Iterable[Receipt], now_ms: int) -> list[Entry]:
        found = [(receipt, self._entries.get(shelf, receipt.id)) for receipt in receipts]
        return [entry for receipt, entry in found if entry and lifecycle.holds(entry.life, receipt, now_ms)]

    # --- Upkeep ------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        self._engine.check()
        changed = 0
        while changed < limit and (shelf := self._upkeep.pop_due(now_ms)) is not None:
            shelf.prepare()
            self._engine.begin()
            shelf.count_due(now_ms)
            changed += self._end_by_time(shelf, limit - changed, now_ms)
            if shelf.row.drain_until is not None and (not shelf.counters.in_flight or shelf.row.drain_until <= now_ms):
                changed += self._delete_some(shelf, limit - changed, now_ms)
            self._engine.end()
            if self._catalog.find(shelf.row.ref) is shelf:
                self._upkeep.note(shelf, now_ms)
        self._engine.begin()
        changed += self._end_by_time(None, limit - changed, now_ms)
        changed += self._end_kept(limit - changed, now_ms)
        changed += self._seen.forget_old(limit - changed, now_ms)
        changed += self._journal.trim(limit - changed, now_ms)
        await self._engine.committed()
        ends = [self._upkeep.next_at(), self._seen.next_at(), self._journal.next_trim_at()]
        ends += [keys.parse_instant(key) for key in (self.ttls.peek(), self.kept.peek()) if key is not None]
        return Swept(changed, min((end for end in ends if end is not None), default=None))

    def _end_by_time(self, shelf: Shelf | None, limit: int, now_ms: int) -> int:
        """Return a queue's expired leases, and end the TTLs of all queues."""
        self._ends_by_time = True
        touched = {} if shelf is None else {shelf.p: shelf}
        changed = 0 if shelf is None else self._return_expired(shelf, limit, now_ms)
        changed += self._end_ttls(limit - changed, now_ms, touched)
        self._ends_by_time = False
        if changed:
            for each in touched.values():
                self._tell(each)
        return changed

    def _return_expired(self, shelf: Shelf, limit: int, now_ms: int) -> int:
        returned = 0
        while returned < limit and (first := shelf.first_expiry()) is not None and first[0] <= now_ms:
            expires_at, id16 = first
            entry = self._entries.get(shelf, keys.parse_id(id16))
            lease = None if entry is None else entry.life.lease
            if entry is None or lease is None or lease.expires_at != expires_at:
                shelf.heal_expiry(expires_at, id16)
            else:
                change = lifecycle.expire(entry.life, entry.envelope, shelf.row.policy, now_ms)
                self._apply(shelf, entry, change, now_ms)
            returned += 1
        return returned

    def _end_ttls(self, limit: int, now_ms: int, touched: dict[bytes, Shelf]) -> int:
        ended = 0
        while ended < limit and (key := self.ttls.peek()) is not None and keys.parse_instant(key) <= now_ms:
            shelf, entry = self._owner_of(key)
            if (
                shelf is None
                or entry is None
                or entry.life.expires_at != keys.parse_instant(key)
                or (entry.life.state is not State.READY)
            ):
                self._heal(self.ttls, keys.TTLS, key)
            else:
                shelf.count_due(now_ms)
                change = lifecycle.end_by_ttl(entry.life, shelf.row.policy, now_ms)
                self._apply(shelf, entry, change, now_ms)
                touched[shelf.p] = shelf
            ended += 1
        return ended

    def _end_kept(self, limit: int, now_ms: int) -> int:
        ended = 0
        while ended < limit and (key := self.kept.peek()) is not None and keys.parse_instant(key) <= now_ms:
            shelf, entry = self._owner_of(key)
            if shelf is None or entry is None or entry.life.keep_until != keys.parse_instant(key):
                self._heal(self.kept, keys.KEPT, key)
            else:
                self._entries.forget(entry)
                shelf.drop(entry)
            ended += 1
        return ended

    def _owner_of(self, key: bytes) -> tuple[Shelf | None, Entry | None]:
        """Queue and message behind a deadline: when 8 | P 8 | id 16."""
        shelf = self._catalog.of_prefix(key[8:16])
        return shelf, None if shelf is None else self._entries.get(shelf, keys.parse_id(key[16:]))

    def _heal(self, window: Window, space: bytes, key: bytes) -> None:
        window.discard(key)
        self._engine.delete(space + key, self._engine.database.handles[keys.INDEXES])

    def _delete_some(self, shelf: Shelf, limit: int, now_ms: int) -> int:
        """Carry on the deletion of a queue; with its last message goes the queue."""
        doomed = self._reader.first(shelf, limit)
        for entry in doomed:
            self._apply(shelf, entry, lifecycle.remove(entry.life, "queue deleted"), now_ms)
        if not shelf.counters.messages and limit:
            ix = self._engine.database.handles[keys.INDEXES]
            for space in keys.PER_QUEUE_SPACES:
                self._engine.delete_range(space + shelf.p, keys.after(space + shelf.p), ix)
            self._dirty.pop(shelf.p, None)
            self._catalog.remove(shelf)
        return len(doomed) + 1

    async def journal(self, after: str | None, limit: int, tenant: str | None, now_ms: int) -> JournalPage:
        self._engine.check()
        await self._engine.committed()  # claims ride along with the next sync; a reader wants to see them
        retention_ms = None if tenant is None else self._catalog.config(tenant).journal_retention_ms
        oldest_at = now_ms - retention_ms if retention_ms is not None else 0
        return self._journal.read(after, limit, tenant, oldest_at)

    # --- One change --------------------------------------------------------------------------------------------

    def _apply(self, shelf: Shelf, entry: Entry, change: Change, now_ms: int) -> None:
        """Take one step of a message: its life, its indexes and its event."""
        life = change.life
        if change.event is not None:
            self._journal.append(shelf, entry, change.event, now_ms, life, reason=change.reason, error=change.error)
        if life is None or life.is_gone:
            self._entries.forget(entry)
            shelf.drop(entry)
        else:
            shelf.change(entry, life)
            if life.expires_at is not None and life.state is State.READY:
                self._listener.deadline(life.expires_at)
            if life.keep_until is not None:
                self._listener.deadline(life.keep_until)

    def _delivery(self, shelf: Shelf, entry: Entry, *, with_state: bool) -> Delivery:
        return delivery_of(entry.envelope, entry.life, self._entries.state(shelf, entry) if with_state else None)

    def _found(self, shelf: Shelf, entry: Entry) -> Found:
        return Found(entry.envelope, entry.life, self._entries.state(shelf, entry))
