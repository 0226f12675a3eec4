"""Keep FIFO order of groups among several processes.

A group's batch is claimed under the group's own document, which names the messages that may be in flight:

    list the group's messages, read them                 the oldest due ones, in order of id
    write the group's document: these and the previous   of two claimers one continues
    read the previous messages again                     if one is in flight, leave the group alone
    claim each message, in order                         if one is lost, stop there
    read the group's document                            if another process wrote it, give back the claimed messages

Two claimers that both reach the claims cannot both keep theirs: the first writer of the document sees the other's
document, or the other sees the first one's message in flight.
"""

import asyncio
from dataclasses import dataclass

from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import Busy, as_unavailable, run_concurrently
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import GroupBody
from holdfast.stores.objects.documents.cas_documents import ReadCasDocument
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder, encode
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.messages.queue_windows import ObjectQueueState

# Time for which a group held by another process is left alone.
_LEAVE_MS = 200

_decode_group = BodyDecoder(GroupBody)


@dataclass(slots=True)
class GroupBatch:
    """Messages of a group to claim, and the group's document that names them."""

    entries: list[IndexedMessage]
    document: ReadCasDocument


class ObjectGroups:
    """The groups of a store, as one process claims from them."""

    def __init__(self, messages: ObjectMessages) -> None:
        self._messages = messages
        self._documents = messages.documents
        # Groups that another process was seen to hold, and until when to leave them alone.
        self._left_until: dict[tuple[QueueRef, str], int] = {}
        self._locks: dict[tuple[QueueRef, str], asyncio.Lock] = {}

    def is_held(self, queue: ObjectQueueState, entry: IndexedMessage, now_ms: int) -> bool:
        """Return whether the message's group is to be left alone for now."""
        group = entry.body.group
        return group is not None and now_ms < self._left_until.get((queue.ref, group), 0)

    async def begin(self, ref: QueueRef, entries: list[IndexedMessage], now_ms: int) -> GroupBatch | None:
        """Return the stored messages to claim, in order; None if another process holds the group or nothing is due."""
        group = entries[0].body.group
        assert group is not None
        key = layout.group(ref, group)
        current = await self._documents.read(key)
        if current is not None and current.is_busy:
            return None
        before = [] if current is None or current.body is None else _decode_group(current.body).ids
        if await self._in_flight(ref, before, now_ms):
            self._leave_alone(ref, group, now_ms)
            return None
        first = await self._first(ref, group, len(entries), now_ms)
        if not first:
            return None
        batch = GroupBody(sorted({*(each.id for each in first), *before}))
        try:
            current = await self._documents.write(key, encode(batch), current)
        except (PreconditionFailed, Busy):
            self._leave_alone(ref, group, now_ms)
            return None
        if await self._in_flight(ref, before, now_ms):
            self._leave_alone(ref, group, now_ms)
            return None
        return GroupBatch(first, current)

    async def is_ours(self, batch: GroupBatch) -> bool:
        """Return whether no other process has written the group's document since `begin`."""
        there = await self._documents.read(batch.document.key)
        return there is not None and there.content.nonce == batch.document.content.nonce

    def _leave_alone(self, ref: QueueRef, group: str, now_ms: int) -> None:
        if len(self._left_until) > 10_000:
            self._left_until.clear()
        self._left_until[ref, group] = now_ms + _LEAVE_MS

    async def _in_flight(self, ref: QueueRef, ids: list[int], now_ms: int) -> bool:
        entries = await run_concurrently(ids, lambda id: self._messages.read(ref, id, now_ms))
        return any(entry is not None and entry.body.life.state is State.IN_FLIGHT for entry in entries)

    async def _first(self, ref: QueueRef, group: str, limit: int, now_ms: int) -> list[IndexedMessage]:
        """Return at most `limit` of the group's oldest messages as they are stored, up to the first that is not due."""
        found: list[IndexedMessage] = []
        with as_unavailable():
            async for page in self._documents.bucket.pages(layout.group_members(ref, group)):
                for item in page:
                    entry = await self._messages.read(ref, int(layout.stem(item.key)), now_ms)
                    if entry is None or entry.body.life.state not in (State.READY, State.IN_FLIGHT):
                        continue
                    life = entry.body.life
                    if life.state is State.IN_FLIGHT or life.visible_at > now_ms:
                        return found
                    found.append(entry)
                    if len(found) == limit:
                        return found
        return found
