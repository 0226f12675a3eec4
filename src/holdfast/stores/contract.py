"""The laws every store keeps.

A store holds messages and their states, and moves them along `model.lifecycle.TRANSITIONS`, nothing else. For every
method that changes something:

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

The store knows the policy of each queue, for it must return expired leases by itself; callers change it here.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, Self

import msgspec

from holdfast.model.answers import Counts, Delivery, Enqueued, Found, LedgerEntry, Result
from holdfast.model.events import Event, JournalEvent
from holdfast.model.message import Draft, Pieces, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.requests import Ask, Filter, StateChange, Verb, Verdict
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
    # Payloads of more bytes than this can come and go bit by bit: `stage` and `read_payload` work, and claims and
    # inspection leave them in pieces. None: every payload is whole, and those two are not called.
    streams_above: int | None = None


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


class Store(Protocol):
    capabilities: Capabilities

    async def open(self, listener: Listener, runtime: Runtime) -> None:
        """`runtime` gives the tickets that calls may wait on, and a thread for what blocks."""

    async def close(self) -> None:
        """Leases stay as they are: they run out in their time. From now on every call is `StoreUnavailable`."""

    def shard_of(self, ref: QueueRef) -> int:
        """The shard that owns the queue: no pass or sweep of one waits for another's."""

    # --- The directory ---------------------------------------------------------------------------------------

    async def find_tenant(self, tenant: str) -> TenantRow | None: ...

    async def find_queue(self, ref: QueueRef) -> QueueRow | None: ...

    async def list_tenants(self) -> list[TenantRow]: ...

    async def list_queues(self, tenant: str) -> list[QueueRow]: ...

    async def put_tenant(self, tenant: str, config: TenantConfig) -> TenantRow:
        """Create the tenant or change it. Its number never changes and is never given to another."""

    async def create_queue(self, ref: QueueRef, now_ms: int) -> QueueRow:
        """The queue's row, made if there is none; `OverQuota` beyond the tenant's max_queues."""

    async def put_policy(self, ref: QueueRef, policy: QueuePolicy, now_ms: int) -> QueueRow: ...

    async def pause(self, ref: QueueRef, is_paused: bool, now_ms: int) -> QueueRow: ...

    async def drain(self, ref: QueueRef, until_ms: int, now_ms: int) -> QueueRow:
        """Begin to delete the queue. Sweeps finish it, in bounded steps, once no lease is left or `until_ms` came.
        Its schedules go in this step. Its queue_id is never used again."""

    # --- Messages --------------------------------------------------------------------------------------------

    async def enqueue(self, ref: QueueRef, drafts: list[Draft], now_ms: int, *, auto_create: bool) -> list[Enqueued]:
        """All or nothing. A draft whose key was seen within the window answers the first message, in the same batch
        too. With `auto_create` a queue that does not exist is made in the same step, else `QueueNotFound`. `Draining`,
        `OverQuota`, `PayloadTooLarge`."""

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> PayloadWriter:
        """Take a payload bit by bit. `draft` is its message but for the payload, and is enqueued with it after. Until
        then it counts for nothing but the quotas of other payloads on their way, and no crash leaves it behind for
        longer than the sweeps after the next opening take. Refused where `enqueue` would be."""

    async def read_payload(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> PayloadReader:
        """Read bit by bit what a delivery or a message that was found has in pieces, from byte `start` on. Nothing is
        held for it: once the message is settled, removed or edited, the reading fails."""

    async def claim(self, ref: QueueRef, asks: list[Ask], now_ms: int) -> Claims:
        """Serve several callers in one pass, first come first served, each with leases of its own.

        Returns expired leases of this queue and ends its overdue TTLs before it looks. Takes what is due, by
        priority, visible time and id; of a group its oldest messages in order of id, while no other batch of the
        group is in flight. A paused queue has nothing, nor has one that does not exist. `Draining`. An ask with a limit
        of 0 takes nothing, and learns `next_at`.

        An ask with a ledger comes alone. If its number is open it answers that claim again, as far as its leases still
        hold; a number already closed by `ledger_ack` is `InvalidArgument`.
        """

    async def settle(self, ref: QueueRef, verdicts: list[Verdict], now_ms: int) -> list[Result]:
        """One result per verdict, in order; a stale receipt fails alone, with `stale_lease`."""

    async def save_state(self, ref: QueueRef, receipt: Receipt, change: StateChange, now_ms: int) -> str | None:
        """The document's new ETag (unchanged by progress alone). `StaleLease`, `Conflict`."""

    # --- Inspection ------------------------------------------------------------------------------------------

    async def get(self, ref: QueueRef, id: int) -> Found | None: ...

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        """What claims would take next, in their order; nothing is leased."""

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        """By id, beginning behind `after`."""

    async def counts(self, ref: QueueRef, now_ms: int) -> Counts: ...

    async def tenant_counts(self, tenant: str, now_ms: int) -> Counts: ...

    # --- Operators -------------------------------------------------------------------------------------------

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> AlterStep:
        """Change up to `limit` matching messages behind the id `after`, in one atomic step."""

    # --- The claim ledger ------------------------------------------------------------------------------------

    async def ledger(self, ref: QueueRef, consumer: str, now_ms: int, number: int | None = None) -> list[LedgerEntry]:
        """The consumer's open claims by number, or one of them, each with the deliveries it still holds."""

    async def ledger_ack(self, ref: QueueRef, consumer: str, upto: int, now_ms: int) -> list[Result]:
        """Ack what the consumer's claims up to this number still hold, and close them."""

    async def ledger_extend(self, ref: QueueRef, consumer: str, lease_ms: int | None, now_ms: int) -> list[Result]: ...

    # --- Schedules -------------------------------------------------------------------------------------------
    #
    # Once per tick, whoever fires it: a schedule is replaced only while it is still the one that its replacement was
    # made from, and the message of a tick is enqueued in that very step. So of any number of servers that see the same
    # tick one fires it, and no crash parts the message from the schedule that has moved on.

    async def find_schedule(self, ref: QueueRef, name: str) -> Schedule | None:
        """`QueueNotFound`."""

    async def list_schedules(self, ref: QueueRef, after: str | None, limit: int) -> list[Schedule]:
        """By name, beginning behind `after`. `QueueNotFound`."""

    async def put_schedule(self, ref: QueueRef, was: Schedule | None, schedule: Schedule, now_ms: int) -> bool:
        """Put `schedule` in the place of `was` (None: where there is none of its name). False if that is no longer what
        stands there: nothing has changed. `QueueNotFound`, `Draining`, `OverQuota` beyond `MAX_SCHEDULES`."""

    async def fire_schedule(self, ref: QueueRef, schedule: Schedule, tick: Tick, now_ms: int) -> Enqueued | None:
        """Enqueue the message of a tick (`schedules.draft_at`) and put what the schedule is after it
        (`schedules.fired`), all or nothing. None if `schedule` is no longer what stands there: the tick is another's,
        and nothing has changed. Refused where `enqueue` would be."""

    async def delete_schedule(self, ref: QueueRef, name: str, now_ms: int) -> bool:
        """Whether there was one. `QueueNotFound`."""

    async def due_schedules(self, limit: int, now_ms: int) -> DueSchedules:
        """Of all queues. The listener hears of every schedule that is put or fired, and at the opening of the first."""

    # --- Upkeep ----------------------------------------------------------------------------------------------

    async def sweep(self, limit: int, now_ms: int) -> Swept:
        """Up to `limit` pieces of work: return expired leases, end TTLs, forget old keys, kept successes and journal
        events, carry deletions on."""

    async def backup(self, target: str) -> None:
        """A consistent copy in a new directory, made while the store is in use: everything answered before the call is
        in it. `InvalidArgument` where there is nothing to copy, or the directory is not new."""

    async def journal(
        self, after: str | None, limit: int, tenant: str | None, now_ms: int, until: str | None = None
    ) -> JournalPage:
        """Durable events behind the position, in order; of one tenant, if given, within its own retention. With
        `until`, an earlier page's end, none behind that one: a range between two ends always has the same events, and
        once all of them were read the position is `until`.

        A step looks at `JOURNAL_STEP` events at most. So a page of one tenant may be short, or empty, before the end:
        that is where the position no longer moves."""

    # --- Figures ---------------------------------------------------------------------------------------------

    async def take_tallies(self) -> Mapping[QueueRef, Mapping[Event, int]]:
        """How often each event was appended to the journal since this was last asked, or since the opening: each once,
        to whoever asks first. So the store need not remember queues that are gone."""

    async def figures(self) -> Figures:
        """What the store tells of itself; also once it has stopped, which is when it is wanted most."""
