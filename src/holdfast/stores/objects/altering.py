"""Operators' verbs, in steps over many messages; and dead letters on their way to dlq/."""

from zlib import crc32

from msgspec.structs import replace

from holdfast.model.message import JSON, State
from holdfast.model.names import QueueRef
from holdfast.model.requests import Filter, Move, Redrive, Verb, states_of
from holdfast.model.verdicts import alter
from holdfast.stores.contract import AlterStep, QueueRow
from holdfast.stores.notices import Notices
from holdfast.stores.objects import layout
from holdfast.stores.objects.attempts import Busy, until_unchanged
from holdfast.stores.objects.bucket import Changed
from holdfast.stores.objects.counting import Counting
from holdfast.stores.objects.directory import Directory
from holdfast.stores.objects.documents import MessageBody
from holdfast.stores.objects.index import Entry
from holdfast.stores.objects.messages import Messages, Moving
from holdfast.stores.objects.reading import Reading
from holdfast.stores.objects.sheets import Write


class Altering:
    def __init__(self, messages: Messages, directory: Directory, reading: Reading, counting: Counting) -> None:
        self._messages = messages
        self._directory = directory
        self._reading = reading
        self._counting = counting

    async def alter(
        self, ref: QueueRef, verb: Verb, which: Filter, after: int | None, limit: int, now_ms: int, notices: Notices
    ) -> AlterStep:
        row = await self._directory.require(ref)
        target = await self._directory.require_open(verb.to) if isinstance(verb, Move) else row
        async with self._messages.moving:
            # If somebody claims one of them, it is not meant any more, or it is: that is looked at again.
            return await until_unchanged(
                lambda: self._step(row, target, verb, which, after, limit, now_ms, notices),
                f"messages of {ref} change all the time: later",
            )

    async def _step(
        self,
        row: QueueRow,
        target: QueueRow,
        verb: Verb,
        which: Filter,
        after: int | None,
        limit: int,
        now_ms: int,
        notices: Notices,
    ) -> AlterStep:
        meant: list[Entry] = []
        if limit:
            async for entry in self._reading.matching(row.ref, states_of(verb), which, after, now_ms):
                meant.append(entry)
                if len(meant) == limit:
                    break
        if meant:
            async with self._counting.lock(target.ref.tenant):
                room = await self._room(row, target, verb, meant, now_ms)
                await self._change(row, target, verb, meant, room, now_ms, notices)
            self._messages.shelves.tell(target, notices)
            if target is not row:
                self._messages.shelves.tell(row, notices)
        return AlterStep(len(meant), len(meant), meant[-1].id if len(meant) == limit else None)

    async def _room(self, row: QueueRow, target: QueueRow, verb: Verb, meant: list[Entry], now_ms: int) -> list[Write]:
        """Of the tenants with quotas whose messages move: what the step must write. `OverQuota`."""
        if target.ref.tenant != row.ref.tenant:
            sizes = [entry.body.bytes for entry in meant]
            room = await self._counting.make_room(target.ref.tenant, sizes, now_ms)
            return [*room, *await self._counting.keep_room(row.ref.tenant)]
        if isinstance(verb, Redrive) and verb.edit is not None:
            body = meant[0].body
            size = body.bytes - body.size + len(verb.edit.payload)
            return await self._counting.make_room(row.ref.tenant, [size], now_ms, instead=body.bytes or 0)
        return await self._counting.keep_room(row.ref.tenant) if isinstance(verb, Move | Redrive) else []

    async def _change(
        self,
        row: QueueRow,
        target: QueueRow,
        verb: Verb,
        meant: list[Entry],
        room: list[Write],
        now_ms: int,
        notices: Notices,
    ) -> None:
        if isinstance(verb, Redrive):
            # One that failed just now lies among the messages still: it goes to dlq/ first.
            late = [entry for entry in meant if not layout.is_dead(entry.held.key)]
            if late:
                await self._carry(late, now_ms, notices)
                raise Changed("they lie elsewhere now")
        default_ttl_ms = await self._directory.default_ttl_ms(row)
        movings: list[Moving] = []
        changes: list[tuple[Entry, MessageBody]] = []
        for entry in meant:
            body, payload = entry.body, None
            if isinstance(verb, Redrive) and verb.edit is not None:
                payload = verb.edit.payload
                body = replace(
                    body,
                    size=len(payload),
                    checksum=crc32(payload),
                    content_type=verb.edit.content_type,
                    is_json=verb.edit.content_type == JSON,
                )
            change = alter(body.life, body.envelope(), verb, default_ttl_ms, now_ms)
            if isinstance(verb, Move):
                assert change.event is not None
                assert change.life is not None
                # Both queues' journals tell of it, so that each one's counts can be made up from its own events.
                told = self._messages.changes.noted
                body = told(body, change.event, now_ms, reason=f"to {target.ref}", ref=row.ref)
                body = told(body, change.event, now_ms, reason=f"from {row.ref}", ref=target.ref)
                body = replace(body, life=change.life, tenant=target.ref.tenant, queue=target.ref.queue)
                is_dead = body.life.state is State.FAILED
                movings.append(Moving(entry, layout.message(target.ref, body.id, dead=is_dead), body))
            elif isinstance(verb, Redrive):
                body = self._messages.changes.after(body, change, now_ms)
                movings.append(Moving(entry, layout.message(row.ref, body.id), body, payload))
            else:
                changes.append((entry, self._messages.changes.after(body, change, now_ms)))
        if movings:
            await self._messages.move_all(movings, now_ms, notices, turns=room)
        if changes:
            await self._messages.write_all(changes, now_ms, notices)

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
                except (Changed, Busy):
                    continue  # the next sweep finds what became of it
                carried += 1
        return carried

    async def _carry(self, entries: list[Entry], now_ms: int, notices: Notices) -> None:
        movings = [Moving(entry, layout.message(entry.body.ref, entry.id, dead=True), entry.body) for entry in entries]
        room = await self._counting.keep_room(entries[0].body.tenant)
        await self._messages.move_all(movings, now_ms, notices, turns=room)
