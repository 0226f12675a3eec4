"""The commit log as its one writer sees it: append a frame, sync, continue in the next segment, free old segments.

Appending and all bookkeeping happen on the store's own thread of control. `sync` may run on another thread meanwhile,
and so may `make_spare`: both touch files only, and their results are taken over afterwards.
"""

import os
from pathlib import Path
from typing import NamedTuple

from holdfast.stores.rocks.log.frames import HEADER_SIZE, Kind, encode_frame, frame_size
from holdfast.stores.rocks.log.segments import (
    FIRST_FRAME_AT,
    delete_segments,
    make_segment,
    reuse_segment,
    segment_path,
    write_whole,
)
from holdfast.stores.syncing import sync_data

# Sizes of segments, in bytes. The first one is small, so that an opening costs milliseconds; each is twice as large as
# the one before, up to the largest.
SMALLEST = 1 << 20
LARGEST = 64 << 20

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
        self._descriptor, self._size = self._open(begin.generation)
        self._at = FIRST_FRAME_AT
        # Full segments whose last frames are not known to be on disk.
        self._unsynced: list[int] = []
        # The generation and size of a segment made ahead.
        self._spare: tuple[int, int] | None = None
        # Segments that hold nothing any more that is needed.
        self._free: list[int] = []
        self._last_generation = begin.generation
        self.number = begin.number
        self.synced = begin.number
        self.bytes_written = 0

    @staticmethod
    def make_first(directory: Path, begin: LogPosition) -> None:
        """Make the segment that a log begins in. Any earlier one of its generation is replaced."""
        make_segment(directory, begin.generation, SMALLEST)

    @property
    def position(self) -> LogPosition:
        """Return the place behind the last frame."""
        return LogPosition(self.number, self._generation)

    @property
    def needs_spare(self) -> bool:
        """Return whether the next segment should be made now. A short log has one segment, so the second one is made
        only once that is half full. A log that grows may fill a segment faster than one of twice the size is made."""
        return self._spare is None and (len(self._segments) > 1 or 2 * self._at > self._size)

    # --- Writing -----------------------------------------------------------------------------------------------

    def append(self, body: bytes, kind: Kind = Kind.CHANGES) -> tuple[int, int]:
        """Write the changes of one commit as the next frame. The operating system has it when this returns.

        Return the generation of the segment and the place of the body in it."""
        size = frame_size(len(body))
        if self._at + size + _RESERVED > self._size:
            self._continue_in_next(size)
        at = self._at + HEADER_SIZE
        self._append(kind, body)
        return self._generation, at

    def _append(self, kind: Kind, body: bytes) -> None:
        frame = encode_frame(kind, self._generation, self.number + 1, self.synced, body)
        write_whole(self._descriptor, frame, self._at)
        self._at += len(frame)
        self.number += 1
        self.bytes_written += len(frame)

    def _continue_in_next(self, size: int) -> None:
        """Continue in the segment made ahead, or in a small one made now: zeros for a large one would take too long."""
        needed = FIRST_FRAME_AT + size + _RESERVED
        if self._spare is not None and self._spare[1] >= needed:
            generation, self._spare = self._spare[0], None
        else:
            generation = self._take_generation()
            make_segment(self._directory, generation, max(SMALLEST, needed))
        self._append(Kind.NEXT_SEGMENT, generation.to_bytes(_GENERATION_SIZE, "little"))
        self._unsynced.append(self._descriptor)
        if self._spare is not None and self._spare[0] < generation:
            # Too small for this frame, and too old for a later one: the log goes on in order of generation.
            self._free.append(self._spare[0])
            self._spare = None
        self._generation = generation
        self._segments.append(generation)
        self._descriptor, self._size = self._open(generation)
        self._at = FIRST_FRAME_AT

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

    def begin_spare(self, room_bytes: int) -> tuple[int, int, int | None]:
        """Return the segment to make ahead: its generation, its size, and an old segment to turn into it, if any. A new
        one takes no more than `room_bytes`, but is never smaller than the smallest."""
        size = max(SMALLEST, min(2 * self._size, LARGEST, room_bytes))
        generation = self._take_generation()
        reused = next((each for each in self._free if self._size_of(each) >= size), None)
        if reused is not None:
            self._free.remove(reused)
            size = self._size_of(reused)
        return generation, size, reused

    def make_spare(self, generation: int, size: int, reused: int | None) -> None:
        """Make the segment. It may run on another thread."""
        if reused is None:
            make_segment(self._directory, generation, size)
        else:
            reuse_segment(self._directory, reused, generation)

    def end_spare(self, generation: int, size: int) -> None:
        """Take over a segment that was made. If the log has gone on behind it meanwhile, it is free for another use."""
        if generation > self._generation:
            self._spare = generation, size
        else:
            self._free.append(generation)

    def release(self, upto: LogPosition) -> None:
        """Free every segment before a position: its frames are no longer needed."""
        self._free += [each for each in self._segments if each < upto.generation]
        self._segments = [each for each in self._segments if each >= upto.generation]

    def take_surplus(self) -> list[int]:
        """Return free segments that are not worth keeping, to be deleted; one is kept for reuse."""
        by_size = sorted(self._free, key=self._size_of)
        surplus = by_size[:-1] if by_size and self._size_of(by_size[-1]) <= LARGEST else by_size
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
        spare = [] if self._spare is None else [self._spare[0]]
        delete_segments(self._directory, [*self._segments, *self._free, *spare])

    def _take_generation(self) -> int:
        self._last_generation += 1
        return self._last_generation

    def _open(self, generation: int) -> tuple[int, int]:
        descriptor = os.open(segment_path(self._directory, generation), os.O_RDWR | os.O_CLOEXEC)
        return descriptor, os.fstat(descriptor).st_size

    def _size_of(self, generation: int) -> int:
        return segment_path(self._directory, generation).stat().st_size
