"""Uploads: payloads that arrive in parts, are written in pieces, and later belong to a message.

    first piece     + u, c        from here on, a crash leaves a blob without a message
    further pieces  + c           no sync of their own: the log keeps the order, so the sync of the message covers them
    enqueue         - u, + m …    in the commit that adds the message
    abandoned       - c, u        by sweeps in bounded steps, as are the blobs that a killed process has left

The letters are the spaces of `keys.py`; + puts a key and - deletes it. A writer still waits for a sync every few
pieces. Otherwise one sync at the end of a large payload would have to write all of it, and delay every other caller.

How to change this format: the only record is the key of `keys.STAGES`, with an empty value. A non-empty value may be
added later, because nothing reads the value.
"""

from collections.abc import Collection, Iterable

from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft, Envelope, Pieces
from holdfast.model.names import QueueRef
from holdfast.runtime import yield_to_others
from holdfast.stores.payloads.pieces import PIECE_BYTES
from holdfast.stores.payloads.staging import StageWriter
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.part_shortage import with_quota
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.payloads.pieces import RocksPieceCursor, RocksPieceReader, piece_key
from holdfast.stores.rocks.shard_parts import ShardParts

# A writer waits for a sync each time it has written this many bytes.
_SYNC_EVERY = 8 << 20


class RocksStaging:
    """The `PayloadStore` of one shard, and its unfinished uploads."""

    def __init__(self, parts: ShardParts, writers: "dict[int, RocksStage]") -> None:
        """`writers` has the unfinished uploads of all shards, by blob id."""
        self._engine = parts.engine
        self._runtime = parts.runtime
        self._catalog = parts.catalog
        self._cache = parts.cache
        self._seen = parts.seen
        self._facts = parts.facts
        self._room = parts.room
        self._listener = parts.listener
        self._writers = writers
        # The blob ids of abandoned uploads, whose pieces sweeps delete.
        self._abandoned: list[int] = []

    def load(self) -> None:
        """Mark the uploads that an earlier process left unfinished as abandoned."""
        for key in self._engine.database.scan(keys.INDEXES, keys.STAGES, keys.after(keys.STAGES)):
            self._abandoned.append(keys.parse_instant(key[len(keys.STAGES) :]))

    # --- Writing -----------------------------------------------------------------------------------------------

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> "RocksStage":
        """Return a writer for the payload of `draft`; see `PayloadStore.stage`."""
        if not auto_create:
            self._catalog.require(ref)
        if self._catalog.find(ref) is None:
            self._catalog.tenants.check_room_for_queue(ref.tenant)
        else:
            self._catalog.require_open(ref)
        [blob_id] = self._facts.take_ids(1, now_ms)
        writer = self._writers[blob_id] = RocksStage(self, ref, draft, blob_id)
        return writer

    async def read(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> RocksPieceReader:
        """Return a reader of the payload of a message; see `PayloadStore.read`."""

        def find() -> Envelope | None:
            queue = self._catalog.find(ref)
            entry = None if queue is None else self._cache.get(queue, id)
            return None if entry is None else entry.envelope

        return RocksPieceReader(self._engine, self._runtime, id, pieces, find, start)

    async def put(self, writer: "RocksStage", piece: bytes) -> None:
        """Write the next piece of an upload. Raise `OverQuota`, `PayloadTooLarge` or `StoreUnavailable` before writing
        if the message can no longer be enqueued."""
        self._engine.check()
        now_ms = self._runtime.clock.now_ms()
        self._room.check(now_ms, len(piece))
        await with_quota(lambda: self._check_quotas(writer, piece, now_ms))
        engine, blob_id = self._engine, writer.blob_id
        engine.begin()
        if not writer.pieces:
            engine.insert(keys.STAGES + keys.pack_blob_id(blob_id), b"", keys.INDEXES)
        engine.insert(piece_key(blob_id, writer.pieces), piece, keys.INDEXES)
        writer.count_piece(piece)
        engine.written()
        if writer.size % _SYNC_EVERY < PIECE_BYTES:
            await engine.committed()
        await yield_to_others(self._runtime)

    async def _check_quotas(self, writer: "RocksStage", piece: bytes, now_ms: int) -> None:
        """Check the tenant's quotas for the upload with its next piece. The tenant's other uploads count too, because
        otherwise concurrent uploads could fill the disk in spite of a quota."""
        tenant = writer.ref.tenant
        tenants = self._catalog.tenants
        if tenants.has_quotas(tenant) and not self._is_duplicate(writer, now_ms):
            others = [each.size for each in self._writers.values() if each.ref.tenant == tenant and each is not writer]
            tenants.check_quotas(tenant, [writer.bytes_with(piece)], uploading=others)

    def _is_duplicate(self, writer: "RocksStage", now_ms: int) -> bool:
        """Return whether the draft's idempotency key was used before, so that enqueueing it will store nothing."""
        key = writer.draft.key
        queue = None if key is None else self._catalog.find(writer.ref)
        return queue is not None and key is not None and bool(self._seen.known(queue, [key], now_ms))

    def abandon(self, writer: "RocksStage") -> None:
        """Discard an upload, unless it belongs to a message now."""
        if self._writers.pop(writer.blob_id, None) is None:
            return
        self._catalog.tenants.release_queue_id(writer.ref)
        if writer.pieces:
            self.abandon_blob(writer.blob_id)

    def abandon_blob(self, blob_id: int) -> None:
        """Let sweeps delete the pieces of a payload."""
        self._abandoned.append(blob_id)
        self._listener.deadline(self._runtime.clock.now_ms())

    # --- Enqueueing --------------------------------------------------------------------------------------------

    def check(self, pieces: Pieces) -> None:
        """Raise `StoreUnavailable` if the payload of a draft is no longer one of the unfinished uploads of this
        shard."""
        writer = self._writers.get(pieces.blob_id)
        if writer is None:
            raise StoreUnavailable("the store was reopened after this payload was uploaded: upload it again")
        if writer.staging is not self:
            raise StoreUnavailable(
                f"{writer.ref} was deleted and made again after this payload was uploaded: upload it again"
            )

    def attach(self, pieces: Pieces) -> None:
        """Mark an upload as the payload of the message that the open commit adds."""
        del self._writers[pieces.blob_id]
        self.attach_copy(pieces)

    def keep(self, blob_ids: Collection[int]) -> None:
        """Keep pieces that `load` took for those of unfinished uploads: a transfer to another shard has them."""
        self._abandoned = [blob_id for blob_id in self._abandoned if blob_id not in blob_ids]

    # --- Copies from another shard ---------------------------------------------------------------------------------

    async def copy(self, pieces: Pieces, source: Engine) -> bool:
        """Copy a payload from another shard under the same blob id, before its message is moved here.

        Return False if the payload was deleted there during the copy. Sweeps delete an incomplete copy.
        """
        cursor, number = RocksPieceCursor(source, pieces), 0
        try:
            while (piece := cursor.next()) is not None:
                await self.copy_piece(pieces.blob_id, number, piece)
                number += 1
        except StoreUnavailable:
            self.abandon_blob(pieces.blob_id)
            source.check()
            if not cursor.has_failed:
                raise
            return False
        except BaseException:
            self.abandon_blob(pieces.blob_id)
            raise
        return True

    async def copy_piece(self, blob_id: int, number: int, piece: bytes) -> None:
        """Write a piece of a payload of another shard, before its message comes to this one."""
        if not number:
            # Sweeps must not delete this copy if an earlier one under the same blob id was abandoned.
            self.keep([blob_id])
        engine = self._engine
        self._room.check(self._runtime.clock.now_ms(), len(piece))
        engine.begin()
        if not number:
            engine.put(keys.STAGES + keys.pack_blob_id(blob_id), b"", keys.INDEXES)
        engine.put(piece_key(blob_id, number), piece, keys.INDEXES)
        engine.written()
        if (number + 1) * PIECE_BYTES % _SYNC_EVERY < PIECE_BYTES:
            await engine.committed()
        await yield_to_others(self._runtime)

    def attach_copy(self, pieces: Pieces) -> None:
        """Mark a copied payload as that of the message that the open commit adds."""
        self._engine.delete(keys.STAGES + keys.pack_blob_id(pieces.blob_id), keys.INDEXES)

    def abandon_copies(self, copied: Iterable[Pieces]) -> None:
        """Let sweeps delete the copies that do not belong to a message."""
        self._engine.write()
        for pieces in copied:
            if self._engine.database.get(keys.INDEXES, keys.STAGES + keys.pack_blob_id(pieces.blob_id)) is not None:
                self.abandon_blob(pieces.blob_id)

    # --- Sweeping ----------------------------------------------------------------------------------------------

    def delete_abandoned(self, limit: int) -> int:
        """Delete up to `limit` pieces of abandoned payloads. Return the number of pieces, counting an abandoned payload
        without pieces as 1."""
        engine, deleted = self._engine, 0
        while self._abandoned and deleted < limit:
            blob_id = self._abandoned[-1]
            engine.write()
            last = engine.database.floor(keys.INDEXES, piece_key(blob_id, 0xFFFFFFFF))
            count = 0
            if last is not None and last[:-4] == keys.PIECES + keys.pack_blob_id(blob_id):
                count = int.from_bytes(last[-4:], "big") + 1
            # Delete from the end, so that after a crash the remaining pieces are still numbered from 0.
            first = max(0, count - (limit - deleted))
            for number in range(first, count):
                engine.delete(piece_key(blob_id, number), keys.INDEXES)
            deleted += max(1, count - first)
            if not first:
                engine.delete(keys.STAGES + keys.pack_blob_id(blob_id), keys.INDEXES)
                self._abandoned.pop()
        return deleted

    def next_at(self) -> int | None:
        """Return the current time if there are abandoned payloads to delete, else None."""
        return self._runtime.clock.now_ms() if self._abandoned else None


class RocksStage(StageWriter):
    """The writer of one upload."""

    def __init__(self, staging: RocksStaging, ref: QueueRef, draft: Draft, blob_id: int) -> None:
        super().__init__(ref, draft, blob_id, PIECE_BYTES)
        self.staging = staging

    async def _put(self, piece: bytes) -> None:
        await self.staging.put(self, piece)

    def abandon(self) -> None:
        """Discard the upload, unless it belongs to a message now."""
        self.staging.abandon(self)
