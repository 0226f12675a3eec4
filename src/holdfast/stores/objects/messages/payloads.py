"""Stream large payloads to and from the bucket.

A payload is uploaded to the key that its message will have, under the message's future id. A payload without a message
is an orphan. Sweeps delete it after a day, because another process may still be writing it.
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
from holdfast.stores.objects.buckets.retries import as_unavailable
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.messages.counts import QueueCounts
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.operations.directory import ObjectDirectory
from holdfast.stores.objects.operations.node_numbers import ObjectNodeNumbers
from holdfast.stores.payloads.pieces import damaged_payload, payload_gone
from holdfast.stores.payloads.staging import StageWriter

# Data from the caller is collected to this size in bytes before it crosses to the bucket's loop.
_PART_BYTES = 1 << 20


class ObjectPayloads:
    """The `PayloadStore`, and the staged payloads that are not enqueued yet."""

    def __init__(
        self,
        driver: LoopDriver,
        messages: ObjectMessages,
        directory: ObjectDirectory,
        queue_counts: QueueCounts,
        nodes: ObjectNodeNumbers,
        check_disk_space: Callable[[int], None],
    ) -> None:
        """`check_disk_space` raises `StoreUnavailable` if the disk has no room for this many more bytes."""
        self.driver = driver
        self.messages = messages
        self._directory = directory
        self.queue_counts = queue_counts
        self._nodes = nodes
        self.check_disk_space = check_disk_space
        # Staged payloads by message id, until they are enqueued.
        self._staged: dict[int, BucketStage] = {}

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> "BucketStage":
        """Begin the upload of a draft's payload. Raise the errors that enqueueing the draft would raise now."""
        link = self.driver.opened()
        self.check_disk_space(draft.bytes)
        staged = await self._stage(link, ref, draft, now_ms, auto_create=auto_create)
        self._staged[staged.blob_id] = staged
        return staged

    async def read(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> "BucketReader":
        """Return a reader of a message's payload from byte `start` on."""
        return BucketReader(self.messages, self.driver.opened(), ref, id, pieces, start)

    def take(self, drafts: list[Draft]) -> list["BucketStage"]:
        """Return the staged payloads of these drafts, which are about to be enqueued."""
        blob_ids = [draft.pieces.blob_id for draft in drafts if draft.pieces is not None]
        return [self._staged.pop(blob_id) for blob_id in blob_ids if blob_id in self._staged]

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
        with as_unavailable():
            upload = await self.messages.documents.bucket.upload(key)
        return BucketStage(self, link, ref, draft, id, upload)

    async def check(self, staged: "BucketStage", size: int) -> None:
        """Raise `OverQuota` if the upload, at this size in bytes, does not fit. Concurrent uploads count towards the
        quota."""
        config = await self._directory.config(staged.ref.tenant)
        now_ms = self.messages.documents.clock.now_ms()
        await self.queue_counts.check_quotas(staged.ref.tenant, config.quotas, [size], now_ms, upload_id=staged.blob_id)
        self.queue_counts.uploading.setdefault(staged.ref.tenant, {})[staged.blob_id] = size

    def forget(self, staged: "BucketStage") -> None:
        """Stop counting an upload towards the quota."""
        others = self.queue_counts.uploading.get(staged.ref.tenant, {})
        others.pop(staged.blob_id, None)
        if not others:
            self.queue_counts.uploading.pop(staged.ref.tenant, None)


class BucketStage(StageWriter):
    """A payload being uploaded."""

    def __init__(
        self,
        payloads: ObjectPayloads,
        link: LoopBridge,
        ref: QueueRef,
        draft: Draft,
        blob_id: int,
        upload: ObjectUpload,
    ) -> None:
        super().__init__(ref, draft, blob_id, _PART_BYTES)
        self._payloads = payloads
        self._link = link
        self._upload = upload
        self._is_finished = False
        # Set by the enqueue that used the payload.
        self.is_taken = False

    async def _put(self, piece: bytes) -> None:
        self._payloads.check_disk_space(len(piece))

        async def put() -> None:
            await self._payloads.check(self, self.bytes_with(piece))
            with as_unavailable():
                await self._upload.write(piece)
            self.count_piece(piece)

        await self._link.call(put())

    async def _complete(self) -> None:
        async def finish() -> None:
            with as_unavailable():
                await self._upload.finish()

        await self._link.call(finish())
        self._is_finished = True

    def abandon(self) -> None:
        """Stop counting the upload, and delete it unless a message uses it."""
        self._payloads.forget(self)
        if self.is_taken:
            return
        self.is_taken = True

        async def drop() -> None:
            if self._is_finished:
                key = layout.payload_of(layout.message(self.ref, self.blob_id))
                await self._payloads.messages.documents.delete([key])
            else:
                await self._upload.abandon()

        self._link.background(drop())


class BucketReader(PayloadReader):
    """A reader of one payload. It does not read ahead: only the current part is in memory."""

    def __init__(
        self, messages: ObjectMessages, link: LoopBridge, ref: QueueRef, id: int, pieces: Pieces, start: int
    ) -> None:
        self._messages = messages
        self._link = link
        self._ref = ref
        self._id = id
        self._pieces = pieces
        self._start = self._at = start
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
        now_ms = self._messages.documents.clock.now_ms()
        entry = await self._messages.read(self._ref, self._id, now_ms)
        body = None if entry is None else entry.body
        if entry is None or body is None or (body.size, body.checksum) != (self._pieces.size, self._pieces.checksum):
            raise payload_gone(self._id)
        if body.is_inline:
            self._at = self._pieces.size
            return body.payload[self._start :]
        if self._parts is None:
            self._parts = self._messages.documents.bucket.stream(entry.payload_key, self._at)
        try:
            with as_unavailable():
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
