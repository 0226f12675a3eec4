"""Payloads in pieces: each at a place of its own, whatever queue the message is in."""

from collections.abc import Callable
from typing import Self
from zlib import crc32

from msgspec.structs import replace

from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Envelope, Pieces
from holdfast.runtime import Runtime, let_others_go_on
from holdfast.stores.payloads.pieces import PIECES_ABOVE, PieceChecker, payload_gone, piece_count, split_payload
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine


def piece_key(place: int, number: int) -> bytes:
    return keys.PIECES + keys.place(place) + number.to_bytes(4, "big")


def in_pieces(engine: Engine, envelope: Envelope) -> Envelope:
    """A message with its payload, if large, put into pieces. Their place is the message's id, which no other has."""
    payload = envelope.payload
    if len(payload) <= PIECES_ABOVE:
        return envelope
    for number, piece in split_payload(payload):
        engine.put(piece_key(envelope.id, number), piece, keys.INDEXES)
    return replace(envelope, payload=b"", pieces=Pieces(envelope.id, len(payload), crc32(payload)))


def delete_pieces(engine: Engine, pieces: Pieces) -> None:
    # One by one: a range deletion for each large message would slow every later read of the family.
    for number in range(piece_count(pieces.size)):
        engine.delete(piece_key(pieces.place, number), keys.INDEXES)


def with_payload(engine: Engine, envelope: Envelope) -> Envelope:
    """A message with its payload read whole."""
    pieces = envelope.pieces
    if pieces is None:
        return envelope
    reading = RocksPieceCursor(engine, pieces)
    parts = []
    while (part := reading.next()) is not None:
        parts.append(part)
    return replace(envelope, payload=b"".join(parts), pieces=None)


class RocksPieceCursor:
    """The pieces of a payload in order, each checked."""

    def __init__(self, engine: Engine, pieces: Pieces, start: int = 0) -> None:
        self._engine = engine
        self._pieces = pieces
        self._checker = PieceChecker(pieces, start)
        self._is_written = False
        # A piece was missing or damaged.
        self.has_failed = False

    def next(self) -> bytes | None:
        checker = self._checker
        if checker.is_at_end:
            return None
        if not self._is_written:
            self._engine.write()  # its message may have been enqueued in this very moment
            self._is_written = True
        key = piece_key(self._pieces.place, checker.number)
        self.has_failed = True
        piece = checker.check(self._engine.database.get_passing(keys.INDEXES, key))
        self.has_failed = False
        return piece


class RocksPieceReader:
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
        self._reading = RocksPieceCursor(engine, pieces, start)
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
            raise payload_gone(self._id) from None
        if piece is None:
            raise StopAsyncIteration
        return piece
