"""The memory store: the reference that every other store is compared with."""

from collections.abc import Iterable, Mapping
from functools import partial

from sortedcontainers import SortedList

from holdfast.dice import Dice
from holdfast.model import lifecycle
from holdfast.model.answers import Counts, Delivery, Enqueued, Found, Result
from holdfast.model.claims import next_claim_at
from holdfast.model.errors import InvalidArgument
from holdfast.model.events import Event
from holdfast.model.idempotency import first_of_keys, new_places, results_of
from holdfast.model.ids import NODES, IdMaker
from holdfast.model.lifecycle import Change, is_over
from holdfast.model.message import Draft, Envelope, Receipt, State, seal
from holdfast.model.names import QueueRef
from holdfast.model.requests import (
    Ask,
    Filter,
    Move,
    Redrive,
    StateChange,
    Verb,
    Verdict,
    states_of,
)
from holdfast.model.state_documents import lease_lost, saved
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
    QueueChange,
    Swept,
)
from holdfast.stores.memory.directory import MemoryDirectory
from holdfast.stores.memory.journal import MemoryJournal
from holdfast.stores.memory.ledgers import MemoryLedgers
from holdfast.stores.memory.payloads import WholePayloads
from holdfast.stores.memory.reading import first, found, matching
from holdfast.stores.memory.schedules import MemorySchedules
from holdfast.stores.memory.shelf import Entry, Ledger, SeenKey, Shelf
from holdfast.telemetry.figures import Figures

# Leases and TTLs that one claim ends before it looks for messages; the rest is found by the next pass.
_ENDED_PER_CLAIM = 1_000


class MemoryStore:
    capabilities = Capabilities(claims_inline=True, is_durable=False)

    def __init__(self, dice: Dice, journal_retention_ms: int) -> None:
        self._dice = dice
        self._ids = IdMaker(int(dice.roll() * NODES))
        self._journal = MemoryJournal(journal_retention_ms)
        self.directory = self._directory = MemoryDirectory(self._row_changed)
        self.schedules = MemorySchedules(self._directory, self._enqueue_tick, self._tell, self._tell_scheduled)
        self.ledgers = MemoryLedgers(self._directory, self._settle, partial(self._delivery, with_state=True))
        self.payloads = WholePayloads()
        # (when, queue): the next deadline of each queue, so that a sweep visits only those with work.
        self._deadlines: SortedList[tuple[int, QueueRef]] = SortedList()
        self._deadline_of: dict[QueueRef, int] = {}

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        self._listener = listener

    async def close(self) -> None:
        self._directory.is_closed = True

    def shard_of(self, ref: QueueRef) -> int:
        return 0

    def _row_changed(self, shelf: Shelf, change: QueueChange, now_ms: int) -> None:
        if change.drain_until is not None:
            self.schedules.delete_all(shelf.row.ref)
        self._tell(shelf, now_ms)

    # --- Messages --------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        known = self._directory.find(ref) if auto_create else self._directory.require(ref)
        if known is not None:
            self._directory.require_open(ref)
        firsts = first_of_keys(drafts)
        seen = self._seen_keys(known, firsts, now_ms)
        remembers_keys = known is None or known.row.policy.dedup_window_ms > 0
        places = new_places(drafts, firsts, seen, remembers_keys=remembers_keys)
        self._directory.check_quotas(ref.tenant, [drafts[place].bytes for place in places])
        shelf = self._directory.create(ref)
        ids = self._ids.take(len(places), now_ms)
        for place, id in zip(places, ids, strict=True):
            self._put_new(shelf, drafts[place], id, now_ms)
        self._tell(shelf, now_ms)
        return results_of(drafts, places, ids, seen)

    def _enqueue_tick(self, shelf: Shelf, draft: Draft, now_ms: int, reason: str) -> Enqueued:
        """Enqueue a schedule's message, unless it repeats one."""
        firsts = first_of_keys([draft])
        seen = self._seen_keys(shelf, firsts, now_ms)
        ids = [] if seen else self._ids.take(1, now_ms)
        for id in ids:
            self._put_new(shelf, draft, id, now_ms, reason)
        return results_of([draft], range(len(ids)), ids, seen)[0]

    def _seen_keys(self, shelf: Shelf | None, keys: Iterable[str], now_ms: int) -> dict[str, Enqueued]:
        """Return the first message of each of these keys whose window has not ended."""
        known = ((key, None if shelf is None else shelf.keys.get(key)) for key in keys)
        return {
            key: Enqueued(snowflake=seen.id, given_correlation_id=seen.given_correlation_id, duplicate=True)
            for key, seen in known
            if seen is not None and seen.ends_at > now_ms
        }

    def _put_new(self, shelf: Shelf, draft: Draft, id: int, now_ms: int, reason: str | None = None) -> None:
        envelope = seal(draft, id, now_ms)
        life = lifecycle.first_life(draft, self._directory.default_ttl_ms(shelf), now_ms)
        entry = Entry(envelope, life, draft.bytes)
        self._directory.put(shelf, entry)
        event = lifecycle.TRANSITIONS[None, lifecycle.Cause.ENQUEUE].event
        self._journal.append(shelf.row.ref, entry, event, now_ms, reason=reason)
        if draft.key is not None:
            self._remember_key(shelf, draft.key, entry, now_ms)

    def _remember_key(self, shelf: Shelf, key: str, entry: Entry, now_ms: int) -> None:
        if (old := shelf.keys.get(key)) is not None:
            shelf.key_ends.remove((old.ends_at, key))
        ends_at = now_ms + shelf.row.policy.dedup_window_ms
        shelf.keys[key] = SeenKey(entry.envelope.id, entry.envelope.given_correlation_id, ends_at)
        shelf.key_ends.add((ends_at, key))

    async def claim(self, ref: QueueRef, asks: list[Ask], now_ms: int) -> Claims:
        if self._directory.find(ref) is None:
            return Claims([[] for _ in asks], None)
        shelf = self._directory.require_open(ref)
        if asks[0].ledger is not None and (again := self.ledgers.reread(shelf, *asks[0].ledger, now_ms)) is not None:
            return Claims([again], shelf.next_at(), is_reread=True)
        self._return_expired(shelf, _ENDED_PER_CLAIM, now_ms)
        self._end_ttls(shelf, _ENDED_PER_CLAIM, now_ms)
        per_ask = [[] if shelf.row.is_paused else self._claim_for(shelf, ask, now_ms) for ask in asks]
        self._tell_deadline(shelf, now_ms)
        next_at = next_claim_at(
            is_paused=shelf.row.is_paused, is_served=all(per_ask), now_ms=now_ms, soonest=shelf.next_at
        )
        return Claims(per_ask, next_at)

    def _claim_for(self, shelf: Shelf, ask: Ask, now_ms: int) -> list[Delivery]:
        taken: list[Entry] = []
        candidates = shelf.take_due(now_ms)
        while len(taken) < ask.limit and (entry := next(candidates, None)) is not None:
            if is_over(entry.life, now_ms):
                self._apply(shelf, entry, lifecycle.end_by_ttl(entry.life, shelf.row.policy, now_ms), now_ms)
                continue
            [token] = self._dice.tokens(1)
            change = lifecycle.claim(
                entry.life,
                shelf.row.policy,
                now_ms,
                token=token,
                lease_ms=ask.lease_ms,
                owner=ask.owner,
                ledger=ask.ledger,
            )
            self._apply(shelf, entry, change, now_ms)
            taken.append(entry)
        if ask.ledger is not None and taken:
            consumer, number = ask.ledger
            ledger = shelf.ledgers.setdefault(consumer, Ledger())
            ledger.open[number] = (now_ms, [receipt_of(entry.envelope, entry.life) for entry in taken])
        return [self._delivery(entry, with_state=ask.with_state) for entry in taken]

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        shelf = self._directory.find(ref)
        if shelf is None:
            return [stale(each.receipt.id) for each in verdicts]
        return self._settle(shelf, verdicts, now_ms)

    def _settle(self, shelf: Shelf, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        results = [self._settle_one(shelf, verdict, now_ms) for verdict in verdicts]
        self._tell(shelf, now_ms)
        return results

    def _settle_one(self, shelf: Shelf, verdict: Verdict, now_ms: int) -> Result:
        entry = shelf.entries.get(verdict.receipt.id)
        if entry is None or not lifecycle.holds(entry.life, verdict.receipt, now_ms):
            return stale(verdict.receipt.id, None if entry is None else entry.envelope)
        change = judge(entry.life, entry.envelope, verdict, shelf.row.policy, now_ms, self._dice.roll)
        self._apply(shelf, entry, change, now_ms)
        return settled(entry.envelope, change.life)

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        shelf = self._directory.find(ref)
        entry = shelf and shelf.entries.get(receipt.id)
        if not entry or not lifecycle.holds(entry.life, receipt, now_ms):
            raise lease_lost(receipt.id)
        entry.state = saved(entry.state, change)
        return entry.state.etag

    # --- Inspection ------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        entry = self._directory.require(ref).entries.get(id)
        return None if entry is None else found(entry)

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        due = self._directory.require(ref).peek_due(now_ms)
        return [found(entry) for _, entry in zip(range(limit), due, strict=False)]

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        shelf = self._directory.require(ref)
        states = frozenset(State) if state is None else frozenset({state})
        page = first(limit + 1, matching(shelf, states, which, after, now_ms))
        more = len(page) > limit
        return Listing([found(entry) for entry in page[:limit]], page[limit - 1].envelope.id if more else None)

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        if queue is not None:
            return self._directory.require(QueueRef(tenant, queue)).counts(now_ms)
        return Counts.total([shelf.counts(now_ms) for shelf in self._directory.shelves_of(tenant)])

    # --- Operators -------------------------------------------------------------------------------------------

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        shelf = self._directory.require(ref)
        target = self._directory.require_open(verb.to) if isinstance(verb, Move) else shelf
        meant = first(limit, matching(shelf, states_of(verb), which, after, now_ms))
        if target.row.tenant_id != shelf.row.tenant_id:
            self._directory.check_quotas(target.row.ref.tenant, [entry.bytes for entry in meant])
        if isinstance(verb, Redrive) and verb.edit is not None and meant:
            self._directory.check_edit(ref.tenant, meant[0].bytes, edited(meant[0].envelope, verb.edit).bytes)
        for entry in meant:
            self._alter_one(shelf, target, entry, verb, now_ms)
        self._tell(shelf, now_ms)
        if target is not shelf:
            self._tell(target, now_ms)
        return AlterStep(len(meant), len(meant), meant[-1].envelope.id if len(meant) == limit else None)

    def _alter_one(self, shelf: Shelf, target: Shelf, entry: Entry, verb: Verb, now_ms: int) -> None:
        if isinstance(verb, Redrive) and verb.edit is not None:
            self._edit(shelf, entry, edited(entry.envelope, verb.edit))
        change = alter(entry.life, entry.envelope, verb, self._directory.default_ttl_ms(shelf), now_ms)
        if not isinstance(verb, Move):
            self._apply(shelf, entry, change, now_ms)
            return
        # Both queues' journals tell of it, so that each one's counts can be made up from its own events.
        self._directory.drop(shelf, entry)
        self._directory.put(target, entry)
        self._journal.append(shelf.row.ref, entry, change.event, now_ms, reason=f"to {target.row.ref}")
        self._journal.append(target.row.ref, entry, change.event, now_ms, reason=f"from {shelf.row.ref}")

    def _edit(self, shelf: Shelf, entry: Entry, envelope: Envelope) -> None:
        self._directory.drop(shelf, entry)
        entry.envelope, entry.bytes = envelope, envelope.bytes
        self._directory.put(shelf, entry)

    # --- Upkeep ----------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        changed = self._journal.trim(limit, now_ms)
        while changed < limit and self._deadlines and self._deadlines[0][0] <= now_ms:
            shelf = self._directory.require(self._deadlines[0][1])
            changed += self._sweep_shelf(shelf, limit - changed, now_ms)
            if self._directory.find(shelf.row.ref) is shelf:
                self._tell(shelf, now_ms)
        ends = [self._deadlines[0][0]] if self._deadlines else []
        if (trim_at := self._journal.next_trim_at()) is not None:
            ends.append(trim_at)
        return Swept(changed, min(ends, default=None))

    def _sweep_shelf(self, shelf: Shelf, limit: int, now_ms: int) -> int:
        changed = self._return_expired(shelf, limit, now_ms)
        changed += self._end_ttls(shelf, limit - changed, now_ms)
        while changed < limit and shelf.key_ends and shelf.key_ends[0][0] <= now_ms:
            del shelf.keys[shelf.key_ends.pop(0)[1]]
            changed += 1
        while changed < limit and shelf.kept and shelf.kept[0][0] <= now_ms:
            self._directory.drop(shelf, shelf.entries[shelf.kept[0][1]])
            changed += 1
        if shelf.row.drain_until is not None and (not shelf.leases or shelf.row.drain_until <= now_ms):
            changed += self._delete_some(shelf, limit - changed, now_ms)
        return changed

    def _delete_some(self, shelf: Shelf, limit: int, now_ms: int) -> int:
        """Carry on the deletion of a queue; with its last message goes the queue."""
        doomed = list(shelf.entries.values())[:limit]
        for entry in doomed:
            self._apply(shelf, entry, lifecycle.remove(entry.life, "queue deleted"), now_ms)
        if not shelf.entries and limit:
            self._directory.remove(shelf.row.ref)
            self._note_deadline(shelf.row.ref, None)
        return len(doomed) + 1

    async def backup(self, target: str) -> None:
        raise InvalidArgument("memory:// keeps nothing on disk to back up", field="url")

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        retention_ms = None if tenant is None else self._directory.config(tenant).journal_retention_ms
        oldest_at = now_ms - retention_ms if retention_ms is not None else 0
        return self._journal.read(after, limit, tenant, oldest_at, until)

    # --- Figures ---------------------------------------------------------------------------------------------

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        return self._journal.take_tallies()

    async def figures(self) -> Figures:
        return Figures(is_up=not self._directory.is_closed)

    # --- One change ------------------------------------------------------------------------------------------

    def _apply(self, shelf: Shelf, entry: Entry, change: Change, now_ms: int) -> None:
        """Take one step of a message: its life, its indexes and its event."""
        if change.event is not None:
            self._journal.append(
                shelf.row.ref, entry, change.event, now_ms, change.life, reason=change.reason, error=change.error
            )
        if change.life is None or change.life.is_gone:
            self._directory.drop(shelf, entry)
        else:
            shelf.change(entry, change.life)

    def _return_expired(self, shelf: Shelf, limit: int, now_ms: int) -> int:
        returned = 0
        while returned < limit and shelf.leases and shelf.leases[0][0] <= now_ms:
            entry = shelf.entries[shelf.leases[0][1]]
            change = lifecycle.expire(entry.life, entry.envelope, shelf.row.policy, now_ms)
            self._apply(shelf, entry, change, now_ms)
            returned += 1
        return returned

    def _end_ttls(self, shelf: Shelf, limit: int, now_ms: int) -> int:
        ended = 0
        while ended < limit and shelf.ttls and shelf.ttls[0][0] <= now_ms:
            entry = shelf.entries[shelf.ttls[0][1]]
            self._apply(shelf, entry, lifecycle.end_by_ttl(entry.life, shelf.row.policy, now_ms), now_ms)
            ended += 1
        return ended

    def _delivery(self, entry: Entry, *, with_state: bool) -> Delivery:
        return delivery_of(entry.envelope, entry.life, entry.state if with_state else None)

    def _tell(self, shelf: Shelf, now_ms: int) -> None:
        """Say what may be claimed next, and when a sweep will be needed."""
        next_at = shelf.next_at()
        if next_at is not None:
            self._listener.ready(shelf.row.ref, next_at)
        self._tell_deadline(shelf, now_ms)

    def _tell_scheduled(self, at_ms: int) -> None:
        self._listener.scheduled(at_ms)

    def _tell_deadline(self, shelf: Shelf, now_ms: int) -> None:
        deadline = shelf.next_deadline(now_ms)
        self._note_deadline(shelf.row.ref, deadline)
        if deadline is not None:
            self._listener.deadline(deadline)

    def _note_deadline(self, ref: QueueRef, at_ms: int | None) -> None:
        old = self._deadline_of.get(ref)
        if old == at_ms:
            return
        if old is not None:
            self._deadlines.remove((old, ref))
        if at_ms is None:
            del self._deadline_of[ref]
        else:
            self._deadline_of[ref] = at_ms
            self._deadlines.add((at_ms, ref))
