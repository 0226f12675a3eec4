"""The errors that Holdfast raises, in one tree by the caller's next move:

    HoldfastError
    ├── Refused                  change the request: as it is, it can never succeed
    │   ├── InvalidName          invalid_name
    │   ├── InvalidArgument      invalid_argument
    │   ├── Unauthenticated      unauthenticated
    │   ├── Forbidden            forbidden
    │   ├── QueueNotFound        queue_not_found
    │   ├── MessageNotFound      message_not_found
    │   ├── StaleLease           stale_lease
    │   ├── Conflict             conflict
    │   ├── AlreadyExists        already_exists
    │   ├── Draining             draining
    │   └── PayloadTooLarge      payload_too_large
    ├── Throttled                wait `retry_after_ms`, then send the same request again
    │   ├── OverQuota            over_quota
    │   └── RateLimited          rate_limited
    └── Unavailable              retry the same request
        ├── StoreUnavailable     store_unavailable
        └── Internal             internal

Each class has a stable `code`, shown beside it. The facts of an error are typed attributes of its class; a fact that
does not apply has its default there and is missing from `facts`.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self


class HoldfastError(Exception):
    """The root of all errors that Holdfast raises.

    Attributes:
        code: The stable code of the class, as in the tree above.
        message: The sentence that says what happened and what to do.
        facts: The facts that were given, by name. Each is also an attribute.
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, /, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def copy(self) -> Self:
        """Return an error of the same class, message and facts, for another caller of a shared call."""
        return type(self)(self.message, **self.facts)


# --- Refused ---------------------------------------------------------------------------------------------------------


class Refused(HoldfastError):
    """A request that cannot succeed as it is: change it before sending it again."""


class InvalidName(Refused):
    """A name of a tenant or a queue that breaks the rules for names."""

    code = "invalid_name"
    # "tenant" or "queue".
    kind: str | None = None


class InvalidArgument(Refused):
    """An argument, field or setting with a value that cannot be used."""

    code = "invalid_argument"
    # The path of the field in the request, such as "message.headers".
    field: str | None = None
    # The name of the setting of `holdfast serve`.
    setting: str | None = None
    # The highest closed number of a claim ledger.
    closed_upto: int | None = None
    # The number of the PostgreSQL database that still has the queues below.
    database: int | None = None
    queues: Sequence[str] = ()
    # A directory of the legacy layout: its path, the count of unreadable messages, and a few of them.
    path: str | None = None
    unreadable: int | None = None
    examples: Sequence[object] = ()
    # The versions of the framed protocol that the server speaks.
    versions: Sequence[int] = ()


class Unauthenticated(Refused):
    """A request without valid credentials."""

    code = "unauthenticated"
    # A short word for logs and metrics, such as "expired".
    reason: str | None = None


class Forbidden(Refused):
    """A request that the caller's credentials do not allow."""

    code = "forbidden"
    # The missing scope, or the tenant that the credentials do not cover.
    scope: str | None = None
    tenant: str | None = None


class QueueNotFound(Refused):
    """A queue that does not exist."""

    code = "queue_not_found"
    tenant: str | None = None
    queue: str | None = None


class MessageNotFound(Refused):
    """A message or a schedule that does not exist, or no longer does."""

    code = "message_not_found"
    id: str | None = None
    # The name of the schedule, if one was asked for.
    schedule: str | None = None


class StaleLease(Refused):
    """A receipt that does not hold its message: the lease expired, or the message was settled, claimed or removed."""

    code = "stale_lease"
    id: str | None = None
    # True: an earlier attempt of the same call got no response, and may be the one that settled the message.
    is_unsure: bool = False


class Conflict(Refused):
    """A write based on an old version: read again, then write."""

    code = "conflict"
    # The current ETag of the state document; None: there is no document yet.
    etag: str | None = None


class AlreadyExists(Refused):
    """A thing of this name that exists already."""

    code = "already_exists"


class Draining(Refused):
    """A queue that is being deleted; create it again once the delete has finished."""

    code = "draining"
    tenant: str | None = None
    queue: str | None = None


class PayloadTooLarge(Refused):
    """A payload or a request above a size limit."""

    code = "payload_too_large"
    # The size that was given and the limit, in bytes. `max_bytes` is the limit of the framed protocol.
    bytes: int | None = None
    limit: int | None = None
    max_bytes: int | None = None


# --- Throttled -------------------------------------------------------------------------------------------------------


class Throttled(HoldfastError):
    """A valid request that is too much for now: wait `retry_after_ms`, then send it again."""

    retry_after_ms: int

    def __init__(self, message: str, /, *, retry_after_ms: int = 1_000, **facts: object) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms, **facts)


class OverQuota(Throttled):
    """A tenant that holds as much as its quota allows."""

    code = "over_quota"
    # The name of the quota, such as "max_messages", and its value.
    quota: str | None = None
    limit: int | None = None


class RateLimited(Throttled):
    """A rate or a limit on concurrent calls that is used up."""

    code = "rate_limited"
    # The name of the limit, such as "write_ops_per_s"; the framed protocol gives a number of calls or uploads.
    limit: str | int | None = None
    # The holder of the limit, and its name.
    of: Literal["tenant", "queue", "server"] | None = None
    tenant: str | None = None
    queue: str | None = None


# --- Unavailable -----------------------------------------------------------------------------------------------------


class Unavailable(HoldfastError):
    """A valid request that failed for a passing reason: send it again."""


class StoreUnavailable(Unavailable):
    """A store or a server that cannot take the request now, or a connection that was lost."""

    code = "store_unavailable"
    retry_after_ms: int = 1_000
    # Over a network: whether the request may have been carried out, and the address.
    outcome: Literal["nothing happened", "unknown"] | None = None
    url: str | None = None
    # True: the server is closing, and did not carry out the request.
    closing: bool = False
    # True: the caller cancelled the request.
    cancelled: bool = False
    # The directory of the store, and the process that has it open.
    path: str | None = None
    pid: int | None = None
    # The damaged file, and the offset of the damage in bytes.
    file: str | None = None
    at: int | None = None
    # The format of a store that this version does not know.
    format: int | None = None
    # The free space of the disk.
    free_bytes: int | None = None
    # The name of the schedule with too many conflicting writes.
    schedule: str | None = None


class Internal(Unavailable):
    """A bug or an unexpected failure in Holdfast. The server's log has the details under `correlation_id`."""

    code = "internal"
    correlation_id: str | None = None
    # The message whose payload arrived damaged.
    id: str | None = None


ERRORS_BY_CODE: dict[str, type[HoldfastError]] = {
    error.code: error
    for error in (
        InvalidName,
        InvalidArgument,
        Unauthenticated,
        Forbidden,
        QueueNotFound,
        MessageNotFound,
        StaleLease,
        Conflict,
        AlreadyExists,
        Draining,
        PayloadTooLarge,
        OverQuota,
        RateLimited,
        StoreUnavailable,
        Internal,
    )
}

# Tracebacks, logs and pickles then name the public class, such as `holdfast.StaleLease`.
for _error in (HoldfastError, Refused, Throttled, Unavailable, *ERRORS_BY_CODE.values()):
    _error.__module__ = "holdfast"
