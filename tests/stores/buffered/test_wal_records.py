"""The log's bytes say what was written, or nothing."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.buffered.log.records import (
    HEADER_BYTES,
    LogRecord,
    RecordKind,
    SegmentHeader,
    WrongFormat,
    decode_header,
    decode_record,
    encode_header,
    encode_record,
    record_size,
)

U64 = st.integers(0, 2**64 - 1)
headers = st.builds(SegmentHeader, node=st.uuids(), epoch=U64, segment=U64, first=U64)
records = st.builds(
    LogRecord,
    sequence=U64,
    synced=U64,
    shard=st.integers(0, 2**16 - 1),
    number=U64,
    kind=st.sampled_from(RecordKind),
    body=st.binary(max_size=200),
)
HEADER = SegmentHeader(UUID(int=1), 2, 3, 4)


@given(headers)
def test_a_header_is_read_as_it_was_written(header: SegmentHeader) -> None:
    assert decode_header(encode_header(header)) == header


@given(headers, st.data())
def test_a_header_with_any_bit_changed_is_invalid(header: SegmentHeader, data: st.DataObject) -> None:
    raw = bytearray(encode_header(header))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    assert decode_header(bytes(raw)) is None


def test_a_header_of_another_format_is_named() -> None:
    import struct
    import zlib

    raw = bytearray(encode_header(HEADER)[:-4])
    raw[9] += 1
    with pytest.raises(WrongFormat, match="format 2"):
        decode_header(bytes(raw) + struct.pack(">I", zlib.crc32(bytes(raw))))


@given(headers, st.integers(0, 2**40), st.lists(records, max_size=5))
def test_records_are_read_as_they_were_written(header: SegmentHeader, start: int, written: list[LogRecord]) -> None:
    start %= 1_000
    raw = b"\x00" * start
    for record in written:
        raw += encode_record(header, len(raw), record)
    offset, read = start, []
    while (found := decode_record(header, raw, offset)) is not None:
        read.append(found)
        offset += record_size(found.body)
    assert read == written
    assert offset == len(raw)


@given(records, st.data())
def test_a_record_with_any_bit_changed_is_invalid(record: LogRecord, data: st.DataObject) -> None:
    raw = bytearray(encode_record(HEADER, HEADER_BYTES, record))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    # With something behind it, so that a longer length finds its bytes.
    padded = b"\x00" * HEADER_BYTES + bytes(raw) + b"\x00" * 1_000
    assert decode_record(HEADER, padded, HEADER_BYTES) is None


@given(records, st.integers(0, 300))
def test_a_record_cut_short_is_invalid(record: LogRecord, cut: int) -> None:
    raw = encode_record(HEADER, 0, record)
    assert decode_record(HEADER, raw[: min(cut, len(raw) - 1)], 0) is None


@given(records, headers, st.integers(0, 100))
def test_a_record_of_another_position_or_opening_is_invalid(
    record: LogRecord, other: SegmentHeader, offset: int
) -> None:
    raw = b"\x00" * offset + encode_record(HEADER, 0, record)
    if offset:
        assert decode_record(HEADER, raw, offset) is None
    if (other.epoch, other.segment) != (HEADER.epoch, HEADER.segment):
        assert decode_record(other, raw[offset:], 0) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_none(raw: bytes) -> None:
    for offset in range(len(raw)):
        decode_record(HEADER, raw, offset)
    decode_header(raw)
