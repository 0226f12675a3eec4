"""Payloads that come and go bit by bit.

A payload on its way in is uploaded to where its message will have it, under the id that the message will get. One that
no message has is an orphan; sweeps delete it after a day, for another process may be at it.
"""

from collections.abc import AsyncIterator, Callable
from typing import Self
from zlib import crc32

from holdfast.model.message import Draft, Pieces
from holdfast.model.names import QueueRef
from holdfast.stores.contract import PayloadReader
from holdfast.stores.event_loop.driver import LoopDriver, on_driver
from holdfast.stores.event_loop.link import LoopBridge
from holdfast.stores.logic.quotas import check_room_for_queue
from holdfast.stores.logic.results import check_accepts
from holdfast.stores.objects.buckets.bucket import ObjectMissing, ObjectUpload
from holdfast.stores.objects.buckets.retries import answered
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.messages.counts import QueueCounts
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.objects.operations.node_numbers import ObjectNodeNumbers
from holdfast.stores.payloads.pieces import damaged_payload, payload_gone
from holdfast.stores.payloads.staging import StageWriter

# What a caller writes is gathered to this much before it crosses to the bucket.
_PART = 1 << 20


class ObjectPayloads:
    """`PayloadStore`, and the staged payloads until they are enqueued."""

    def __init__(
        self,
        driver: LoopDriver,
        messages: ObjectMessages,
        directory: ObjectDirectory,
        counting: QueueCounts,
        nodes: ObjectNodeNumbers,
        check_room: Callable[[int], None],
    ) -> None:
        """`check_room` raises `StoreUnavailable` if the disk has no room for this many bytes."""
        self.driver = driver
        self.messages = messages
        self._directory = directory
        self.counting = counting
        self._nodes = nodes
        self.check_room = check_room
        # Written by callers, and not yet enqueued.
        self._staged: dict[int, BucketStage] = {}

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> "BucketStage":
        link = self.driver.opened()
        self.check_room(draft.bytes)
        staged = await self._stage(link, ref, draft, now_ms, auto_create=auto_create)
        self._staged[staged.place] = staged
        return staged

    async def read(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> "BucketReader":
        return BucketReader(self.messages, self.driver.opened(), ref, id, pieces, start)

    def take(self, drafts: list[Draft]) -> list["BucketStage"]:
        """Return the staged payloads of these drafts, which are about to be enqueued."""
        places = [draft.pieces.place for draft in drafts if draft.pieces is not None]
        return [self._staged.pop(place) for place in places if place in self._staged]

    @on_driver
    async def _stage(
        self, link: LoopBridge, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool
    ) -> "BucketStage":
        row = await self._directory.find(ref)
        check_accepts(ref, row, auto_create=auto_create)
        if row is None:
            queues = await self._directory.list_queues(ref.tenant)
            check_room_for_queue(ref.tenant, (await self._directory.config(ref.tenant)).quotas, len(queues))
        [id] = self._nodes.take_ids(1, now_ms)
        key = layout.payload_of(layout.message(ref, id))
        with answered():
            upload = await self.messages.sheets.bucket.upload(key)
        return BucketStage(self, link, ref, draft, id, upload)

    async def check(self, staged: "BucketStage", size: int) -> None:
        """Those on their way count for each other."""
        config = await self._directory.config(staged.ref.tenant)
        now_ms = self.messages.sheets.clock.now_ms()
        await self.counting.check_quotas(staged.ref.tenant, config.quotas, [size], now_ms, whose=staged.place)
        self.counting.on_their_way.setdefault(staged.ref.tenant, {})[staged.place] = size

    def forget(self, staged: "BucketStage") -> None:
        others = self.counting.on_their_way.get(staged.ref.tenant, {})
        others.pop(staged.place, None)
        if not others:
            self.counting.on_their_way.pop(staged.ref.tenant, None)


class BucketStage(StageWriter):
    def __init__(
        self, payloads: ObjectPayloads, link: LoopBridge, ref: QueueRef, draft: Draft, place: int, upload: ObjectUpload
    ) -> None:
        super().__init__(ref, draft, place, _PART)
        self._payloads = payloads
        self._link = link
        self._upload = upload
        self._is_finished = False
        # By the enqueue that made it a message's.
        self.is_taken = False

    async def _put(self, piece: bytes) -> None:
        self._payloads.check_room(len(piece))

        async def put() -> None:
            await self._payloads.check(self, self.bytes_with(piece))
            with answered():
                await self._upload.write(piece)
            self.count_piece(piece)

        await self._link.call(put())

    async def _complete(self) -> None:
        async def finish() -> None:
            with answered():
                await self._upload.finish()

        await self._link.call(finish())
        self._is_finished = True

    def abandon(self) -> None:
        self._payloads.forget(self)
        if self.is_taken:
            return
        self.is_taken = True

        async def drop() -> None:
            if self._is_finished:
                key = layout.payload_of(layout.message(self.ref, self.place))
                await self._payloads.messages.sheets.delete([key])
            else:
                await self._upload.abandon()

        self._link.background(drop())


class BucketReader(PayloadReader):
    """Reads ahead of nothing: what is in memory is what the bucket gives at a time."""

    def __init__(
        self, messages: ObjectMessages, link: LoopBridge, ref: QueueRef, id: int, pieces: Pieces, start: int
    ) -> None:
        self._messages = messages
        self._link = link
        self._ref = ref
        self._id = id
        self._pieces = pieces
        self._at = start
        self._is_from_start = start == 0
        self._checksum = 0
        self._parts: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        part = await self._link.call(self._next())
        if part is None:
            raise StopAsyncIteration
        return part

    async def _next(self) -> bytes | None:
        if self._at >= self._pieces.size:
            return None
        now_ms = self._messages.sheets.clock.now_ms()
        entry = await self._messages.read(self._ref, self._id, now_ms)
        body = None if entry is None else entry.body
        if entry is None or body is None or (body.size, body.checksum) != (self._pieces.size, self._pieces.checksum):
            raise payload_gone(self._id)
        if self._parts is None:
            self._parts = self._messages.sheets.bucket.stream(entry.payload_key, self._at)
        try:
            with answered():
                part = await anext(self._parts, None)
        except ObjectMissing:
            raise payload_gone(self._id) from None
        if not part:
            raise damaged_payload(self._pieces)
        self._at += len(part)
        self._checksum = crc32(part, self._checksum)
        is_end = self._at >= self._pieces.size
        if is_end and self._is_from_start and self._checksum != self._pieces.checksum:
            raise damaged_payload(self._pieces)
        return part
