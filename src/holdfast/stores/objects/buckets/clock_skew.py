"""Compare this process's clock with the bucket's own time.

Leases of other processes end by this process's clock: if it is ahead, a live lease is taken early. Each renewal of the
node number is a write whose time the bucket records; it lies between the instants before and after the call. The
`Date` of responses would serve as well, but obstore does not show it.

    behind                     before ────── after        the bucket's time
    ahead       the bucket's time        before ────── after

What the two ends prove is the least that the clock must be off. A slow call proves less, and never too much.
"""

import logging

from holdfast.clock import Clock, SystemClock
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.objects.buckets.bucket import Bucket, ObjectMissing
from holdfast.stores.objects.buckets.retries import answered

_log = logging.getLogger("holdfast")

# Both times are cut to whole milliseconds.
_ROUNDED_MS = 1


class Skew:
    def __init__(self, bucket: Bucket, clock: Clock, limit_ms: int, *, is_measured: bool) -> None:
        """`is_measured` False: the clock is one of a test, which the bucket's time says nothing about."""
        self._bucket = bucket
        self._clock = clock
        self._limit_ms = limit_ms
        self.is_measured = is_measured
        # By how much the clock is ahead, or (below 0) behind, at least.
        self.skew_ms = 0
        self._is_warned = False

    @property
    def is_beyond(self) -> bool:
        return abs(self.skew_ms) > self._limit_ms

    def check(self) -> None:
        """Raise `StoreUnavailable` if this process must not decide about leases."""
        if self.is_beyond:
            raise StoreUnavailable(
                f"the clock of this process is {_told(self.skew_ms)} the time of {self._bucket.url}, and clock_skew "
                f"allows {self._limit_ms / 1_000:g} s: claims are refused until the clock is right; check NTP"
            )

    async def measure(self, key: str, before_ms: int, after_ms: int) -> None:
        """Take the measure by an object that this process wrote between the two times of its clock."""
        if not self.is_measured:
            return
        try:
            with answered():
                written_at = await self._bucket.written_at(key)
        except ObjectMissing:
            return  # somebody removed it: the next write measures again
        self.skew_ms = provable_ms(before_ms, after_ms, written_at, self._bucket.time_step_ms)
        if self.is_beyond and isinstance(self._clock, SystemClock):
            # It was set by the wall when the process started. If the wall was corrected since, go by it again.
            offset_ms = self._clock.wall_ms() - self._clock.now_ms()
            of_wall_ms = provable_ms(before_ms + offset_ms, after_ms + offset_ms, written_at, self._bucket.time_step_ms)
            if abs(of_wall_ms) <= self._limit_ms:
                self._clock.resync()
        self._tell()

    def _tell(self) -> None:
        facts = {"skew_ms": self.skew_ms, "limit_ms": self._limit_ms, "bucket": self._bucket.url}
        # Told before claims are refused: at half of what is allowed.
        is_large = abs(self.skew_ms) > self._limit_ms // 2
        if is_large and not self._is_warned:
            _log.warning(
                "clock_skewed skew_ms=%d limit_ms=%d: this process's clock is %s the time of %s%s",
                self.skew_ms,
                self._limit_ms,
                _told(self.skew_ms),
                self._bucket.url,
                "; it claims nothing until that is right" if self.is_beyond else "",
                extra=facts,
            )
        elif self._is_warned and not is_large:
            _log.info("clock_right skew_ms=%d limit_ms=%d", self.skew_ms, self._limit_ms, extra=facts)
        self._is_warned = is_large


def provable_ms(before_ms: int, after_ms: int, written_at: int, step_ms: int) -> int:
    """By how much a clock is ahead of the bucket (below 0: behind) at least, if it showed `before_ms` and `after_ms`
    around a write that the bucket dated `written_at`, in steps of `step_ms`."""
    ahead_ms = before_ms - (written_at + step_ms + _ROUNDED_MS)
    behind_ms = after_ms + _ROUNDED_MS - written_at
    return max(0, ahead_ms) + min(0, behind_ms)


def _told(skew_ms: int) -> str:
    return f"{abs(skew_ms) / 1_000:.1f} s {'ahead of' if skew_ms > 0 else 'behind'}"
