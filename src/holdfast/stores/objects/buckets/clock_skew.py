"""Compare this process's clock with the bucket's own time.

Leases of other processes end by this process's clock: if it is ahead, it takes live leases early. Each renewal of the
node number is a write whose time the bucket records, and that time lies between the instants before and after the call.
The `Date` header of responses would serve as well, but obstore does not expose it.

    clock behind               before ────── after        bucket's time
    clock ahead         bucket's time        before ────── after

The two instants prove a minimum by which the clock is off. A slow call proves less, never too much.
"""

import logging

from holdfast.clock import Clock, SystemClock
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.objects.buckets.bucket import Bucket, ObjectMissing
from holdfast.stores.objects.buckets.retries import as_unavailable

_log = logging.getLogger("holdfast")

# Both times are truncated to whole milliseconds.
_ROUNDED_MS = 1


class ClockSkew:
    """The clock skew of this process, measured against the bucket."""

    def __init__(self, bucket: Bucket, clock: Clock, limit_ms: int, *, is_measured: bool) -> None:
        """Start without a measurement. `is_measured` is False for a test's clock, which the bucket's time cannot be
        compared with."""
        self._bucket = bucket
        self._clock = clock
        self._limit_ms = limit_ms
        self.is_measured = is_measured
        # Minimum skew: above 0 the clock is ahead of the bucket, below 0 behind.
        self.skew_ms = 0
        self._is_warned = False

    @property
    def is_beyond(self) -> bool:
        """Return whether the skew exceeds the configured limit."""
        return abs(self.skew_ms) > self._limit_ms

    def check(self) -> None:
        """Raise `StoreUnavailable` if the skew exceeds the limit, so that this process must not decide about leases."""
        if self.is_beyond:
            raise StoreUnavailable(
                f"the clock of this process is {_describe(self.skew_ms)} the time of {self._bucket.url}, and "
                f"clock_skew allows {self._limit_ms / 1_000:g} s; claims are refused until it is corrected; check NTP"
            )

    async def measure(self, key: str, before_ms: int, after_ms: int) -> None:
        """Measure the skew with an object that this process wrote between the two instants of its clock."""
        if not self.is_measured:
            return
        try:
            with as_unavailable():
                written_at = await self._bucket.written_at(key)
        except ObjectMissing:
            return  # removed meanwhile; the next renewal measures again
        self.skew_ms = provable_ms(before_ms, after_ms, written_at, self._bucket.time_resolution_ms)
        if self.is_beyond and isinstance(self._clock, SystemClock):
            # The clock was set from the wall clock when the process started. If the wall clock has been corrected
            # since, follow it.
            offset_ms = self._clock.wall_ms() - self._clock.now_ms()
            of_wall_ms = provable_ms(
                before_ms + offset_ms, after_ms + offset_ms, written_at, self._bucket.time_resolution_ms
            )
            if abs(of_wall_ms) <= self._limit_ms:
                self._clock.resync()
        self._log_change()

    def _log_change(self) -> None:
        facts = {"skew_ms": self.skew_ms, "limit_ms": self._limit_ms, "bucket": self._bucket.url}
        # Warn at half of the limit, before claims are refused.
        is_large = abs(self.skew_ms) > self._limit_ms // 2
        if is_large and not self._is_warned:
            _log.warning(
                "clock_skewed skew_ms=%d limit_ms=%d: the clock of this process is %s the time of %s%s",
                self.skew_ms,
                self._limit_ms,
                _describe(self.skew_ms),
                self._bucket.url,
                "; claims are refused until it is corrected" if self.is_beyond else "",
                extra=facts,
            )
        elif self._is_warned and not is_large:
            _log.info("clock_right skew_ms=%d limit_ms=%d", self.skew_ms, self._limit_ms, extra=facts)
        self._is_warned = is_large


def provable_ms(before_ms: int, after_ms: int, written_at: int, step_ms: int) -> int:
    """Return the minimum by which a clock is ahead of the bucket (below 0: behind) in milliseconds.

    The clock showed `before_ms` and `after_ms` around a write that the bucket dated `written_at`, with a resolution of
    `step_ms`.
    """
    ahead_ms = before_ms - (written_at + step_ms + _ROUNDED_MS)
    behind_ms = after_ms + _ROUNDED_MS - written_at
    return max(0, ahead_ms) + min(0, behind_ms)


def _describe(skew_ms: int) -> str:
    return f"{abs(skew_ms) / 1_000:.1f} s {'ahead of' if skew_ms > 0 else 'behind'}"
