"""Operators' verbs, in steps over many messages; and dead letters on their way to dlq/."""

from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, Move, Redrive, Verb, states_of
from holdfast.stores.contract import AlterStep
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.logic.bulk import alter
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import Busy, until_unchanged
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.messages.counts import QueueCounts
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.inspection import ObjectInspection
from holdfast.stores.objects.messages.messages import MessageMove, ObjectMessages
from holdfast.stores.objects.messages.unit import ObjectUnits, OpenQueue
from holdfast.stores.objects.operations.directory import ObjectDirectory


class ObjectBulkVerbs:
    def __init__(
        self,
        messages: ObjectMessages,
        directory: ObjectDirectory,
        reading: ObjectInspection,
        counting: QueueCounts,
        units: ObjectUnits,
    ) -> None:
        self._messages = messages
        self._directory = directory
        self._reading = reading
        self._counting = counting
        self._units = units

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int, notices: Notices
    ) -> AlterStep:
        row = await self._directory.require(ref)
        target = await self._directory.require_open(verb.to) if isinstance(verb, Move) else row

        async def attempt() -> AlterStep:
            found = await self._reading.first(limit, ref, states_of(verb), which, after, now_ms)
            if not found:
                return AlterStep(0, 0, None)
            async with self._counting.lock(target.ref.tenant):
                # Only a redrive begins a new TTL; for the other verbs the tenant is not read.
                default_ttl_ms = await self._directory.default_ttl_ms(row) if isinstance(verb, Redrive) else None
                queues = OpenQueue(row, default_ttl_ms), OpenQueue(target)
                unit = self._units.begin(now_ms, notices, *queues, found=found)
                step = await alter(unit, ref, verb, which, after, limit)
                # A message that failed just now is not in dlq/ yet, from where it is redriven.
                late = [entry for entry in found if not layout.is_dead(entry.held.key)]
                if late and isinstance(verb, Redrive):
                    await self._carry(late, now_ms, notices)
                    raise PreconditionFailed("the messages are in another place now")
                await unit.write()
            for each in {target.ref: target, ref: row}.values():
                self._messages.shelves.tell(each, notices)
            return step

        async with self._messages.moving:
            # If another process claims one of the messages, the filter may not match it any more: look again.
            return await until_unchanged(attempt, f"messages of {ref} change all the time: later")

    # --- Dead letters --------------------------------------------------------------------------------------------

    async def carry(self, ref: QueueRef, limit: int, now_ms: int, notices: Notices) -> int:
        """Dead letters that lie among the messages, to where they belong. Answers how many."""
        shelf = self._messages.shelves.of(ref)
        carried = 0
        async with self._messages.moving:
            for id in list(shelf.to_carry)[:limit]:
                entry = await self._messages.read(ref, id, now_ms)
                if entry is None or not entry.body.is_dead_letter or layout.is_dead(entry.held.key):
                    shelf.to_carry.pop(id, None)
                    continue
                try:
                    async with self._counting.lock(ref.tenant):
                        await self._carry([entry], now_ms, notices)
                except (PreconditionFailed, Busy):
                    continue  # the next sweep finds what became of it
                carried += 1
        return carried

    async def _carry(self, entries: list[IndexedMessage], now_ms: int, notices: Notices) -> None:
        movings = [
            MessageMove(entry, layout.message(entry.body.ref, entry.id, dead=True), entry.body) for entry in entries
        ]
        room = await self._counting.keep_room(entries[0].body.tenant)
        await self._messages.move_all(movings, now_ms, notices, turns=room)
