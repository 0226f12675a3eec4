"""Messages in the bucket: read by id wherever they are, written one by one, moved, and deleted when nothing is left.

**Moving.** A dead letter goes from msg/ to dlq/msg/, a redriven one back, a moved one to another queue; each by a step:

    copy payload and state to the new place        dies here: orphans, which a sweep deletes
    step: metadata there, "moved to …" here        from here on it is there
    delete payload and state here                  dies here: they are deleted with the message

What is left here, a stub of some hundred bytes, is deleted with the message: to delete it sooner could hit a message
that came back. For the same reason payload and state never come back: a message that returns to a place where it was
leaves them where they are, and says so. So nobody who was paused before a delete can hit anything that is in use.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from msgspec.structs import replace

from holdfast.model.errors import MessageNotFound, StoreUnavailable
from holdfast.model.ids import to_uuid
from holdfast.model.names import QueueRef
from holdfast.model.rules.lifecycle import Change
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.objects.buckets.bucket import ObjectMissing, PreconditionFailed, Unanswered
from holdfast.stores.objects.buckets.retries import Busy, answered, side_by_side, unavailable
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.cas_documents import CasDocuments, CasWrite, ReadCasDocument
from holdfast.stores.objects.documents.document_format import MessageBody, encode, message_of, new_nonce
from holdfast.stores.objects.messages.changes import Changes
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.queue_windows import ObjectQueueStates

_TRIES = 8


class MessageMove(NamedTuple):
    """One message on its way. `payload` is what it gets instead of its own."""

    entry: IndexedMessage
    target: str
    body: MessageBody
    payload: bytes | None = None


class ObjectMessages:
    def __init__(self, sheets: CasDocuments, shelves: ObjectQueueStates, changes: Changes) -> None:
        self.sheets = sheets
        self.shelves = shelves
        self.changes = changes
        # One at a time moves messages in this process, or counts them: else one on its way is seen twice, or not.
        self.moving = asyncio.Lock()
        # Metadata with events that are not in the journal yet: since when, and whether nothing else is left of it.
        self.dirty: dict[str, tuple[int, bool]] = {}

    # --- Reading ---------------------------------------------------------------------------------------------

    async def read(self, ref: QueueRef, id: int, now_ms: int) -> IndexedMessage | None:
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
            return self.shelves.note(held, body, now_ms) or IndexedMessage(held, body)
        raise StoreUnavailable(f"message {to_uuid(id)} moves all the time: later")

    async def payload(self, entry: IndexedMessage) -> bytes:
        """Whole. `ObjectMissing`."""
        body = entry.body
        if not body.size:
            return b""
        with answered():
            content = (await self.sheets.bucket.read(entry.payload_key)).content
        if len(content) != body.size or crc32(content) != body.checksum:
            raise StoreUnavailable(f"the payload of message {to_uuid(body.id)} is damaged: restore a backup")
        return content

    async def find_payload(self, entry: IndexedMessage) -> None:
        """`ObjectMissing` if it is not there. Reads no more than its last byte."""
        with answered():
            if entry.body.size:
                await anext(self.sheets.bucket.stream(entry.payload_key, entry.body.size - 1), None)

    # --- Writing ---------------------------------------------------------------------------------------------

    async def write(self, entry: IndexedMessage, body: MessageBody, now_ms: int, notices: Notices) -> IndexedMessage:
        """Replace the metadata that `entry` was read with.

        Raise `PreconditionFailed` or `Busy`; the state of the message is then unknown.
        """
        [written] = await self.write_all([(entry, body)], now_ms, notices)
        return written

    async def change(
        self, entry: IndexedMessage, change: Change, now_ms: int, notices: Notices
    ) -> IndexedMessage | None:
        """Take one step of a message's life, and return the message; None if its life is not the known one any more."""
        life = entry.body.life
        for _ in range(_TRIES):
            try:
                return await self.write(entry, self.changes.after(entry.body, change, now_ms), now_ms, notices)
            except Busy:
                return None
            except PreconditionFailed:
                # It may have been written though nothing about it changed: its events were collected.
                again = await self.read(entry.body.ref, entry.id, now_ms)
                if again is None or again.body.life != life or again.held.key != entry.held.key:
                    return None
                entry = again
        return None

    async def write_all(
        self, changes: Sequence[tuple[IndexedMessage, MessageBody]], now_ms: int, notices: Notices
    ) -> list[IndexedMessage]:
        """Write all of them, or none."""
        writes = [CasWrite(entry.held.key, encode(body), entry.held) for entry, body in changes]
        try:
            helds = await self.sheets.write_all(writes)
        except (PreconditionFailed, Busy, StoreUnavailable):
            # If the bucket did not answer, they may have been written.
            for entry, _ in changes:
                self.shelves.lost(entry)
            raise
        written = zip(changes, helds, strict=True)
        return [self.written(held, entry.body, body, now_ms, notices) for (entry, body), held in written]

    def written(
        self, held: ReadCasDocument, before: MessageBody | None, body: MessageBody, now_ms: int, notices: Notices
    ) -> IndexedMessage:
        """Note it: for the window, the journal, and who waits."""
        counted = 0 if before is None else before.noted
        for note in body.outbox:
            if note.number > counted:
                notices.tally(QueueRef(note.event.tenant, note.event.queue), note.event.event)
        if body.outbox or body.is_gone:
            since_ms, _ = self.dirty.get(held.key, (now_ms, False))
            self.dirty[held.key] = (since_ms, body.is_gone)
        entry = self.shelves.note(held, body, now_ms, is_new=before is None)
        return entry or IndexedMessage(held, body)

    # --- Moving ----------------------------------------------------------------------------------------------

    async def move_all(
        self, movings: Sequence[MessageMove], now_ms: int, notices: Notices, *, turns: Sequence[CasWrite] = ()
    ) -> None:
        """All of them, or none: then `PreconditionFailed`, `Busy` or `StoreUnavailable`."""
        writes: dict[str, tuple[CasWrite, MessageBody]] = {}

        async def prepare(moving: MessageMove) -> None:
            entry, target = moving.entry, moving.target
            source = entry.held.key
            there = await self.sheets.read(target)
            is_back = there is not None and there.body is not None
            if there is not None and there.body is not None and message_of(there.body).moved_to is None:
                raise PreconditionFailed(f"{target} is taken")
            stubs = [key for key in (*moving.body.stubs, source) if key != target]
            body = replace(await self._bring(moving, is_back=is_back), stubs=stubs)
            stub = replace(
                entry.body, moved_to=target, outbox=[], stubs=[], headers={}, has_state=False, is_state_written=False
            )
            writes[target] = (CasWrite(target, encode(body), there), body)
            writes[source] = (CasWrite(source, encode(stub), entry.held), stub)

        await side_by_side(movings, prepare)
        helds = await self.sheets.write_all([write for write, _ in writes.values()], turns)
        by_key = {held.key: held for held in helds}
        left: list[str] = []
        for moving in movings:
            body, entry = writes[moving.target][1], moving.entry
            self.shelves.note(by_key[entry.held.key], writes[entry.held.key][1], now_ms)
            self.dirty.pop(entry.held.key, None)
            there = self.written(by_key[moving.target], entry.body, body, now_ms, notices)
            left += {entry.payload_key, entry.state_key} - {there.payload_key, there.state_key}
        await self.sheets.delete(left)

    async def _bring(self, moving: MessageMove, *, is_back: bool) -> MessageBody:
        """Payload and state to where the message goes, or where they are if it was there before."""
        bucket, entry, target = self.sheets.bucket, moving.entry, moving.target
        payload_at = entry.payload_key if is_back else None
        state_at = entry.state_key if is_back else None
        try:
            if moving.payload is not None:
                payload_at = f"{layout.payload_of(target).removesuffix(layout.PAYLOAD)}-{new_nonce().hex()}.bin"
                await bucket.put(payload_at, moving.payload)
            elif moving.body.size and not is_back:
                await bucket.copy(entry.payload_key, layout.payload_of(target))
            if moving.body.has_state and not is_back:
                state_at = await self._bring_state(entry.state_key, layout.state_of(target))
            if moving.body.group is not None:
                await bucket.put(layout.group_member(moving.body.ref, moving.body.group, moving.body.id), b"")
        except ObjectMissing:
            raise PreconditionFailed(f"the payload of {entry.held.key} is not there") from None
        except Unanswered as error:
            raise unavailable(error) from None
        return replace(moving.body, payload_at=payload_at, state_at=state_at)

    async def _bring_state(self, source: str, target: str) -> str | None:
        """Where it is then; None: at the target. One that is there was brought by somebody who did not finish, and may
        be older, or is being brought now."""
        try:
            content = (await self.sheets.bucket.read(source)).content
        except ObjectMissing:
            return None  # whoever said that it would write one died
        try:
            await self.sheets.bucket.create(target, content)
        except PreconditionFailed:
            target = f"{target.removesuffix('.json')}-{new_nonce().hex()}.json"
            await self.sheets.bucket.put(target, content)
            return target
        return None

    # --- Deleting --------------------------------------------------------------------------------------------

    async def delete(self, key: str, body: MessageBody) -> None:
        """Everything of a message that is gone. Its metadata last: it is by that that it would be found again."""
        keys = [each for each in (body.payload_at, body.state_at) if each is not None]
        for each in (*body.stubs, key):
            keys += [layout.payload_of(each), layout.state_of(each)]
            if body.group is not None:
                keys.append(layout.group_member(layout.parse_queue(each), body.group, body.id))
        await self.sheets.delete(keys)
        await self.sheets.delete([*body.stubs, key])
        shelf = self.shelves.known(body.ref)
        if shelf is not None:
            shelf.passed.pop(body.id, None)
            shelf.leftovers.pop(key, None)


def not_found(id: int) -> MessageNotFound:
    return MessageNotFound(f"there is no message {to_uuid(id)}", id=to_uuid(id))
