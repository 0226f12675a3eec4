"""The lag of the event loop, which delays every call of a server."""

from holdfast.runtime import Runtime, sleep_until

EVERY_MS = 250


class LoopLag:
    """The highest lag of an event loop since it was last read."""

    def __init__(self) -> None:
        self._highest_ms = 0

    async def run(self, runtime: Runtime) -> None:
        """Measure again and again, until cancelled."""
        while True:
            await self.measure_once(runtime)

    async def measure_once(self, runtime: Runtime) -> int:
        """Sleep for `EVERY_MS`, and return the milliseconds by which the loop was late to continue."""
        due_at = runtime.clock.now_ms() + EVERY_MS
        await sleep_until(runtime, due_at)
        # Timers of the runtime wait a millisecond longer, because `now_ms` rounds down.
        lag_ms = max(runtime.clock.now_ms() - due_at - 1, 0)
        self._highest_ms = max(self._highest_ms, lag_ms)
        return lag_ms

    def note(self, lag_ms: int) -> None:
        """Take the lag of another process of this server into account."""
        self._highest_ms = max(self._highest_ms, lag_ms)

    def take_highest_ms(self) -> int:
        """Return the highest lag since the last call of this method."""
        highest_ms, self._highest_ms = self._highest_ms, 0
        return highest_ms
