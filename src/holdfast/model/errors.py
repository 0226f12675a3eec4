"""Every error a caller can meet, grouped by the caller's next move.

`Refused`: change the request. `Throttled`: wait `retry_after_ms`, then ask again. `Unavailable`: ask again.
Each has a stable `code`, and its facts as attributes.
"""

from typing import ClassVar


class HoldfastError(Exception):
    """The root of what Holdfast raises. `code` is stable; the message says what to do."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, /, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)


class Refused(HoldfastError):
    """The request cannot succeed as it stands: change it."""


class Throttled(HoldfastError):
    """The request is fine but too much for now: wait `retry_after_ms`."""

    def __init__(self, message: str, /, *, retry_after_ms: int = 1_000, **facts: object) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms, **facts)
        self.retry_after_ms = retry_after_ms


class Unavailable(HoldfastError):
    """Nothing is wrong with the request: try it again."""


class InvalidName(Refused):
    code = "invalid_name"


class InvalidArgument(Refused):
    code = "invalid_argument"


class Unauthenticated(Refused):
    code = "unauthenticated"


class Forbidden(Refused):
    code = "forbidden"


class QueueNotFound(Refused):
    code = "queue_not_found"


class MessageNotFound(Refused):
    code = "message_not_found"


class StaleLease(Refused):
    code = "stale_lease"


class Conflict(Refused):
    code = "conflict"


class AlreadyExists(Refused):
    code = "already_exists"


class Draining(Refused):
    code = "draining"


class PayloadTooLarge(Refused):
    code = "payload_too_large"


class OverQuota(Throttled):
    code = "over_quota"


class RateLimited(Throttled):
    code = "rate_limited"


class StoreUnavailable(Unavailable):
    code = "store_unavailable"


class Internal(Unavailable):
    code = "internal"


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

# Tracebacks, logs and pickles name the class that programs import, wherever it is defined.
for _error in (HoldfastError, Refused, Throttled, Unavailable, *ERRORS_BY_CODE.values()):
    _error.__module__ = "holdfast"
