"""The exceptions that a handler may raise, and the outcome of handling a message."""

import asyncio
from enum import StrEnum
from typing import NamedTuple

import msgspec

from holdfast.client.message import describe
from holdfast.model.errors import InvalidArgument, StaleLease, Unavailable
from holdfast.model.message import MAX_ERROR
from holdfast.model.parsing.durations import Duration, parse_duration_ms


class Retry(Exception):
    """Raised by a handler to retry the message after `delay`, by default after the backoff. It counts as a failure."""

    def __init__(self, reason: str = "the handler asked for a retry", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay_ms = None if delay is None else parse_duration_ms("delay", delay)


class Defer(Exception):
    """Raised by a handler to get the message again after `delay`. It counts as no failure and uses no retry."""

    def __init__(self, delay: Duration, reason: str | None = None) -> None:
        super().__init__(reason or "the handler deferred the message")
        self.reason = reason
        self.delay_ms = parse_duration_ms("delay", delay)


class Reject(Exception):
    """Raised by a handler to move the message to the dead letters at once, because no retry can help."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LeaseLost(StaleLease):
    """The worker has lost the lease of the message, so another worker may handle it.

    An async handler is cancelled, and finds this error in the `args` of its CancelledError. In other handlers the
    message's methods raise it.
    """


class WorkerStuck(Unavailable):
    """More handler threads than `max_stuck_threads` ran past their timeout, and the worker has stopped.

    A thread cannot be killed; it ends only with its process. Start the worker again in a new process.
    """

    code = "worker_stuck"


class Stopped(Exception):
    """In the `args` of a CancelledError: the worker is stopping and its grace has ended."""


class Overdue(TimeoutError):
    """In the `args` of a CancelledError: the handler exceeded its timeout."""


class HandlerDied(Exception):
    """The process of the handler ended before the handler did."""


class HandlerNotImportable(HandlerDied):
    """The process of the handler could not import it."""


class HandlerFailed(Exception):
    """An error that a handler raised in its own process, as text, with its `traceback` as text."""

    def __init__(self, text: str, traceback: str = "") -> None:
        super().__init__(text)
        self.traceback = traceback


# As for the error classes of the model: tracebacks and pickles name the module that programs import from.
for _public in (Retry, Defer, Reject, LeaseLost, WorkerStuck):
    _public.__module__ = "holdfast"


class OutcomeKind(StrEnum):
    """The ways in which the handling of a message can end."""

    # The handler returned, and the server accepted the ack.
    SUCCEEDED = "succeeded"
    # The handler failed, and the message is ready again at `retry_at`.
    RETRIED = "retried"
    # The handler failed, and the message is a dead letter.
    FAILED = "failed"
    # The handler raised `Defer`.
    DEFERRED = "deferred"
    # The worker stopped and gave the message back, uncounted.
    RELEASED = "released"
    # The lease was lost. Another worker may handle the message again.
    LOST = "lost"
    # The handler gave the verdict itself, for example by `message.ack()`.
    SETTLED = "settled"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of handling a message, as the hooks `after`, `on_error` and `on_lost` get it.

    `error` is the text that was sent with the verdict, or the reason why the lease was lost.
    """

    kind: OutcomeKind
    error: str | None = None
    exception: BaseException | None = None
    seconds: float = 0.0
    # Milliseconds since 1970, by the server's clock.
    retry_at: int | None = None


class Crash(msgspec.Struct, frozen=True, kw_only=True):
    """A crash of the part of a worker that claims from one queue, as the hook `on_crash` gets it.

    `error` is the exception, for example `QueueNotFound` or `Forbidden`. `count` is the number of crashes in a row, and
    `delay_s` the time until the worker claims from this queue again: 0 for the first three, then 0.25, doubling to 300.
    """

    tenant: str
    queue: str
    error: Exception
    count: int
    delay_s: float


class FaultKind(StrEnum):
    """The reasons for which a handler did not succeed."""

    FAILURE = "failure"
    RETRY = "retry"
    DEFER = "defer"
    REJECT = "reject"
    # The handler never started, so the message is not to blame.
    UNSTARTED = "unstarted"


class HandlerFault(NamedTuple):
    """The reason why a handler did not succeed. All fields except the exception can be sent between processes."""

    kind: FaultKind
    text: str | None
    delay_ms: int | None = None
    exception: BaseException | None = None
    traceback: str = ""

    def without_exception(self) -> "HandlerFault":
        """Return this fault without its exception, to be sent to the worker's process."""
        return self._replace(exception=None)

    def with_text_exception(self) -> "HandlerFault":
        """Return this fault, received from a handler's process, with an exception that has its text and traceback."""
        return self._replace(exception=HandlerFailed(self.text or "", self.traceback))


class BadPayload(Exception):
    """The payload does not fit the annotation of the handler's parameter."""


def fault_of(error: BaseException) -> HandlerFault:
    """Return the fault of a handler that raised `error`."""
    match error:
        case Retry(reason=reason, delay_ms=delay_ms):
            return HandlerFault(FaultKind.RETRY, bounded(reason), delay_ms, error)
        case Defer(reason=reason, delay_ms=delay_ms):
            return HandlerFault(FaultKind.DEFER, None if reason is None else bounded(reason), delay_ms, error)
        case Reject(reason=reason):
            return HandlerFault(FaultKind.REJECT, bounded(reason), None, error)
        case BadPayload():
            return HandlerFault(FaultKind.REJECT, bounded(f"bad payload: {error}"), None, error)
        case HandlerDied():
            return HandlerFault(FaultKind.FAILURE, bounded(str(error)), None, error)
        case asyncio.CancelledError():
            return HandlerFault(FaultKind.FAILURE, "CancelledError: the handler was cancelled from within", None, error)
        case _:
            return HandlerFault(FaultKind.FAILURE, bounded(describe(error)), None, error)


def bad_payload(error: InvalidArgument) -> BadPayload:
    """Return the error for a payload that could not be decoded."""
    return BadPayload(error.message)


def bounded(text: object) -> str:
    """Return an error text that a nack can store: shortened, and with unencodable characters escaped."""
    clean = str(text).encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= MAX_ERROR else f"{clean[: MAX_ERROR - 3]}..."
