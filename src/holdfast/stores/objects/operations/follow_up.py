"""Complete changes in the background: move dead letters, collect events, finish steps.

No call waits for this. Sweeps do the same for processes that died.
"""

import asyncio

from holdfast.background import Backoff, run_forever, sleep_for, wait_for_event
from holdfast.clock import Clock
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.objects.journal.journal import LAG_MS, JournalCollector
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.operations.bulk import ObjectBulkVerbs

# Changes that follow each other within this time share a pass.
_PAUSE_MS = 50
# Longest time between two passes: work becomes due by time alone.
_INTERVAL_MS = 1_000
_LIMIT = 1_000


class FollowUp:
    """The background part that completes this process's changes."""

    def __init__(
        self, messages: ObjectMessages, bulk: ObjectBulkVerbs, journal: JournalCollector, clock: Clock
    ) -> None:
        self._messages = messages
        self._bulk = bulk
        self._journal = journal
        self._clock = clock
        self._is_wanted = asyncio.Event()

    def wake(self) -> None:
        """Ask for a pass soon after a change."""
        self._is_wanted.set()

    async def run(self) -> None:
        """Make a pass after changes, and once a second, until cancelled."""
        await run_forever(self.follow_up_once, Backoff("tidying"), self._clock, self._wait)

    async def _wait(self) -> None:
        await wait_for_event(self._clock, self._is_wanted, _INTERVAL_MS)
        self._is_wanted.clear()
        await sleep_for(self._clock, _PAUSE_MS)

    async def follow_up_once(self) -> None:
        """Make one pass over all known queues."""
        now_ms = self._clock.now_ms()
        for queue in self._messages.queues.all():
            if queue.unmoved_dead_letters:
                await self._bulk.move_dead_letters(queue.ref, _LIMIT, now_ms, Notices())
        # Events first: that rewrites most documents of the steps, or deletes them.
        while await self._journal.collect(now_ms - LAG_MS):
            pass
        await self._messages.documents.finish_due(_LIMIT, now_ms)
