"""Read messages by id, write them one by one, move them, and delete them.

**Moving.** A dead letter moves from msg/ to dlq/msg/, a redriven one back, a moved one to another queue. Each move is a
step:

    copy payload and state to the target                 crash: orphans, which a sweep deletes
    step: metadata at the target, a stub at the source   from here on the message is at the target
    delete payload and state at the source               crash: they are deleted with the message

The stub at the source, some hundred bytes, is deleted with the message: deleting it sooner could hit a message that
came back. For the same reason payload and state never return to a previous key: a message that comes back leaves them
where they are and records their keys. So a process that was paused before a delete cannot delete anything in use.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from msgspec.structs import replace

from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import to_uuid
from holdfast.model.names import QueueRef
from holdfast.model.rules.lifecycle import Change
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.objects.buckets.bucket import ObjectMissing, PreconditionFailed, Unanswered
from holdfast.stores.objects.buckets.retries import Busy, as_unavailable, run_concurrently, unavailable
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import MessageBody
from holdfast.stores.objects.documents.cas_documents import CasDocuments, CasWrite, ReadCasDocument
from holdfast.stores.objects.documents.document_format import new_nonce
from holdfast.stores.objects.documents.protobuf_mapping import decode_message, encode
from holdfast.stores.objects.messages.changes import Changes
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.queue_windows import ObjectQueueStates

# Reads of a message that other processes keep moving.
_TRIES = 12


class MessageMove(NamedTuple):
    """The move of one message to the key `target`, with its metadata there. `payload` replaces the stored one."""

    entry: IndexedMessage
    target: str
    body: MessageBody
    payload: bytes | None = None


class UncollectedMessage(NamedTuple):
    """A message whose events are not in the journal yet: since when, whether it has ended, and the message as this
    process wrote it last, if it did."""

    since_ms: int
    is_gone: bool
    known: IndexedMessage | None = None


class ObjectMessages:
    """The messages of a store, as one process reads and writes them."""

    def __init__(
        self,
        documents: CasDocuments,
        queues: ObjectQueueStates,
        changes: Changes,
        may_have_format_1: Callable[[QueueRef], bool],
    ) -> None:
        """`may_have_format_1` returns whether a queue may have messages that an earlier version named."""
        self.may_have_format_1 = may_have_format_1
        self.documents = documents
        self.queues = queues
        self.changes = changes
        # Held while this process moves or counts messages; a count would otherwise see a moving message twice, or not
        # at all.
        self.move_lock = asyncio.Lock()
        # Messages whose events are not in the journal yet, by the key of the metadata.
        self.uncollected: dict[str, UncollectedMessage] = {}

    # --- Reading ---------------------------------------------------------------------------------------------

    async def read(self, ref: QueueRef, id: int, now_ms: int) -> IndexedMessage | None:
        """Return a message of the queue wherever it is stored, or None. Raise `StoreUnavailable`."""
        keys = self._possible_keys(ref, id)
        key, is_moved = keys.pop(0), False
        for _ in range(_TRIES):
            current = await self.documents.read(key)
            if current is None or current.body is None:
                if current is not None and current.is_busy:
                    return None  # not enqueued yet, or being moved here from elsewhere
                if is_moved or not keys:
                    return None
                key = keys.pop(0)
                continue
            body = decode_message(current.body)
            if body.moved_to is not None:
                if layout.queue(ref) not in body.moved_to or not body.moved_to.startswith(layout.queue(ref)):
                    return None
                key, is_moved = body.moved_to, True
                continue
            if body.is_gone:
                return None
            return self.queues.record(current, body, now_ms) or IndexedMessage(current, body)
        raise StoreUnavailable(f"message {to_uuid(id)} was moved during each of {_TRIES} reads; try again")

    def _possible_keys(self, ref: QueueRef, id: int) -> list[str]:
        keys = layout.possible_messages(ref, id)
        return keys if self.may_have_format_1(ref) else [key for key in keys if not layout.is_of_format_1(key)]

    async def payload(self, entry: IndexedMessage) -> bytes:
        """Return the whole payload. Raise `ObjectMissing`, or `StoreUnavailable` if it is damaged."""
        body = entry.body
        if not body.has_payload_object:
            return body.payload
        with as_unavailable():
            content = (await self.documents.bucket.read(entry.payload_key)).content
        if len(content) != body.size or crc32(content) != body.checksum:
            raise StoreUnavailable(f"the payload of message {to_uuid(body.id)} is damaged; restore a backup")
        return content

    async def check_payload(self, entry: IndexedMessage) -> None:
        """Raise `ObjectMissing` if the payload does not exist. Only its last byte is read."""
        with as_unavailable():
            if entry.body.has_payload_object:
                await anext(self.documents.bucket.stream(entry.payload_key, entry.body.size - 1), None)

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
        """Apply a life-cycle change, and return the message; None if another process has changed its life."""
        life = entry.body.life
        for _ in range(_TRIES):
            try:
                return await self.write(entry, self.changes.after(entry.body, change, now_ms), now_ms, notices)
            except Busy:
                return None
            except PreconditionFailed:
                # The document may have changed without a change of its life: its events were collected.
                again = await self.read(entry.body.ref, entry.id, now_ms)
                if again is None or again.body.life != life or again.document.key != entry.document.key:
                    return None
                entry = again
        return None

    async def write_all(
        self, changes: Sequence[tuple[IndexedMessage, MessageBody]], now_ms: int, notices: Notices
    ) -> list[IndexedMessage]:
        """Replace the metadata of all these messages, or of none."""
        writes = [CasWrite(entry.document.key, encode(body), entry.document) for entry, body in changes]
        try:
            written = await self.documents.write_all(writes)
        except (PreconditionFailed, Busy, StoreUnavailable):
            # The bucket may have written them although the response was lost.
            for entry, _ in changes:
                self.queues.drop_stale(entry)
            raise
        return [
            self.record_written(document, entry.body, body, now_ms, notices)
            for (entry, body), document in zip(changes, written, strict=True)
        ]

    def record_written(
        self, current: ReadCasDocument, before: MessageBody | None, body: MessageBody, now_ms: int, notices: Notices
    ) -> IndexedMessage:
        """Record a written message in the window, for the journal, and in the notices."""
        counted = 0 if before is None else before.event_count
        for note in body.outbox:
            if note.number > counted:
                notices.tally(QueueRef(note.event.tenant, note.event.queue), note.event.event)
        if body.outbox or body.is_gone:
            before_it = self.uncollected.get(current.key)
            since_ms = now_ms if before_it is None else before_it.since_ms
            known = None if current.version.etag == "overwritten" else IndexedMessage(current, body)
            self.uncollected[current.key] = UncollectedMessage(since_ms, body.is_gone, known)
        entry = self.queues.record(current, body, now_ms, is_new=before is None)
        return entry or IndexedMessage(current, body)

    # --- Moving ----------------------------------------------------------------------------------------------

    async def move_all(
        self, moves: Sequence[MessageMove], now_ms: int, notices: Notices, *, guards: Sequence[CasWrite] = ()
    ) -> None:
        """Move all messages, or none. Raise `PreconditionFailed`, `Busy` or `StoreUnavailable`; then nothing has
        moved."""
        writes: dict[str, tuple[CasWrite, MessageBody]] = {}

        async def prepare(move: MessageMove) -> None:
            entry, target = move.entry, move.target
            source = entry.document.key
            there = await self.documents.read(target)
            is_back = there is not None and there.body is not None
            if there is not None and there.body is not None and decode_message(there.body).moved_to is None:
                raise PreconditionFailed(f"{target} already exists")
            stubs = [key for key in (*move.body.stubs, source) if key != target]
            body = replace(await self._copy_payload_and_state(move, is_back=is_back), stubs=stubs)
            stub = replace(
                entry.body,
                moved_to=target,
                outbox=[],
                stubs=[],
                headers={},
                has_state=False,
                is_state_written=False,
                payload=b"",
            )
            writes[target] = (CasWrite(target, encode(body), there), body)
            writes[source] = (CasWrite(source, encode(stub), entry.document), stub)

        await run_concurrently(moves, prepare)
        written = await self.documents.write_all([write for write, _ in writes.values()], guards)
        by_key = {current.key: current for current in written}
        obsolete: list[str] = []
        for move in moves:
            body, entry = writes[move.target][1], move.entry
            self.queues.record(by_key[entry.document.key], writes[entry.document.key][1], now_ms)
            self.uncollected.pop(entry.document.key, None)
            there = self.record_written(by_key[move.target], entry.body, body, now_ms, notices)
            obsolete += entry.side_keys - there.side_keys
        await self.documents.delete(obsolete)

    async def _copy_payload_and_state(self, move: MessageMove, *, is_back: bool) -> MessageBody:
        """Copy payload and state to the target, unless the message was there before. Return the metadata with their
        keys."""
        bucket, entry, target = self.documents.bucket, move.entry, move.target
        payload_key = entry.payload_key if is_back else None
        state_key = entry.state_key if is_back else None
        try:
            if move.payload is not None:
                payload_key = f"{layout.payload_of(target).removesuffix(layout.PAYLOAD)}-{new_nonce().hex()}.bin"
                await bucket.put(payload_key, move.payload)
            elif move.body.has_payload_object and not is_back:
                await bucket.copy(entry.payload_key, layout.payload_of(target))
            if move.body.has_state and not is_back:
                state_key = await self._copy_state(entry.state_key, layout.state_of(target))
            if move.body.group is not None:
                await bucket.put(layout.group_member(move.body.ref, move.body.group, move.body.id), b"")
        except ObjectMissing:
            raise PreconditionFailed(f"the payload of {entry.document.key} is missing") from None
        except Unanswered as error:
            raise unavailable(error) from None
        return replace(move.body, payload_key=payload_key, state_key=state_key)

    async def _copy_state(self, source: str, target: str) -> str | None:
        """Copy a state document. Return its key, or None if it is the target.

        A document that already exists at the target comes from an unfinished or a concurrent move and may be older, so
        a new key is used instead.
        """
        try:
            content = (await self.documents.bucket.read(source)).content
        except ObjectMissing:
            return None  # its writer died before it wrote the document
        try:
            await self.documents.bucket.create(target, content)
        except PreconditionFailed:
            target = f"{target.removesuffix('.json')}-{new_nonce().hex()}.json"
            await self.documents.bucket.put(target, content)
            return target
        return None

    # --- Deleting --------------------------------------------------------------------------------------------

    async def delete(self, ended: Mapping[str, MessageBody]) -> None:
        """Delete all objects of ended messages, given by the keys of their metadata. The metadata goes last, because
        sweeps find the rest by it."""
        await self.documents.delete([each for key, body in ended.items() for each in side_keys(key, body)])
        await self.documents.delete([each for key, body in ended.items() for each in (*body.stubs, key)])
        for key, body in ended.items():
            queue = self.queues.find(body.ref)
            if queue is not None:
                queue.skipped.pop(body.id, None)
                queue.leftovers.pop(key, None)


def side_keys(key: str, body: MessageBody) -> list[str]:
    """Return the keys of all objects beside an ended message's metadata. A message that moved may have left some behind
    at each place, because a crash prevented their deletion."""
    keys = [each for each in (body.payload_key, body.state_key) if each is not None]
    for each in (*body.stubs, key):
        if body.has_payload_object or body.stubs:
            keys.append(layout.payload_of(each))
        if body.has_state or body.stubs:
            keys.append(layout.state_of(each))
        if body.group is not None:
            keys.append(layout.group_member(layout.parse_queue(each), body.group, body.id))
    return keys
