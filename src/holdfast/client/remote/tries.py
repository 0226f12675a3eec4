"""The tries of one call, which decide whether it is repeated and after which pause."""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.client.remote.lost import Lost, LostOnReuse, lost_error
from holdfast.forking import forked_error
from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.model.rules.retry import backoff_ms

_BACKOFF_BASE_MS = 100
_BACKOFF_CAP_MS = 5_000
# Until a call has had a response, a wrong URL is more likely than a restart of the server: let the caller know soon.
_FIRST_RETRIES = 2
# A call that times out is repeated once. More repetitions would take too many timeouts.
_TIMEOUTS = 1


@dataclass(slots=True)
class RetryState:
    """The state of a client and its server that all its calls share."""

    url: str
    timeout_ms: int
    retries: int
    roll: Callable[[], float]
    has_responded: bool = False
    is_closed: bool = False
    # This process is a fork of the one that opened the client, to which the connections belong.
    is_inherited: bool = False

    def pause_ms(self, retries: int, at_least_ms: int | None) -> int:
        """Return the pause before the next try: the server's `retry_after_ms` plus a backoff with jitter.

        The jitter spreads callers that the server asked to return at the same moment.
        """
        return (at_least_ms or 0) + backoff_ms(retries, _BACKOFF_BASE_MS, _BACKOFF_CAP_MS, self.roll())

    def check_open(self) -> None:
        if self.is_inherited:
            raise forked_error("this client")
        if self.is_closed:
            raise StoreUnavailable("this client is closed; open another one")


@dataclass(slots=True)
class Failure:
    """A failed try: its error, and the pause before the next try in milliseconds, or None if there is none."""

    error: HoldfastError
    pause_ms: int | None


class Tries:
    """The retries of one call."""

    def __init__(self, retry_state: RetryState, *, is_repeatable: bool) -> None:
        """`is_repeatable`: the call is idempotent, so it is safe to send again."""
        self._retry_state = retry_state
        self._is_repeatable = is_repeatable
        self._retries = 0
        self._timeouts = 0
        self._paused_ms = 0
        self._has_second_chance = True
        # An earlier try had no response and may have been carried out.
        self.is_unsure = False

    def record_loss(self, lost: Lost, *, is_cut: bool = False) -> Failure:
        """Record a try without a response. `is_cut`: the request was not sent completely, so it had no effect."""
        self.is_unsure = self.is_unsure or (lost.was_sent and not is_cut)
        self._timeouts += lost.is_timeout and lost.was_sent
        error = lost_error(
            self._retry_state.url,
            lost,
            is_repeatable=self._is_repeatable,
            has_responded=self._retry_state.has_responded,
            is_unsure=self.is_unsure,
            is_cut=is_cut,
        )
        may_repeat = self._is_repeatable or not lost.was_sent
        if may_repeat and isinstance(lost, LostOnReuse) and self._has_second_chance:
            # The server most likely closed the idle connection. A fresh connection is tried without a pause.
            self._has_second_chance = False
            return Failure(error, 0)
        return self._failure(error, may_repeat, None)

    def record_refusal(
        self, error: HoldfastError, *, at_least_ms: int | None, is_undone: bool, repeats_undone: bool = True
    ) -> Failure:
        """Record an error after which the call may be repeated.

        `is_undone`: this try had no effect, so even a call that is not repeatable may be sent again, unless
        `repeats_undone` is false.
        """
        self.is_unsure = self.is_unsure or not is_undone
        return self._failure(error, self._is_repeatable or (is_undone and repeats_undone), at_least_ms)

    def _failure(self, error: HoldfastError, may_repeat: bool, at_least_ms: int | None) -> Failure:
        retry_state = self._retry_state
        most = retry_state.retries if retry_state.has_responded else min(retry_state.retries, _FIRST_RETRIES)
        if not may_repeat or self._retries >= most or self._timeouts > _TIMEOUTS:
            return Failure(error, None)
        pause_ms = retry_state.pause_ms(self._retries, at_least_ms)
        self._paused_ms += pause_ms
        if self._paused_ms > retry_state.timeout_ms:  # the pauses together have lasted as long as the timeout
            return Failure(error, None)
        self._retries += 1
        return Failure(error, pause_ms)
