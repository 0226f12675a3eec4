"""The calls between the processes of a divided store: from the coordinator to a portion, and back.

Both ends are of one version, so these forms are never stored and may change freely.
"""

from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.model.events import JournalEvent
from holdfast.model.names import QueueRef
from holdfast.model.policy import TenantConfig
from holdfast.stores.values import QueueRow, TenantRow


class PortionCall(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A call between two processes of a store."""


class Amount(NamedTuple):
    """A number of messages and bytes."""

    messages: int
    bytes: int

    def plus(self, other: "Amount") -> "Amount":
        """Return the sum."""
        return Amount(self.messages + other.messages, self.bytes + other.bytes)

    def minus(self, other: "Amount") -> "Amount":
        """Return the difference, at least 0."""
        return Amount(max(0, self.messages - other.messages), max(0, self.bytes - other.bytes))

    def or_more(self, other: "Amount") -> "Amount":
        """Return the larger number of messages and the larger number of bytes."""
        return Amount(max(self.messages, other.messages), max(self.bytes, other.bytes))


NOTHING = Amount(0, 0)


# --- To a portion ----------------------------------------------------------------------------------------------------


class FindRow(PortionCall, frozen=True):
    """Return the row of a queue of this portion, or None."""

    ref: QueueRef


class Assign(PortionCall, frozen=True):
    """Create this queue, with this number, once it is needed."""

    ref: QueueRef
    tenant: TenantRow
    queue_id: int


class Unassign(PortionCall, frozen=True):
    """Forget the queues of a tenant that were assigned here and not created."""

    tenant: str


class CreateAssigned(PortionCall, frozen=True):
    """Create a queue that was assigned here, and return its row."""

    ref: QueueRef
    now_ms: int


class CountQueues(PortionCall, frozen=True):
    """Return the number of a tenant's queues in this portion."""

    tenant: TenantRow


class HighestQueueId(PortionCall, frozen=True):
    """Return the highest queue_id of a tenant in this portion; 0 if there is none."""

    tenant: TenantRow


class Join(PortionCall, frozen=True):
    """Replace the rows of all tenants, and begin with parts of their quotas that are just used up."""

    tenants: list[TenantRow]
    version: int


class LearnTenant(PortionCall, frozen=True):
    """Replace a tenant's row, and begin anew with a part of its quotas that is just used up. Return that part."""

    tenant: TenantRow
    version: int


class TakeBack(PortionCall, frozen=True):
    """Lower the part of a tenant's quotas to what is used. Return that."""

    tenant: str
    version: int


class CopyPiece(PortionCall, frozen=True):
    """Write a piece of a payload whose message is about to arrive for the queue with this prefix."""

    target_p: bytes
    blob_id: int
    number: int
    piece: bytes


class HasArrived(PortionCall, frozen=True):
    """Return whether the messages of a transfer, given by its record, have arrived for the queue with this prefix."""

    target_p: bytes
    transfer: bytes


class Arrive(PortionCall, frozen=True):
    """Add the messages of a transfer, given by its record, to the queue with this prefix."""

    target_p: bytes
    transfer: bytes


class ReadJournal(PortionCall, frozen=True):
    """Return a page of the journal of each shard of this portion. Positions are by the number of the shard."""

    positions: list[int]
    ends: list[int] | None
    limit: int
    tenant: str | None
    oldest_at: int


# CopyPiece, HasArrived and Arrive go to the coordinator too, which passes them to the portion of the target queue.

# --- To the coordinator ----------------------------------------------------------------------------------------------


class Locate(PortionCall, frozen=True):
    """Return the portion of a queue. A missing one belongs to the first, unless it was assigned in another.

    `stale` is the portion that was found not to have it.
    """

    ref: QueueRef
    stale: int | None


class RequireOwner(PortionCall, frozen=True):
    """Return the number of the portion that has a queue, or in which a missing one may be created now."""

    ref: QueueRef


class FindAnywhere(PortionCall, frozen=True):
    """Return the row of a queue of any portion, or None."""

    ref: QueueRef


class CreateAnywhere(PortionCall, frozen=True):
    """Return the row of a queue of any portion; create a missing one."""

    ref: QueueRef
    now_ms: int


class NoteCreated(PortionCall, frozen=True):
    """Take note that a assigned queue was created."""

    ref: QueueRef
    portion: int


class GrantMore(PortionCall, frozen=True):
    """Raise a portion's part of a tenant's quotas to at least `needed`, if the quotas have room."""

    portion: int
    tenant: str
    needed: Amount


class BeginTransfer(PortionCall, frozen=True):
    """Announce a transfer of at most `amount` to the queue `target`. The largest message has `largest` bytes.

    Raise `OverQuota`, `QueueNotFound` or `Draining` of the target.
    """

    portion: int
    source: QueueRef
    target: QueueRef
    amount: Amount
    largest: int


class EndTransfer(PortionCall, frozen=True):
    """Take note that an announced transfer is over. `arrived` has joined the part of the target; it may be nothing."""

    number: int
    arrived: Amount


class PutTenant(PortionCall, frozen=True):
    """Create a tenant or replace its configuration, and return its row once every portion has it."""

    tenant: str
    config: TenantConfig


# --- Results ---------------------------------------------------------------------------------------------------------


class Located(msgspec.Struct, frozen=True, array_like=True):
    """The number of a portion, and whether the queue is there."""

    portion: int
    is_there: bool


class Granted(msgspec.Struct, frozen=True, array_like=True):
    """The part of the quotas of a portion; None: there is no room. `others` is what all others have of them."""

    part: Amount | None
    version: int
    others: Amount


class Announced(msgspec.Struct, frozen=True, array_like=True):
    """An announced transfer: its number at the coordinator, and the prefix of the target queue."""

    number: int
    target_p: bytes


class JournalPart(msgspec.Struct, frozen=True, array_like=True):
    """The page of one shard's journal."""

    shard: int
    events: list[JournalEvent]
    position: int


class Joined(msgspec.Struct, frozen=True, array_like=True):
    """The state of a portion that begins to serve: the used part of the quotas of each tenant that has some."""

    used: dict[str, Amount]
    # The numbers of the announced transfers from this portion that are not over.
    unfinished: list[int]


# By the type of a call: the type of its result.
RESULTS: dict[type[PortionCall], Any] = {
    FindRow: QueueRow | None,
    Assign: None,
    Unassign: None,
    CreateAssigned: QueueRow,
    CountQueues: int,
    HighestQueueId: int,
    Join: Joined,
    LearnTenant: Amount,
    TakeBack: Amount,
    CopyPiece: None,
    HasArrived: bool,
    Arrive: None,
    ReadJournal: list[JournalPart],
    Locate: Located,
    RequireOwner: int,
    FindAnywhere: QueueRow | None,
    CreateAnywhere: QueueRow,
    NoteCreated: None,
    GrantMore: Granted,
    BeginTransfer: Announced,
    EndTransfer: None,
    PutTenant: TenantRow,
}


class PortionEnd(Protocol):
    """The other end of calls: a portion, or the coordinator."""

    async def ask(self, call: PortionCall) -> Any:
        """Carry out a call, and return its result, of the type in `RESULTS`. Raise its error, or `StoreUnavailable` if
        the other end cannot be reached."""
