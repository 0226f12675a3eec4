"""Run operators' verbs on many messages at a time, and move dead letters to dlq/."""

from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, Move, Redrive, Verb, states_of
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.bulk import alter
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import Busy, retry_conflicts
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.messages.counts import QueueCounts
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.inspection import ObjectInspection
from holdfast.stores.objects.messages.messages import MessageMove, ObjectMessages
from holdfast.stores.objects.messages.unit import ObjectUnits, OpenQueue
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.values import AlterStep


class ObjectBulkVerbs:
    """Bulk verbs: redrive, purge, move and the others."""

    def __init__(
        self,
        messages: ObjectMessages,
        directory: ObjectDirectory,
        inspection: ObjectInspection,
        queue_counts: QueueCounts,
        units: ObjectUnits,
    ) -> None:
        self._messages = messages
        self._directory = directory
        self._inspection = inspection
        self._queue_counts = queue_counts
        self._units = units

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int, notices: Notices
    ) -> AlterStep:
        """Apply a verb to at most `limit` matching messages with ids after `after`, all of them or none."""
        row = await self._directory.require(ref)
        target = await self._directory.require_open(verb.to) if isinstance(verb, Move) else row

        async def attempt() -> AlterStep:
            found = await self._inspection.first(limit, ref, states_of(verb), which, after, now_ms)
            if not found:
                return AlterStep(0, 0, None)
            async with self._queue_counts.lock(target.ref.tenant):
                # Only a redrive begins a new TTL; for other verbs the tenant's configuration is not read.
                default_ttl_ms = await self._directory.default_ttl_ms(row) if isinstance(verb, Redrive) else None
                queues = OpenQueue(row, default_ttl_ms), OpenQueue(target)
                unit = self._units.begin(now_ms, notices, *queues, found=found)
                step = await alter(unit, ref, verb, which, after, limit)
                # A message that failed just now is not in dlq/ yet, and can only be redriven from there.
                late = [entry for entry in found if not layout.is_dead(entry.document.key)]
                if late and isinstance(verb, Redrive):
                    await self._move_dead_letters(late, now_ms, notices)
                    raise PreconditionFailed("the messages were moved to dlq/; read them again")
                await unit.write()
            for each in {target.ref: target, ref: row}.values():
                self._messages.queues.notify(each, notices)
            return step

        async with self._messages.move_lock:
            # Another process may claim one of the messages, which the filter may then no longer match: find them again.
            return await retry_conflicts(attempt, f"messages of {ref}", self._messages.documents.pause)

    # --- Dead letters --------------------------------------------------------------------------------------------

    async def move_dead_letters(self, ref: QueueRef, limit: int, now_ms: int, notices: Notices) -> int:
        """Move at most `limit` dead letters from msg/ to dlq/, and return how many."""
        queue = self._messages.queues.get(ref)
        carried = 0
        async with self._messages.move_lock:
            for id in list(queue.unmoved_dead_letters)[:limit]:
                entry = await self._messages.read(ref, id, now_ms)
                if entry is None or not entry.body.is_dead_letter or layout.is_dead(entry.document.key):
                    queue.unmoved_dead_letters.pop(id, None)
                    continue
                try:
                    async with self._queue_counts.lock(ref.tenant):
                        await self._move_dead_letters([entry], now_ms, notices)
                except (PreconditionFailed, Busy):
                    continue  # the next sweep tries again
                carried += 1
        return carried

    async def _move_dead_letters(self, entries: list[IndexedMessage], now_ms: int, notices: Notices) -> None:
        moves = [
            MessageMove(
                entry,
                layout.message_after_move(entry.body.ref, entry.id, entry.body.stubs, dead=True),
                entry.body,
            )
            for entry in entries
        ]
        guards = await self._queue_counts.quota_guard(entries[0].body.tenant)
        await self._messages.move_all(moves, now_ms, notices, guards=guards)
