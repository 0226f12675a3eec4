"""How a handler ended, and what became of its message."""

import asyncio
from enum import StrEnum
from typing import NamedTuple

import msgspec

from holdfast.client.message import describe
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import MAX_ERROR
from holdfast.worker.exceptions import Defer, HandlerDied, HandlerFailed, Reject, Retry


class OutcomeKind(StrEnum):
    """The ways in which the handling of a message can end."""

    # The handler did its work, and the ack was taken.
    SUCCEEDED = "succeeded"
    # It failed, and the message comes back at `retry_at`.
    RETRIED = "retried"
    # It failed, and the message lies with the dead letters.
    FAILED = "failed"
    DEFERRED = "deferred"
    # The worker stopped, and gave the message back uncounted.
    RELEASED = "released"
    # The lease was lost: another may have the message. What the handler did may be done again.
    LOST = "lost"
    # The handler gave the verdict itself: `message.ack()` and the like.
    SETTLED = "settled"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a message's handling, which the hooks `after`, `on_error` and `on_lost` receive.

    `error` is the text of the nack, or the reason why the lease was lost.
    """

    kind: OutcomeKind
    error: str | None = None
    exception: BaseException | None = None
    seconds: float = 0.0
    # Milliseconds since 1970, by the server's clock.
    retry_at: int | None = None


class FaultKind(StrEnum):
    FAILURE = "failure"
    RETRY = "retry"
    DEFER = "defer"
    REJECT = "reject"
    # Not the message's fault: the handler never began.
    UNSTARTED = "unstarted"


class HandlerFault(NamedTuple):
    """Why a handler did not succeed. All but the exception can travel between processes."""

    kind: FaultKind
    text: str | None
    delay_ms: int | None = None
    exception: BaseException | None = None
    traceback: str = ""

    @property
    def is_failure(self) -> bool:
        return self.kind in (FaultKind.FAILURE, FaultKind.RETRY)

    def packed(self) -> "HandlerFault":
        return self._replace(exception=None)

    def unpacked(self) -> "HandlerFault":
        return self._replace(exception=HandlerFailed(self.text or "", self.traceback))


class BadPayload(Exception):
    """The payload is not what the handler is annotated to take."""


def fault_of(error: BaseException) -> HandlerFault:
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
    return BadPayload(error.message)


def bounded(text: object) -> str:
    """As much as is stored of a nack's error, in characters that can be."""
    clean = str(text).encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= MAX_ERROR else f"{clean[: MAX_ERROR - 3]}..."
