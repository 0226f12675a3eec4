"""The values that the methods of a store take and return: rows of the directory, results and pages.

`contract.py` documents the methods.
"""

from typing import Any, NamedTuple

import msgspec

from holdfast.model.answers import Delivery, Found
from holdfast.model.events import JournalEvent
from holdfast.model.names import QueueRef
from holdfast.model.policy import QueuePolicy, TenantConfig
from holdfast.model.schedules import Schedule


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The declared differences between stores. Callers check these fields and never the class of a store."""

    # A `claim` without a ledger never suspends, so the dispatcher may call it in the middle of a step, and the caller
    # cannot be cancelled during it.
    claims_inline: bool = False
    # Stored messages outlive the process.
    is_durable: bool = True
    # The listener is called for every change, including changes by other processes. If False, waiting claims also poll.
    pushes_wakeups: bool = True
    # Payloads of more bytes than this are kept in pieces: `Store.payloads` writes and reads them in parts, and
    # inspection, and claims with `streams`, return them as `Pieces`. None: the store keeps every payload whole, and
    # `Store.payloads` is never called.
    streams_above: int | None = None
    # `Store.directory` is a `LimitedQueueDirectory`.
    lists_limited_queues: bool = False
    # One `enqueue` or `settle` with several items costs much less than one for each. The service then joins the calls
    # that callers make on a queue at the same time.
    prefers_batches: bool = False


class TenantRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as the directory stores it. `tenant_id` never changes and is never reused."""

    tenant: str
    tenant_id: int
    config: TenantConfig = TenantConfig()


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as the directory stores it. `queue_id` is unique within the tenant, never changes and is never reused."""

    ref: QueueRef
    tenant_id: int
    queue_id: int
    policy: QueuePolicy = QueuePolicy()
    is_paused: bool = False
    # Set when the deletion of the queue begins: the instant at which leases on its messages are revoked. Once no
    # message is under a lease, or at that instant, sweeps delete the messages and then the queue.
    drain_until: int | None = None


class Claims(NamedTuple):
    """The result of one pass over a queue on behalf of several callers."""

    # The deliveries for each `ClaimRequest`, in the order of the requests.
    per_ask: list[list[Delivery]]
    # The instant from which another pass may find more; None: not before the listener is called. If every request got
    # a message, this may simply be the current time, which is cheaper than looking for the exact instant.
    next_at: int | None
    # The request named an open claim of its ledger. These deliveries are the final result, even if there are none: the
    # caller must not wait for more.
    is_reread: bool = False


class AlterStep(NamedTuple):
    """The result of one atomic step of a bulk verb."""

    # Messages that the filter matched, and messages that were changed.
    matched: int
    changed: int
    # The id to pass as `after` to the next step; None: all messages have been examined.
    after: int | None


class Listing(NamedTuple):
    """One page of messages, sorted by id."""

    found: list[Found]
    # The id to pass as `after` for the next page; None: this is the last page.
    after: int | None


class JournalPage(NamedTuple):
    """One page of journal events."""

    events: list[JournalEvent]
    # The position after these events. No event will ever be added at or before it.
    position: str


class DueSchedules(NamedTuple):
    """The schedules to fire now."""

    # Schedules whose next tick has come, earliest first.
    due: list[tuple[QueueRef, Schedule]]
    # The earliest next tick of all other schedules; None: there is none.
    next_at: int | None


class Swept(NamedTuple):
    """The result of one sweep."""

    # The amount of work done, in the unit of the sweep's `limit`. If it reached the limit, there may be more to do.
    changed: int
    # The instant at which the next sweep has work to do; None: not before the listener is called.
    next_at: int | None


class QueueChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change to a queue's row. A field that is None leaves the row's field unchanged."""

    policy: QueuePolicy | None = None
    is_paused: bool | None = None
    # Begin to delete the queue, and revoke the leases on its messages at this instant.
    drain_until: int | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields to change, by name, as arguments for `replace` on a row."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
