"""The laws every store keeps.

A store holds messages and their states, and moves them along `TRANSITIONS` of `model/rules/transitions.py`, nothing
else. For every method that changes something:

- **One call, one atomic step.** All of it happens or none. Of any number of concurrent claims exactly one gets a
  message. What is refused changes nothing and writes nothing; so does a claim that finds nothing.
- **Durable before it returns**, but for a `claim` without a ledger and the `EXTEND` verdict: a power cut may undo
  those, and the message is then delivered again, under a higher version.
- **Fenced.** A verdict holds only with the receipt of the current, unexpired lease (`lifecycle.holds`), whether or not
  a sweep has run since that lease ended.
- **In the journal.** Each transition appends its event in the same step.
- **Told.** After the step, and only if it holds, the listener hears what may now be claimed and from when, even if
  the caller was cancelled while waiting. (Not so by `claim`, whose answer says it.)

Time comes in as `now_ms` and randomness as `Dice`; no store reads a clock. A store may take longer than its caller is
willing to wait: a cancelled call is carried out or not, wholly.

The store knows the policy of each queue, for it must return expired leases by itself.

A store is a `Store` and has four parts: `QueueDirectory`, `ScheduleStore`, `LedgerStore` and `PayloadStore`. These laws
hold for the methods of the parts too. `holdfast.testing.laws` runs them against any store.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, Self

import msgspec

from holdfast.model.answers import Counts, Delivery, Enqueued, Found, LedgerEntry, Result
from holdfast.model.events import Event, JournalEvent
from holdfast.model.message import Draft, Pieces, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import ClaimRequest, Filter, StateChange, Verb, Verdict
from holdfast.model.schedules import Schedule, Tick
from holdfast.runtime import Runtime
from holdfast.telemetry.figures import Figures

# Events that one reading of the journal looks at. No smaller than the longest page: a page of all tenants is full.
JOURNAL_STEP = 10_000


class Listener(Protocol):
    """Who is told what a store's changes make possible. Called in the store's own steps: it must not call back."""

    def is_waited_for(self, ref: QueueRef) -> bool:
        """Whether `ready` would interest anybody now: saves the store from working it out."""

    def ready(self, ref: QueueRef, at_ms: int) -> None:
        """From `at_ms` on, a claim on this queue may find something it would not have found before."""

    def stopped(self) -> None:
        """Every call is refused from now on: waiting claims are to ask once more, and be refused."""

    def reopened(self) -> None:
        """A stopped store takes calls again. It has read everything from disk: calls that failed when it stopped may
        have been carried out, so rows read before may have changed."""

    def lost(self, why: str) -> None:
        """A stopped store can never be used again in this process."""

    def deadline(self, at_ms: int) -> None:
        """From `at_ms` on, a sweep has something to do."""

    def scheduled(self, at_ms: int) -> None:
        """From `at_ms` on, a schedule is due."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between stores, declared instead of guessed."""

    # `claim` without a ledger never suspends: it can be called in the middle of a step, and no cancellation can fall
    # into it.
    claims_inline: bool = False
    # What is stored outlives the process.
    is_durable: bool = True
    # The listener hears of every change, whoever made it. If not, those who wait look now and then.
    pushes_wakeups: bool = True
    # Payloads of more bytes than this can be written and read in parts, through `Store.payloads`, and claims and
    # inspection leave them in pieces. None: every payload is whole, and `Store.payloads` is not used.
    streams_above: int | None = None
    # `Store.directory` is a `LimitedQueueDirectory`.
    lists_limited_queues: bool = False


class TenantRow(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    tenant_id: int
    config: TenantConfig = TenantConfig()


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as the directory knows it."""

    ref: QueueRef
    tenant_id: int
    queue_id: int
    policy: QueuePolicy = QueuePolicy()
    is_paused: bool = False
    # Set once it is being deleted: leases are revoked from then on, and when none is left everything goes.
    drain_until: int | None = None


class Claims(NamedTuple):
    """What a pass over one queue gave.

    `next_at` is when a further pass may find more; None: not before the listener hears of it. After a pass that gave
    something to every ask it may be now, for that costs nothing to say.
    """

    per_ask: list[list[Delivery]]
    next_at: int | None
    # The one ask read an open claim of its ledger again: that is its answer, even if nothing of it is held any more.
    is_reread: bool = False


class PayloadWriter(Protocol):
    """A payload on its way into a store, before there is a message that has it."""

    async def write(self, part: bytes) -> None:
        """`OverQuota` and `PayloadTooLarge` as soon as the message could not be enqueued any more."""

    async def finish(self) -> Pieces:
        """All of it was written: for a draft of the same queue, to be enqueued once."""

    def abandon(self) -> None:
        """Nobody will enqueue it, and what was written is deleted soon. Does nothing once it is a message's payload:
        so whoever opened it may call this last, however it ended."""


class PayloadReader(Protocol):
    """A payload on its way out, in the order of its bytes."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> bytes:
        """`MessageNotFound` once the message is gone. The last bytes are given only if all of them were right; where
        the reading began in the middle, that is its caller's to check."""


class AlterStep(NamedTuple):
    """One atomic step of a bulk verb. `after` continues behind it; None: the end was reached."""

    matched: int
    changed: int
    after: int | None


class Listing(NamedTuple):
    found: list[Found]
    # The last id looked at, to continue behind; None at the end.
    after: int | None


class JournalPage(NamedTuple):
    events: list[JournalEvent]
    # The position after them. Nothing will ever appear at or before it.
    position: str


class DueSchedules(NamedTuple):
    """Schedules whose tick has come, earliest first, and when the next of all others comes (None: none will)."""

    due: list[tuple[QueueRef, Schedule]]
    next_at: int | None


class Swept(NamedTuple):
    """What one sweep did, and when the next has something to do (None: nothing is known to end)."""

    changed: int
    next_at: int | None


class QueueChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change to a queue's row. Fields that are None stay as they are."""

    policy: QueuePolicy | None = None
    is_paused: bool | None = None
    # Begin to delete the queue, and revoke the leases on its messages at this instant.
    drain_until: int | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields that change, by name, as arguments for `replace` on a row."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class QueueDirectory(Protocol):
    """The tenants and queues of a store."""

    async def find_tenant(self, tenant: str) -> TenantRow | None:
        """Return the tenant's row, or None if there is no such tenant."""

    async def list_tenants(self) -> list[TenantRow]:
        """Return the rows of all tenants, sorted by name."""

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        """Create the tenant or replace its configuration. A tenant's number never changes and is never reused."""

    async def find_queue(self, ref: QueueRef) -> QueueRow | None:
        """Return the queue's current row, or None if there is no such queue."""

    async def list_queues(self, tenant: str) -> list[QueueRow]:
        """Return the rows of the tenant's queues, sorted by name. Empty for an unknown tenant."""

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        """Return the queue's row; create the queue, and its tenant, if there is none.

        Raise `OverQuota` if a new queue would exceed the tenant's max_queues.
        """

    async def change_queue(self, ref: QueueRef, change: QueueChange, now_ms: int) -> QueueRow:
        """Apply all fields of `change` that are set, and return the new row. Raise `QueueNotFound`.

        `drain_until` begins to delete the queue, and deletes its schedules in the same step. Sweeps delete its messages
        in bounded steps, once none is under a lease or `drain_until` has come. A queue_id is never reused.
        """


class LimitedQueueDirectory(QueueDirectory, Protocol):
    """A directory that finds the queues with limits without reading all queues, for stores that hold very many. A store
    that has one says so (`Capabilities.lists_limited_queues`)."""

    async def list_limited(self) -> list[QueueRow]:
        """Return the rows of all queues, of all tenants, whose policy has limits (`limits.is_limited`)."""


class ScheduleStore(Protocol):
    """The schedules of all queues.

    A tick is fired once, even if several servers see it: a schedule is replaced only while it equals the one that its
    replacement was made from, and the message of a tick is enqueued in that same step. So exactly one server fires a
    tick, and a crash cannot separate the message from the schedule's advance to its next tick.
    """

    async def find(self, ref: QueueRef, name: str) -> Schedule | None:
        """Return the schedule, or None if there is none of this name. Raise `QueueNotFound`."""

    async def page(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        """Return up to `limit` schedules whose names follow `after`, sorted by name. Raise `QueueNotFound`."""

    async def put(self, ref: QueueRef, was: Schedule | None, schedule: Schedule, now_ms: int) -> bool:
        """Replace `was` with `schedule`; with `was` None, add it.

        Return False, and change nothing, if the stored schedule of this name is not `was`. Raise `QueueNotFound`,
        `Draining`, or `OverQuota` beyond `MAX_SCHEDULES`.
        """

    async def fire(self, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int) -> Enqueued | None:
        """Enqueue the message of a tick (`schedules.draft_at`) and replace the schedule with `schedules.fired`, in one
        step.

        Return None, and change nothing, if the stored schedule is not `schedule`: another server fired this tick. Raise
        the errors of `Store.enqueue`.
        """

    async def delete(self, ref: QueueRef, name: str, now_ms: int) -> bool:
        """Delete the schedule. Return False if there was none. Raise `QueueNotFound`."""

    async def due(self, limit: int, now_ms: int) -> DueSchedules:
        """Return up to `limit` schedules of all queues whose tick has come.

        The listener's `scheduled` is called for every schedule that is put or fired, and at opening for the earliest.
        """


class LedgerStore(Protocol):
    """The claim ledgers: each consumer's numbered claims, which it can read again by number."""

    async def entries(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        """Return the consumer's open claims, sorted by number, or only the one of this number.

        Each has the deliveries whose leases still hold. Raise `QueueNotFound`.
        """

    async def ack(self, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        """Ack the messages that the consumer's claims up to this number still hold, and close those claims. Raise
        `QueueNotFound`."""

    async def extend(self, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int) -> list[Result]:
        """Extend the leases of all the consumer's open claims. Raise `QueueNotFound`."""


class PayloadStore(Protocol):
    """Payloads that are written and read in parts. Called only if `Capabilities.streams_above` is set."""

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> PayloadWriter:
        """Return a writer for the payload of `draft`, which has everything else of its message and is enqueued with the
        payload afterwards.

        Until then the payload counts only for the quotas of other staged payloads. After a crash, the sweeps that
        follow the next opening delete it. Raise the errors of `Store.enqueue`.
        """

    async def read(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> PayloadReader:
        """Return a reader of the payload `pieces` of a message, from byte `start` on.

        Reading holds no lease: it fails once the message is settled, removed or edited.
        """


class Store(Protocol):
    """Messages and their states, with the four parts that hold everything else.

    Read a part from the store for every call instead of keeping it: a store that reopens makes new parts, and reading a
    part of a stopped store may already raise `StoreUnavailable`. Parts are used between `open` and `close`.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def directory(self) -> QueueDirectory: ...

    @property
    def schedules(self) -> ScheduleStore: ...

    @property
    def ledgers(self) -> LedgerStore: ...

    @property
    def payloads(self) -> PayloadStore: ...

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        """Open the store. `runtime` gives the tickets that calls may wait on, and a thread for blocking work."""

    async def close(self) -> None:
        """Close the store: every later call raises `StoreUnavailable`. Leases stay and expire in their time."""

    def shard_of(self, ref: QueueRef) -> int:
        """Return the shard that owns the queue: claims and sweeps of one shard never wait for another's."""

    # --- Messages --------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        """Enqueue all drafts or none, and return one result per draft, in order.

        A draft whose key was seen within the deduplication window, or earlier in the same batch, gets the result of
        that first message. With `auto_create` a missing queue is created in the same step. Raise `QueueNotFound`,
        `Draining`, `OverQuota` or `PayloadTooLarge`.
        """

    async def claim(self, ref: QueueRef, asks: list[ClaimRequest], now_ms: int) -> Claims:
        """Serve several callers in one pass, first come first served, each with leases of its own.

        Return expired leases of this queue and end its overdue TTLs first. Then claim due messages by priority, visible
        time and id; from a group its oldest messages in order of id, while no other batch of the group is in flight. A
        paused or missing queue gives nothing. An ask with a limit of 0 takes nothing, and learns `next_at`. Raise
        `Draining`.

        An ask with a ledger comes alone. If its number is open, return that claim again, with the deliveries whose
        leases still hold. Raise `InvalidArgument` for a number that `LedgerStore.ack` has closed.
        """

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        """Carry out the verdicts, and return one result per verdict, in order. A stale receipt fails alone, with
        `stale_lease`."""

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        """Save a message's state document, and return its new ETag, which progress alone does not change. Raise
        `StaleLease` or `Conflict`."""

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        """Change up to `limit` matching messages with ids above `after`, in one atomic step."""

    # --- Inspection ------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None:
        """Return the message, or None if there is no such message. Raise `QueueNotFound`."""

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        """Return the messages that claims would take next, in their order, without leasing them."""

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        """Return up to `limit` matching messages with ids above `after`, sorted by id."""

    async def counts(self, tenant: str, queue: str | None, now_ms: int) -> Counts:
        """Return the counts of one queue, or with None of all the tenant's queues together.

        Raise `QueueNotFound` for a missing queue; an unknown tenant counts nothing.
        """

    # --- Upkeep ----------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        """Do up to `limit` pieces of work: return expired leases, end TTLs, continue the deletion of queues, and delete
        old keys, kept successes and journal events."""

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        """Return durable events behind the position `after`, in order; of one tenant, if given, within its retention.

        With `until`, the end of an earlier page, no event behind it is returned: a range between two ends always has
        the same events, and once all of them were read the position is `until`.

        A call reads at most `JOURNAL_STEP` events. So a page of one tenant may be short, or empty, before the end. The
        end is reached when the position no longer moves.
        """

    async def backup(self, target: str) -> None:
        """Write a consistent copy to a new directory while the store is in use. It has the effect of every call that
        returned before. Raise `InvalidArgument` if there is nothing to copy, or the directory exists."""

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        """Return how often each event was appended to the journal since the previous call, or since opening. Each event
        is counted in one call only, so the store need not remember deleted queues."""

    async def figures(self) -> Figures:
        """Return the store's own metrics; also of a stopped store, which is when they matter most."""
