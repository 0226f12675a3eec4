"""The HTTP documents of messages that are looked up, bulk operations, schedules, the journal, tenants and queues.

Clients send `…In`; servers send `…Out` and `…Answer`. Times are whole milliseconds; ids are strings.
"""

from msgspec import UNSET, Raw, Struct, UnsetType

from holdfast.model.answers import HotQueue, NumberedTenant, QueueSummary, Stats, TenantSummary
from holdfast.model.policy import QueuePolicy
from holdfast.model.requests import Progress
from holdfast.wire.http.bodies import Positive, Priority, Retries, Whole


class InfoOut(Struct, frozen=True, kw_only=True):
    """A message as `get`, `browse` and `peek` return it: never its receipt, and its payload only on request."""

    id: str
    snowflake: str
    state: str
    priority: int
    attempt: int
    failures: int
    expiries: int
    releases: int
    version: int
    enqueued_at: int
    visible_at: int
    lease_expires_at: int | None
    last_error: str | None
    reason: str | None
    correlation_id: str
    headers: dict[str, str]
    bytes: int
    content_type: str
    group: str | None
    owner: str | None
    claimed_at: int | None = None
    settled_at: int | None
    expires_at: int | None
    progress: Progress | None
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class MessagesAnswer(Struct, frozen=True, kw_only=True):
    """A page of messages. `cursor` is the start of the next page, null on the last one."""

    messages: list[InfoOut]
    cursor: str | None


class FilterIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A filter of messages. A message matches if it fits every field that is given."""

    ids: list[str] | None = None
    error_contains: str | None = None
    older_than_ms: Whole | None = None
    headers: dict[str, str] | None = None
    priority: Priority | None = None
    owner: str | None = None
    held_for_ms: Whole | None = None
    delayed: bool | None = None


class TargetIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The queue that messages are moved to. The default tenant is that of the source queue."""

    queue: str
    tenant: str | None = None


class EditIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new payload for the message that is redriven."""

    id: str
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class ChangedAnswer(Struct, frozen=True, kw_only=True):
    """The number of messages that matched, and of those that were changed."""

    matched: int
    changed: int


class RedriveAnswer(Struct, frozen=True, kw_only=True):
    """The number of messages that matched, and of those that were redriven."""

    matched: int
    redriven: int


class ScheduledIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The message that a schedule enqueues at each tick.

    It has no delay, because the schedule gives the time, and no idempotency key.
    """

    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    content_type: str | None = None
    headers: dict[str, str] | None = None
    priority: Priority | None = None
    ttl_ms: Positive | None = None
    group: str | None = None
    correlation_id: str | None = None
    max_retries: Retries | None = None


class ScheduledOut(Struct, frozen=True, kw_only=True):
    """The message of a schedule. Its payload is set only on request."""

    content_type: str
    is_json: bool
    headers: dict[str, str]
    priority: int
    ttl_ms: int | None
    group: str | None
    correlation_id: str | None
    max_retries: int | None
    bytes: int
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class ScheduleOut(Struct, frozen=True, kw_only=True):
    """A schedule, with its next and last tick."""

    name: str
    cron: str | None
    every_ms: int | None
    timezone: str
    message: ScheduledOut
    paused: bool
    next_at: int | None
    last_at: int | None
    last_id: str | None
    last_error: str | None


class SchedulesAnswer(Struct, frozen=True, kw_only=True):
    """The schedules of a queue."""

    schedules: list[ScheduleOut]


class JournalEventOut(Struct, frozen=True, kw_only=True, gc=False):
    """One event of the journal."""

    seq: int
    shard: int
    at: int
    event: str
    tenant: str
    queue: str
    id: str
    attempt: int
    version: int
    priority: int
    enqueued_at: int
    claimed_at: int | None
    bytes: int
    error: str | None
    reason: str | None
    correlation_id: str


class TenantAnswer(TenantSummary, frozen=True, kw_only=True):
    """A tenant's limits and quotas."""

    # The total counts of the tenant's queues. Set when one tenant was requested.
    stats: Stats | UnsetType = UNSET


class TenantsAnswer(Struct, frozen=True, kw_only=True):
    """The tenants that the caller may see."""

    tenants: list[TenantSummary]


class NamesAnswer(Struct, frozen=True, kw_only=True):
    """The numbers of tenants and queues."""

    tenants: list[NumberedTenant]


class HotQueuesAnswer(Struct, frozen=True, kw_only=True):
    """The busiest queues of each column family, the busiest first."""

    queues: list[HotQueue]


class QueuesAnswer(Struct, frozen=True, kw_only=True):
    """The queues of a tenant."""

    queues: list[QueueSummary]


class QueueAnswer(QueueSummary, frozen=True, kw_only=True):
    """A queue's counts and policy."""

    tenant: str
    policy: QueuePolicy


class PausedAnswer(Struct, frozen=True, kw_only=True):
    """The state of a queue: paused or not."""

    tenant: str
    queue: str
    paused: bool


class DrainingAnswer(Struct, frozen=True, kw_only=True):
    """A queue that is being deleted."""

    tenant: str
    queue: str
    draining: bool


class PeekAnswer(Struct, frozen=True, kw_only=True):
    """The messages that would be claimed next."""

    messages: list[InfoOut]


class AvailableEvent(Struct, frozen=True, kw_only=True):
    """The data of a watch's `available` event."""

    tenant: str
    queue: str
    ready: int


class HealthAnswer(Struct, frozen=True, kw_only=True):
    """The state of the server."""

    status: str
    # Why the server is not ready.
    reason: str | UnsetType = UNSET
    # What is wrong although the server accepts calls, such as a database that gives no sign of life.
    problems: list[str] | UnsetType = UNSET
    # The port of the framed protocol, if it has its own, and whether a connection to this port can be upgraded to it.
    framed_port: int | UnsetType = UNSET
    framed_upgrade: bool | UnsetType = UNSET
