"""Segments, the files of the commit log.

    log/000000000001.log   header: magic 16 | format 4 | size 8 | generation 8 | checksum 4, then zeros up to 4,096
                           frames (frames.py), one behind the other, then zeros or frames of earlier generations

`size` is the most that the file may grow to. It has zeros for a bounded way behind its last frame: a write into blocks
that the file already has needs no change of the file system's own records, and its sync is cheaper. After a crash the
file may end anywhere behind the header, and nothing follows from where it does.

The name is the generation. A segment that is no longer needed gets the name of a later generation and a new header; the
frames in it keep the old generation, and so are known to be old. A segment appears under its name only when its header
is on disk.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from google_crc32c import value as crc32c

from holdfast.stores.disk.file_sync import sync_data, sync_directory, sync_file
from holdfast.stores.rocks.log.frames import LogPartKind, read_body, read_header

DIRECTORY = "log"
# The place of the first frame: the header is alone in its page, so that no frame's write can tear it.
FIRST_FRAME_OFFSET = 4_096

_FORMAT = 1
_MAGIC = b"holdfast log\0\0\0\0"
_HEADER = struct.Struct("<16sIQQ")
_CHECKSUM = struct.Struct("<I")
_UNFINISHED = ".new"
_ZEROS = bytes(1 << 20)


def segment_path(directory: Path, generation: int) -> Path:
    return directory / f"{generation:012}.log"


def list_segments(directory: Path) -> list[int]:
    """Return the generations of all segments in a directory, sorted."""
    if not directory.is_dir():
        return []
    return sorted(int(file.stem) for file in directory.glob("*.log") if file.stem.isdigit())


def make_segment(directory: Path, generation: int, size: int, zeros_bytes: int) -> None:
    """Make a segment that may grow to `size`, and return once it is on disk under its name. It begins with a header and
    `zeros_bytes` of zeros."""
    path = segment_path(directory, generation)
    with _unfinished(path) as fresh:
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_whole(descriptor, _header(generation, size), 0)
            write_zeros(descriptor, FIRST_FRAME_OFFSET, min(size, FIRST_FRAME_OFFSET + zeros_bytes))
            sync_file(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(path)
    sync_directory(directory)


def reuse_segment(directory: Path, old: int, generation: int, size: int) -> None:
    """Turn a segment that is no longer needed into one of a later generation, and return once that is on disk."""
    path = segment_path(directory, generation)
    with _unfinished(path) as fresh:
        segment_path(directory, old).replace(fresh)
        descriptor = os.open(fresh, os.O_RDWR | os.O_CLOEXEC)
        try:
            write_whole(descriptor, _header(generation, size), 0)
            sync_data(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(path)
    sync_directory(directory)


def delete_segments(directory: Path, generations: list[int]) -> None:
    """Delete segments. Missing ones are no error."""
    for generation in generations:
        segment_path(directory, generation).unlink(missing_ok=True)


def delete_all_but(directory: Path, generation: int) -> None:
    """Delete every segment but one, and files that a crash left half made. Nobody may be making a segment meanwhile."""
    delete_segments(directory, [each for each in list_segments(directory) if each != generation])
    for file in directory.glob(f"*{_UNFINISHED}"):
        file.unlink(missing_ok=True)


def has_header(raw: bytes, generation: int) -> bool:
    """Return whether a segment begins with a valid header of this generation."""
    end = _HEADER.size + _CHECKSUM.size
    if len(raw) < end:
        return False
    magic, _, _, its_generation = _HEADER.unpack_from(raw)
    [checksum] = _CHECKSUM.unpack_from(raw, _HEADER.size)
    return bool(magic == _MAGIC and its_generation == generation and crc32c(raw[: _HEADER.size]) == checksum)


def find_whole_part(raw: bytes, generation: int, known: list[int]) -> tuple[int, bool]:
    """Return the size of a segment up to the end of its last whole frame in order, 0 without a header; and whether the
    log goes on in another segment. The frame that names a segment later than all known ones is left out."""
    if not has_header(raw, generation):
        return 0, False
    offset = FIRST_FRAME_OFFSET
    while (header := read_header(raw, offset, generation)) is not None and (body := read_body(raw, header)) is not None:
        if header.kind == LogPartKind.NEXT_SEGMENT:
            # One that is neither known nor later has been freed: this segment is one of the past.
            continues = int.from_bytes(body, "little") <= max(known)
            return (header.end if continues else offset), continues
        offset = header.end
    return min(offset, len(raw)), False


def read_part(directory: Path, generation: int, offset: int, size: int) -> bytes:
    """Return a part of a segment. Raise `OSError` if it is not there."""
    descriptor = os.open(segment_path(directory, generation), os.O_RDONLY | os.O_CLOEXEC)
    try:
        part = os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)
    if len(part) < size:
        raise OSError(f"{segment_path(directory, generation)} ends before byte {offset + size}")
    return part


def write_whole(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of the data at a place: the system may take less in one call."""
    written = os.pwrite(descriptor, data, offset)
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)


def write_zeros(descriptor: int, start: int, end: int) -> None:
    """Write zeros from one place up to another."""
    for offset in range(start, end, len(_ZEROS)):
        write_whole(descriptor, _ZEROS[: end - offset], offset)


def _header(generation: int, size: int) -> bytes:
    header = _HEADER.pack(_MAGIC, _FORMAT, size, generation)
    return (header + _CHECKSUM.pack(crc32c(header))).ljust(FIRST_FRAME_OFFSET, b"\0")


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """Give a name for the file until it is whole; remove the file if it does not become so."""
    fresh = path.with_suffix(_UNFINISHED)
    try:
        yield fresh
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
