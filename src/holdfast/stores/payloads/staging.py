"""Payloads on their way into a store, before there is a message that has them."""

from abc import ABC, abstractmethod
from zlib import crc32

from holdfast.model.message import Draft, Pieces
from holdfast.model.names import QueueRef


class StageWriter(ABC):
    """A `PayloadWriter` that gathers parts to pieces: at most one piece is in memory, besides the caller's part.

    A store says how a piece is written, and how an upload is given up.
    """

    def __init__(self, ref: QueueRef, draft: Draft, place: int, piece_bytes: int) -> None:
        self.ref = ref
        self.draft = draft
        self.place = place
        self.pieces = 0
        self.size = 0
        self._piece_bytes = piece_bytes
        self._checksum = 0
        self._begun = bytearray()

    async def write(self, part: bytes) -> None:
        self._begun += part
        while len(self._begun) >= self._piece_bytes:
            await self._put_first(self._piece_bytes)

    async def finish(self) -> Pieces:
        if self._begun:
            await self._put_first(len(self._begun))
        await self._complete()
        return Pieces(self.place, self.size, self._checksum)

    def note(self, piece: bytes) -> None:
        """Count a piece. The store calls this once it is written, before it waits for anything else: an upload whose
        caller leaves then has something to delete."""
        self.pieces += 1
        self.size += len(piece)
        self._checksum = crc32(piece, self._checksum)

    def bytes_with(self, piece: bytes) -> int:
        """Return the size by which quotas measure the message once this piece is written too."""
        return self.draft.bytes + self.size + len(piece)

    @abstractmethod
    def abandon(self) -> None:
        """Give it up, unless it is a message's."""

    @abstractmethod
    async def _put(self, piece: bytes) -> None:
        """Write a piece and `note` it; refuse it before, if the message could not be enqueued any more."""

    async def _complete(self) -> None:
        """Do what remains after the last piece. By default nothing does."""
        return

    async def _put_first(self, size: int) -> None:
        piece = bytes(self._begun[:size])
        del self._begun[:size]
        await self._put(piece)
