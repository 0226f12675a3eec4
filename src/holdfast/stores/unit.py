"""The unit of work: the interface of one atomic step on a store, which the shared logic in `stores/logic/` uses.

A store that implements `Units` gets enqueueing, claims, verdicts, bulk verbs, ledgers and the work of sweeps from
`stores/logic/`. The indexes, the search for messages and the commit remain the store's own. The object store has its
own code for claims and enqueues, and implements only `ChangeUnit`.

    async def settle(self, ref, verdicts, now_ms):
        return await self._units.run(ref, lambda unit: verdicts.settle(unit, ref, verdicts, self._dice.roll), now_ms)

A step has three phases, in this order:

- **Read.** Each call reads a whole batch. The methods are `async` because PostgreSQL awaits its connection in them. The
  memory store and RocksDB never suspend in a step, so there no other step can run between two calls of one step.
- **Refuse.** The step raises an error before its first change, and the store is unchanged.
- **Change.** `apply` and the other changing methods collect changes. Once `run` returns, either all of them have taken
  effect or none. A message may be changed again in the same step: `entry.life` is always its latest life. A step must
  not search an index (`take_due`, `ended`, `matching`, ...) for messages that it has changed: a store may still return
  them under their old key.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from holdfast.model.answers import Delivery, Enqueued
from holdfast.model.message import Draft, Envelope, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, StateDocument
from holdfast.model.rules.lifecycle import Change, Life
from holdfast.stores.values import QueueRow


class QueueHandle(Protocol):
    """A store's own representation of a queue."""

    @property
    def row(self) -> QueueRow:
        """Return the queue's current row."""


class Sized(Protocol):
    """A message with a size: a draft, an envelope or a loaded message."""

    @property
    def bytes(self) -> int:
        """Return the size of its payload and headers, as quotas count it."""


class LoadedMessage(Sized, Protocol):
    """A store's own representation of a message that it has loaded: the fixed envelope and the current life."""

    @property
    def envelope(self) -> Envelope:
        """Return the part of the message that its transitions do not change."""

    @property
    def life(self) -> Life:
        """Return the current life, including the changes of this step."""


class OpenClaim(NamedTuple):
    """One open claim of a consumer's ledger."""

    number: int
    claimed_at: int
    receipts: list[Receipt]


Q = TypeVar("Q", bound=QueueHandle)
E = TypeVar("E", bound=LoadedMessage)
T = TypeVar("T")


class ChangeUnit(Protocol[Q, E]):
    """The part of an atomic step that changes existing messages. Verdicts, bulk verbs and sweeps need only this."""

    # The time of the step by the store's clock, in milliseconds since the Unix epoch.
    now_ms: int
    # True when the step begins. The work sets it to False if a power cut may undo the step (a claim without a ledger,
    # or an extension). A store that writes before it syncs then returns after the write.
    is_durable: bool

    # --- Queues ----------------------------------------------------------------------------------------------

    async def find(self, ref: QueueRef) -> Q | None:
        """Return a queue that was named to `Units.run`, or None if it does not exist."""

    def default_ttl_ms(self, queue: Q) -> int | None:
        """Return the TTL of a message that has none of its own; None: it does not expire."""

    async def check_quotas(self, ref: QueueRef, added: Sequence[Sized], freed: Sequence[Sized] = ()) -> None:
        """Raise `OverQuota` or `PayloadTooLarge` if the queue's tenant may not keep the messages `added` once those in
        `freed` are gone. The queue need not exist yet."""

    # --- Finding messages ------------------------------------------------------------------------------------

    async def load(self, queue: Q, ids: Iterable[int]) -> dict[int, E]:
        """Return the messages with these ids, by id, for changing. Missing messages are left out, and payloads may be
        left out. PostgreSQL locks the rows."""

    async def ended(self, queue: Q, limit: int) -> tuple[Sequence[E], Sequence[E]]:
        """Return the messages in flight whose lease has ended, and the Ready messages whose TTL has ended.

        Each list begins with the earliest end. Both together have at most `limit` messages; ended leases come first."""

    async def oldest(self, queue: Q, limit: int) -> list[E]:
        """Return up to `limit` messages of the queue in any state, in order of id."""

    async def matching(
        self, queue: Q, states: frozenset[State], which: Filter, after: int | None, limit: int
    ) -> tuple[list[E], int | None]:
        """Return up to `limit` messages in one of the states that match the filter, in order of id, with ids above
        `after`; and the `after` of the next call, or None if all messages have been examined."""

    # --- Changing messages -----------------------------------------------------------------------------------

    def apply(self, queue: Q, changes: Sequence[tuple[E, Change]], *, by_time: bool = False) -> None:
        """Apply one change to each message: to its life, its index entries, its queue's counts and the journal.

        `changes` names each message once. Afterwards `entry.life` is the new life, unless the message is gone. With
        `by_time`, the clock alone causes the changes and would cause them again after a crash. A store may then let
        claims see them before they are durable, or write each of them in a step of its own."""

    async def move(self, queue: Q, target: Q, changes: Sequence[tuple[E, Change]]) -> None:
        """Move messages, with their state documents, to another queue. Both queues get an event, with the reason
        `to ...` or `from ...`, so that the counts of each can be derived from its own events."""

    async def edit(self, queue: Q, entry: E, envelope: Envelope) -> None:
        """Replace the payload of a message that is not in flight."""

    # --- Notifying the listener ------------------------------------------------------------------------------

    def notify_ready(self, queue: Q) -> None:
        """Call the listener's `ready` for the queue once the step has taken effect, though no message became Ready.

        For example, the removal of a message may make the next one of its group claimable."""


class Unit(ChangeUnit[Q, E], Protocol[Q, E]):
    """One atomic step. It is valid until the work that received it returns."""

    # True when the step begins. A claim sets it to False: its result says when the next claim may find something, so
    # the listener need not be called as well.
    notifies_ready: bool

    # --- Queues ----------------------------------------------------------------------------------------------

    async def create(self, ref: QueueRef) -> Q:
        """Create a queue that does not exist. Raise `OverQuota` if its tenant may not have another one.

        Not called for a store that creates queues before the step begins: its `find` never returns None."""

    async def remove_if_empty(self, queue: Q) -> None:
        """Delete a queue if it has no messages. Its number is never reused."""

    # --- Finding messages ------------------------------------------------------------------------------------

    async def load_whole(self, queue: Q, ids: Iterable[int]) -> dict[int, E]:
        """Return the messages with these ids, by id, for delivery, with their payloads. Missing messages are left
        out."""

    async def take_due(self, queue: Q, limits: list[int]) -> list[list[E]]:
        """Return one batch of due messages for each limit in `limits`, for this step to claim.

        The messages are in the order of delivery: priority, visible time, id. No message is returned twice.

        A group gives its oldest messages in order of id, up to the first that is not due, to one batch only; it gives
        none while one of its messages is in flight. Messages whose TTL has ended are left out; a store may end them
        here, as `sweep.end_ttls` does."""

    async def next_at(self, queue: Q) -> int | None:
        """Return the instant from which a claim may find something, given the changes of this step; None: not before
        the listener is called, as in a paused queue."""

    def version_floor(self, entry: E) -> int:
        """Return the version that the next claim of the message must exceed. It is above 0 only in a store that may
        have lost claims in a crash."""

    # --- Reading messages ------------------------------------------------------------------------------------

    async def deliveries(self, queue: Q, entries: list[E], *, with_state: bool, streams: bool) -> list[Delivery]:
        """Return the deliveries of messages in flight. With `streams`, a payload in pieces is returned as `Pieces`."""

    async def states(self, queue: Q, entries: list[E]) -> list[StateDocument]:
        """Return the state document of each message, or `NO_STATE` for a message without one."""

    # --- Changing messages -----------------------------------------------------------------------------------

    def drop(self, queue: Q, entries: Sequence[E]) -> None:
        """Delete the records of messages that had already succeeded. This appends no event."""

    async def put_state(self, queue: Q, entry: E, state: StateDocument) -> None:
        """Replace a message's state document."""

    # --- New messages ----------------------------------------------------------------------------------------

    async def known_keys(self, queue: Q, drafts: list[Draft], firsts: Mapping[str, int]) -> dict[str, Enqueued]:
        """Return the earlier message of each idempotency key that the queue has seen, by key, marked as a duplicate.

        A key counts as seen during the queue's deduplication window. `drafts` has all drafts of the step; `firsts` has
        the index in it of the first draft with each key. PostgreSQL reserves the other keys here, so that a concurrent
        call waits; `add` then uses the ids that it assigned."""

    async def add(self, queue: Q, drafts: list[Draft], reason: str | None) -> Sequence[int]:
        """Add a new message for each draft, and return the ids of the messages.

        Remember the draft's idempotency key, if it has one, for the queue's deduplication window. `reason` is the
        reason of the events in the journal."""

    # --- Ledgers ---------------------------------------------------------------------------------------------

    async def closed_upto(self, queue: Q, consumer: str) -> int:
        """Return the highest number that the consumer has closed in its ledger; -1 if none."""

    async def open_claims(
        self, queue: Q, consumer: str, *, number: int | None = None, upto: int | None = None
    ) -> list[OpenClaim]:
        """Return the consumer's open claims sorted by number: all of them, the one with `number`, or those up to and
        including `upto`."""

    async def put_claim(self, queue: Q, consumer: str, claim: OpenClaim) -> None:
        """Add an open claim to the consumer's ledger."""

    async def close_claims(self, queue: Q, consumer: str, numbers: list[int], closed_upto: int) -> None:
        """Delete these open claims, and record that all numbers up to and including `closed_upto` are closed."""


class Units(Protocol[Q, E]):
    """The runner of a store's atomic steps."""

    async def run(
        self,
        ref: QueueRef,
        work: Callable[[Unit[Q, E]], Awaitable[T]],
        now_ms: int,
        *,
        target: QueueRef | None = None,
    ) -> T:
        """Run `work` as one atomic step on a queue, and return its result once the step is durable.

        `target` names the queue that messages move to, if the work moves messages. A store may run the work again, as
        PostgreSQL does after a deadlock, so the work must change nothing but the unit. If the work raises an error,
        nothing has changed, and the error is raised here."""
