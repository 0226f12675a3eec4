"""The contract that every store obeys.

A store keeps tenants, queues, messages, schedules, claim ledgers and the journal. It moves each message along
`model.rules.transitions.TRANSITIONS`, and changes its state in no other way. To write a new store, implement `Store`
and its four parts (`QueueDirectory`, `ScheduleStore`, `LedgerStore`, `PayloadStore`); `values.py` has the rows and
results that their methods return. A store that also implements `stores.unit.Units` gets enqueueing, claims, verdicts,
bulk verbs, ledgers and sweeps from `stores/logic/`. `holdfast.testing.laws` checks any store against this contract.

Rules for every method that changes something, of the store and of its parts:

- **Atomic.** The whole call takes effect, or none of it. A call that raises has changed nothing and written nothing;
  so has a claim that finds nothing. Of any number of concurrent claims, exactly one gets a message.
- **Durable.** The change is on disk before the method returns. Two changes are exempt: a claim without a ledger, and
  the verdict `EXTEND`. A power cut may undo these two; the message is then delivered again, under a higher version.
- **Fenced.** A verdict takes effect only with the receipt of the message's current, unexpired lease
  (`lifecycle.holds`), whether or not a sweep has run since the lease ended.
- **In the journal.** Each transition appends its event in the same atomic step.
- **Announced.** After the change, the store calls the `Listener` with each queue on which a claim may now find more,
  and from when. It calls only for changes that took effect, and it calls even if the caller was cancelled while it
  waited. `claim` is exempt: its result says when to claim again. In the same way the store reports the next instant at
  which a sweep or a schedule is due.

Time arrives as `now_ms`, milliseconds since the Unix epoch, and randomness as `Dice`: a store that one process owns
reads no clock. A store that several processes share uses its database's clock inside its own statements. A call may
take longer than its caller waits; the change of a cancelled call takes effect either completely or not at all.

Any method may raise `StoreUnavailable`, which callers retry. Docstrings name only the other errors. The store knows
each queue's policy, because it returns expired leases without being asked.
"""

from collections.abc import Mapping
from typing import Protocol, Self

from holdfast.model.answers import Counts, Enqueued, Found, LedgerEntry, Result, Saved
from holdfast.model.events import Event
from holdfast.model.message import Draft, Pieces, Receipt, State
from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.model.requests import ClaimRequest, Filter, StateChange, Verb, Verdict
from holdfast.model.schedules import Schedule, Tick
from holdfast.runtime import Runtime
from holdfast.stores.values import (
    AlterStep,
    Capabilities,
    Claims,
    DueSchedules,
    JournalPage,
    Listing,
    QueueChange,
    QueueRow,
    Swept,
    TenantRow,
)
from holdfast.telemetry.figures import Figures

# Maximum number of events that one call of `Store.journal` examines. It is not below the largest `limit`, so that a
# page of all tenants is always full.
JOURNAL_STEP = 10_000


class Listener(Protocol):
    """The part of the dispatcher that a store notifies of its changes.

    A store calls these methods in the middle of its own steps, so they must return at once and must not call the store.
    """

    def is_waited_for(self, ref: QueueRef) -> bool:
        """Return whether a claim is waiting on the queue. If not, the store may skip `ready` and the work of finding
        `at_ms`."""

    def ready(self, ref: QueueRef, at_ms: int) -> None:
        """Note that from `at_ms` on, a claim on the queue may find a message that an earlier claim would not have
        found."""

    def deadline(self, at_ms: int) -> None:
        """Note that from `at_ms` on, `Store.sweep` has work to do."""

    def scheduled(self, at_ms: int) -> None:
        """Note that from `at_ms` on, `ScheduleStore.due` returns a schedule."""

    def stopped(self) -> None:
        """Note that the store refuses every call from now on, after a failed write or sync. Waiting claims call the
        store once more and get its error."""

    def reopened(self) -> None:
        """Note that a stopped store accepts calls again.

        It has read everything again from disk. Calls that failed when it stopped may have taken effect, so rows that
        were read before may be out of date.
        """

    def lost(self, why: str) -> None:
        """Note that a stopped store can never be used again in this process, for the reason `why`."""


class PayloadWriter(Protocol):
    """A payload that is being written into the store before its message exists."""

    async def write(self, part: bytes) -> None:
        """Append bytes. Raise `OverQuota` or `PayloadTooLarge` as soon as the message can no longer be enqueued."""

    async def finish(self) -> Pieces:
        """Finish the payload. The result belongs into one draft for the same queue, to be enqueued once."""

    def abandon(self) -> None:
        """Discard the payload, and delete its pieces soon.

        Does nothing once the payload belongs to a message, so a caller may always call this last.
        """


class PayloadReader(Protocol):
    """An async iterator over the bytes of a payload, in order."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> bytes:
        """Return the next bytes. Raise `MessageNotFound` once the message is gone.

        A reader that began at byte 0 returns the last bytes only if the checksum of the whole payload is right. A
        reader that began later cannot check it; its caller must.
        """


class QueueDirectory(Protocol):
    """The tenants and queues of a store."""

    async def find_tenant(self, tenant: str) -> TenantRow | None:
        """Return the tenant's row, or None if there is no such tenant."""

    async def list_tenants(self) -> list[TenantRow]:
        """Return the rows of all tenants, sorted by name."""

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        """Create the tenant, or replace the configuration of an existing one, and return its row."""

    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        """Return the queue's current row, or None if there is no such queue."""

    def numbers_of(self, ref: QueueRef) -> QueueNumbers | None:
        """Return the queue's numbers without waiting; None if this process does not know them. Any thread may call."""

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        """Return the rows of the tenant's queues, sorted by name; an empty list for an unknown tenant."""

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        """Return the queue's row. Create the queue, and its tenant, if they do not exist.

        Raise `OverQuota` if a new queue would exceed the tenant's max_queues.
        """

    async def change_queue(self, ref: QueueRef, change: QueueChange, now_ms: int) -> QueueRow:
        """Apply the fields of `change` that are set, and return the new row.

        `drain_until` begins to delete the queue, and deletes its schedules in the same step. From then on, enqueues and
        claims raise `Draining`. Sweeps delete the messages in bounded steps once no message is under a lease, or once
        `drain_until` has come, and then the row. Raise `QueueNotFound`.
        """


class LimitedQueueDirectory(QueueDirectory, Protocol):
    """A directory that finds the queues with rate limits without reading all queues.

    It is for stores that hold very many queues, and is declared by `Capabilities.lists_limited_queues`.
    """

    async def list_limited(self) -> list[QueueRow]:
        """Return the rows of all queues, of all tenants, whose policy has rate limits (`model.limits.is_limited`)."""


class ScheduleStore(Protocol):
    """The schedules of all queues.

    Each tick is fired exactly once, even if several servers see it. A schedule is replaced only while it still equals
    the version that its replacement was made from, and the message of a tick is enqueued in the same atomic step. So a
    crash cannot separate the message from the schedule's advance to its next tick.

    The listener's `scheduled` is called for every schedule that is put or fired, and when the store opens for the
    earliest one.
    """

    async def find(self, ref: QueueRef, name: str) -> Schedule | None:
        """Return the schedule, or None if there is none of this name. Raise `QueueNotFound`."""

    async def page(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        """Return up to `limit` schedules whose names sort after `after`, sorted by name. Raise `QueueNotFound`."""

    async def put(self, ref: QueueRef, was: Schedule | None, schedule: Schedule, now_ms: int) -> bool:
        """Replace the schedule `was` with `schedule`; with `was` None, add it.

        Return False, and change nothing, if the stored schedule of this name is not equal to `was`. Raise
        `QueueNotFound`, `Draining`, or `OverQuota` beyond `MAX_SCHEDULES` schedules per queue.
        """

    async def fire(self, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int) -> Enqueued | None:
        """Enqueue the message of a tick and replace the schedule with its state after the tick, in one atomic step.

        `model.schedules` computes both.

        Return None, and change nothing, if the stored schedule is not equal to `schedule`: another server has fired
        this tick. Raise the errors of `Store.enqueue`.
        """

    async def delete(self, ref: QueueRef, name: str, now_ms: int) -> bool:
        """Delete the schedule. Return False if there was none. Raise `QueueNotFound`."""

    async def due(self, limit: int, now_ms: int) -> DueSchedules:
        """Return up to `limit` schedules, of all queues, whose next tick has come. Changes nothing."""


class LedgerStore(Protocol):
    """The claim ledgers: the numbered claims of each consumer, which it can read again by number after a failure."""

    async def entries(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        """Return the consumer's open claims sorted by number, or only the claim with this number.

        Each entry has only the deliveries whose leases still hold. Raise `QueueNotFound`.
        """

    async def ack(self, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        """Ack the messages that the consumer's claims up to and including the number `upto` still hold, and close those
        claims. Return one result per message of these claims. Raise `QueueNotFound`."""

    async def extend(self, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int) -> list[Result]:
        """Extend the leases of all the consumer's open claims to `now_ms + lease_ms`; None: by the queue's own lease.
        Return one result per message. Raise `QueueNotFound`."""


class PayloadStore(Protocol):
    """Payloads that are written and read in parts. Never called unless `Capabilities.streams_above` is set."""

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> PayloadWriter:
        """Return a writer for the payload of `draft`.

        The draft has everything else of its message, and is enqueued with the payload afterwards. Until then the
        payload counts only towards the quotas of other staged payloads. Sweeps delete the payloads that a crash left
        without a message, after the store is opened again. Raise the errors of `Store.enqueue`.
        """

    async def read(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> PayloadReader:
        """Return a reader of the payload `pieces` of the message `id`, from byte `start` on.

        The reader holds no lease: it raises `MessageNotFound` once the message is settled, removed or edited.
        """


class Store(Protocol):
    """The messages and their states, and the four parts that hold everything else.

    `open` comes first and `close` last. Read a part from the store for every call instead of keeping a reference: a
    store that reopens after a failure makes new parts, and reading a part of a stopped store may raise
    `StoreUnavailable`.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Return the declared capabilities, which never change."""

    @property
    def directory(self) -> QueueDirectory:
        """Return the tenants and queues."""

    @property
    def schedules(self) -> ScheduleStore:
        """Return the schedules."""

    @property
    def ledgers(self) -> LedgerStore:
        """Return the claim ledgers."""

    @property
    def payloads(self) -> PayloadStore:
        """Return the payloads in pieces."""

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        """Open the store and recover from a crash, if there was one.

        `runtime` provides tickets, the only things that the store's coroutines may await, and threads for blocking
        work.
        """

    async def close(self) -> None:
        """Close the store: every later call raises `StoreUnavailable`. Leases remain, and expire in their time."""

    def shard_of(self, ref: QueueRef) -> int:
        """Return the number of the shard that owns the queue; 0 in a store without shards.

        Claims and sweeps of one shard never wait for those of another, so callers may run them concurrently.
        """

    # --- Messages --------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        """Enqueue all drafts or none, and return one result per draft, in order.

        A draft whose idempotency key was used within the queue's deduplication window, or earlier in the same batch,
        gets the result of that first message, marked as a duplicate. With `auto_create`, a missing queue is created in
        the same step. Raise `QueueNotFound`, `Draining`, `OverQuota` or `PayloadTooLarge`.
        """

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        """Serve the claims of several callers in one pass, in the order of `asks`, each with its own leases.

        First return expired leases of this queue and end overdue TTLs. Then claim due messages in the order of
        priority, visible time and id. A group gives its oldest messages in order of id, and only while no message of
        the group is in flight. A paused or missing queue gives nothing. A request with limit 0 takes nothing and only
        returns `next_at`. Raise `Draining`.

        A request with a ledger comes alone. If its number is open, return that claim again, with the deliveries whose
        leases still hold. Raise `InvalidArgument` if `LedgerStore.ack` has closed its number.
        """

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        """Carry out the verdicts in order, and return one result per verdict.

        A verdict with a stale receipt, or for a message or queue that does not exist, fails alone: its result has the
        error `stale_lease`.
        """

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> Saved:
        """Save a message's state document or its progress. Return the document's ETag and the message's correlation id.

        Progress alone does not change the ETag; it is None until a document is saved. Raise `StaleLease` if the receipt
        does not hold the message, or `Conflict` if the document has another ETag than `change.etag`.
        """

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        """Apply the bulk verb to up to `limit` matching messages with ids above `after`, in one atomic step.

        Raise `QueueNotFound` for the queue or the target of a move, `Draining` for the target, and `OverQuota` or
        `PayloadTooLarge` if the verb adds more than a tenant may keep.
        """

    # --- Inspection ------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        """Return the message, or None if there is no such message. Raise `QueueNotFound`."""

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        """Return up to `limit` messages that claims would take next, in that order, without leasing them. Raise
        `QueueNotFound`."""

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        """Return up to `limit` matching messages with ids above `after`, sorted by id; with `state` None, in any state.
        Raise `QueueNotFound`."""

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        """Return the exact counts of one queue, or, with `queue` None, of all the tenant's queues together.

        Raise `QueueNotFound` for a missing queue. The counts of an unknown tenant are 0.
        """

    # --- Background work and metrics -------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        """Do up to about `limit` pieces of work that time alone has made due.

        Return expired leases, end TTLs, continue the deletion of queues, and delete old idempotency keys, kept
        successes, old journal events and abandoned payloads. Called again at `Swept.next_at`, after a call of
        `Listener.deadline`, and soon if the limit was reached.
        """

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        """Return up to `limit` durable events after the position `after`, in order; None: from the oldest event kept.

        With `tenant`, return only that tenant's events within its retention. With `until`, the position of an earlier
        page, return no event after it: a range between two such positions always has the same events, and after the
        last of them the returned position is `until`.

        A call examines at most `JOURNAL_STEP` events. So a page of one tenant may be short or empty before the end; the
        end is reached when the position no longer changes. Raise `InvalidArgument` for a position that is none.
        """

    async def backup(self, target: str) -> None:
        """Write a consistent copy to a new directory while the store is in use.

        The copy contains every change that returned before this call. Raise `InvalidArgument` if the store has nothing
        to copy or the directory exists.
        """

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        """Return how many events of each kind each queue appended to the journal since the previous call, or since the
        store was opened. The store forgets the numbers it has returned, so deleted queues take no memory."""

    async def figures(self) -> Figures:
        """Return the store's own metrics. A stopped store must return them too: that is when they matter most."""
