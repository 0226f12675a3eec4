"""The commit log as its one writer sees it: append a frame, sync, continue in the next segment, free old segments.

Appending and all bookkeeping happen on the store's own thread of control. `sync` may run on another thread meanwhile,
and so may `make_spare`: both touch files only, and their results are taken over afterwards.
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

# The size of a segment, unless a single frame needs more.
SEGMENT_BYTES = 64 << 20
# Zeros ahead of the last frame, at most. The commit that adds them takes about a quarter of a millisecond longer, and
# its sync about one. With more, a short log would pay for zeros that it never uses.
ZEROS_BYTES = 1 << 20

_GENERATION_SIZE = 8
# Room at the end of each segment for the frame that names the next one.
_RESERVED = frame_size(_GENERATION_SIZE)


class LogPosition(NamedTuple):
    """A place in the log: frames up to `number` are before it, and the next one is in this segment or a later one."""

    number: int
    generation: int


# The position of a store that has never written a checkpoint.
START = LogPosition(0, 1)


class PendingSync(NamedTuple):
    """A sync that is to be carried out: of these files, and what is on disk once it has succeeded."""

    descriptors: tuple[int, ...]
    number: int


class CommitLog:
    def __init__(self, directory: Path, begin: LogPosition) -> None:
        """Continue behind `begin`, in a segment that `make_first` has made for it."""
        self._directory = directory
        self._generation = begin.generation
        self._segments = [begin.generation]
        self._size = SEGMENT_BYTES
        self._end_offset = FIRST_FRAME_OFFSET
        # Once a frame goes past this place, zeros are added behind it. Before it there are zeros or old frames.
        self._descriptor, self._zeros_end = self._open(begin.generation)
        # Full segments whose last frames are not known to be on disk.
        self._unsynced: list[int] = []
        # The generation of a segment made ahead.
        self._spare: int | None = None
        # Segments that hold nothing any more that is needed.
        self._free: list[int] = []
        self._last_generation = begin.generation
        self.number = begin.number
        self.synced = begin.number
        self.bytes_written = 0

    @staticmethod
    def make_first(directory: Path, begin: LogPosition) -> None:
        """Make the segment that a log begins in. Any earlier one of its generation is replaced."""
        make_segment(directory, begin.generation, SEGMENT_BYTES, ZEROS_BYTES)

    @property
    def position(self) -> LogPosition:
        """Return the place behind the last frame."""
        return LogPosition(self.number, self._generation)

    @property
    def needs_spare(self) -> bool:
        """Return whether the next segment should be made now."""
        return self._spare is None and 2 * self._end_offset > self._size

    # --- Writing -----------------------------------------------------------------------------------------------

    def append(self, body: bytes, kind: LogPartKind = LogPartKind.CHANGES) -> tuple[int, int]:
        """Write the changes of one commit as the next frame. The operating system has it when this returns.

        Return the generation of the segment and the place of the body in it."""
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
        """Lengthen the file by zeros behind its last frame, for frames to come.

        The sync of this frame puts the zeros and the new length on disk along with it. Those of the next frames then
        find that nothing but the content has changed."""
        end = min(self._end_offset + ZEROS_BYTES, self._size)
        # No room for zeros is no reason to refuse a commit: the frames then lengthen the file.
        with suppress(OSError):
            write_zeros(self._descriptor, self._end_offset, end)
        self._zeros_end = end

    def _continue_in_next(self, size: int) -> None:
        """Continue in the segment made ahead, or in one made now, without zeros: its caller waits for it."""
        needed = FIRST_FRAME_OFFSET + size + _RESERVED
        if self._spare is not None and needed <= SEGMENT_BYTES:
            generation, self._spare = self._spare, None
        else:
            generation = self._take_generation()
            make_segment(self._directory, generation, max(SEGMENT_BYTES, needed), 0)
        self._append(LogPartKind.NEXT_SEGMENT, generation.to_bytes(_GENERATION_SIZE, "little"))
        self._unsynced.append(self._descriptor)
        if self._spare is not None and self._spare < generation:
            # Too small for this frame, and too old for a later one: the log goes on in order of generation.
            self._free.append(self._spare)
            self._spare = None
        self._generation = generation
        self._segments.append(generation)
        self._size = max(SEGMENT_BYTES, needed)
        self._end_offset = FIRST_FRAME_OFFSET
        self._descriptor, self._zeros_end = self._open(generation)

    # --- Syncing -----------------------------------------------------------------------------------------------

    def begin_sync(self) -> PendingSync:
        """Return a sync of everything appended so far."""
        return PendingSync((*self._unsynced, self._descriptor), self.number)

    @staticmethod
    def sync(pending: PendingSync) -> None:
        """Carry out a sync. It may run on another thread."""
        for descriptor in pending.descriptors:
            sync_data(descriptor)

    def end_sync(self, pending: PendingSync) -> None:
        """Note that a sync has succeeded."""
        self.synced = max(self.synced, pending.number)
        for descriptor in pending.descriptors[:-1]:
            if descriptor in self._unsynced:
                self._unsynced.remove(descriptor)
                os.close(descriptor)

    # --- Segments ----------------------------------------------------------------------------------------------

    def begin_spare(self) -> tuple[int, int | None]:
        """Return the segment to make ahead: its generation, and an old segment to turn into it, if any."""
        reused = max(self._free, key=self._size_of, default=None)
        if reused is not None:
            self._free.remove(reused)
        return self._take_generation(), reused

    def make_spare(self, generation: int, reused: int | None) -> None:
        """Make the segment. It may run on another thread."""
        if reused is None:
            make_segment(self._directory, generation, SEGMENT_BYTES, ZEROS_BYTES)
        else:
            reuse_segment(self._directory, reused, generation, SEGMENT_BYTES)

    def end_spare(self, generation: int) -> None:
        """Take over a segment that was made. If the log has gone on behind it meanwhile, it is free for another use."""
        if generation > self._generation:
            self._spare = generation
        else:
            self._free.append(generation)

    def release(self, upto: LogPosition) -> None:
        """Free every segment before a position: its frames are no longer needed."""
        self._free += [each for each in self._segments if each < upto.generation]
        self._segments = [each for each in self._segments if each >= upto.generation]

    def take_surplus(self) -> list[int]:
        """Return free segments that are not worth keeping, to be deleted; one is kept for reuse."""
        by_size = sorted(self._free, key=self._size_of)
        surplus = by_size[:-1] if by_size and self._size_of(by_size[-1]) <= SEGMENT_BYTES else by_size
        self._free = [each for each in self._free if each not in surplus]
        return surplus

    def delete(self, generations: list[int]) -> None:
        """Delete these segments. It may run on another thread."""
        delete_segments(self._directory, generations)

    def close(self) -> None:
        """Close the files and leave them as they are."""
        for descriptor in (*self._unsynced, self._descriptor):
            os.close(descriptor)
        self._unsynced, self._descriptor = [], -1

    def delete_all(self) -> None:
        """Delete every segment of a closed log: everything in it rests elsewhere."""
        spare = [] if self._spare is None else [self._spare]
        delete_segments(self._directory, [*self._segments, *self._free, *spare])

    def _take_generation(self) -> int:
        self._last_generation += 1
        return self._last_generation

    def _open(self, generation: int) -> tuple[int, int]:
        """Return a descriptor of a segment, and the length of its file."""
        descriptor = os.open(segment_path(self._directory, generation), os.O_RDWR | os.O_CLOEXEC)
        return descriptor, os.fstat(descriptor).st_size

    def _size_of(self, generation: int) -> int:
        return segment_path(self._directory, generation).stat().st_size
