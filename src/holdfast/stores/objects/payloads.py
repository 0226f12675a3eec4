"""Payloads that come and go bit by bit.

A payload on its way in is uploaded to where its message will have it, under the id that the message will get. One that
no message has is an orphan; sweeps delete it after a day, for another process may be at it.
"""

from collections.abc import AsyncIterator, Callable
from typing import Self
from zlib import crc32

from holdfast.model.errors import MessageNotFound, StoreUnavailable
from holdfast.model.ids import to_uuid
from holdfast.model.message import Draft, Pieces
from holdfast.model.names import QueueRef
from holdfast.stores.answers import being_deleted, no_such_queue
from holdfast.stores.contract import PayloadReader, PayloadWriter
from holdfast.stores.driver import Driver, on_driver
from holdfast.stores.link import Link
from holdfast.stores.objects import layout
from holdfast.stores.objects.bucket import Missing, Unanswered, Upload
from holdfast.stores.objects.counting import Counting
from holdfast.stores.objects.directory import Directory
from holdfast.stores.objects.messages import Messages
from holdfast.stores.objects.nodes import Nodes
from holdfast.stores.objects.sheets import unavailable
from holdfast.stores.quotas import check_room_for_queue

# What a caller writes is gathered to this much before it crosses to the bucket.
_PART = 1 << 20


class Payloads:
    """`PayloadStore`, and the staged payloads until they are enqueued."""

    def __init__(
        self,
        driver: Driver,
        messages: Messages,
        directory: Directory,
        counting: Counting,
        nodes: Nodes,
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
        self._staged: dict[int, StagedPayload] = {}

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> "StagedPayload":
        link = self.driver.opened()
        self.check_room(draft.bytes)
        staged = await self._stage(link, ref, draft, now_ms, auto_create=auto_create)
        self._staged[staged.place] = staged
        return staged

    async def read(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> "BucketReader":
        return BucketReader(self.messages, self.driver.opened(), ref, id, pieces, start)

    def take(self, drafts: list[Draft]) -> list["StagedPayload"]:
        """Return the staged payloads of these drafts, which are about to be enqueued."""
        places = [draft.pieces.place for draft in drafts if draft.pieces is not None]
        return [self._staged.pop(place) for place in places if place in self._staged]

    @on_driver
    async def _stage(
        self, link: Link, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool
    ) -> "StagedPayload":
        row = await self._directory.find(ref)
        if row is None and not auto_create:
            raise no_such_queue(ref)
        if row is not None and row.drain_until is not None:
            raise being_deleted(ref)
        if row is None:
            queues = await self._directory.list_queues(ref.tenant)
            check_room_for_queue(ref.tenant, (await self._directory.config(ref.tenant)).quotas, len(queues))
        [id] = self._nodes.take_ids(1, now_ms)
        key = layout.payload_of(layout.message(ref, id))
        try:
            upload = await self.messages.sheets.bucket.upload(key)
        except Unanswered as error:
            raise unavailable(error) from None
        return StagedPayload(self, link, ref, draft, id, upload)

    async def check(self, staged: "StagedPayload", size: int) -> None:
        """Those on their way count for each other."""
        config = await self._directory.config(staged.ref.tenant)
        whole = staged.draft.bytes + size
        now_ms = self.messages.sheets.clock.now_ms()
        await self.counting.check_quotas(staged.ref.tenant, config.quotas, [whole], now_ms, whose=staged.place)
        self.counting.on_their_way.setdefault(staged.ref.tenant, {})[staged.place] = whole

    def forget(self, staged: "StagedPayload") -> None:
        others = self.counting.on_their_way.get(staged.ref.tenant, {})
        others.pop(staged.place, None)
        if not others:
            self.counting.on_their_way.pop(staged.ref.tenant, None)


class StagedPayload(PayloadWriter):
    def __init__(self, payloads: Payloads, link: Link, ref: QueueRef, draft: Draft, place: int, upload: Upload) -> None:
        self._payloads = payloads
        self._link = link
        self.ref = ref
        self.draft = draft
        self.place = place
        self._upload = upload
        self._begun = bytearray()
        self._size = 0
        self._checksum = 0
        self._is_finished = False
        # By the enqueue that made it a message's.
        self.is_taken = False

    async def write(self, part: bytes) -> None:
        self._begun += part
        if len(self._begun) >= _PART:
            await self._put()

    async def _put(self) -> None:
        part = bytes(self._begun)
        self._begun.clear()
        self._payloads.check_room(len(part))

        async def put() -> None:
            await self._payloads.check(self, self._size + len(part))
            try:
                await self._upload.write(part)
            except Unanswered as error:
                raise unavailable(error) from None

        await self._link.call(put())
        self._size += len(part)
        self._checksum = crc32(part, self._checksum)

    async def finish(self) -> Pieces:
        if self._begun:
            await self._put()

        async def finish() -> None:
            try:
                await self._upload.finish()
            except Unanswered as error:
                raise unavailable(error) from None

        await self._link.call(finish())
        self._is_finished = True
        return Pieces(self.place, self._size, self._checksum)

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

    def __init__(self, messages: Messages, link: Link, ref: QueueRef, id: int, pieces: Pieces, start: int) -> None:
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
            raise self._gone()
        try:
            if self._parts is None:
                self._parts = self._messages.sheets.bucket.stream(entry.payload_key, self._at)
            part = await anext(self._parts, None)
        except Missing:
            raise self._gone() from None
        except Unanswered as error:
            raise unavailable(error) from None
        if not part:
            raise self._damaged()
        self._at += len(part)
        self._checksum = crc32(part, self._checksum)
        is_end = self._at >= self._pieces.size
        if is_end and self._is_from_start and self._checksum != self._pieces.checksum:
            raise self._damaged()
        return part

    def _gone(self) -> MessageNotFound:
        id = to_uuid(self._id)
        return MessageNotFound(f"message {id} was settled, removed or edited while its payload was read", id=id)

    def _damaged(self) -> StoreUnavailable:
        return StoreUnavailable(f"a payload of {self._pieces.size} bytes is damaged: restore a backup")
