"""The tries of one call: whether there is another, and after which pause."""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.client.remote.lost import Lost, Reused, lost_error
from holdfast.forking import forked_error
from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.model.rules.retry import backoff_ms

_BACKOFF_BASE_MS = 100
_BACKOFF_CAP_MS = 5_000
# While no call was ever answered the URL is more likely wrong than the server restarting: do not keep anybody waiting.
_FIRST_RETRIES = 2
# A call that got no answer in all its time is repeated once: that much longer would be too long.
_TIMEOUTS = 1


@dataclass(slots=True)
class RetryState:
    """What all calls of a client know of it and of its server."""

    url: str
    timeout_ms: int
    retries: int
    roll: Callable[[], float]
    was_answered: bool = False
    is_closed: bool = False
    # In a child of the process that opened the client: its connections are the parent's.
    is_inherited: bool = False

    def pause_ms(self, retries: int, at_least_ms: int | None) -> int:
        """Jitter on top of what was asked for: many callers were told to come back at the same moment."""
        return (at_least_ms or 0) + backoff_ms(retries, _BACKOFF_BASE_MS, _BACKOFF_CAP_MS, self.roll())

    def check_open(self) -> None:
        if self.is_inherited:
            raise forked_error("this client")
        if self.is_closed:
            raise StoreUnavailable("this client is closed: open another")


@dataclass(slots=True)
class Failure:
    """What became of a try. `pause_ms`: before the next one; None: there is none."""

    error: HoldfastError
    pause_ms: int | None


class Tries:
    """`is_repeatable`: carried out twice, the call does no more than once."""

    def __init__(self, standing: RetryState, *, is_repeatable: bool) -> None:
        self._standing = standing
        self._is_repeatable = is_repeatable
        self._retries = 0
        self._timeouts = 0
        self._paused_ms = 0
        self._has_second_chance = True
        # An earlier try went unanswered, and may have been carried out.
        self.is_unsure = False

    def lost(self, lost: Lost, *, is_cut: bool = False) -> Failure:
        """`is_cut`: before all of the request was sent, so that nothing can have come of it."""
        self.is_unsure = self.is_unsure or (lost.was_sent and not is_cut)
        self._timeouts += lost.is_timeout and lost.was_sent
        error = lost_error(
            self._standing.url,
            lost,
            is_repeatable=self._is_repeatable,
            was_answered=self._standing.was_answered,
            is_unsure=self.is_unsure,
            is_cut=is_cut,
        )
        may_repeat = self._is_repeatable or not lost.was_sent
        if may_repeat and isinstance(lost, Reused) and self._has_second_chance:
            # The server closed it while it was idle, most likely: a fresh one needs no waiting.
            self._has_second_chance = False
            return Failure(error, 0)
        return self._failure(error, may_repeat, None)

    def refused(
        self, error: HoldfastError, *, at_least_ms: int | None, is_undone: bool, repeats_undone: bool = True
    ) -> Failure:
        """Note an error after which the call may be made again. `is_undone`: nothing came of this try, so that another
        may follow (`repeats_undone`), also of a call that is not repeatable."""
        self.is_unsure = self.is_unsure or not is_undone
        return self._failure(error, self._is_repeatable or (is_undone and repeats_undone), at_least_ms)

    def _failure(self, error: HoldfastError, may_repeat: bool, at_least_ms: int | None) -> Failure:
        standing = self._standing
        most = standing.retries if standing.was_answered else min(standing.retries, _FIRST_RETRIES)
        if not may_repeat or self._retries >= most or self._timeouts > _TIMEOUTS:
            return Failure(error, None)
        pause_ms = standing.pause_ms(self._retries, at_least_ms)
        self._paused_ms += pause_ms
        if self._paused_ms > standing.timeout_ms:  # by then the caller should know
            return Failure(error, None)
        self._retries += 1
        return Failure(error, pause_ms)
