"""Messages in the bucket: read by id wherever they are, written one by one, moved, and deleted when nothing is left.

**Moving.** A dead letter goes from msg/ to dlq/msg/, a redriven one back, a moved one to another queue; each by a step:

    copy payload and state to the new place        dies here: orphans, which a sweep deletes
    step: metadata there, "moved to …" here        from here on it is there
    here: "emptying", delete payload and state     dies here: a sweep goes on
    here: no longer "emptying"

What is left here, a stub of some hundred bytes, is deleted with the message: to delete it sooner could hit a message
that came back. For the same reason no message comes back to a stub that is being emptied.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from msgspec.structs import replace

from holdfast.model.errors import MessageNotFound, StoreUnavailable
from holdfast.model.ids import to_uuid
from holdfast.model.lifecycle import Change
from holdfast.model.names import QueueRef
from holdfast.stores.objects import layout
from holdfast.stores.objects.bucket import Changed, Missing, Unanswered
from holdfast.stores.objects.changes import Changes
from holdfast.stores.objects.documents import MessageBody, encode, message_of
from holdfast.stores.objects.index import Entry
from holdfast.stores.objects.news import News
from holdfast.stores.objects.sheets import Busy, Held, Sheets, Write, unavailable
from holdfast.stores.objects.shelves import Shelves

_TRIES = 8
# Until a step that another makes has ended.
_PAUSE_S = 0.02


class Moving(NamedTuple):
    """One message on its way. `payload` is what it gets instead of its own."""

    entry: Entry
    target: str
    body: MessageBody
    payload: bytes | None = None


class Messages:
    def __init__(self, sheets: Sheets, shelves: Shelves, changes: Changes) -> None:
        self.sheets = sheets
        self.shelves = shelves
        self.changes = changes
        # Metadata with events that are not in the journal yet: since when, and whether nothing else is left of it.
        self.dirty: dict[str, tuple[int, bool]] = {}

    # --- Reading ---------------------------------------------------------------------------------------------

    async def read(self, ref: QueueRef, id: int, now_ms: int) -> Entry | None:
        """As it is stored, in whichever place of this queue."""
        key = layout.message(ref, id)
        for _ in range(_TRIES):
            held = await self.sheets.read(key)
            if held is None or held.body is None:
                if held is not None and held.is_busy:
                    return None  # not enqueued yet, or moving here: it was elsewhere so far
                if layout.is_dead(key):
                    return None
                key = layout.message(ref, id, dead=True)
                continue
            body = message_of(held.body)
            if body.moved_to is not None:
                if layout.queue(ref) not in body.moved_to or not body.moved_to.startswith(layout.queue(ref)):
                    return None
                key = body.moved_to
                continue
            if body.is_gone:
                return None
            return self.shelves.note(held, body, now_ms) or Entry(held, body)
        raise StoreUnavailable(f"message {to_uuid(id)} moves all the time: later")

    async def payload(self, entry: Entry) -> bytes:
        """Whole. `Missing`."""
        body = entry.body
        if not body.size:
            return b""
        try:
            content = (await self.sheets.bucket.read(layout.payload_of(entry.held.key))).content
        except Unanswered as error:
            raise unavailable(error) from None
        if len(content) != body.size or crc32(content) != body.checksum:
            raise StoreUnavailable(f"the payload of message {to_uuid(body.id)} is damaged: restore a backup")
        return content

    async def find_payload(self, entry: Entry) -> None:
        """`Missing` if it is not there. Reads no more than its last byte."""
        try:
            if entry.body.size:
                await anext(self.sheets.bucket.stream(layout.payload_of(entry.held.key), entry.body.size - 1), None)
        except Unanswered as error:
            raise unavailable(error) from None

    # --- Writing ---------------------------------------------------------------------------------------------

    async def write(self, entry: Entry, body: MessageBody, now_ms: int, news: News) -> Entry:
        """In the place of what `entry` says. `Changed`, `Busy`: then what is known of it is forgotten."""
        try:
            held = await self.sheets.write(entry.held.key, encode(body), entry.held)
        except (Changed, Busy):
            self.shelves.lost(entry)
            raise
        except StoreUnavailable:
            self.shelves.lost(entry)  # it may have been written
            raise
        return self.written(held, entry.body, body, now_ms, news)

    async def change(
        self, entry: Entry, make: Callable[[MessageBody], Change], now_ms: int, news: News
    ) -> Entry | None:
        """Take one step of a message's life, if that is still what is known. None: it is not."""
        life = entry.body.life
        for _ in range(_TRIES):
            try:
                return await self.write(entry, self.changes.after(entry.body, make(entry.body), now_ms), now_ms, news)
            except Busy:
                return None
            except Changed:
                # It may have been written though nothing about it changed: its events were collected.
                ref = QueueRef(entry.body.tenant, entry.body.queue)
                again = await self.read(ref, entry.id, now_ms)
                if again is None or again.body.life != life or again.held.key != entry.held.key:
                    return None
                entry = again
        return None

    async def write_all(self, changes: Sequence[tuple[Entry, MessageBody]], now_ms: int, news: News) -> None:
        """All of them, or none."""
        writes = [Write(entry.held.key, encode(body), entry.held) for entry, body in changes]
        try:
            helds = await self.sheets.write_all(writes)
        except (Changed, Busy, StoreUnavailable):
            for entry, _ in changes:
                self.shelves.lost(entry)
            raise
        for (entry, body), held in zip(changes, helds, strict=True):
            self.written(held, entry.body, body, now_ms, news)

    def written(self, held: Held, before: MessageBody | None, body: MessageBody, now_ms: int, news: News) -> Entry:
        """Note it: for the window, the journal, and who waits."""
        counted = 0 if before is None else before.noted
        for note in body.outbox:
            if note.number > counted:
                news.tally(QueueRef(note.event.tenant, note.event.queue), note.event.event)
        if body.outbox or body.is_gone:
            since_ms, _ = self.dirty.get(held.key, (now_ms, False))
            self.dirty[held.key] = (since_ms, body.is_gone)
        entry = self.shelves.note(held, body, now_ms, is_new=before is None)
        return entry or Entry(held, body)

    # --- Moving ----------------------------------------------------------------------------------------------

    async def move_all(self, movings: Sequence[Moving], now_ms: int, news: News) -> None:
        """All of them, or none: then `Changed`, `Busy` or `StoreUnavailable`."""
        writes: dict[str, tuple[Write, MessageBody]] = {}

        async def prepare(moving: Moving) -> None:
            entry, target = moving.entry, moving.target
            source = entry.held.key
            there = await self.sheets.read(target)
            if there is not None and there.body is not None:
                stub = message_of(there.body)
                if stub.is_emptying:
                    raise Busy
                if stub.moved_to is None:
                    raise Changed(f"{target} is taken")
            await self._bring(moving)
            stubs = [key for key in (*moving.body.stubs, source) if key != target]
            body = replace(moving.body, stubs=stubs)
            stub = replace(entry.body, moved_to=target, outbox=[], stubs=[], headers={}, has_state=False)
            writes[target] = (Write(target, encode(body), there), body)
            writes[source] = (Write(source, encode(stub), entry.held), stub)

        await self.sheets.each(movings, prepare)
        helds = await self.sheets.write_all([write for write, _ in writes.values()])
        by_key = {held.key: held for held in helds}
        for moving in movings:
            body = writes[moving.target][1]
            self.shelves.note(by_key[moving.entry.held.key], writes[moving.entry.held.key][1], now_ms)
            self.dirty.pop(moving.entry.held.key, None)
            self.written(by_key[moving.target], moving.entry.body, body, now_ms, news)
        await self.sheets.each([by_key[each.entry.held.key] for each in movings], self.empty_stub)

    async def _bring(self, moving: Moving) -> None:
        bucket, source, target = self.sheets.bucket, moving.entry.held.key, moving.target
        try:
            if moving.payload is not None:
                await bucket.put(layout.payload_of(target), moving.payload)
            elif moving.body.size:
                await bucket.copy(layout.payload_of(source), layout.payload_of(target))
            if moving.body.has_state:
                with suppress(Missing):  # whoever said that it would write one died
                    await bucket.copy(layout.state_of(source), layout.state_of(target))
            if moving.body.group is not None:
                ref = QueueRef(moving.body.tenant, moving.body.queue)
                await bucket.put(layout.group_member(ref, moving.body.group, moving.body.id), b"")
        except Missing:
            raise Changed(f"the payload of {source} is not there") from None
        except Unanswered as error:
            raise unavailable(error) from None

    async def empty_stub(self, held: Held) -> None:
        """Delete what a message left behind when it moved; may be done again."""
        assert held.body is not None
        stub = message_of(held.body)
        try:
            held = await self.sheets.write(held.key, encode(replace(stub, is_emptying=True)), held)
            gone = [layout.payload_of(held.key), layout.state_of(held.key)]
            if stub.group is not None and not layout.is_dead(held.key):
                gone.append(layout.group_member(QueueRef(stub.tenant, stub.queue), stub.group, stub.id))
            await self.sheets.delete(gone)
            held = await self.sheets.write(held.key, encode(replace(stub, is_emptying=False)), held)
        except Changed:
            return  # it came back, or another is at it
        if not layout.is_dead(held.key):
            shelf = self.shelves.of(QueueRef(stub.tenant, stub.queue))
            shelf.passed[stub.id] = (held.stamp.mark, None)

    # --- Deleting --------------------------------------------------------------------------------------------

    async def delete(self, key: str, body: MessageBody) -> None:
        """Everything of a message that is gone. Its metadata last: it is by that that it would be found again."""
        keys: list[str] = []
        for each in (*body.stubs, key):
            keys += [layout.payload_of(each), layout.state_of(each)]
        if body.group is not None:
            keys.append(layout.group_member(QueueRef(body.tenant, body.queue), body.group, body.id))
        await self.sheets.delete(keys)
        await self.sheets.delete([*body.stubs, key])
        shelf = self.shelves.known(QueueRef(body.tenant, body.queue))
        if shelf is not None:
            shelf.passed.pop(body.id, None)
            shelf.leftovers.pop(key, None)


def not_found(id: int) -> MessageNotFound:
    return MessageNotFound(f"there is no message {to_uuid(id)}", id=to_uuid(id))


async def pause() -> None:
    await asyncio.sleep(_PAUSE_S)
