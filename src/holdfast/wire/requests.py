"""The requests of the operations in `wire/operations.py`, in the model's own types.

A service method takes one unchanged. Each wire derives its own document from it (`wire/binding.py`).
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from holdfast.model.message import Receipt, State
from holdfast.model.names import QueueRef
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.requests import EVERYTHING, Edit, Filter, Progress
from holdfast.model.schedules import LEAST_EVERY_MS, ScheduleChange
from holdfast.wire.http.bodies import Positive, Priority, Whole

# Default time that a queue being deleted waits for its leases to end.
FORCE_AFTER_MS = 30_000


class Nothing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An empty document: a request without arguments, or the response of an operation without a result."""


class GetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Return one message, with its payload if `payload` is set."""

    id: str | int
    payload: bool = False


class PeekRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Return the messages that would be claimed next, without claiming them."""

    limit: int = 1


class BrowseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """List messages. `state` may also be `delayed`, which means ready but not yet due; None means all states."""

    state: str | None = None
    filter: Filter = EVERYTHING
    cursor: str | None = None
    limit: int = 100
    payload: bool = False


class JournalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Return journal events after the position `after`, and up to the position `until` if it is set."""

    after: str | None = None
    limit: int = 1_000
    tenant: str | None = None
    wait_ms: int = 0
    until: str | None = None


class NamesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Return the numbers of all tenants and queues, or only of this tenant and of its queue of this name.

    With `queue` alone, the tenant is the caller's own.
    """

    tenant: str | None = None
    queue: str | None = None


class LedgerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """List the open claims of a consumer, or the one with this number."""

    consumer: str
    number: int | None = None


class LedgerAckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Acknowledge the messages that the consumer's claims up to a number still hold."""

    consumer: str
    upto: Whole


class LedgerExtendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Extend the leases of all open claims of a consumer, by default by the queue's lease."""

    consumer: str
    lease_ms: Positive | None = None


class StateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Save `document` if the stored ETag equals `etag`, or set only `progress`."""

    receipt: Receipt
    document: Raw | UnsetType = UNSET
    etag: str | None = None
    progress: Progress | None = None


class ConfigureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Change the given fields of a queue policy or of a tenant's configuration. The others keep their values."""

    changes: dict[str, Any] = {}


class PauseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Pause a queue, or resume it."""

    paused: bool = True


class DeleteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Delete a queue once its leases have ended, at the latest after `force_after_ms`."""

    force_after_ms: int = FORCE_AFTER_MS


class PurgeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Remove all messages in one state, ready or failed."""

    state: State = State.READY


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the ready messages that match a filter."""

    filter: Filter = EVERYTHING


class ReprioritiseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Change the priority of the messages that match a filter."""

    priority: Priority
    filter: Filter = EVERYTHING


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Move the messages in one state that match a filter to another queue."""

    to: QueueRef
    filter: Filter = EVERYTHING
    state: State = State.READY


class RemoveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Remove one message."""

    id: str | int


class RedriveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Return failed messages to the queue. With `edit`, redrive only the message that it names."""

    filter: Filter = EVERYTHING
    rate_per_s: Annotated[float, Meta(gt=0)] | None = None
    dry_run: bool = False
    edit: Edit | None = None


class ScheduleNameRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Return or delete one schedule. `payload` includes its message's payload."""

    name: str
    payload: bool = False


class ScheduleRequest(ScheduleChange, frozen=True, kw_only=True):
    """Create a schedule, or change the given fields of one.

    A new schedule needs a message and either a cron expression or an interval.
    """

    name: str
    every_ms: Annotated[int, Meta(ge=LEAST_EVERY_MS, le=MAX_MS)] | None = None


class BackupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Copy the whole store into a new directory."""

    target: str
