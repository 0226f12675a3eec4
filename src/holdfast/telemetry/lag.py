"""How late the event loop is: what every caller waits for before anything else."""

import asyncio

_EVERY_S = 0.25


class LoopLag:
    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._highest_s = 0.0

    async def run(self) -> None:
        while True:
            await self.measure_once()

    async def measure_once(self) -> float:
        """By how much a sleep of the usual length came back late."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._every_s
        await asyncio.sleep(self._every_s)
        lag_s = max(loop.time() - due_s, 0.0)
        self._highest_s = max(self._highest_s, lag_s)
        return lag_s

    def note(self, lag_s: float) -> None:
        """Take the lag of another process of this server into account."""
        self._highest_s = max(self._highest_s, lag_s)

    def take_highest(self) -> float:
        """The highest since this was last asked."""
        highest_s, self._highest_s = self._highest_s, 0.0
        return highest_s
