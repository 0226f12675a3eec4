import asyncio
from zlib import crc32

import pytest

from holdfast.model.errors import OverQuota
from holdfast.model.message import Draft, Pieces
from holdfast.model.names import QueueRef
from holdfast.stores.payloads.staging import StageWriter


class KeptStage(StageWriter):
    def __init__(self, piece_bytes: int, max_bytes: int = 1_000) -> None:
        super().__init__(QueueRef("acme", "mail"), Draft(payload=b""), 7, piece_bytes)
        self.kept: list[bytes] = []
        self._max_bytes = max_bytes

    async def _put(self, piece: bytes) -> None:
        if self.bytes_with(piece) > self._max_bytes:
            raise OverQuota("full")
        self.kept.append(piece)
        self.count_piece(piece)

    def abandon(self) -> None:
        self.kept.clear()


@pytest.mark.parametrize("parts", [[b"abcdefgh"], [b"a", b"bcdefg", b"h"], [b"abc", b"", b"defgh"]])
def test_parts_of_any_size_are_written_as_pieces_of_one_size_and_a_rest(parts: list[bytes]) -> None:
    async def upload() -> Pieces:
        for part in parts:
            await writer.write(part)
        return await writer.finish()

    writer = KeptStage(3)
    assert asyncio.run(upload()) == Pieces(7, 8, crc32(b"abcdefgh"))
    assert writer.kept == [b"abc", b"def", b"gh"]
    assert (writer.pieces, writer.size) == (3, 8)


def test_a_payload_of_whole_pieces_has_no_rest() -> None:
    async def upload() -> None:
        await writer.write(b"abcdef")
        await writer.finish()

    writer = KeptStage(3)
    asyncio.run(upload())
    assert writer.kept == [b"abc", b"def"]


def test_a_piece_that_is_refused_is_not_counted() -> None:
    writer = KeptStage(3, max_bytes=5)
    with pytest.raises(OverQuota):
        asyncio.run(writer.write(b"abcdef"))
    assert (writer.kept, writer.pieces, writer.size) == ([b"abc"], 1, 3)
