"""Segments, the files of the commit log.

    log/000000000001.log   header: magic 16 | format 4 | size 8 | generation 8 | checksum 4, then zeros up to 4,096
                           frames (`frames.py`), one after the other, then zeros or frames of earlier generations

`size` is the maximum size of the file. The file has a bounded number of zeros after its last frame: a write into
existing blocks changes no metadata of the file system, and its sync is cheaper. After a crash the file may end anywhere
after the header, so its length means nothing.

The file name is the generation. A segment that is no longer needed is reused: it gets the name of a later generation
and a new header. The frames in it keep the old generation, and are thereby known to be old. A segment gets its name
only after its header is on disk.

How to change this format: raise `_FORMAT`, keep reading the previous one, and raise the format of the store
(`marker.py`).
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
# The offset of the first frame. The header has a page of its own, so that no write of a frame can tear it.
FIRST_FRAME_OFFSET = 4_096

_FORMAT = 1
_MAGIC = b"holdfast log\0\0\0\0"
_HEADER = struct.Struct("<16sIQQ")
_CHECKSUM = struct.Struct("<I")
_UNFINISHED = ".new"
_ZEROS = bytes(1 << 20)


def segment_path(directory: Path, generation: int) -> Path:
    """Return the path of a segment."""
    return directory / f"{generation:012}.log"


def list_segments(directory: Path) -> list[int]:
    """Return the generations of all segments in a directory in ascending order."""
    if not directory.is_dir():
        return []
    return sorted(int(file.stem) for file in directory.glob("*.log") if file.stem.isdigit())


def make_segment(directory: Path, generation: int, size: int, zeros_bytes: int) -> None:
    """Make a segment that may grow to `size` bytes, and return once it is on disk under its name.

    It has a header, followed by `zeros_bytes` of zeros.
    """
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
    """Delete segments. Missing ones are ignored."""
    for generation in generations:
        segment_path(directory, generation).unlink(missing_ok=True)


def delete_all_but(directory: Path, generation: int) -> None:
    """Delete every segment but one, and unfinished files of a crash. No segment may be made at the same time."""
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
    """Return the size of a segment up to the end of its last whole frame in order, and whether the log continues in
    another segment.

    The size is 0 if there is no valid header. A frame that names a segment later than all those in `known` is left out.
    """
    if not has_header(raw, generation):
        return 0, False
    offset = FIRST_FRAME_OFFSET
    while (header := read_header(raw, offset, generation)) is not None and (body := read_body(raw, header)) is not None:
        if header.kind == LogPartKind.NEXT_SEGMENT:
            # A next segment that is neither known nor later than the known ones has been released, so this segment is
            # old.
            continues = int.from_bytes(body, "little") <= max(known)
            return (header.end if continues else offset), continues
        offset = header.end
    return min(offset, len(raw)), False


def read_part(directory: Path, generation: int, offset: int, size: int) -> bytes:
    """Return a part of a segment. Raise `OSError` if it is missing."""
    descriptor = os.open(segment_path(directory, generation), os.O_RDONLY | os.O_CLOEXEC)
    try:
        part = os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)
    if len(part) < size:
        raise OSError(f"{segment_path(directory, generation)} ends before byte {offset + size}")
    return part


def write_whole(descriptor: int, data: bytes, offset: int) -> None:
    """Write all data at an offset. The operating system may accept only part of it in one call."""
    written = os.pwrite(descriptor, data, offset)
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)


def write_zeros(descriptor: int, start: int, end: int) -> None:
    """Write zeros from one offset up to another."""
    for offset in range(start, end, len(_ZEROS)):
        write_whole(descriptor, _ZEROS[: end - offset], offset)


def _header(generation: int, size: int) -> bytes:
    header = _HEADER.pack(_MAGIC, _FORMAT, size, generation)
    return (header + _CHECKSUM.pack(crc32c(header))).ljust(FIRST_FRAME_OFFSET, b"\0")


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file that the caller renames when it is complete. Delete the file if that fails."""
    fresh = path.with_suffix(_UNFINISHED)
    try:
        yield fresh
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
