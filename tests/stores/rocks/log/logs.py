"""A commit log in a directory, written and read back."""

from collections.abc import Iterable
from pathlib import Path

from holdfast.stores.rocks.log.commit_log import START, CommitLog, LogPosition
from holdfast.stores.rocks.log.frames import FrameHeader, read_header
from holdfast.stores.rocks.log.replay import Replay, ReplayResult
from holdfast.stores.rocks.log.segments import FIRST_FRAME_OFFSET, segment_path


def begin(directory: Path, begin: LogPosition = START) -> CommitLog:
    directory.mkdir(exist_ok=True)
    CommitLog.make_first(directory, begin)
    return CommitLog(directory, begin)


def sync(log: CommitLog) -> None:
    pending = log.begin_sync()
    log.sync(pending)
    log.end_sync(pending)


def write(log: CommitLog, bodies: Iterable[bytes], *, syncs: bool = True) -> None:
    for body in bodies:
        log.append(body)
        if syncs:
            sync(log)


def read(
    directory: Path, covered: LogPosition = START, *, was_closed: bool = False, after_power_cut: bool = False
) -> tuple[list[bytes], ReplayResult]:
    bodies: list[bytes] = []
    replay = Replay(directory, directory, covered, was_closed=was_closed, after_power_cut=after_power_cut)
    return bodies, replay.run(lambda body, generation, at: bodies.append(body))


def headers(directory: Path, generation: int = 1) -> list[FrameHeader]:
    """Return the frames of a segment in order."""
    raw, at, found = segment_path(directory, generation).read_bytes(), FIRST_FRAME_OFFSET, []
    while (header := read_header(raw, at, generation)) is not None:
        found.append(header)
        at = header.end
    return found


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
