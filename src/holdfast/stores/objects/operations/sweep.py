"""Sweep: end leases and TTLs, move dead letters, collect events, clean up after dead processes, and delete queues."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from holdfast.clock import steady_s
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.sweep import remove_oldest
from holdfast.stores.objects.buckets.bucket import PAGE, ListedObject, PreconditionFailed
from holdfast.stores.objects.buckets.retries import Busy, as_unavailable, run_concurrently
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.cas_documents import CasDocuments
from holdfast.stores.objects.documents.protobuf_mapping import decode_message
from holdfast.stores.objects.journal.journal import LAG_MS, JournalCollector
from holdfast.stores.objects.messages.counts import QueueCounts
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages, UncollectedMessage
from holdfast.stores.objects.messages.queue_windows import ObjectQueueState
from holdfast.stores.objects.messages.unit import ObjectUnits, OpenQueue
from holdfast.stores.objects.operations.bulk import ObjectBulkVerbs
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.objects.operations.enqueue import decode_key
from holdfast.stores.values import QueueRow, Swept

# Interval at which the whole store is searched for leftovers of other processes.
_SEARCH_INTERVAL_MS = 300_000
# Full pages that one sweep reads, and how many times that duration it pauses before the next: claims come first.
_MAX_PAGES = 4
_REST_FACTOR = 4
# For this long, a step record and a payload without a message are left to the process that wrote them.
_STEP_AGE_MS = 60_000
_ORPHAN_AGE_MS = 24 * 3_600_000


class ObjectSweep:
    """Sweeps of a store, one at a time."""

    def __init__(
        self,
        messages: ObjectMessages,
        directory: ObjectDirectory,
        units: ObjectUnits,
        bulk: ObjectBulkVerbs,
        queue_counts: QueueCounts,
        journal: JournalCollector,
    ) -> None:
        self._messages = messages
        self._documents: CasDocuments = messages.documents
        self._directory = directory
        self._units = units
        self._bulk = bulk
        self._queue_counts = queue_counts
        self._journal = journal
        self._search_at = 0
        self._search: AsyncIterator[None] | None = None
        # Full pages that the current sweep may still read.
        self._pages_left = 0
        self._lock = asyncio.Lock()

    async def sweep(self, limit: int, now_ms: int, notices: Notices) -> Swept:
        """Make one pass with at most `limit` changes. Return the number of changes, and when the next sweep is due."""
        async with self._lock:
            return await self._sweep(limit, now_ms, notices)

    async def _sweep(self, limit: int, now_ms: int, notices: Notices) -> Swept:
        changed, self._pages_left = 0, _MAX_PAGES
        began_s = steady_s()
        if now_ms >= self._search_at or self._search is not None:
            # After an error the search begins again.
            search, self._search = self._search, None
            self._search = await self._continue(search or self._search_store(now_ms))
            self._search_at = now_ms + _SEARCH_INTERVAL_MS
            self._pages_left = _MAX_PAGES
        for queue in self._messages.queues.all():
            if changed < limit:
                changed += await self._sweep_queue(queue, limit - changed, now_ms, notices)
        searched_s = steady_s() - began_s
        # Events first: that rewrites most documents of the steps, or deletes them.
        while await self._journal.collect(now_ms - LAG_MS):
            pass
        await self._documents.finish_due(limit, now_ms)
        changed += await self._journal.trim(max(0, limit - changed), now_ms)
        resume_at = now_ms + 1 + int(_REST_FACTOR * searched_s * 1_000)
        ends = [self._search_at if self._search is None else resume_at, self._journal.next_trim_at()]
        for queue in self._messages.queues.all():
            ends += [queue.index.next_deadline(), queue.ends_at if queue.sweep_pass is None else resume_at]
        return Swept(changed, min((each for each in ends if each is not None), default=None))

    async def _continue(self, search: AsyncIterator[None]) -> AsyncIterator[None] | None:
        """Continue a search within the page limit; return None once it has ended."""
        while self._pages_left > 0:
            try:
                await anext(search)
            except StopAsyncIteration:
                return None
            self._pages_left -= 1
        return search

    # --- One queue -----------------------------------------------------------------------------------------------

    async def _sweep_queue(self, queue: ObjectQueueState, limit: int, now_ms: int, notices: Notices) -> int:
        row = await self._directory.find(queue.ref)
        if row is None:
            self._messages.queues.forget(queue.ref)
            return 0
        is_due = now_ms >= queue.next_pass_at or (queue.ends_at is not None and now_ms >= queue.ends_at)
        if is_due or queue.sweep_pass is not None:
            search, queue.sweep_pass = queue.sweep_pass, None
            queue.sweep_pass = await self._continue(search or self._messages.queues.scan_all(queue, now_ms))
            if queue.sweep_pass is None and not queue.has_format_1 and self._messages.may_have_format_1(queue.ref):
                await self._note_without_format_1(queue)
        changed = await self._units.end_overdue(row, queue, limit, now_ms, notices)
        changed += await self._delete_kept(queue, limit - changed, now_ms)
        await self._bulk.move_dead_letters(queue.ref, limit, now_ms, notices)
        await self._clear_leftovers(queue, limit)
        if row.drain_until is not None:
            changed += await self._drain(row, queue, limit - changed, now_ms, notices)
        elif changed and not row.is_paused:
            notices.ready(queue.ref, queue.index.next_at())
        return changed

    async def _note_without_format_1(self, queue: ObjectQueueState) -> None:
        """Record that the queue has no message with a name of an earlier version, once its dead letters have none
        either."""
        with as_unavailable():
            async for page in self._documents.bucket.pages(layout.messages(queue.ref, dead=True)):
                if any(layout.is_of_format_1(item.key) for item in page):
                    return
        await self._directory.note_without_format_1(queue.ref)

    async def _delete_kept(self, queue: ObjectQueueState, limit: int, now_ms: int) -> int:
        """Delete succeeded messages whose retention has ended. Their events are collected first."""
        ended = queue.index.ended(queue.index.kept, limit, now_ms)
        for entry in ended:
            current = await self._documents.read(entry.document.key)
            if current is not None and current.body is not None:
                body = decode_message(current.body)
                if body.outbox:
                    self._messages.uncollected[current.key] = UncollectedMessage(now_ms, True)
                    await self._journal.collect(now_ms - LAG_MS)
                await self._messages.delete({current.key: body})
            queue.index.drop(entry.id)
        return len(ended)

    async def _clear_leftovers(self, queue: ObjectQueueState, limit: int) -> None:
        """Handle metadata that is no message: collect its events, or undo its aborted step."""
        for key in list(queue.leftovers)[:limit]:
            current = await self._documents.read(key)
            if current is not None and not current.is_busy:
                if current.body is None:
                    # Another process may be first; the next pass finds what remains.
                    with suppress(PreconditionFailed, Busy):
                        await self._documents.resolve(current)
                elif decode_message(current.body).is_gone:
                    self._messages.uncollected.setdefault(key, UncollectedMessage(0, True))
            queue.leftovers.pop(key, None)

    # --- Deletion of queues --------------------------------------------------------------------------------------

    async def _drain(self, row: QueueRow, queue: ObjectQueueState, limit: int, now_ms: int, notices: Notices) -> int:
        """Continue the deletion of a queue; the queue is removed with its last message."""
        assert row.drain_until is not None
        remaining: list[IndexedMessage] = []
        is_held = False
        async for bunch in self._queue_counts.walk(row.ref, now_ms):
            is_held = is_held or any(entry.body.life.state is State.IN_FLIGHT for entry in bunch)
            remaining += bunch
        if is_held and now_ms < row.drain_until:
            notices.deadline(min(row.drain_until, queue.index.next_deadline() or row.drain_until))
            return 0
        if remaining:
            unit = self._units.begin(now_ms, notices, found=remaining)
            removed = await remove_oldest(unit, OpenQueue(row), max(1, limit))
            try:
                await unit.write()
            except (PreconditionFailed, Busy):
                notices.deadline(now_ms)
                return 1
            if removed < len(remaining):
                notices.deadline(now_ms)
                return removed
        await self._journal.collect_all()
        await self._delete_rest(row.ref)
        await self._directory.remove(row)
        self._messages.queues.forget(row.ref)
        return len(remaining) + 1

    async def _delete_rest(self, ref: QueueRef) -> None:
        """Delete all objects of a queue but its policy, by which a sweep finds the queue again."""
        with as_unavailable():
            async for page in self._documents.bucket.pages(layout.queue(ref)):
                if keys := [item.key for item in page if item.key != layout.policy(ref)]:
                    await self._documents.delete(keys)

    # --- Leftovers -------------------------------------------------------------------------------------------------

    async def _search_store(self, now_ms: int) -> AsyncIterator[None]:
        """Search the whole store for leftovers. It yields whenever the caller may pause."""
        with as_unavailable():
            async for page in self._documents.bucket.pages(layout.STEPS):
                for item in page:
                    finish_at = _began_at(item.key) + _STEP_AGE_MS
                    self._documents.unfinished.setdefault(item.key, finish_at)
            for tenant in await self._directory.names():
                for row in await self._directory.list_queues(tenant):
                    self._messages.queues.get(row.ref)  # this process's sweeps include it from here on
                    async for _ in self._forget_keys(row, now_ms):
                        yield
                    async for _ in self._delete_orphans(row.ref, now_ms):
                        yield

    async def _delete_orphans(self, ref: QueueRef, now_ms: int) -> AsyncIterator[None]:
        """Delete payloads, states and group members without a message that are too old to belong to an enqueue under
        way."""

        async def delete_orphan(key: str) -> None:
            id = layout.parse_id(key)
            if id is None:
                return  # not written by Holdfast
            for message_key in layout.possible_messages(ref, id):
                if await self._documents.read(message_key) is not None:
                    return
            await self._documents.delete([key])

        def is_old(item: ListedObject) -> bool:
            return not item.key.endswith(layout.METADATA) and item.changed_at + _ORPHAN_AGE_MS <= now_ms

        for prefix in layout.side_prefixes(ref):
            async for _ in self._visit(prefix, is_old, delete_orphan):
                yield

    async def _forget_keys(self, row: QueueRow, now_ms: int) -> AsyncIterator[None]:
        """Delete idempotency keys past their window. Only keys written that long ago are read."""

        async def forget(key: str) -> None:
            current = await self._documents.read(key)
            if current is None or current.is_busy:
                return
            if current.body is None or decode_key(current.body).ends_at <= now_ms:
                await self._documents.bucket.delete_exactly(key, current.version.etag)

        def is_old(item: ListedObject) -> bool:
            return item.changed_at + row.policy.dedup_window_ms <= now_ms

        async for _ in self._visit(layout.keys(row.ref), is_old, forget):
            yield

    async def _visit(
        self, prefix: str, is_wanted: Callable[[ListedObject], bool], visit: Callable[[str], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Call `visit` for the listed objects that `is_wanted` accepts. It yields after each full page."""
        async for page in self._documents.bucket.pages(prefix):
            if wanted := [item.key for item in page if is_wanted(item)]:
                await run_concurrently(wanted, visit)
            if len(page) >= PAGE:
                yield


def _began_at(step_key: str) -> int:
    return int(layout.stem(step_key).partition("-")[0])
