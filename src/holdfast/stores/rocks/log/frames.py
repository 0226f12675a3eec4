"""Frames, the records of the commit log. One commit is one frame.

    header   magic 4 | checksum of the rest of the header 4 | size of the body 4 | checksum of the body 4
             | generation 8 | number 8 | synced 8 | format 1 | kind 1 | key id 2 | reserved 4
    body     `size` bytes, then zeros up to a multiple of 8
    footer   magic 4 | generation 8 | number 8 | checksum of these two 4

Numbers are little-endian, checksums CRC-32C. `number` counts the frames of a store from 1 and never starts again.
`generation` is that of the segment (segments.py): a segment that is used again still holds frames of its previous
generation, and they must not be taken for new ones. `synced` is the number of the last frame that was known to be on
disk when this frame was written. `key id` is 0; it is reserved for the key that a body is encrypted with.

The footer is the last part that reaches the operating system. After a kill, a frame without a valid footer was cut
short; a frame with one was written whole, so a wrong checksum in it means that the disk has damaged it.

To change the format, raise `FORMAT` and keep reading the frames of the previous one: a log may hold both.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from google_crc32c import value as crc32c

FORMAT = 1

_HEADER_MAGIC = b"HFf\x01"
_FOOTER_MAGIC = b"HFe\x01"
_HEADER_CHECK = struct.Struct("<4sI")
_HEADER_REST = struct.Struct("<IIQQQBBHI")
_FOOTER = struct.Struct("<4sQQI")
_FOOTER_REST = struct.Struct("<QQ")

HEADER_SIZE = _HEADER_CHECK.size + _HEADER_REST.size
FOOTER_SIZE = _FOOTER.size
_ALIGNMENT = 8
_ZEROS = bytes(_ALIGNMENT)


class LogPartKind(IntEnum):
    # The body holds the changes of one commit.
    CHANGES = 1
    # The last frame of a segment; the body is the generation of the segment that the log goes on in.
    NEXT_SEGMENT = 2
    # As CHANGES, of a commit that has its other half in the log of another shard (links.py).
    LINKED = 3


class FrameHeader(NamedTuple):
    """A valid frame header, and the places of its frame in the segment."""

    offset: int
    body_offset: int
    body_size: int
    end: int
    number: int
    synced: int
    kind: int
    body_checksum: int


class Trace(NamedTuple):
    """A sign that a frame was written: a valid header, or a valid footer, which does not say what was synced."""

    offset: int
    number: int
    synced: int


def frame_size(body_size: int) -> int:
    """Return the size of a frame with a body of this size."""
    return HEADER_SIZE + body_size + -body_size % _ALIGNMENT + FOOTER_SIZE


def encode_frame(kind: LogPartKind, generation: int, number: int, synced: int, body: bytes) -> bytes:
    """Return a whole frame."""
    size = len(body)
    rest = _HEADER_REST.pack(size, crc32c(body), generation, number, synced, FORMAT, kind, 0, 0)
    place = _FOOTER_REST.pack(generation, number)
    return b"".join(
        (
            _HEADER_CHECK.pack(_HEADER_MAGIC, crc32c(rest)),
            rest,
            body,
            _ZEROS[: -size % _ALIGNMENT],
            _FOOTER.pack(_FOOTER_MAGIC, generation, number, crc32c(place)),
        )
    )


def read_header(raw: bytes, offset: int, generation: int) -> FrameHeader | None:
    """Return the frame header at this place, or None if there is no valid one of this generation."""
    if raw[offset : offset + 4] != _HEADER_MAGIC or offset + HEADER_SIZE > len(raw):
        return None
    _, checksum = _HEADER_CHECK.unpack_from(raw, offset)
    rest = raw[offset + _HEADER_CHECK.size : offset + HEADER_SIZE]
    if crc32c(rest) != checksum:
        return None
    size, body_checksum, its_generation, number, synced, _, kind, _, _ = _HEADER_REST.unpack(rest)
    if its_generation != generation:
        return None
    return FrameHeader(
        offset, offset + HEADER_SIZE, size, offset + frame_size(size), number, synced, kind, body_checksum
    )


def read_body(raw: bytes, header: FrameHeader) -> bytes | None:
    """Return the body of a frame, or None if it is cut short or damaged."""
    body = raw[header.body_offset : header.body_offset + header.body_size]
    return body if len(body) == header.body_size and crc32c(body) == header.body_checksum else None


def find_next_frame(raw: bytes, start: int, generation: int) -> FrameHeader | None:
    """Return the header of the first whole frame of this generation at or behind a place."""
    offset = raw.find(_HEADER_MAGIC, start)
    while offset >= 0:
        header = read_header(raw, offset, generation)
        if header is not None and read_body(raw, header) is not None:
            return header
        offset = raw.find(_HEADER_MAGIC, offset + 1)
    return None


def has_footer(raw: bytes, header: FrameHeader, generation: int) -> bool:
    """Return whether the end of a frame was written, whatever has become of its body."""
    return _footer_number(raw, header.end - FOOTER_SIZE, generation) == header.number


def find_traces(raw: bytes, start: int, generation: int, number: int) -> list[Trace]:
    """Return every sign behind a place that a frame of this generation, with this number or a higher one, was written:
    the footer of any of them, or the header of one that follows the first."""
    found: list[Trace] = []
    offset = raw.find(_HEADER_MAGIC, start)
    while offset >= 0:
        header = read_header(raw, offset, generation)
        if header is not None and header.number > number:
            found.append(Trace(offset, header.number, header.synced))
        offset = raw.find(_HEADER_MAGIC, offset + 1)
    offset = raw.find(_FOOTER_MAGIC, start)
    while offset >= 0:
        footer_number = _footer_number(raw, offset, generation)
        if footer_number is not None and footer_number >= number:
            found.append(Trace(offset, footer_number, 0))
        offset = raw.find(_FOOTER_MAGIC, offset + 1)
    return found


def _footer_number(raw: bytes, offset: int, generation: int) -> int | None:
    """Return the number in the footer at a place, or None if there is no valid one of this generation."""
    if offset + FOOTER_SIZE > len(raw):
        return None
    magic, its_generation, number, checksum = _FOOTER.unpack_from(raw, offset)
    if magic != _FOOTER_MAGIC or its_generation != generation:
        return None
    return number if crc32c(_FOOTER_REST.pack(its_generation, number)) == checksum else None
