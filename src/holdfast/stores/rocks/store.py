"""The embedded store: the contract over the engine, its shelves and its journal."""

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from holdfast.dice import Dice
from holdfast.model import lifecycle
from holdfast.model.answers import Counts, Delivery, Enqueued, Found, LedgerEntry, Result
from holdfast.model.errors import Conflict, StaleLease, StoreUnavailable
from holdfast.model.message import Draft, Receipt, State
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
from holdfast.stores.answers import being_deleted, delivery_of, edited, settled, stale
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
from holdfast.stores.rocks.board import Board
from holdfast.stores.rocks.catalog import Catalog
from holdfast.stores.rocks.changes import Changes
from holdfast.stores.rocks.claiming import Claiming
from holdfast.stores.rocks.counters import Counters, Totals
from holdfast.stores.rocks.database import Database
from holdfast.stores.rocks.engine import Durability, Engine
from holdfast.stores.rocks.entries import Entries
from holdfast.stores.rocks.facts import Facts
from holdfast.stores.rocks.journal import RocksJournal
from holdfast.stores.rocks.ledgers import Ledgers
from holdfast.stores.rocks.reading import Reader
from holdfast.stores.rocks.seen import SeenKeys
from holdfast.stores.rocks.shelf import Entry, Shelf
from holdfast.stores.rocks.upkeep import Upkeep

# Leases and TTLs that one claim ends before it looks for messages; the rest is found by the next pass.
_ENDED_PER_CLAIM = 1_000
# With less than this left on the disk nothing is taken in: acks must still find room.
LOW_DISK_BYTES = 64 << 20
# How often the free space is looked at, in milliseconds.
_LOOK_AT_DISK_MS = 200


_log = logging.getLogger("holdfast")


class RocksStore:
    capabilities = Capabilities(claims_inline=True, is_durable=True)

    def __init__(
        self,
        path: str | os.PathLike[str],
        dice: Dice,
        *,
        durability: Durability = Durability.FSYNC,
        journal_retention_ms: int,
        shards: int = 1,
        low_disk_bytes: int = LOW_DISK_BYTES,
    ) -> None:
        self._path = path
        self._dice = dice
        self._durability = durability
        self._journal_retention_ms = journal_retention_ms
        self._shards = shards
        self._low_disk_bytes = low_disk_bytes
        self._database: Database | None = None

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        database = Database(self._path)
        try:
            self._open(database, listener, runtime)
        except BaseException:
            self._let_go()
            database.close()
            raise

    def _open(self, database: Database, listener: Listener, runtime: Runtime) -> None:
        self._listener = listener
        self._runtime = runtime
        self._engine = Engine(database, runtime, self._durability)
        self._disk_is_low = False
        self._looked_at_disk = 0
        self._board = Board(self._engine, listener)
        self._facts = Facts(self._engine, self._dice)
        self._catalog = Catalog(self._engine, self._make_shelf)
        self._catalog.load()
        self._entries = Entries(self._engine)
        self._reader = Reader(self._engine, self._entries)
        self._journal = RocksJournal(
            self._engine, self._journal_retention_ms, self._catalog.name_of, shards=self._shards
        )
        self._seen = SeenKeys(self._engine, self._board.scanner(keys.INDEXES, keys.SEEN_ENDS))
        self._ledgers = Ledgers(self._engine)
        self._upkeep = Upkeep(self._catalog, listener)
        self._changes = Changes(
            self._engine, self._board, self._catalog, self._entries, self._journal, self._seen, listener
        )
        self._claiming = Claiming(self._board, self._changes, self._entries, self._ledgers, self._facts, self._dice)
        self._engine.before_write = self._before_write
        self._engine.after_publish = self._board.tell_shown
        self._engine.on_stop = listener.stopped
        self._facts.begin_session()
        database.sync()
        self._database = database
        self._upkeep.note_all(runtime.clock.now_ms())

    async def close(self) -> None:
        if self._database is not None:
            database, self._database = self._database, None
            had_stopped = self._engine.has_stopped
            try:
                if not had_stopped:
                    await self._engine.committed()
                    self._facts.end_session()
                    database.sync()
            finally:
                self._let_go()
                try:
                    database.close()
                except StoreUnavailable as error:
                    if not had_stopped:
                        raise
                    # Whoever called since has been told; there is nothing left to save.
                    _log.warning("%s", error.message)

    def _let_go(self) -> None:
        """Drop everything that holds a handle: the directory stays locked while one lives. Whoever calls later is
        refused by the engine before any of it is missed."""
        self._engine.close()
        self._board.close()
        for name in (
            *("_catalog", "_entries", "_reader", "_journal", "_seen", "_ledgers", "_facts", "_upkeep"),
            *("_changes", "_claiming"),
        ):
            self.__dict__.pop(name, None)

    def _make_shelf(self, row: QueueRow, counters: Counters, totals: Totals) -> Shelf:
        return Shelf(row, self._engine, counters, totals, self._board)

    def _before_write(self) -> None:
        """What every batch carries once: counters, the highest id, a block of the journal."""
        self._board.write_counters()
        self._facts.write_highest_id()
        self._journal.write_block()

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
        self._board.tell_after_commit(shelf)
        await self._engine.committed()
        self._upkeep.note(shelf, now_ms)
        return shelf.row

    # --- Messages ----------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        engine = self._engine
        engine.check()
        self._check_disk(now_ms)
        known = self._catalog.find(ref) if auto_create else self._catalog.require(ref)
        # Most drafts have neither: then there is nothing to look up.
        groups = [draft.group for draft in drafts if draft.group is not None]
        has_keys = any(draft.key is not None for draft in drafts)
        remembers_keys = known is None or known.row.policy.dedup_window_ms > 0
        answers: list[Enqueued | None] = [None] * len(drafts)
        if known is None:
            self._catalog.check_room_for_queue(ref.tenant)
        else:
            if known.row.drain_until is not None:
                raise being_deleted(ref)
            known.prepare(groups)
            if has_keys:
                answers = self._seen.answers(known, drafts, now_ms)
        fresh = _fresh(drafts, answers) if has_keys and remembers_keys else drafts
        if self._catalog.has_quotas(ref.tenant):
            self._catalog.check_quotas(ref.tenant, [draft.bytes for draft in fresh])
        engine.begin()
        shelf = known or self._create(ref, groups)
        shelf.count_due(now_ms)
        default_ttl_ms = self._catalog.default_ttl_ms(shelf)
        engine.is_mid_change = True  # all of them or none: everything was read before
        ids = iter(self._facts.ids.take(len(fresh), now_ms))
        own: dict[str, Enqueued] = {}
        enqueued: list[Enqueued] = []
        for draft, seen in zip(drafts, answers, strict=True):
            answer = seen or (own.get(draft.key) if draft.key is not None else None)
            if answer is None:
                answer = self._changes.put_new(shelf, draft, next(ids), default_ttl_ms, now_ms)
                if draft.key is not None and remembers_keys:
                    own[draft.key] = replace(answer, duplicate=True)
            enqueued.append(answer)
        engine.is_mid_change = False
        await engine.committed()
        return enqueued

    def _create(self, ref: QueueRef, groups: list[str]) -> Shelf:
        """Make a queue in the middle of a step: there is nothing on disk that it would have to read."""
        shelf = self._catalog.create(ref)
        shelf.start_empty(groups)
        return shelf

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
            return Claims([deliveries], self._board.next_at(shelf), is_reread=True)
        shelf.prepare()
        self._engine.begin()
        shelf.count_due(now_ms)
        self._changes.end_by_time(shelf, _ENDED_PER_CLAIM, now_ms)
        taken = [[] if shelf.row.is_paused else self._claiming.claim(shelf, ask, now_ms) for ask in asks]
        per_ask = [
            [self._delivery(shelf, entry, with_state=ask.with_state) for entry in entries]
            for ask, entries in zip(asks, taken, strict=True)
        ]
        self._engine.written()
        if shelf.counters.in_flight:
            self._upkeep.note(shelf, now_ms)
        return Claims(per_ask, now_ms if all(per_ask) else self._board.next_at(shelf))

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
        if shelf.row.drain_until is not None or any(verdict.settle is Settle.EXTEND for verdict in verdicts):
            # The last lease of a queue being deleted may be settled, or one shortened; else deadlines only moved away.
            self._upkeep.note(shelf, now_ms)
        return results

    def _settle_one(self, shelf: Shelf, verdict: Verdict, now_ms: int) -> Result:
        entry = self._entries.get(shelf, verdict.receipt.id)
        if entry is None or not lifecycle.holds(entry.life, verdict.receipt, now_ms):
            return stale(verdict.receipt.id, None if entry is None else entry.envelope)
        change = judge(entry.life, entry.envelope, verdict, shelf.row.policy, now_ms, self._dice.roll)
        self._changes.apply(shelf, entry, change, now_ms)
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
            groups = [entry.envelope.group for entry in meant if entry.envelope.group is not None]
            each.prepare(groups, changes=len(meant))
        states = [self._entries.state(shelf, entry) if isinstance(verb, Move) else StateDocument() for entry in meant]
        self._engine.begin()
        shelf.count_due(now_ms)
        target.count_due(now_ms)
        self._board.tell_after_commit(shelf)  # what is removed may have freed a group
        self._engine.is_mid_change = True  # the step is atomic: everything was read before
        for entry, state in zip(meant, states, strict=True):
            self._alter_one(shelf, target, entry, state, verb, now_ms)
        self._engine.is_mid_change = False
        await self._engine.committed()
        self._upkeep.note(shelf, now_ms)
        return AlterStep(len(meant), len(meant), meant[-1].envelope.id if len(meant) == limit else None)

    def _alter_one(
        self, shelf: Shelf, target: Shelf, entry: Entry, state: StateDocument, verb: Verb, now_ms: int
    ) -> None:
        if isinstance(verb, Redrive) and verb.edit is not None:
            self._entries.forget(entry)
            shelf.edit(entry, edited(entry.envelope, verb.edit))
        change = alter(entry.life, entry.envelope, verb, self._catalog.default_ttl_ms(shelf), now_ms)
        if isinstance(verb, Move):
            self._changes.move(shelf, target, entry, state, change, now_ms)
        else:
            self._changes.apply(shelf, entry, change, now_ms)

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
            changed += self._changes.end_by_time(shelf, limit - changed, now_ms)
            if shelf.row.drain_until is not None and (not shelf.counters.in_flight or shelf.row.drain_until <= now_ms):
                changed += self._changes.delete_some(self._reader, shelf, limit - changed, now_ms)
            self._engine.end()
            if self._catalog.find(shelf.row.ref) is shelf:
                self._upkeep.note(shelf, now_ms)
        self._engine.begin()
        changed += self._changes.end_by_time(None, limit - changed, now_ms)
        changed += self._changes.end_kept(limit - changed, now_ms)
        changed += self._seen.forget_old(limit - changed, now_ms)
        changed += self._journal.trim(limit - changed, now_ms)
        await self._engine.committed()
        ends = [self._upkeep.next_at(), self._seen.next_at(), self._journal.next_trim_at()]
        ends += [
            keys.parse_instant(key) for key in (self._board.ttls.peek(), self._board.kept.peek()) if key is not None
        ]
        return Swept(changed, min((end for end in ends if end is not None), default=None))

    async def backup(self, target: str) -> None:
        self._engine.write()
        await self._runtime.offload(lambda: self._engine.database.checkpoint(target))

    async def journal(self, after: str | None, limit: int, tenant: str | None, now_ms: int) -> JournalPage:
        self._engine.check()
        await self._engine.committed()  # claims ride along with the next sync; a reader wants to see them
        retention_ms = None if tenant is None else self._catalog.config(tenant).journal_retention_ms
        oldest_at = now_ms - retention_ms if retention_ms is not None else 0
        return self._journal.read(after, limit, tenant, oldest_at)

    # --- One change --------------------------------------------------------------------------------------------

    def _delivery(self, shelf: Shelf, entry: Entry, *, with_state: bool) -> Delivery:
        return delivery_of(entry.envelope, entry.life, self._entries.state(shelf, entry) if with_state else None)

    def _found(self, shelf: Shelf, entry: Entry) -> Found:
        return Found(entry.envelope, entry.life, self._entries.state(shelf, entry))


def _fresh(drafts: list[Draft], answers: list[Enqueued | None]) -> list[Draft]:
    """Those that will be messages of their own: their key is new, to the queue and to this call."""
    first_of_key = {draft.key: draft for draft in reversed(drafts)}
    return [
        draft
        for draft, answer in zip(drafts, answers, strict=True)
        if answer is None and (draft.key is None or first_of_key[draft.key] is draft)
    ]
