"""Writing the commit log: append a frame, sync, continue in the next segment, release old segments.

Only the store's own thread of control appends frames and does the bookkeeping. `sync` and `make_spare` may run on
another thread meanwhile: they only touch files, and the store's thread records their results afterwards.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from holdfast.stores.disk.file_sync import sync_data
from holdfast.stores.rocks.log.frames import HEADER_SIZE, LogPartKind, encode_frame, frame_size
from holdfast.stores.rocks.log.segments import (
    FIRST_FRAME_OFFSET,
    delete_segments,
    make_segment,
    reuse_segment,
    segment_path,
    write_whole,
    write_zeros,
)

# The size of a segment in bytes, unless a single frame needs more.
SEGMENT_BYTES = 64 << 20
# At most this many bytes of zeros follow the last frame. The commit that adds them takes about 0.25 ms longer, and its
# sync about 1 ms. With more zeros, a short log would pay for zeros that it never uses.
ZEROS_BYTES = 1 << 20

_GENERATION_SIZE = 8
# Bytes reserved at the end of each segment for the frame that names the next one.
_RESERVED = frame_size(_GENERATION_SIZE)


class LogPosition(NamedTuple):
    """A position between two frames: frames up to `number` are before it, and the next one is in this segment or a
    later one."""

    number: int
    generation: int


# The position of a store that has never written a checkpoint.
START = LogPosition(0, 1)


class PendingSync(NamedTuple):
    """A sync to be carried out: its files, and the number of the last frame that is on disk once it has succeeded."""

    descriptors: tuple[int, ...]
    number: int


class CommitLog:
    """The commit log of one database, as its only writer uses it."""

    def __init__(self, directory: Path, begin: LogPosition) -> None:
        """Continue after `begin`, in a segment that `make_first` has made for it."""
        self._directory = directory
        self._generation = begin.generation
        self._segments = [begin.generation]
        self._size = SEGMENT_BYTES
        self._end_offset = FIRST_FRAME_OFFSET
        # The end of the zeros or old frames that follow the last frame. Once a frame extends beyond it, zeros are
        # added.
        self._descriptor, self._zeros_end = self._open(begin.generation)
        # Descriptors of full segments whose last frames are not yet synced.
        self._unsynced: list[int] = []
        # The generation of the segment made in advance.
        self._spare: int | None = None
        # Segments that are no longer needed and may be reused.
        self._free: list[int] = []
        self._last_generation = begin.generation
        self.number = begin.number
        self.synced = begin.number
        self.bytes_written = 0

    @staticmethod
    def make_first(directory: Path, begin: LogPosition) -> None:
        """Make the first segment of a log. It replaces any earlier segment of the same generation."""
        make_segment(directory, begin.generation, SEGMENT_BYTES, ZEROS_BYTES)

    @property
    def position(self) -> LogPosition:
        """Return the position after the last frame."""
        return LogPosition(self.number, self._generation)

    @property
    def needs_spare(self) -> bool:
        """Return whether the next segment should be made now."""
        return self._spare is None and 2 * self._end_offset > self._size

    # --- Writing -----------------------------------------------------------------------------------------------

    def append(self, body: bytes, kind: LogPartKind = LogPartKind.CHANGES) -> tuple[int, int]:
        """Write the changes of one commit as the next frame. The operating system has the frame when this returns.

        Return the generation of the segment, and the offset of the body in it.
        """
        size = frame_size(len(body))
        if self._end_offset + size + _RESERVED > self._size:
            self._continue_in_next(size)
        offset = self._end_offset + HEADER_SIZE
        self._append(kind, body)
        if self._end_offset > self._zeros_end:
            self._add_zeros()
        return self._generation, offset

    def _append(self, kind: LogPartKind, body: bytes) -> None:
        frame = encode_frame(kind, self._generation, self.number + 1, self.synced, body)
        write_whole(self._descriptor, frame, self._end_offset)
        self._end_offset += len(frame)
        self.number += 1
        self.bytes_written += len(frame)

    def _add_zeros(self) -> None:
        """Extend the file by zeros after its last frame, to make room for further frames.

        The next sync puts the zeros and the new length on disk along with the frame. Later syncs are then cheaper,
        because only the content of the file has changed.
        """
        end = min(self._end_offset + ZEROS_BYTES, self._size)
        # A full disk is no reason to refuse the commit. Without zeros, the frames extend the file themselves.
        with suppress(OSError):
            write_zeros(self._descriptor, self._end_offset, end)
        self._zeros_end = end

    def _continue_in_next(self, size: int) -> None:
        """Continue in the segment made in advance, or else in a new one. The caller waits for the new one, so it gets
        no zeros."""
        needed = FIRST_FRAME_OFFSET + size + _RESERVED
        if self._spare is not None and needed <= SEGMENT_BYTES:
            generation, self._spare = self._spare, None
        else:
            generation = self._take_generation()
            make_segment(self._directory, generation, max(SEGMENT_BYTES, needed), 0)
        self._append(LogPartKind.NEXT_SEGMENT, generation.to_bytes(_GENERATION_SIZE, "little"))
        self._unsynced.append(self._descriptor)
        if self._spare is not None and self._spare < generation:
            # The spare segment is too small for this frame. It cannot follow later either, because generations must
            # rise.
            self._free.append(self._spare)
            self._spare = None
        self._generation = generation
        self._segments.append(generation)
        self._size = max(SEGMENT_BYTES, needed)
        self._end_offset = FIRST_FRAME_OFFSET
        self._descriptor, self._zeros_end = self._open(generation)

    # --- Syncing -----------------------------------------------------------------------------------------------

    def begin_sync(self) -> PendingSync:
        """Return a sync of all frames appended so far."""
        return PendingSync((*self._unsynced, self._descriptor), self.number)

    @staticmethod
    def sync(pending: PendingSync) -> None:
        """Carry out a sync. May run on another thread."""
        for descriptor in pending.descriptors:
            sync_data(descriptor)

    def end_sync(self, pending: PendingSync) -> None:
        """Record that a sync has succeeded."""
        self.synced = max(self.synced, pending.number)
        for descriptor in pending.descriptors[:-1]:
            if descriptor in self._unsynced:
                self._unsynced.remove(descriptor)
                os.close(descriptor)

    # --- Segments ----------------------------------------------------------------------------------------------

    def begin_spare(self) -> tuple[int, int | None]:
        """Return the generation of the segment to make in advance, and an old segment to reuse for it, if any."""
        reused = max(self._free, key=self._size_of, default=None)
        if reused is not None:
            self._free.remove(reused)
        return self._take_generation(), reused

    def make_spare(self, generation: int, reused: int | None) -> None:
        """Make the segment that `begin_spare` returned. May run on another thread."""
        if reused is None:
            make_segment(self._directory, generation, SEGMENT_BYTES, ZEROS_BYTES)
        else:
            reuse_segment(self._directory, reused, generation, SEGMENT_BYTES)

    def end_spare(self, generation: int) -> None:
        """Record that the segment was made. If the log has already continued in a later segment, it is released."""
        if generation > self._generation:
            self._spare = generation
        else:
            self._free.append(generation)

    def release(self, upto: LogPosition) -> None:
        """Release every segment before a position. Its frames are no longer needed."""
        self._free += [each for each in self._segments if each < upto.generation]
        self._segments = [each for each in self._segments if each >= upto.generation]

    def take_surplus(self) -> list[int]:
        """Return the released segments to delete. The largest is kept for reuse, unless it is larger than a usual
        segment."""
        by_size = sorted(self._free, key=self._size_of)
        surplus = by_size[:-1] if by_size and self._size_of(by_size[-1]) <= SEGMENT_BYTES else by_size
        self._free = [each for each in self._free if each not in surplus]
        return surplus

    def delete(self, generations: list[int]) -> None:
        """Delete these segments. May run on another thread."""
        delete_segments(self._directory, generations)

    def close(self) -> None:
        """Close the files, and leave their content unchanged."""
        for descriptor in (*self._unsynced, self._descriptor):
            os.close(descriptor)
        self._unsynced, self._descriptor = [], -1

    def delete_all(self) -> None:
        """Delete every segment of a closed log. RocksDB must have everything in it."""
        spare = [] if self._spare is None else [self._spare]
        delete_segments(self._directory, [*self._segments, *self._free, *spare])

    def _take_generation(self) -> int:
        self._last_generation += 1
        return self._last_generation

    def _open(self, generation: int) -> tuple[int, int]:
        """Return a descriptor of a segment, and the length of its file in bytes."""
        descriptor = os.open(segment_path(self._directory, generation), os.O_RDWR | os.O_CLOEXEC)
        return descriptor, os.fstat(descriptor).st_size

    def _size_of(self, generation: int) -> int:
        return segment_path(self._directory, generation).stat().st_size
