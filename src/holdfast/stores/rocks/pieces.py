"""Payloads in pieces: each at a place of its own, whatever queue the message is in."""

from collections.abc import Callable
from typing import Self
from zlib import crc32

from msgspec.structs import replace

from holdfast.model.errors import MessageNotFound, StoreUnavailable
from holdfast.model.ids import to_uuid
from holdfast.model.message import Envelope, Pieces
from holdfast.runtime import Runtime, let_others_go_on
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine import Engine

PIECE = 256 << 10
# Payloads of more bytes lie in pieces beside the message.
PIECES_ABOVE = 1 << 20


def piece_key(place: int, number: int) -> bytes:
    return keys.PIECES + keys.place(place) + number.to_bytes(4, "big")


def count_of(size: int) -> int:
    return -(-size // PIECE)


def in_pieces(engine: Engine, envelope: Envelope) -> Envelope:
    """A message with its payload, if large, put into pieces. Their place is the message's id, which no other has."""
    payload = envelope.payload
    if len(payload) <= PIECES_ABOVE:
        return envelope
    ix = engine.database.families.ix
    for number in range(count_of(len(payload))):
        engine.put(piece_key(envelope.id, number), payload[number * PIECE : (number + 1) * PIECE], ix)
    return replace(envelope, payload=b"", pieces=Pieces(envelope.id, len(payload), crc32(payload)))


def delete_pieces(engine: Engine, pieces: Pieces) -> None:
    # One by one: a range deletion for each large message would slow every later read of the family.
    ix = engine.database.families.ix
    for number in range(count_of(pieces.size)):
        engine.delete(piece_key(pieces.place, number), ix)


def with_payload(engine: Engine, envelope: Envelope) -> Envelope:
    """A message with its payload read whole."""
    pieces = envelope.pieces
    if pieces is None:
        return envelope
    reading = Reading(engine, pieces)
    parts = []
    while (part := reading.next()) is not None:
        parts.append(part)
    return replace(envelope, payload=b"".join(parts), pieces=None)


class Reading:
    """The pieces of a payload in order, from byte `start` on; read from the beginning, the last one only if all of them
    are what was written."""

    def __init__(self, engine: Engine, pieces: Pieces, start: int = 0) -> None:
        self._engine = engine
        self._pieces = pieces
        self._start = start
        self._number = start // PIECE
        self._is_written = False
        self._checksum = 0

    def next(self) -> bytes | None:
        pieces, number = self._pieces, self._number
        count = count_of(pieces.size)
        if number >= count:
            return None
        if not self._is_written:
            self._engine.write()  # its message may have been enqueued in this very moment
            self._is_written = True
        piece = self._engine.database.get_passing(keys.INDEXES, piece_key(pieces.place, number))
        self._number += 1
        if piece is None or len(piece) != min(PIECE, pieces.size - number * PIECE):
            raise self._damaged()
        if self._start:
            return piece if number * PIECE >= self._start else piece[self._start % PIECE :]
        self._checksum = crc32(piece, self._checksum)
        if self._number == count and self._checksum != pieces.checksum:
            raise self._damaged()
        return piece

    def _damaged(self) -> StoreUnavailable:
        return StoreUnavailable(f"a payload of {self._pieces.size} bytes is damaged: restore a backup")


class PieceReader:
    """`PayloadReader`: others have their turn between two pieces."""

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        id: int,
        pieces: Pieces,
        find: Callable[[], Envelope | None],
        start: int = 0,
    ) -> None:
        self._reading = Reading(engine, pieces, start)
        self._engine = engine
        self._runtime = runtime
        self._id = id
        self._pieces = pieces
        self._find = find

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        await let_others_go_on(self._runtime)
        self._engine.check()
        try:
            piece = self._reading.next()
        except StoreUnavailable:
            envelope = self._find()
            if envelope is not None and envelope.pieces == self._pieces:
                raise
            id = to_uuid(self._id)
            raise MessageNotFound(
                f"message {id} was settled, removed or edited while its payload was read", id=id
            ) from None
        if piece is None:
            raise StopAsyncIteration
        return piece
