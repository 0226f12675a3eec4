"""Payloads that come bit by bit: written as they come, and a message's once it is enqueued.

    first piece     + u, c        from here on a crash leaves a place that no message has
    further pieces  + c           without a sync of their own: the log keeps the order, so the message's sync is theirs
    enqueue         - u, + m …    in the one batch that makes it a message
    abandoned       - c, u        by the sweeps, in bounded steps; so are places that a dead process left

Every few pieces a writer waits for a sync all the same: one that comes at the end of a large payload would have all of
it to write, with every other caller waiting for it.
"""

from collections.abc import Iterable

from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Draft, Envelope, Pieces
from holdfast.model.names import QueueRef
from holdfast.runtime import Runtime, let_others_go_on
from holdfast.stores.contract import Listener
from holdfast.stores.disk.free_space import DiskRoom
from holdfast.stores.payloads.pieces import PIECE_BYTES
from holdfast.stores.payloads.staging import StageWriter
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.directory.queue_catalog import QueueCatalog
from holdfast.stores.rocks.directory.store_facts import ShardFacts
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.payloads.pieces import RocksPieceCursor, RocksPieceReader, piece_key
from holdfast.stores.rocks.queues.idempotency_keys import SeenKeys
from holdfast.stores.rocks.queues.message_cache import MessageCache

# Bytes that a writer has written when it waits for the disk.
_SYNC_EVERY = 8 << 20


class RocksStaging:
    """`PayloadStore`, and the staged payloads for the rest of the store."""

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        catalog: QueueCatalog,
        entries: MessageCache,
        seen: SeenKeys,
        facts: ShardFacts,
        room: DiskRoom,
        listener: Listener,
        writers: "dict[int, RocksStage]",
    ) -> None:
        """`writers`: the payloads on their way in all shards, by their place."""
        self._engine = engine
        self._runtime = runtime
        self._catalog = catalog
        self._entries = entries
        self._seen = seen
        self._facts = facts
        self._room = room
        self._listener = listener
        self._writers = writers
        # Places that nobody will have a message for.
        self._abandoned: list[int] = []

    def load(self) -> None:
        """At the start: what is staged was left by a process that died."""
        for key in self._engine.database.scan(keys.INDEXES, keys.STAGES, keys.after(keys.STAGES)):
            self._abandoned.append(keys.parse_instant(key[len(keys.STAGES) :]))

    # --- Writing -----------------------------------------------------------------------------------------------

    async def stage(self, ref: QueueRef, draft: Draft, now_ms: int, *, auto_create: bool) -> "RocksStage":
        if not auto_create:
            self._catalog.require(ref)
        if self._catalog.find(ref) is None:
            self._catalog.tenants.check_room_for_queue(ref.tenant)
        else:
            self._catalog.require_open(ref)
        [place] = self._facts.take_ids(1, now_ms)
        writer = self._writers[place] = RocksStage(self, ref, draft, place)
        return writer

    async def read(self, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> RocksPieceReader:
        def find() -> Envelope | None:
            shelf = self._catalog.find(ref)
            entry = None if shelf is None else self._entries.get(shelf, id)
            return None if entry is None else entry.envelope

        return RocksPieceReader(self._engine, self._runtime, id, pieces, find, start)

    async def put(self, writer: "RocksStage", piece: bytes) -> None:
        """Refused before it is written, if the message could not be enqueued any more."""
        self._engine.check()
        now_ms = self._runtime.clock.now_ms()
        self._room.check(now_ms, len(piece))
        self._check_quotas(writer, piece, now_ms)
        engine, place = self._engine, writer.place
        engine.begin()
        if not writer.pieces:
            engine.insert(keys.STAGES + keys.place(place), b"", keys.INDEXES)
        engine.insert(piece_key(place, writer.pieces), piece, keys.INDEXES)
        writer.count_piece(piece)
        engine.written()
        if writer.size % _SYNC_EVERY < PIECE_BYTES:
            await engine.committed()
        await let_others_go_on(self._runtime)

    def _check_quotas(self, writer: "RocksStage", piece: bytes, now_ms: int) -> None:
        """Those on their way count for each other: else they could fill the disk beside any quota."""
        tenant = writer.ref.tenant
        tenants = self._catalog.tenants
        if tenants.has_quotas(tenant) and not self._is_duplicate(writer, now_ms):
            others = [each.size for each in self._writers.values() if each.ref.tenant == tenant and each is not writer]
            tenants.check_quotas(tenant, [writer.bytes_with(piece)], on_their_way=others)

    def _is_duplicate(self, writer: "RocksStage", now_ms: int) -> bool:
        """It will be answered with the message that has its key already, and kept nowhere."""
        key = writer.draft.key
        shelf = None if key is None else self._catalog.find(writer.ref)
        return shelf is not None and key is not None and bool(self._seen.known(shelf, [key], now_ms))

    def forsake(self, writer: "RocksStage") -> None:
        if self._writers.pop(writer.place, None) is None:
            return  # it is a message's now
        self._catalog.tenants.release_queue_id(writer.ref)
        if writer.pieces:
            self.give_up(writer.place)

    def give_up(self, place: int) -> None:
        """Let the sweeps delete the pieces at a place."""
        self._abandoned.append(place)
        self._listener.deadline(self._runtime.clock.now_ms())

    # --- Enqueueing --------------------------------------------------------------------------------------------

    def check(self, pieces: Pieces) -> None:
        """Refuse a payload that is not on its way any more."""
        writer = self._writers.get(pieces.place)
        if writer is None:
            raise StoreUnavailable("the store was reopened after this payload was uploaded: upload it again")
        if writer.staging is not self:
            raise StoreUnavailable(
                f"{writer.ref} was deleted and made again after this payload was uploaded: upload it again"
            )

    def take(self, pieces: Pieces) -> None:
        """It is a message's from this step on."""
        del self._writers[pieces.place]
        self.take_copy(pieces)

    # --- Copies from another shard ---------------------------------------------------------------------------------

    async def copy(self, pieces: Pieces, source: Engine) -> bool:
        """Copy a payload from another shard, to the same place in this one, ahead of its message. Return False if it
        has gone there meanwhile. Unless all of it was copied, the sweeps delete what was."""
        # An earlier copy to the same place may be waiting for the sweeps, which must not delete this one.
        self._abandoned = [place for place in self._abandoned if place != pieces.place]
        reading, number = RocksPieceCursor(source, pieces), 0
        try:
            while (piece := reading.next()) is not None:
                await self._copy_piece(pieces.place, number, piece)
                number += 1
        except StoreUnavailable:
            self.give_up(pieces.place)
            source.check()
            if not reading.has_failed:
                raise
            return False
        except BaseException:
            self.give_up(pieces.place)
            raise
        return True

    async def _copy_piece(self, place: int, number: int, piece: bytes) -> None:
        engine = self._engine
        self._room.check(self._runtime.clock.now_ms(), len(piece))
        engine.begin()
        if not number:
            engine.put(keys.STAGES + keys.place(place), b"", keys.INDEXES)
        engine.put(piece_key(place, number), piece, keys.INDEXES)
        engine.written()
        if (number + 1) * PIECE_BYTES % _SYNC_EVERY < PIECE_BYTES:
            await engine.committed()
        await let_others_go_on(self._runtime)

    def take_copy(self, pieces: Pieces) -> None:
        """The payload at a place is a message's from this step on."""
        self._engine.delete(keys.STAGES + keys.place(pieces.place), keys.INDEXES)

    def give_up_copies(self, copied: Iterable[Pieces]) -> None:
        """Let the sweeps delete those copies that have not become a message's."""
        self._engine.write()
        for pieces in copied:
            if self._engine.database.get(keys.INDEXES, keys.STAGES + keys.place(pieces.place)) is not None:
                self.give_up(pieces.place)

    # --- What was abandoned ------------------------------------------------------------------------------------

    def delete_abandoned(self, limit: int) -> int:
        """Up to so many pieces."""
        engine, deleted = self._engine, 0
        while self._abandoned and deleted < limit:
            place = self._abandoned[-1]
            engine.write()
            last = engine.database.floor(keys.INDEXES, piece_key(place, 0xFFFFFFFF))
            count = 0
            if last is not None and last[:-4] == keys.PIECES + keys.place(place):
                count = int.from_bytes(last[-4:], "big") + 1
            # From the end: a crash in between leaves the same, only less.
            first = max(0, count - (limit - deleted))
            for number in range(first, count):
                engine.delete(piece_key(place, number), keys.INDEXES)
            deleted += max(1, count - first)
            if not first:
                engine.delete(keys.STAGES + keys.place(place), keys.INDEXES)
                self._abandoned.pop()
        return deleted

    def next_at(self) -> int | None:
        return self._runtime.clock.now_ms() if self._abandoned else None


class RocksStage(StageWriter):
    def __init__(self, staging: RocksStaging, ref: QueueRef, draft: Draft, place: int) -> None:
        super().__init__(ref, draft, place, PIECE_BYTES)
        self.staging = staging

    async def _put(self, piece: bytes) -> None:
        await self.staging.put(self, piece)

    def abandon(self) -> None:
        self.staging.forsake(self)
