"""Frames, the records of the commit log. One commit is one frame.

    header   magic 4 | checksum of the rest of the header 4 | size of the body 4 | checksum of the body 4
             | generation 8 | number 8 | synced 8 | format 1 | kind 1 | key id 2 | reserved 4
    body     `size` bytes, then zeros up to a multiple of 8
    footer   magic 4 | generation 8 | number 8 | checksum of these two 4

Numbers are little-endian, checksums are CRC-32C. `number` counts the frames of a store from 1 and never restarts.
`generation` is that of the segment (`segments.py`): a reused segment still contains frames of its previous generation,
which must not be mistaken for new ones. `synced` is the number of the last frame that was known to be on disk when this
frame was written. `key id` is 0; it is reserved for the id of an encryption key.

The footer is the last part of a frame to reach the operating system. After a kill, a frame without a valid footer was
cut short. A frame with a valid footer was written whole, so a wrong checksum in it means that the disk has damaged it.

How to change this format: raise `FORMAT` and keep reading frames of the previous format: a log may contain both.
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
    """The content of a frame."""

    # The changes of one commit.
    CHANGES = 1
    # The last frame of a segment. Its body is the generation of the next segment.
    NEXT_SEGMENT = 2
    # The changes of a commit that has another half in the log of another shard (`shard_links.py`).
    LINKED = 3


class FrameHeader(NamedTuple):
    """A valid frame header. All offsets are in bytes from the start of the segment; `end` is the end of the frame."""

    offset: int
    body_offset: int
    body_size: int
    end: int
    number: int
    synced: int
    kind: int
    body_checksum: int


class Trace(NamedTuple):
    """Evidence that a frame was written: a valid header or footer. A footer has no synced number, which is then 0."""

    offset: int
    number: int
    synced: int


def frame_size(body_size: int) -> int:
    """Return the size of a frame whose body has this size, in bytes."""
    return HEADER_SIZE + body_size + -body_size % _ALIGNMENT + FOOTER_SIZE


def encode_frame(kind: LogPartKind, generation: int, number: int, synced: int, body: bytes) -> bytes:
    """Return a whole frame."""
    size = len(body)
    rest = _HEADER_REST.pack(size, crc32c(body), generation, number, synced, FORMAT, kind, 0, 0)
    position = _FOOTER_REST.pack(generation, number)
    return b"".join(
        (
            _HEADER_CHECK.pack(_HEADER_MAGIC, crc32c(rest)),
            rest,
            body,
            _ZEROS[: -size % _ALIGNMENT],
            _FOOTER.pack(_FOOTER_MAGIC, generation, number, crc32c(position)),
        )
    )


def read_header(raw: bytes, offset: int, generation: int) -> FrameHeader | None:
    """Return the frame header at this offset, or None if there is no valid header of this generation."""
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
    """Return the header of the first whole frame of this generation at or after an offset."""
    offset = raw.find(_HEADER_MAGIC, start)
    while offset >= 0:
        header = read_header(raw, offset, generation)
        if header is not None and read_body(raw, header) is not None:
            return header
        offset = raw.find(_HEADER_MAGIC, offset + 1)
    return None


def has_footer(raw: bytes, header: FrameHeader, generation: int) -> bool:
    """Return whether the end of a frame was written, even if its body is damaged."""
    return _read_footer_number(raw, header.end - FOOTER_SIZE, generation) == header.number


def find_traces(raw: bytes, start: int, generation: int, number: int) -> list[Trace]:
    """Return all evidence after an offset that a frame of this generation, with this number or a higher one, was
    written.

    The header of the frame with exactly this number does not count: a frame that was cut short has a header too.
    """
    found: list[Trace] = []
    offset = raw.find(_HEADER_MAGIC, start)
    while offset >= 0:
        header = read_header(raw, offset, generation)
        if header is not None and header.number > number:
            found.append(Trace(offset, header.number, header.synced))
        offset = raw.find(_HEADER_MAGIC, offset + 1)
    offset = raw.find(_FOOTER_MAGIC, start)
    while offset >= 0:
        footer_number = _read_footer_number(raw, offset, generation)
        if footer_number is not None and footer_number >= number:
            found.append(Trace(offset, footer_number, 0))
        offset = raw.find(_FOOTER_MAGIC, offset + 1)
    return found


def _read_footer_number(raw: bytes, offset: int, generation: int) -> int | None:
    """Return the frame number in the footer at an offset, or None if there is no valid footer of this generation."""
    if offset + FOOTER_SIZE > len(raw):
        return None
    magic, its_generation, number, checksum = _FOOTER.unpack_from(raw, offset)
    if magic != _FOOTER_MAGIC or its_generation != generation:
        return None
    return number if crc32c(_FOOTER_REST.pack(its_generation, number)) == checksum else None
