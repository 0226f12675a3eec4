"""Payloads in pieces: each has a blob id of its own, whatever queue its message is in.

    a payload        is owned by
    being uploaded   a row of `stages`, until the transaction that enqueues the message deletes that row
    of a message     the message's row of `items`; a delete of that row inserts the blob id into `stages`, as abandoned
    being moved to   a row of `arrivals` on the other database, under a blob id of its own there
      a database

The SQL columns call a blob id `place`. Sweeps delete abandoned pieces in bounded steps, so no ack has to delete a
gigabyte. Pieces are never deleted while a message has them, and no blob id is used twice: a reader finds the payload it
began with, or nothing.
"""

from typing import Any, Self
from zlib import crc32

from msgspec.structs import replace

from holdfast.model.answers import Delivery, LedgerEntry
from holdfast.model.errors import MessageNotFound, StoreUnavailable
from holdfast.model.message import Draft, Envelope, Pieces
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.stores.event_loop.driver import LoopDriver
from holdfast.stores.payloads.pieces import PIECES_ABOVE, PieceChecker, payload_gone, split_payload
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.node_numbers import PostgresNodeNumbers
from holdfast.stores.postgres.queues.queue_info import QueueInfo
from holdfast.stores.postgres.queues.registry import QueueRegistry
from holdfast.stores.postgres.schema.statements import SQL
from holdfast.stores.values import Claims


def is_filled(asks: list[ClaimRequest], claims: Claims) -> bool:
    """Return whether every ask without `streams` got whole payloads only."""
    return all(
        ask.streams or all(each.pieces is None for each in given)
        for ask, given in zip(asks, claims.per_ask, strict=True)
    )


class PostgresPayloads:
    """Payloads in pieces, for the parts of the store."""

    def __init__(self, cluster: PostgresCluster, directory: QueueRegistry, nodes: PostgresNodeNumbers) -> None:
        self._cluster = cluster
        self._directory = directory
        self._nodes = nodes

    def take_blob_id(self, now_ms: int) -> int:
        """Return a blob id that no payload has or had, on any database."""
        [blob_id] = self._nodes.take_ids(1, self._cluster.database_time(now_ms))
        return blob_id

    # --- In the transaction of an enqueue ------------------------------------------------------------

    async def take(self, connection: Any, drafts: list[Draft], now_ms: int) -> list[Draft]:
        """Return the drafts with large payloads in pieces: staged uploads become the message's, and whole payloads are
        split. Raise `StoreUnavailable` if an upload was given up."""
        staged = [draft.pieces.blob_id for draft in drafts if draft.pieces is not None]
        if staged:
            taken = await connection.fetch(SQL["take_stages"], staged)
            if len(taken) < len(staged):
                raise StoreUnavailable(
                    "an uploaded payload is no longer there: the upload paused for too long, or its queue moved to "
                    "another database; send it again"
                )
        return [
            replace(draft, payload=b"", pieces=await self.put(connection, draft.payload, now_ms))
            if len(draft.payload) > PIECES_ABOVE
            else draft
            for draft in drafts
        ]

    async def put(self, connection: Any, payload: bytes, now_ms: int) -> Pieces:
        """Store a whole payload in pieces."""
        blob_id = self.take_blob_id(now_ms)
        for number, piece in split_payload(payload):
            await connection.execute(SQL["put_piece"], blob_id, number, piece)
        return Pieces(blob_id, len(payload), crc32(payload))

    async def write_blob_ids(self, connection: Any, info: QueueInfo, ids: list[int], drafts: list[Draft]) -> None:
        """Write the blob ids of payloads in pieces to messages that were just enqueued."""
        rows = [
            (id, each.pieces.blob_id, each.pieces.size, each.pieces.checksum)
            for id, each in zip(ids, drafts, strict=True)
            if each.pieces is not None
        ]
        if rows:
            await connection.execute(SQL["put_places"], info.key, *map(list, zip(*rows, strict=True)))

    async def edit(self, connection: Any, old: Envelope, new: Envelope, now_ms: int) -> Envelope:
        """Replace a message's payload, and give up the pieces of the old one."""
        if old.pieces is not None:
            await connection.execute(SQL["give_up_places"], [old.pieces.blob_id])
        if len(new.payload) <= PIECES_ABOVE:
            return new
        return replace(new, payload=b"", pieces=await self.put(connection, new.payload, now_ms))

    # --- Whole payloads ----------------------------------------------------------------------------------------------

    async def fill(self, ref: QueueRef, asks: list[ClaimRequest], claims: Claims) -> Claims:
        """Fill in whole payloads for the asks without `streams`. If this fails, the messages stay claimed and are
        delivered again when their lease has ended."""
        per_ask = [
            given if ask.streams else await self._with_payloads(ref, given)
            for ask, given in zip(asks, claims.per_ask, strict=True)
        ]
        return claims._replace(per_ask=per_ask)

    async def fill_entries(self, ref: QueueRef, entries: list[LedgerEntry]) -> list[LedgerEntry]:
        """Fill in whole payloads."""
        return [replace(each, deliveries=await self._with_payloads(ref, each.deliveries)) for each in entries]

    async def _with_payloads(self, ref: QueueRef, deliveries: list[Delivery]) -> list[Delivery]:
        """Return deliveries with whole payloads, without messages that an operator has removed since the claim."""
        whole = []
        for each in deliveries:
            if each.pieces is None:
                whole.append(each)
                continue
            cursor, parts = PostgresPieceCursor(self._directory, ref, each.snowflake, each.pieces), []
            try:
                while (part := await cursor.next()) is not None:
                    parts.append(part)
            except MessageNotFound:
                continue
            whole.append(replace(each, payload=b"".join(parts), pieces=None))
        return whole

    # --- Payloads in parts -------------------------------------------------------------------------------------------

    def reader(self, driver: LoopDriver, ref: QueueRef, id: int, pieces: Pieces, start: int) -> "PostgresPieceReader":
        """Return a reader of a payload's pieces from offset `start` on."""
        return PostgresPieceReader(driver, PostgresPieceCursor(self._directory, ref, id, pieces, start))


class PostgresPieceCursor:
    """The pieces of a message's payload in order, each checked."""

    def __init__(self, directory: QueueRegistry, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> None:
        self._directory = directory
        self._ref = ref
        self._id = id
        self._blob_id = pieces.blob_id
        self._checker = PieceChecker(pieces, start)

    async def next(self) -> bytes | None:
        """Return the next piece, or None at the end."""
        if self._checker.is_at_end:
            return None
        return self._checker.check(await self._read(self._checker.number))

    async def _read(self, number: int) -> bytes | None:
        """Read a piece. Return None if the message exists and this piece of it does not; raise `MessageNotFound`
        without the message."""
        info = await self._directory.known(self._ref)
        while info is not None:
            found = await info.shard.fetch(SQL["read_piece"], info.key, self._id, self._blob_id, number)
            if found and found[0]["piece"] is not None:
                piece: bytes = found[0]["piece"]
                return piece
            # The queue may have moved to another database, with all its pieces.
            now = await self._directory.load(self._ref)
            if now is not None and (now.shard, now.key) == (info.shard, info.key):
                if found:
                    return None
                break
            info = now
        raise payload_gone(self._id)


class PostgresPieceReader:
    """`PayloadReader`: one piece is in memory at a time."""

    def __init__(self, driver: LoopDriver, cursor: PostgresPieceCursor) -> None:
        self._driver = driver
        self._cursor = cursor

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._driver.call(self._cursor.next)
        if piece is None:
            raise StopAsyncIteration
        return piece
