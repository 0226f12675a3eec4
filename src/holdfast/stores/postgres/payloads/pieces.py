"""Payloads in pieces: each at a place of its own, whatever queue the message is in.

    a payload        is the place's of
    on its way in    a row of `stages`, until the transaction that enqueues it takes that row away
    a message's      its row of `items`; whoever deletes that puts the place back into `stages`, as given up
    on its way to    a row of `arrivals` on the other database, at a place of its own there
      a database

Sweeps delete the pieces of what was given up, in bounded steps: so no ack has a gigabyte to delete. Nothing is ever
deleted from under a message, and no place is used twice: what a reader finds is the payload it began with, or nothing.
"""

from typing import Any, Self
from zlib import crc32

from msgspec.structs import replace

from holdfast.model.answers import Delivery, LedgerEntry
from holdfast.model.errors import MessageNotFound, StoreUnavailable
from holdfast.model.message import Draft, Envelope, Pieces
from holdfast.model.names import QueueRef
from holdfast.model.requests import ClaimRequest
from holdfast.stores.contract import Claims
from holdfast.stores.event_loop.driver import LoopDriver
from holdfast.stores.payloads.pieces import PIECES_ABOVE, PieceChecker, payload_gone, split_payload
from holdfast.stores.postgres.cluster.cluster import PostgresCluster
from holdfast.stores.postgres.cluster.node_numbers import PostgresNodeNumbers
from holdfast.stores.postgres.queues.queue_info import QueueInfo
from holdfast.stores.postgres.queues.registry import QueueRegistry
from holdfast.stores.postgres.schema.statements import SQL


def is_filled(asks: list[ClaimRequest], claims: Claims) -> bool:
    """Whether nobody was given a message without its payload who did not say that he can stream."""
    return all(
        ask.streams or all(each.pieces is None for each in given)
        for ask, given in zip(asks, claims.per_ask, strict=True)
    )


class PostgresPayloads:
    def __init__(self, cluster: PostgresCluster, directory: QueueRegistry, nodes: PostgresNodeNumbers) -> None:
        self._cluster = cluster
        self._directory = directory
        self._nodes = nodes

    def take_place(self, now_ms: int) -> int:
        """One that no payload has or had, on any database."""
        [place] = self._nodes.take_ids(1, self._cluster.stored(now_ms))
        return place

    # --- In a transaction that makes messages of them ------------------------------------------------------------

    async def take(self, connection: Any, drafts: list[Draft], now_ms: int) -> list[Draft]:
        """These drafts, their payloads, if large, in pieces: those that came bit by bit are taken, others are cut."""
        staged = [draft.pieces.place for draft in drafts if draft.pieces is not None]
        if staged:
            taken = await connection.fetch(SQL["take_stages"], staged)
            if len(taken) < len(staged):
                raise StoreUnavailable(
                    "a payload that came in parts is no longer there: its upload rested for too long, or its queue "
                    "went to another database meanwhile; send it again"
                )
        return [
            replace(draft, payload=b"", pieces=await self.put(connection, draft.payload, now_ms))
            if len(draft.payload) > PIECES_ABOVE
            else draft
            for draft in drafts
        ]

    async def put(self, connection: Any, payload: bytes, now_ms: int) -> Pieces:
        """A payload that came whole, at a place of its own."""
        place = self.take_place(now_ms)
        for number, piece in split_payload(payload):
            await connection.execute(SQL["put_piece"], place, number, piece)
        return Pieces(place, len(payload), crc32(payload))

    async def name(self, connection: Any, info: QueueInfo, ids: list[int], drafts: list[Draft]) -> None:
        """Messages that were just enqueued are told where their payloads are."""
        rows = [
            (id, each.pieces.place, each.pieces.size, each.pieces.checksum)
            for id, each in zip(ids, drafts, strict=True)
            if each.pieces is not None
        ]
        if rows:
            await connection.execute(SQL["put_places"], info.key, *map(list, zip(*rows, strict=True)))

    async def edit(self, connection: Any, old: Envelope, new: Envelope, now_ms: int) -> Envelope:
        """A message whose payload is replaced: what it had is given up."""
        if old.pieces is not None:
            await connection.execute(SQL["give_up_places"], [old.pieces.place])
        if len(new.payload) <= PIECES_ABOVE:
            return new
        return replace(new, payload=b"", pieces=await self.put(connection, new.payload, now_ms))

    # --- Whole -----------------------------------------------------------------------------------------------------

    async def filled(self, ref: QueueRef, asks: list[ClaimRequest], claims: Claims) -> Claims:
        """With the payloads for those who did not say that they can stream. What fails here is claimed all the same,
        and comes again when its lease has run out."""
        per_ask = [
            given if ask.streams else await self._whole(ref, given)
            for ask, given in zip(asks, claims.per_ask, strict=True)
        ]
        return claims._replace(per_ask=per_ask)

    async def filled_entries(self, ref: QueueRef, entries: list[LedgerEntry]) -> list[LedgerEntry]:
        return [replace(each, deliveries=await self._whole(ref, each.deliveries)) for each in entries]

    async def _whole(self, ref: QueueRef, deliveries: list[Delivery]) -> list[Delivery]:
        """Without those that were removed, by an operator, since they were claimed."""
        whole = []
        for each in deliveries:
            if each.pieces is None:
                whole.append(each)
                continue
            reading, parts = PostgresPieceCursor(self._directory, ref, each.snowflake, each.pieces), []
            try:
                while (part := await reading.next()) is not None:
                    parts.append(part)
            except MessageNotFound:
                continue
            whole.append(replace(each, payload=b"".join(parts), pieces=None))
        return whole

    # --- Part by part ----------------------------------------------------------------------------------------------

    def reader(self, driver: LoopDriver, ref: QueueRef, id: int, pieces: Pieces, start: int) -> "PostgresPieceReader":
        return PostgresPieceReader(driver, PostgresPieceCursor(self._directory, ref, id, pieces, start))


class PostgresPieceCursor:
    """The pieces of a message's payload in order, each checked."""

    def __init__(self, directory: QueueRegistry, ref: QueueRef, id: int, pieces: Pieces, start: int = 0) -> None:
        self._directory = directory
        self._ref = ref
        self._id = id
        self._place = pieces.place
        self._checker = PieceChecker(pieces, start)

    async def next(self) -> bytes | None:
        if self._checker.is_at_end:
            return None
        return self._checker.check(await self._read(self._checker.number))

    async def _read(self, number: int) -> bytes | None:
        """None if the message is there and this piece of it is not."""
        info = await self._directory.known(self._ref)
        while info is not None:
            found = await info.shard.fetch(SQL["read_piece"], info.key, self._id, self._place, number)
            if found and found[0]["piece"] is not None:
                piece: bytes = found[0]["piece"]
                return piece
            # Its queue may have gone to another database, where all of it is.
            now = await self._directory.load(self._ref)
            if now is not None and (now.shard, now.key) == (info.shard, info.key):
                if found:
                    return None
                break
            info = now
        raise payload_gone(self._id)


class PostgresPieceReader:
    """`PayloadReader`: one piece is in memory at a time."""

    def __init__(self, driver: LoopDriver, reading: PostgresPieceCursor) -> None:
        self._driver = driver
        self._reading = reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._driver.call(self._reading.next)
        if piece is None:
            raise StopAsyncIteration
        return piece
