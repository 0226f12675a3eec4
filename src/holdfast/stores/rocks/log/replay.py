"""Reading the commit log after a crash, and telling a torn end from damage.

A kill leaves every byte that was written, so at most the last frame is cut short. A power cut leaves everything that
was synced, and any part of the rest. Claims are written without a sync, so there may be a hole followed by whole
frames.

    the log stops at frame N, and                         after a kill   after a power cut
    nothing shows that frame N was ever written whole     ends there     ends there
    a later frame says that N was synced                  refused        refused
    a later frame, or the end of N itself, exists         refused        ends there, with a warning
    the next segment is missing                           refused        refused
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.log.commit_log import LogPosition
from holdfast.stores.rocks.log.frames import (
    FrameHeader,
    LogPartKind,
    Trace,
    find_next_frame,
    find_traces,
    has_footer,
    read_body,
    read_header,
)
from holdfast.stores.rocks.log.segments import FIRST_FRAME_OFFSET, has_header, list_segments, segment_path

Apply = Callable[[bytes, int, int], None]

_log = logging.getLogger("holdfast")


class ReplayResult(NamedTuple):
    """The result of replaying a log."""

    # The number of the last frame.
    number: int
    # The number of frames that were applied.
    frames: int
    # Later frames exist and were discarded.
    was_cut: bool = False
    # The number of the last linked frame, if any, and the highest synced number that the frames after it record.
    linked: int | None = None
    synced_after_link: int = 0


class Replay:
    """One reading of a log, which changes no file."""

    def __init__(
        self,
        store: Path,
        directory: Path,
        covered: LogPosition,
        *,
        was_closed: bool,
        after_power_cut: bool,
        before: int | None = None,
    ) -> None:
        """Prepare to read the log in `directory`.

        `covered` is the position up to which RocksDB has everything. `was_closed`: the store was closed properly, so
        the log may be missing. `after_power_cut`: unsynced writes may be lost. `before`: discard the frame with this
        number and all later ones.
        """
        self._store = store
        self._directory = directory
        self._covered = covered
        self._was_closed = was_closed
        self._after_power_cut = after_power_cut
        self._before = before
        # The number of the last frame that was read.
        self._number = covered.number
        self._frames = 0
        self._was_cut = False
        self._linked: int | None = None
        self._synced_after_link = 0

    def run(self, apply: Apply) -> ReplayResult:
        """Pass the body of every frame after the covered position to `apply`, in order, with the generation of its
        segment and its offset there.

        Raise `StoreUnavailable` if the log is damaged or a segment is missing.
        """
        present = [each for each in list_segments(self._directory) if each >= self._covered.generation]
        generation: int | None = self._covered.generation
        if self._was_closed and generation not in present:
            return ReplayResult(self._number, 0)
        while generation is not None:
            if generation not in present:
                raise self._missing(segment_path(self._directory, generation))
            raw = segment_path(self._directory, generation).read_bytes()
            offset, following = self._read_segment(raw, generation, apply)
            if following is None and not self._was_cut:
                self._check_end(raw, generation, offset, [each for each in present if each > generation])
            generation = following
        return ReplayResult(self._number, self._frames, self._was_cut, self._linked, self._synced_after_link)

    def _read_segment(self, raw: bytes, generation: int, apply: Apply) -> tuple[int, int | None]:
        """Return the offset after the last frame in order, and the generation of the next segment; None if the log ends
        here."""
        offset = FIRST_FRAME_OFFSET
        if not has_header(raw, generation):
            return 0, None
        while True:
            header = read_header(raw, offset, generation)
            if header is None or not self._is_next(header.number):
                header = self._skip_covered(raw, offset, generation)
                if header is None:
                    return offset, None
            if header.number == self._before:
                self._was_cut = True
                return offset, None
            is_needed = header.number > self._covered.number or header.kind == LogPartKind.NEXT_SEGMENT
            body = read_body(raw, header) if is_needed else None
            if body is None and is_needed:
                return offset, None
            offset = header.end
            self._number = max(self._number, header.number)
            if header.number > self._covered.number:
                if header.kind == LogPartKind.LINKED:
                    self._linked, self._synced_after_link = header.number, 0
                elif self._linked is not None:
                    self._synced_after_link = max(self._synced_after_link, header.synced)
            if header.kind == LogPartKind.NEXT_SEGMENT:
                assert body is not None
                return offset, int.from_bytes(body, "little")
            if header.number > self._covered.number:
                assert body is not None
                apply(body, generation, header.body_offset)
                self._frames += 1

    def _is_next(self, number: int) -> bool:
        return number <= self._covered.number or number == self._number + 1

    def _skip_covered(self, raw: bytes, offset: int, generation: int) -> FrameHeader | None:
        """Return the first whole frame after damage, if RocksDB has all damaged frames."""
        if self._number > self._covered.number:
            return None
        header = find_next_frame(raw, offset, generation)
        return header if header is not None and header.number <= self._covered.number + 1 else None

    # --- The end of the log ------------------------------------------------------------------------------------

    def _check_end(self, raw: bytes, generation: int, offset: int, later: list[int]) -> None:
        """Accept the end of the log at an offset. Raise `StoreUnavailable` if frames that were written are missing
        after it."""
        missing = self._number + 1
        torn = read_header(raw, offset, generation)
        if torn is None or torn.number != missing:
            traces = find_traces(raw, offset, generation, missing)
        else:
            # The body is not searched, because a payload may contain another log.
            traces = [Trace(offset, missing, 0)] if has_footer(raw, torn, generation) else []
            traces += find_traces(raw, torn.end, generation, missing)
        for each in later:
            traces += find_traces(segment_path(self._directory, each).read_bytes(), 0, each, missing)
        if not traces:
            return
        path = segment_path(self._directory, generation)
        if not self._after_power_cut or any(trace.synced >= missing for trace in traces):
            raise self._damaged(path, offset, missing, traces)
        self._was_cut = True
        _log.warning(
            "log_cut",
            extra={
                "path": str(path),
                "at": offset,
                "cause": "a power cut has lost commits that had not been synced; the store opens without them",
            },
        )

    def _damaged(self, path: Path, offset: int, missing: int, traces: list[Trace]) -> StoreUnavailable:
        first = min(trace.number for trace in traces)
        finding = "is damaged" if first == missing else f"is missing, but commit {first} follows"
        return StoreUnavailable(
            f"{path} is damaged at byte {offset}: commit {missing} {finding}; restore a backup",
            path=str(self._store),
            file=str(path),
            at=offset,
        )

    def _missing(self, path: Path) -> StoreUnavailable:
        return StoreUnavailable(
            f"{path} is missing, though the store was not closed properly: it contains the last commits; put the file "
            "back, or restore a backup",
            path=str(self._store),
            file=str(path),
        )
