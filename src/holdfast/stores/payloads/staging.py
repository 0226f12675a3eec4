"""The writer of payloads that arrive in parts, before their message exists."""

from abc import ABC, abstractmethod
from zlib import crc32

from holdfast.model.message import Draft, Pieces
from holdfast.model.names import QueueRef


class StageWriter(ABC):
    """A `PayloadWriter` that joins the caller's parts into pieces of a fixed size.

    It holds at most one piece in memory, besides the caller's part. A store's subclass writes the pieces and deletes
    those of an abandoned upload.
    """

    def __init__(self, ref: QueueRef, draft: Draft, blob_id: int, piece_bytes: int) -> None:
        """`piece_bytes` is the size of every piece but the last."""
        self.ref = ref
        self.draft = draft
        self.blob_id = blob_id
        # The number of pieces written so far, and their bytes.
        self.pieces = 0
        self.size = 0
        self._piece_bytes = piece_bytes
        self._checksum = 0
        # The beginning of the next piece.
        self._buffer = bytearray()

    async def write(self, part: bytes) -> None:
        """Append bytes, and write each piece that they complete."""
        self._buffer += part
        while len(self._buffer) >= self._piece_bytes:
            await self._put_first(self._piece_bytes)

    async def finish(self) -> Pieces:
        """Write the last piece and return the reference to the whole payload."""
        if self._buffer:
            await self._put_first(len(self._buffer))
        await self._complete()
        return Pieces(self.blob_id, self.size, self._checksum)

    def count_piece(self, piece: bytes) -> None:
        """Count a piece that was written.

        The store calls this before it awaits anything else. If the caller is cancelled at that await, `abandon` then
        knows that there is a piece to delete.
        """
        self.pieces += 1
        self.size += len(piece)
        self._checksum = crc32(piece, self._checksum)

    def bytes_with(self, piece: bytes) -> int:
        """Return the size of the message, as quotas count it, including this next piece."""
        return self.draft.bytes + self.size + len(piece)

    @abstractmethod
    def abandon(self) -> None:
        """Delete the pieces soon, unless they belong to a message now."""

    @abstractmethod
    async def _put(self, piece: bytes) -> None:
        """Write a piece and call `count_piece`. Raise an error before writing it if the message can no longer be
        enqueued."""

    async def _complete(self) -> None:
        """Finish the upload after its last piece. By default there is nothing to do."""
        return

    async def _put_first(self, size: int) -> None:
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        await self._put(piece)
