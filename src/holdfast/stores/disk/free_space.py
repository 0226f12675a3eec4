"""The reserve of free space on a store's disk, for acks, claims and sweeps: below it, new messages are refused."""

import logging
import os
import shutil

from holdfast.clock import Timer
from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import Runtime

# The default reserve. With less than this free, enqueues are refused.
LOW_DISK_BYTES = 64 << 20

# How long one measurement of the free space is valid, and the interval of measurements during a shortage.
_VALID_MS = 200
_RECHECK_MS = 1_000
# The free space is also measured each time new messages have taken a sixteenth of the reserve, so that a burst of large
# messages between two measurements cannot use up the reserve.
_CHECKS_PER_RESERVE = 16
# A shortage ends once an eighth more than the reserve is free, so that free space which varies around the reserve
# counts as one shortage, and is logged once.
_MARGIN = 8

_log = logging.getLogger("holdfast")


def free_bytes(path: str | os.PathLike[str]) -> int | None:
    """Return the free bytes on the disk that holds `path`, or None if the system cannot tell."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


class DiskRoom:
    """A check that a disk has room for new messages. Logs the beginning and the end of each shortage."""

    def __init__(self, path: str | os.PathLike[str], runtime: Runtime, low_bytes: int = LOW_DISK_BYTES) -> None:
        self._path = path
        self._runtime = runtime
        self._low_bytes = low_bytes
        self._free_bytes: int | None = None
        self._is_low = False
        self._measured_at: int | None = None
        self._added_bytes = 0
        self._timer: Timer | None = None
        self._is_closed = False
        # Calls refused since the store was opened.
        self.refusals = 0

    def check(self, now_ms: int, added_bytes: int = 0) -> None:
        """Raise `StoreUnavailable` if less than the reserve is free. `added_bytes` is the size of the new messages."""
        if self.refusal(now_ms, added_bytes) is not None:
            self.refusals += 1
            raise StoreUnavailable(self._refusal(), path=str(self._path), free_bytes=self._free_bytes)

    def refusal(self, now_ms: int, added_bytes: int = 0) -> str | None:
        """Return the reason why new messages are refused now, or None if they are accepted."""
        self._added_bytes += added_bytes
        is_stale = self._measured_at is None or abs(now_ms - self._measured_at) >= _VALID_MS
        if is_stale or self._added_bytes * _CHECKS_PER_RESERVE >= self._low_bytes:
            self._measure(now_ms)
        return self._refusal() if self._is_low else None

    def free_bytes(self) -> int | None:
        """Return the free bytes on the disk now, or None if the system cannot tell."""
        return free_bytes(self._path)

    def close(self) -> None:
        """Stop measuring."""
        self._is_closed = True
        self._cancel_timer()

    def _measure(self, now_ms: int) -> None:
        self._measured_at, self._added_bytes = now_ms, 0
        self._free_bytes = self.free_bytes()
        was_low = self._is_low
        wanted = self._low_bytes + (self._low_bytes // _MARGIN if was_low else 0)
        # A disk whose free space cannot be read is not expected to accept writes either.
        self._is_low = self._low_bytes > 0 and (self._free_bytes is None or self._free_bytes < wanted)
        if self._is_low:
            self._measure_again_at(now_ms + _RECHECK_MS)
        else:
            self._cancel_timer()
        if self._is_low != was_low:
            facts = {"path": str(self._path), "free_bytes": self._free_bytes, "reserve_bytes": self._low_bytes}
            if self._is_low:
                _log.error("enqueues_refused", extra={**facts, "cause": self._cause()})
            else:
                _log.warning("enqueues_accepted_again", extra=facts)

    def _measure_again_at(self, at_ms: int) -> None:
        """Schedule a measurement, so that the end of the shortage is logged even while there are no enqueues."""
        if self._timer is None and not self._is_closed:
            self._timer = self._runtime.call_at(at_ms, self._measure_again)

    def _measure_again(self) -> None:
        self._timer = None
        if not self._is_closed:
            self._measure(self._runtime.clock.now_ms())

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cause(self) -> str:
        if self._free_bytes is None:
            return f"the free space of {self._path} cannot be read"
        return f"the disk of {self._path} has {self._free_bytes} bytes free, and {self._low_bytes} are reserved"

    def _refusal(self) -> str:
        return f"{self._cause()}: enqueues are refused until you free some space; acks still work"
