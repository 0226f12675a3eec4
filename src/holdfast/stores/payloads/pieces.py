"""Large payloads lie in pieces beside their messages; this is how they are cut and checked."""

from collections.abc import Iterator
from zlib import crc32

from holdfast.model.errors import MessageNotFound, StoreUnavailable
from holdfast.model.ids import to_uuid
from holdfast.model.message import Pieces

PIECE = 256 << 10
# Payloads of more bytes lie in pieces beside the message.
PIECES_ABOVE = 1 << 20


def count_of(size: int) -> int:
    return -(-size // PIECE)


def cut(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each piece."""
    for number in range(count_of(len(payload))):
        yield number, payload[number * PIECE : (number + 1) * PIECE]


def damaged(pieces: Pieces) -> StoreUnavailable:
    return StoreUnavailable(f"a payload of {pieces.size} bytes is damaged: restore a backup")


def payload_gone(message_id: int) -> MessageNotFound:
    """Return the error of a reader whose message went while it read."""
    id = to_uuid(message_id)
    return MessageNotFound(f"message {id} was settled, removed or edited while its payload was read", id=id)


class PieceChecker:
    """The position of a reader in a payload, from byte `start` on. Read from the beginning, the last piece passes only
    if all of them are what was written."""

    def __init__(self, pieces: Pieces, start: int = 0) -> None:
        self._pieces = pieces
        self._start = start
        self._checksum = 0
        # The piece to read next.
        self.number = start // PIECE

    @property
    def is_at_end(self) -> bool:
        return self.number >= count_of(self._pieces.size) or self._start >= self._pieces.size

    def check(self, piece: bytes | None) -> bytes:
        """Return the bytes of the next piece that the reader wants; raise `StoreUnavailable` if it is damaged."""
        pieces, number = self._pieces, self.number
        if piece is None or len(piece) != min(PIECE, pieces.size - number * PIECE):
            raise damaged(pieces)
        self.number += 1
        if self._start:
            return piece if number * PIECE >= self._start else piece[self._start % PIECE :]
        self._checksum = crc32(piece, self._checksum)
        if self.is_at_end and self._checksum != pieces.checksum:
            raise damaged(pieces)
        return piece
