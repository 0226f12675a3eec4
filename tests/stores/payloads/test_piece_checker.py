from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import StoreUnavailable
from holdfast.model.message import Pieces
from holdfast.stores.payloads.pieces import PIECE_BYTES, PieceChecker, piece_count, split_payload

PAYLOAD = bytes(range(256)) * (PIECE_BYTES // 256) * 2 + b"rest"
PIECES = Pieces(1, len(PAYLOAD), crc32(PAYLOAD))
KEPT = dict(split_payload(PAYLOAD))


def read(start: int, kept: dict[int, bytes] = KEPT, pieces: Pieces = PIECES) -> bytes:
    checker, parts = PieceChecker(pieces, start), []
    while not checker.is_at_end:
        parts.append(checker.check(kept.get(checker.number)))
    return b"".join(parts)


@given(
    st.integers(0, len(PAYLOAD) + 1)
    | st.sampled_from([PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, len(PAYLOAD)])
)
def test_a_payload_is_read_from_any_byte_on(start: int) -> None:
    assert read(start) == PAYLOAD[start:]


def test_a_payload_is_cut_into_pieces_and_a_rest() -> None:
    assert b"".join(KEPT.values()) == PAYLOAD
    assert [len(piece) for piece in KEPT.values()] == [PIECE_BYTES, PIECE_BYTES, 4]
    assert piece_count(len(PAYLOAD)) == len(KEPT)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("start", [0, 5])
def test_a_missing_or_short_piece_is_damage(number: int, start: int) -> None:
    for rest in ({}, {number: KEPT[number][:-1]}):
        kept = {key: piece for key, piece in KEPT.items() if key != number} | rest
        with pytest.raises(StoreUnavailable, match="damaged: restore a backup"):
            read(start, kept)


@pytest.mark.parametrize("number", range(3))
def test_a_changed_byte_is_damage_to_a_reader_that_began_at_the_first_byte(number: int) -> None:
    changed = bytes([KEPT[number][0] ^ 1]) + KEPT[number][1:]
    with pytest.raises(StoreUnavailable, match="damaged: restore a backup"):
        read(0, {**KEPT, number: changed})
