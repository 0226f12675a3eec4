"""What a handler raises to say more than "it failed", and what it meets when it must stop."""

from holdfast.model.errors import StaleLease, Unavailable
from holdfast.model.parsing.durations import Duration, parse_duration_ms


class Retry(Exception):
    """Try the message again, after `delay` (left out: the backoff). It counts as a failure."""

    def __init__(self, reason: str = "the handler asked for a retry", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay_ms = None if delay is None else parse_duration_ms("delay", delay)


class Defer(Exception):
    """Not now: come back after `delay`. It counts as no failure, and uses none of the retries."""

    def __init__(self, delay: Duration, reason: str | None = None) -> None:
        super().__init__(reason or "the handler deferred it")
        self.reason = reason
        self.delay_ms = parse_duration_ms("delay", delay)


class Reject(Exception):
    """No retry can help: to the dead letters, now."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LeaseLost(StaleLease):
    """The message is no longer ours. An async handler is cancelled, and finds this in its CancelledError's `args`;
    elsewhere the message's verbs raise it."""


class WorkerStuck(Unavailable):
    """More handler threads than `max_stuck_threads` outlived their timeout, and the worker has stopped.

    A thread cannot be killed: only ending the process ends it. Start the worker again in a new process.
    """

    code = "worker_stuck"


class Stopped(Exception):
    """The reason in a CancelledError when the worker stops and the handler's time is up."""


class Overdue(TimeoutError):
    """The reason in a CancelledError when the handler ran into its timeout."""


class HandlerDied(Exception):
    """The process that ran the handler ended before it answered."""


class HandlerFailed(Exception):
    """What a handler raised in a process of its own: the text of it, and `traceback` as text."""

    def __init__(self, text: str, traceback: str = "") -> None:
        super().__init__(text)
        self.traceback = traceback


# Like the error classes of the model: tracebacks and pickles name the class that programs import.
for _public in (Retry, Defer, Reject, LeaseLost, WorkerStuck):
    _public.__module__ = "holdfast"
