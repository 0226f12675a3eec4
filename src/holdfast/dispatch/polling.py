"""The interval at which waiting claims look for messages without a notification of the store (SPEC 7.2)."""

import msgspec

_CONSUMERS_PER_CPU = 64


def default_max_consumers(cpus: int) -> int:
    """Return the default of `max_consumers` for a machine with this number of CPUs."""
    return max(128, min(_CONSUMERS_PER_CPU * cpus, 4_096))


class Polling(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of waiting claims."""

    # The maximum number of waiting claims in this process.
    max_consumers: int = 4_096
    # The time between two passes over the waiters of a queue, if the store does not notify of all changes.
    interval_ms: int = 3_000
    # The upper bound of a random time that is added to each interval, so that the servers of a store spread their
    # passes.
    jitter_ms: int = 500
    # The time between two passes if the store does notify, in case a notification was lost. 0: no such passes.
    resilient_interval_ms: int = 300_000
    # False: notifications of the store are ignored.
    heeds_wakeups: bool = True

    def pause_ms(self, *, is_notified: bool, roll: float) -> int | None:
        """Return the time until the next pass without a notification; None if there is none.

        `is_notified` says whether the store notifies of all changes; `roll` is a random number in [0, 1).
        """
        if is_notified:
            return self.resilient_interval_ms or None
        # At least 1 ms, whatever is set, so that passes that find nothing do not follow each other at once.
        return max(1, self.interval_ms + int(roll * (self.jitter_ms + 1)))
