"""The reserve of free space on a store's disk: new messages are refused before acks, claims and sweeps find no room."""

import logging
import os
import shutil

from holdfast.clock import Timer
from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import Runtime

# The default reserve: with less than this free, nothing new is taken in.
LOW_DISK_BYTES = 64 << 20

# How long one look at the free space is relied on, and how soon it is looked at again while there is too little.
_LOOK_MS = 200
_LOOK_AGAIN_MS = 1_000
# The free space is also looked at after this share of the reserve was taken in, so that a burst of large messages
# between two looks cannot use up the reserve.
_LOOKS_PER_RESERVE = 16
# A shortage is over once an eighth more than the reserve is free: a disk that hovers about the reserve is one episode.
_MARGIN = 8

_log = logging.getLogger("holdfast")


def free_bytes(path: str | os.PathLike[str]) -> int | None:
    """Return the free space of the disk that holds `path`; None if the system does not say."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


class DiskRoom:
    """Decides whether a disk has room for new messages. Logs when it no longer has, and when it has again."""

    def __init__(self, path: str | os.PathLike[str], runtime: Runtime, low_bytes: int = LOW_DISK_BYTES) -> None:
        self._path = path
        self._runtime = runtime
        self._low_bytes = low_bytes
        self._free_bytes: int | None = None
        self._is_low = False
        self._looked_at: int | None = None
        self._added_bytes = 0
        self._timer: Timer | None = None
        self._is_closed = False
        # Calls refused for want of room.
        self.refusals = 0

    def check(self, now_ms: int, added_bytes: int = 0) -> None:
        """Raise `StoreUnavailable` if less than the reserve is free. `added_bytes` is the size of the new messages."""
        if self.refusal(now_ms, added_bytes) is not None:
            self.refusals += 1
            raise StoreUnavailable(self._refusal(), path=str(self._path), free_bytes=self._free_bytes)

    def refusal(self, now_ms: int, added_bytes: int = 0) -> str | None:
        """Return why new messages are refused now; None if they are not."""
        self._added_bytes += added_bytes
        is_stale = self._looked_at is None or abs(now_ms - self._looked_at) >= _LOOK_MS
        if is_stale or self._added_bytes * _LOOKS_PER_RESERVE >= self._low_bytes:
            self._look(now_ms)
        return self._refusal() if self._is_low else None

    def free_bytes(self) -> int | None:
        return free_bytes(self._path)

    def close(self) -> None:
        self._is_closed = True
        self._cancel_timer()

    def _look(self, now_ms: int) -> None:
        self._looked_at, self._added_bytes = now_ms, 0
        self._free_bytes = self.free_bytes()
        was_low = self._is_low
        wanted = self._low_bytes + (self._low_bytes // _MARGIN if was_low else 0)
        # A disk that cannot be examined does not take writes either.
        self._is_low = self._low_bytes > 0 and (self._free_bytes is None or self._free_bytes < wanted)
        if self._is_low:
            self._look_again_at(now_ms + _LOOK_AGAIN_MS)
        else:
            self._cancel_timer()
        if self._is_low != was_low:
            facts = {"path": str(self._path), "free_bytes": self._free_bytes, "reserve_bytes": self._low_bytes}
            if self._is_low:
                _log.error("enqueues_refused", extra={**facts, "cause": self._cause()})
            else:
                _log.warning("enqueues_accepted_again", extra=facts)

    def _look_again_at(self, at_ms: int) -> None:
        """Notice the end of the shortage also when nobody enqueues, so that the log and the metrics tell of it."""
        if self._timer is None and not self._is_closed:
            self._timer = self._runtime.call_at(at_ms, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if not self._is_closed:
            self._look(self._runtime.clock.now_ms())

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cause(self) -> str:
        if self._free_bytes is None:
            return f"the free space of {self._path} cannot be read"
        return f"{self._free_bytes} bytes are free on the disk of {self._path}, where {self._low_bytes} are reserved"

    def _refusal(self) -> str:
        return f"{self._cause()}: enqueues are refused until there is room, so free some space; acks still work"
