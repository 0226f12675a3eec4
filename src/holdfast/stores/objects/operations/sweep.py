"""Upkeep: leases, TTLs, dead letters, events, keys, steps and payloads that were left, and queues being deleted."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.stores.contract import QueueRow, Swept
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.sweep import remove_oldest
from holdfast.stores.objects.buckets.bucket import PAGE, ListedObject, PreconditionFailed
from holdfast.stores.objects.buckets.retries import Busy, answered, side_by_side
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.cas_documents import CasDocuments
from holdfast.stores.objects.documents.document_format import message_of
from holdfast.stores.objects.journal.journal import LAG_MS, JournalCollector
from holdfast.stores.objects.messages.counts import QueueCounts
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.messages.queue_windows import ObjectQueueState
from holdfast.stores.objects.messages.unit import ObjectUnits, OpenQueue
from holdfast.stores.objects.operations.bulk import ObjectBulkVerbs
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.objects.operations.enqueue import key_of

# How often everything is looked at, for what other processes left.
_ALL_MS = 300_000
# Full pages that one sweep goes over, and for how many times as long as that took it rests then: claims come first.
_PAGES = 4
_REST = 4
# A step's record, and a payload without a message, is its own process's for this long.
_STEP_MS = 60_000
_ORPHAN_MS = 24 * 3_600_000


class ObjectSweep:
    def __init__(
        self,
        messages: ObjectMessages,
        directory: ObjectDirectory,
        units: ObjectUnits,
        altering: ObjectBulkVerbs,
        counting: QueueCounts,
        journal: JournalCollector,
    ) -> None:
        self._messages = messages
        self._sheets: CasDocuments = messages.sheets
        self._directory = directory
        self._units = units
        self._altering = altering
        self._counting = counting
        self._journal = journal
        self._all_at = 0
        self._everywhere: AsyncIterator[None] | None = None
        # Of the sweep under way: full pages it may still go over.
        self._pages = 0
        self._lock = asyncio.Lock()

    async def sweep(self, limit: int, now_ms: int, notices: Notices) -> Swept:
        async with self._lock:
            return await self._sweep(limit, now_ms, notices)

    async def _sweep(self, limit: int, now_ms: int, notices: Notices) -> Swept:
        changed, self._pages = 0, _PAGES
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if now_ms >= self._all_at or self._everywhere is not None:
            # What an error ends is begun again.
            looking, self._everywhere = self._everywhere, None
            self._everywhere = await self._go_on(looking or self._look_everywhere(now_ms))
            self._all_at = now_ms + _ALL_MS
            self._pages = _PAGES
        for shelf in self._messages.shelves.all():
            if changed < limit:
                changed += await self._sweep_shelf(shelf, limit - changed, now_ms, notices)
        looked_s = loop.time() - began_s
        await self._sheets.finish_due(limit, now_ms)
        while await self._journal.collect(now_ms - LAG_MS):
            pass
        changed += await self._journal.trim(max(0, limit - changed), now_ms)
        rested_at = now_ms + 1 + int(_REST * looked_s * 1_000)
        ends = [self._all_at if self._everywhere is None else rested_at, self._journal.next_trim_at()]
        for shelf in self._messages.shelves.all():
            ends += [shelf.index.next_deadline(), shelf.ends_at if shelf.sweeping is None else rested_at]
        return Swept(changed, min((each for each in ends if each is not None), default=None))

    async def _go_on(self, looking: AsyncIterator[None]) -> AsyncIterator[None] | None:
        """As far as this sweep may; None: it has come to its end."""
        while self._pages > 0:
            try:
                await anext(looking)
            except StopAsyncIteration:
                return None
            self._pages -= 1
        return looking

    # --- One queue -----------------------------------------------------------------------------------------------

    async def _sweep_shelf(self, shelf: ObjectQueueState, limit: int, now_ms: int, notices: Notices) -> int:
        row = await self._directory.find(shelf.ref)
        if row is None:
            self._messages.shelves.forget(shelf.ref)
            return 0
        is_due = now_ms >= shelf.next_pass_at or (shelf.ends_at is not None and now_ms >= shelf.ends_at)
        if is_due or shelf.sweeping is not None:
            looking, shelf.sweeping = shelf.sweeping, None
            shelf.sweeping = await self._go_on(looking or self._messages.shelves.look_at_all(shelf, now_ms))
        changed = await self._units.end_overdue(row, shelf, limit, now_ms, notices)
        changed += await self._delete_kept(shelf, limit - changed, now_ms)
        await self._altering.carry(shelf.ref, limit, now_ms, notices)
        await self._clear_leftovers(shelf, limit)
        if row.drain_until is not None:
            changed += await self._drain(row, shelf, limit - changed, now_ms, notices)
        elif changed and not row.is_paused:
            notices.ready(shelf.ref, shelf.index.next_at())
        return changed

    async def _delete_kept(self, shelf: ObjectQueueState, limit: int, now_ms: int) -> int:
        """What succeeded, and was kept for look-up long enough. Its events first."""
        ended = shelf.index.ended(shelf.index.kept, limit, now_ms)
        for entry in ended:
            held = await self._sheets.read(entry.held.key)
            if held is not None and held.body is not None:
                body = message_of(held.body)
                if body.outbox:
                    self._messages.dirty[held.key] = (now_ms, True)
                    await self._journal.collect(now_ms - LAG_MS)
                await self._messages.delete(held.key, body)
            shelf.index.drop(entry.id)
        return len(ended)

    async def _clear_leftovers(self, shelf: ObjectQueueState, limit: int) -> None:
        """What a pass found that is no message: its events are collected, or its step is undone."""
        for key in list(shelf.leftovers)[:limit]:
            held = await self._sheets.read(key)
            if held is not None and not held.is_busy:
                if held.body is None:
                    # Another process may be first; if anything is left then, the next pass finds it.
                    with suppress(PreconditionFailed, Busy):
                        await self._sheets.settle(held)
                elif message_of(held.body).is_gone:
                    self._messages.dirty.setdefault(key, (0, True))
            shelf.leftovers.pop(key, None)

    # --- Queues being deleted ------------------------------------------------------------------------------------

    async def _drain(self, row: QueueRow, shelf: ObjectQueueState, limit: int, now_ms: int, notices: Notices) -> int:
        """Carry on the deletion of a queue; with its last message goes the queue."""
        assert row.drain_until is not None
        doomed: list[IndexedMessage] = []
        is_held = False
        async for bunch in self._counting.walk(row.ref, now_ms):
            is_held = is_held or any(entry.body.life.state is State.IN_FLIGHT for entry in bunch)
            doomed += bunch
        if is_held and now_ms < row.drain_until:
            notices.deadline(min(row.drain_until, shelf.index.next_deadline() or row.drain_until))
            return 0
        if doomed:
            unit = self._units.begin(now_ms, notices, found=doomed)
            removed = await remove_oldest(unit, OpenQueue(row), max(1, limit))
            try:
                await unit.write()
            except (PreconditionFailed, Busy):
                notices.deadline(now_ms)
                return 1
            if removed < len(doomed):
                notices.deadline(now_ms)
                return removed
        await self._journal.collect_all()
        await self._delete_rest(row.ref)
        await self._directory.remove(row)
        self._messages.shelves.forget(row.ref)
        return len(doomed) + 1

    async def _delete_rest(self, ref: QueueRef) -> None:
        """Delete everything of a queue but its policy, by which a sweep finds the queue again."""
        with answered():
            async for page in self._sheets.bucket.pages(layout.queue(ref)):
                if keys := [item.key for item in page if item.key != layout.policy(ref)]:
                    await self._sheets.delete(keys)

    # --- What was left ---------------------------------------------------------------------------------------------

    async def _look_everywhere(self, now_ms: int) -> AsyncIterator[None]:
        """Whoever makes this pass may rest whenever it yields."""
        with answered():
            async for page in self._sheets.bucket.pages(layout.STEPS):
                for item in page:
                    finish_at = _began_at(item.key) + _STEP_MS
                    self._sheets.unfinished.setdefault(item.key, finish_at)
            for tenant in await self._directory.names():
                for row in await self._directory.list_queues(tenant):
                    self._messages.shelves.of(row.ref)  # from here on it is swept
                    async for _ in self._forget_keys(row, now_ms):
                        yield
                    async for _ in self._delete_orphans(row.ref, now_ms):
                        yield

    async def _delete_orphans(self, ref: QueueRef, now_ms: int) -> AsyncIterator[None]:
        """Payloads, states and places in a group of no message, old enough to be nobody's who is writing one."""

        async def look(key: str) -> None:
            id = layout.parse_id(key)
            if id is None:
                return  # not ours
            for dead in (False, True):
                if await self._sheets.read(layout.message(ref, id, dead=dead)) is not None:
                    return
            await self._sheets.delete([key])

        def is_old(item: ListedObject) -> bool:
            return not item.key.endswith(layout.METADATA) and item.changed_at + _ORPHAN_MS <= now_ms

        for prefix in layout.beside_messages(ref):
            async for _ in self._look_at(prefix, is_old, look):
                yield

    async def _forget_keys(self, row: QueueRow, now_ms: int) -> AsyncIterator[None]:
        """Those past their window. By when they were written, so that only those are read."""

        async def forget(key: str) -> None:
            held = await self._sheets.read(key)
            if held is None or held.is_busy:
                return
            if held.body is None or key_of(held.body).ends_at <= now_ms:
                await self._sheets.bucket.delete_exactly(key, held.stamp.etag)

        def is_old(item: ListedObject) -> bool:
            return item.changed_at + row.policy.dedup_window_ms <= now_ms

        async for _ in self._look_at(layout.keys(row.ref), is_old, forget):
            yield

    async def _look_at(
        self, prefix: str, is_meant: Callable[[ListedObject], bool], look: Callable[[str], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Yields after each full page."""
        async for page in self._sheets.bucket.pages(prefix):
            if meant := [item.key for item in page if is_meant(item)]:
                await side_by_side(meant, look)
            if len(page) >= PAGE:
                yield


def _began_at(step_key: str) -> int:
    return int(layout.own_name(step_key).partition("-")[0])
