"""How often a line is looked after though nobody brought news of it (SPEC 7.2)."""

import msgspec

_CONSUMERS_PER_CPU = 64


def default_max_consumers(cpus: int) -> int:
    return max(128, min(_CONSUMERS_PER_CPU * cpus, 4_096))


class Polling(msgspec.Struct, frozen=True, kw_only=True):
    # Claims that may wait at once in this process.
    max_consumers: int = 4_096
    # Between two passes over a line with waiters, where the store does not say by itself when there is something.
    interval_ms: int = 3_000
    # Added to it by a roll for each pass, so that the servers of one store do not all ask at once. 0: nothing is.
    jitter_ms: int = 500
    # Between two passes where the store does say it, in case the word was lost. 0: it is trusted.
    resilient_interval_ms: int = 300_000
    # False: what the store says is not listened to, as if it did not say it.
    heeds_wakeups: bool = True

    def pause_ms(self, *, is_told: bool, roll: float) -> int | None:
        """Until the next pass over a line that heard nothing; None: there is none. `roll` lies in [0, 1)."""
        if is_told:
            return self.resilient_interval_ms or None
        # Not before time has passed, whatever is set: a pass for nothing must not follow the last one at once.
        return max(1, self.interval_ms + int(roll * (self.jitter_ms + 1)))
