"""The pieces of large payloads, which stores keep apart from the messages: splitting and checking them."""

from collections.abc import Iterator
from zlib import crc32

from holdfast.model.errors import MessageNotFound, StoreUnavailable
from holdfast.model.ids import to_uuid
from holdfast.model.message import Pieces

# The size of every piece but the last.
PIECE_BYTES = 256 << 10
# Larger payloads are kept in pieces, smaller ones in the message record.
PIECES_ABOVE = 1 << 20


def piece_count(size: int) -> int:
    """Return the number of pieces of a payload of `size` bytes."""
    return -(-size // PIECE_BYTES)


def split_payload(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each piece."""
    for number in range(piece_count(len(payload))):
        yield number, payload[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]


def damaged_payload(pieces: Pieces) -> StoreUnavailable:
    """Return the error for a payload whose pieces are missing or wrong."""
    return StoreUnavailable(f"a payload of {pieces.size} bytes is damaged: restore a backup")


def payload_gone(message_id: int) -> MessageNotFound:
    """Return the error for a reader whose message was settled, removed or edited while it read."""
    id = to_uuid(message_id)
    return MessageNotFound(f"message {id} was settled, removed or edited while its payload was read", id=id)


class PieceChecker:
    """The position of a reader in a payload, and the checks of the pieces it reads.

    A reader that starts at byte 0 gets the last piece only if the checksum of all pieces is right. One that starts
    later checks only the sizes.
    """

    def __init__(self, pieces: Pieces, start: int = 0) -> None:
        self._pieces = pieces
        self._start = start
        self._checksum = 0
        # The number of the next piece to read.
        self.number = start // PIECE_BYTES

    @property
    def is_at_end(self) -> bool:
        """Return whether the whole payload has been read."""
        return self.number >= piece_count(self._pieces.size) or self._start >= self._pieces.size

    def check(self, piece: bytes | None) -> bytes:
        """Return the bytes of the next piece from the reader's start on, and advance.

        `piece` is None if it is missing. Raise `StoreUnavailable` if it is missing or damaged.
        """
        pieces, number = self._pieces, self.number
        if piece is None or len(piece) != min(PIECE_BYTES, pieces.size - number * PIECE_BYTES):
            raise damaged_payload(pieces)
        self.number += 1
        if self._start:
            return piece if number * PIECE_BYTES >= self._start else piece[self._start % PIECE_BYTES :]
        self._checksum = crc32(piece, self._checksum)
        if self.is_at_end and self._checksum != pieces.checksum:
            raise damaged_payload(pieces)
        return piece
