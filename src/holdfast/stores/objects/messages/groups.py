"""FIFO groups among several processes.

A group's batch is claimed under the group's own sheet, which names the messages that may be in flight:

    list the group's messages, read them                 the oldest that are due, in order of id
    write the group's sheet: these, and those of before  of two claimers one goes on
    read those of before once more                       one in flight: leave it
    claim each, in order                                 one lost: what is behind it is left
    read the group's sheet                               another's now: give back what was claimed

Of two claimers that both got as far as to claim, the one that wrote the sheet first sees the other's sheet, or the
other sees its message in flight: never do both keep theirs.
"""

import asyncio
from dataclasses import dataclass

import msgspec

from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import Busy, answered, side_by_side
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.cas_documents import ReadCasDocument
from holdfast.stores.objects.documents.document_format import Batch, encode
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.messages.queue_windows import ObjectQueueState

# How long a group that another process holds is left alone, if its lease does not end sooner.
_LEAVE_MS = 200

_batch_of = msgspec.msgpack.Decoder(Batch).decode


@dataclass(slots=True)
class GroupBatch:
    entries: list[IndexedMessage]
    held: ReadCasDocument


class ObjectGroups:
    def __init__(self, messages: ObjectMessages) -> None:
        self._messages = messages
        self._sheets = messages.sheets
        # Groups that another holds, as far as is known: until when to leave them.
        self._left_until: dict[tuple[QueueRef, str], int] = {}
        self._locks: dict[tuple[QueueRef, str], asyncio.Lock] = {}

    def is_held(self, shelf: ObjectQueueState, entry: IndexedMessage, now_ms: int) -> bool:
        group = entry.body.group
        return group is not None and now_ms < self._left_until.get((shelf.ref, group), 0)

    async def begin(self, ref: QueueRef, entries: list[IndexedMessage], now_ms: int) -> GroupBatch | None:
        """The messages to claim, in order: what is stored, not what is thought. None: the group is held."""
        group = entries[0].body.group
        assert group is not None
        key = layout.group(ref, group)
        held = await self._sheets.read(key)
        if held is not None and held.is_busy:
            return None
        before = [] if held is None or held.body is None else _batch_of(held.body).ids
        still = await self._in_flight(ref, before, now_ms)
        if still:
            self._leave(ref, group, now_ms)
            return None
        first = await self._first(ref, group, len(entries), now_ms)
        if not first:
            return None
        batch = Batch(sorted({*(each.id for each in first), *before}))
        try:
            held = await self._sheets.write(key, encode(batch), held)
        except (PreconditionFailed, Busy):
            self._leave(ref, group, now_ms)
            return None
        if await self._in_flight(ref, before, now_ms):
            self._leave(ref, group, now_ms)
            return None
        return GroupBatch(first, held)

    async def is_ours(self, batch: GroupBatch) -> bool:
        there = await self._sheets.read(batch.held.key)
        return there is not None and there.sheet.nonce == batch.held.sheet.nonce

    def _leave(self, ref: QueueRef, group: str, now_ms: int) -> None:
        if len(self._left_until) > 10_000:
            self._left_until.clear()
        self._left_until[ref, group] = now_ms + _LEAVE_MS

    async def _in_flight(self, ref: QueueRef, ids: list[int], now_ms: int) -> bool:
        entries = await side_by_side(ids, lambda id: self._messages.read(ref, id, now_ms))
        return any(entry is not None and entry.body.life.state is State.IN_FLIGHT for entry in entries)

    async def _first(self, ref: QueueRef, group: str, limit: int, now_ms: int) -> list[IndexedMessage]:
        """The group's oldest, as they are stored: up to `limit`, and up to the first that is not due."""
        found: list[IndexedMessage] = []
        with answered():
            async for page in self._sheets.bucket.pages(layout.group_members(ref, group)):
                for item in page:
                    entry = await self._messages.read(ref, int(layout.own_name(item.key)), now_ms)
                    if entry is None or entry.body.life.state not in (State.READY, State.IN_FLIGHT):
                        continue
                    life = entry.body.life
                    if life.state is State.IN_FLIGHT or life.visible_at > now_ms:
                        return found
                    found.append(entry)
                    if len(found) == limit:
                        return found
        return found
