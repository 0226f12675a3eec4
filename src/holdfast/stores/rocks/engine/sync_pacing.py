"""The decision whether syncs run on the thread of a lone caller."""

from holdfast.clock import steady_s

# Handing a sync to another thread and back costs about 0.1 ms, of which 0.07 ms are processor time. So a lone caller
# syncs by itself, unless such syncs take longer than this on average. Blocking callers that wait for each other always
# sync by themselves: their syncs only seem to take long, because they wait for the interpreter afterwards.
_SHORT_SYNC_S = 0.0005
# The weight of the last sync in that average. A single slow sync of a fast disk changes nothing.
_WEIGHT = 1 / 16
# If syncs take longer, they run on another thread for this long. The disk may be slow. Or the processors are busy, and
# a thread that has computed for long waits about 4 ms for one after every sync. The pause doubles with every attempt.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0


class SyncPacing:
    """The durations of syncs by lone callers, and the pauses that follow slow ones."""

    def __init__(self) -> None:
        self._average_s = 0.0
        self.paused_until_s = 0.0
        self._next_pause_s = _FIRST_PAUSE_S

    @property
    def is_paused(self) -> bool:
        """Return whether syncs should run on another thread for now."""
        return steady_s() < self.paused_until_s

    def note(self, sync_s: float) -> None:
        """Record the duration of a lone caller's sync, and pause such syncs if they take long on average."""
        self._average_s += (sync_s - self._average_s) * _WEIGHT
        if self._average_s <= _SHORT_SYNC_S:
            self._next_pause_s = max(self._next_pause_s / 2, _FIRST_PAUSE_S)
            return
        self.paused_until_s = steady_s() + self._next_pause_s
        self._next_pause_s = min(self._next_pause_s * 2, _LONGEST_PAUSE_S)
        # The first sync after the pause decides whether another one follows.
        self._average_s = _SHORT_SYNC_S
