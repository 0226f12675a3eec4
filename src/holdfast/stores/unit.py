"""The unit of work: one atomic step on a store, as the shared logic in `stores/logic/` sees it.

A store that implements `Units` gets enqueueing, claims, verdicts, bulk verbs, ledgers and the work of sweeps from
`stores/logic/`. The store keeps its own indexes, its own way to find messages, and its own way to commit. The object
store claims and enqueues in its own way, and implements `ChangeUnit` only.

    async def settle(self, ref, verdicts, now_ms):
        return await self._units.run(ref, lambda unit: verdicts.settle(unit, ref, verdicts, self._dice.roll), now_ms)

A step reads first, refuses if it must, and then changes:

- **Reading** takes a whole batch per call. The methods are `async` because PostgreSQL awaits its connection in them;
  the memory store and RocksDB never suspend in a step, so no other step can come between two of its calls.
- **Refusing** means raising. A step that raises before its first change leaves nothing behind.
- **Changing** is gathered by `apply` and its companions. The changes are complete once `run` returns, all or none of
  them. A message may be changed again in the same step: `entry.life` is always its latest life. Messages that the step
  has changed must not be looked for again by an index (`take_due`, `ended`, `matching`, ...): a store may still have
  them in their old place.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from holdfast.model.answers import Delivery, Enqueued
from holdfast.model.message import Draft, Envelope, Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, StateDocument
from holdfast.model.rules.lifecycle import Change, Life
from holdfast.stores.contract import QueueRow


class QueueHandle(Protocol):
    """A queue as one store knows it."""

    @property
    def row(self) -> QueueRow: ...


class Sized(Protocol):
    """A draft, an envelope or a loaded message."""

    @property
    def bytes(self) -> int:
        """The size of its payload and headers, as quotas count it."""


class LoadedMessage(Sized, Protocol):
    """A message that a store has loaded."""

    @property
    def envelope(self) -> Envelope: ...

    @property
    def life(self) -> Life: ...


class OpenClaim(NamedTuple):
    """One open claim of a consumer's ledger."""

    number: int
    claimed_at: int
    receipts: list[Receipt]


Q = TypeVar("Q", bound=QueueHandle)
E = TypeVar("E", bound=LoadedMessage)
T = TypeVar("T")


class ChangeUnit(Protocol[Q, E]):
    """The part of an atomic step that changes existing messages: verdicts, bulk verbs and sweeps need no more."""

    # The time of the step, by the store's clock.
    now_ms: int
    # True when the step begins. The work sets it to False if a power cut may undo the step (a claim without a ledger,
    # an extension): a store that writes before it syncs then returns after the write.
    is_durable: bool

    # --- Queues ----------------------------------------------------------------------------------------------

    async def find(self, ref: QueueRef) -> Q | None:
        """Return a queue that was named to `Units.run`; None if it does not exist."""

    def default_ttl_ms(self, queue: Q) -> int | None:
        """Return the TTL of a message that gives none; None: it does not expire."""

    async def check_quotas(self, ref: QueueRef, added: Sequence[Sized], freed: Sequence[Sized] = ()) -> None:
        """Raise `OverQuota` or `PayloadTooLarge` if the queue's tenant may not keep the messages `added`, once those in
        `freed` are gone. The queue may not exist yet."""

    # --- Finding messages ------------------------------------------------------------------------------------

    async def load(self, queue: Q, ids: Iterable[int]) -> dict[int, E]:
        """Return the messages with these ids, by id, to be changed; missing ones are left out. Payloads may be left
        out too. PostgreSQL locks the rows."""

    async def ended(self, queue: Q, limit: int) -> tuple[Sequence[E], Sequence[E]]:
        """Return messages in flight whose lease has ended, and Ready messages whose TTL has ended; in each the earliest
        end first. Up to `limit` in all, leases before TTLs."""

    async def oldest(self, queue: Q, limit: int) -> list[E]:
        """Return the queue's first messages by id, in any state."""

    async def matching(
        self, queue: Q, states: frozenset[State], which: Filter, after: int | None, limit: int
    ) -> tuple[list[E], int | None]:
        """Return messages in one of the states that the filter matches, by id, beginning behind the id `after`; and the
        id to continue behind, None at the end. It looks at messages until `limit` match."""

    # --- Changing messages -----------------------------------------------------------------------------------

    def apply(self, queue: Q, changes: Sequence[tuple[E, Change]], *, by_time: bool = False) -> None:
        """Take each message one step along its life: its life, its indexes, its counts and its event for the journal.

        Each message stands here once. Afterwards `entry.life` is the new life, unless the message is gone. With
        `by_time` the clock alone causes the changes, and would cause them again after a crash: a store may let claims
        see them before they are durable, or write each of them in a step of its own."""

    async def move(self, queue: Q, target: Q, changes: Sequence[tuple[E, Change]]) -> None:
        """Move messages, with their state documents, to another queue. Both queues' journals tell of it (`to ...`,
        `from ...`), so that the counts of each can be derived from its own events."""

    async def edit(self, queue: Q, entry: E, envelope: Envelope) -> None:
        """Give a message that is not in flight another payload."""

    # --- Telling ---------------------------------------------------------------------------------------------

    def tell(self, queue: Q) -> None:
        """Tell the listener, once the step holds, that a claim on the queue may find something, though no message was
        made Ready: the removal of a message may free its group."""


class Unit(ChangeUnit[Q, E], Protocol[Q, E]):
    """One atomic step. It is valid until the work that it was given to returns."""

    # True when the step begins. A claim sets it to False: its result says when the next claim may find something, and
    # the listener need not hear it as well.
    tells_ready: bool

    # --- Queues ----------------------------------------------------------------------------------------------

    async def create(self, ref: QueueRef) -> Q:
        """Create a queue that does not exist. Raise `OverQuota` if its tenant may not have another one.

        A store that creates queues before the step begins never returns None from `find`, and is not asked."""

    async def remove_if_empty(self, queue: Q) -> None:
        """Remove a queue for good if it has no message left. Its number is not used again."""

    # --- Finding messages ------------------------------------------------------------------------------------

    async def load_whole(self, queue: Q, ids: Iterable[int]) -> dict[int, E]:
        """Return the messages with these ids, by id, to be delivered; missing ones are left out."""

    async def take_due(self, queue: Q, limits: list[int]) -> list[list[E]]:
        """Return at most `limit` due messages for each limit, in the order of delivery (priority, visible time, id), to
        be claimed in this step. No message is returned twice.

        A group gives its oldest messages, in order of id, up to the first that is not due, to one limit only; it gives
        none while a message of it is in flight. Messages whose TTL has ended are left out; a store may end them here,
        as `sweep.end_ttls` does."""

    async def next_at(self, queue: Q) -> int | None:
        """Return when a claim may next find something, given the changes of this step; None: not before the listener
        hears of it, as in a paused queue."""

    def version_floor(self, entry: E) -> int:
        """Return the version that the next claim of the message must exceed; 0 by default. It is above 0 in a store
        that may have lost claims in a crash."""

    # --- Reading messages ------------------------------------------------------------------------------------

    async def deliveries(self, queue: Q, entries: list[E], *, with_state: bool, streams: bool) -> list[Delivery]:
        """Return deliveries of messages in flight. With `streams`, payloads in pieces are left in pieces."""

    async def states(self, queue: Q, entries: list[E]) -> list[StateDocument]:
        """Return the state document of each message; `NO_STATE` for one without."""

    # --- Changing messages -----------------------------------------------------------------------------------

    def drop(self, queue: Q, entries: Sequence[E]) -> None:
        """Forget messages without an event: only their records were kept."""

    async def put_state(self, queue: Q, entry: E, state: StateDocument) -> None:
        """Replace a message's state document."""

    # --- New messages ----------------------------------------------------------------------------------------

    async def known_keys(self, queue: Q, drafts: list[Draft], firsts: Mapping[str, int]) -> dict[str, Enqueued]:
        """Return the first message of each of these idempotency keys that the queue has seen within its window, as a
        duplicate. `drafts` are all drafts of the step; `firsts` says which of them is the first with each key.

        PostgreSQL reserves the other keys here, so that a concurrent call waits; `add` then uses the ids it gave."""

    async def add(self, queue: Q, drafts: list[Draft], reason: str | None) -> Sequence[int]:
        """Add a new message for each draft, remember its key, if it has one, for the queue's window, and return the
        messages' ids. `reason` is for the journal."""

    # --- Ledgers ---------------------------------------------------------------------------------------------

    async def closed_upto(self, queue: Q, consumer: str) -> int:
        """Return the highest ledger number that the consumer has closed; -1 if none."""

    async def open_claims(
        self, queue: Q, consumer: str, *, number: int | None = None, upto: int | None = None
    ) -> list[OpenClaim]:
        """Return the consumer's open claims by number: all of them, the one with `number`, or those up to `upto`."""

    async def put_claim(self, queue: Q, consumer: str, claim: OpenClaim) -> None:
        """Add an open claim to the consumer's ledger."""

    async def close_claims(self, queue: Q, consumer: str, numbers: list[int], closed_upto: int) -> None:
        """Delete these open claims, and remember that all numbers up to `closed_upto` are closed."""


class Units(Protocol[Q, E]):
    """A store that can run atomic steps."""

    async def run(
        self,
        ref: QueueRef,
        work: Callable[[Unit[Q, E]], Awaitable[T]],
        now_ms: int,
        *,
        target: QueueRef | None = None,
    ) -> T:
        """Run `work` as one atomic step on a queue, and return its result once the step is durable.

        `target` names the second queue that the work opens: the queue that messages move to. A store may run the work
        again (PostgreSQL after a deadlock), so it must keep nothing outside and change nothing but the unit. If the
        work raises, nothing has changed."""
