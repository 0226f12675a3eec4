"""What follows changes, soon after: dead letters to where they belong, events into the journal, steps finished.

None of it is anybody's call, and nobody waits for it; sweeps do the same for what a process that died has left.
"""

import asyncio

from holdfast.background import Backoff, run_forever
from holdfast.clock import Clock
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.objects.journal.journal import LAG_MS, JournalCollector
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.operations.bulk import ObjectBulkVerbs

# Changes that come close together are tidied up together.
_PAUSE_S = 0.05
# How often it looks for what has waited long enough.
_LOOK_S = 1.0
_LIMIT = 1_000


class FollowUp:
    def __init__(
        self, messages: ObjectMessages, altering: ObjectBulkVerbs, journal: JournalCollector, clock: Clock
    ) -> None:
        self._messages = messages
        self._altering = altering
        self._journal = journal
        self._clock = clock
        self._is_wanted = asyncio.Event()

    def wake(self) -> None:
        self._is_wanted.set()

    async def run(self) -> None:
        """Tidy up after changes, and once a second, until cancelled."""
        await run_forever(self.tidy_once, Backoff("tidying"), self._clock, self._wait)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_S):
                await self._is_wanted.wait()
        except TimeoutError:
            pass  # nothing happened, but time has passed
        self._is_wanted.clear()
        await asyncio.sleep(_PAUSE_S)

    async def tidy_once(self) -> None:
        now_ms = self._clock.now_ms()
        for shelf in self._messages.shelves.all():
            if shelf.to_carry:
                await self._altering.carry(shelf.ref, _LIMIT, now_ms, Notices())
        await self._messages.sheets.finish_due(_LIMIT, now_ms)
        while await self._journal.collect(now_ms - LAG_MS):
            pass
