"""The pieces of large payloads, each payload under a blob id that does not depend on the message's queue.

How to change this format: a piece is the plain bytes of the payload, and the message's record has the size and the
checksum of the whole. The size of a piece (`PIECE_BYTES`) and the key are fixed, because readers compute the keys of
all pieces from them. To store pieces in another way, use another space (`keys.py`) and another flag in the message's
record (`formats/message_record.py`), and keep reading these.
"""

from collections.abc import Callable
from typing import Self
from zlib import crc32

from msgspec.structs import replace

from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Envelope, Pieces
from holdfast.runtime import Runtime, yield_to_others
from holdfast.stores.payloads.pieces import PIECES_ABOVE, PieceChecker, payload_gone, piece_count, split_payload
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine


def piece_key(blob_id: int, number: int) -> bytes:
    """Return the key of one piece of a payload."""
    return keys.PIECES + keys.pack_blob_id(blob_id) + number.to_bytes(4, "big")


def store_large_payload(engine: Engine, envelope: Envelope) -> Envelope:
    """Store the payload of a new message in pieces if it is large, and return the envelope to store.

    The blob id is the message's id, which no other payload has.
    """
    payload = envelope.payload
    if len(payload) <= PIECES_ABOVE:
        return envelope
    for number, piece in split_payload(payload):
        engine.put(piece_key(envelope.id, number), piece, keys.INDEXES)
    return replace(envelope, payload=b"", pieces=Pieces(envelope.id, len(payload), crc32(payload)))


def delete_pieces(engine: Engine, pieces: Pieces) -> None:
    """Delete all pieces of a payload in the open commit."""
    # A range deletion for each large payload would slow down every later read of the column family.
    for number in range(piece_count(pieces.size)):
        engine.delete(piece_key(pieces.blob_id, number), keys.INDEXES)


def load_payload(engine: Engine, envelope: Envelope) -> Envelope:
    """Return the envelope with its payload read from its pieces. Raise `StoreUnavailable` if one is damaged."""
    pieces = envelope.pieces
    if pieces is None:
        return envelope
    cursor = RocksPieceCursor(engine, pieces)
    parts = []
    while (part := cursor.next()) is not None:
        parts.append(part)
    return replace(envelope, payload=b"".join(parts), pieces=None)


class RocksPieceCursor:
    """An iteration over the checked pieces of a payload, in order."""

    def __init__(self, engine: Engine, pieces: Pieces, start: int = 0) -> None:
        self._engine = engine
        self._pieces = pieces
        self._checker = PieceChecker(pieces, start)
        self._is_written = False
        # The last call of `next` found the piece missing or damaged.
        self.has_failed = False

    def next(self) -> bytes | None:
        """Return the bytes of the next piece, or None at the end. Raise `StoreUnavailable` if it is missing or
        damaged."""
        checker = self._checker
        if checker.is_at_end:
            return None
        if not self._is_written:
            self._engine.write()  # the payload may still be in the open commit
            self._is_written = True
        key = piece_key(self._pieces.blob_id, checker.number)
        self.has_failed = True
        piece = checker.check(self._engine.database.get_uncached(keys.INDEXES, key))
        self.has_failed = False
        return piece


class RocksPieceReader:
    """A `PayloadReader` that lets other callers run between two pieces."""

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        id: int,
        pieces: Pieces,
        find: Callable[[], Envelope | None],
        start: int = 0,
    ) -> None:
        """`find` returns the message's current envelope, or None if the message is gone."""
        self._cursor = RocksPieceCursor(engine, pieces, start)
        self._engine = engine
        self._runtime = runtime
        self._id = id
        self._pieces = pieces
        self._find = find

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        await yield_to_others(self._runtime)
        self._engine.check()
        try:
            piece = self._cursor.next()
        except StoreUnavailable:
            envelope = self._find()
            if envelope is not None and envelope.pieces == self._pieces:
                raise
            raise payload_gone(self._id) from None
        if piece is None:
            raise StopAsyncIteration
        return piece
