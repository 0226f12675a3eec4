"""Writing the commit log: frames in order, over as many segments as needed, and segments that are reused."""

import errno
import os
from pathlib import Path

import pytest

from holdfast.stores.rocks.log.commit_log import START, CommitLog, LogPosition
from holdfast.stores.rocks.log.frames import frame_size
from holdfast.stores.rocks.log.segments import (
    FIRST_FRAME_OFFSET,
    delete_all_but,
    find_whole_part,
    list_segments,
    segment_path,
)
from tests.stores.rocks.log.conftest import SEGMENT_BYTES, ZEROS_BYTES
from tests.stores.rocks.log.logs import begin, headers, read, sync, write

BODIES = [b"commit %04d " % number * 40 for number in range(120)]


def make_spare(log: CommitLog) -> int:
    generation, reused = log.begin_spare()
    log.make_spare(generation, reused)
    log.end_spare(generation)
    return generation


def size_of(directory: Path, generation: int = 1) -> int:
    return segment_path(directory, generation).stat().st_size


def test_frames_are_read_back_in_order_over_several_segments(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    write(log, BODIES)
    assert len(list_segments(tmp_path / "log")) > 3
    bodies, replayed = read(tmp_path / "log")
    assert bodies == BODIES
    assert replayed.number == log.number


def test_a_reader_behind_a_position_gets_the_frames_after_it(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    write(log, BODIES[:50])
    covered = log.position
    write(log, BODIES[50:])
    bodies, _ = read(tmp_path / "log", covered)
    assert bodies == BODIES[50:]


def test_a_segment_is_not_touched_by_those_before_the_position_that_are_gone(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    write(log, BODIES[:50])
    covered = log.position
    write(log, BODIES[50:])
    log.release(covered)
    log.delete(log.take_surplus())
    bodies, _ = read(tmp_path / "log", covered)
    assert bodies == BODIES[50:]


def test_a_frame_larger_than_a_segment_gets_a_segment_of_its_size(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    large = b"x" * 100_000
    write(log, [BODIES[0], large, BODIES[1]])
    assert read(tmp_path / "log")[0] == [BODIES[0], large, BODIES[1]]


def test_a_frame_larger_than_the_segment_made_ahead_goes_past_it(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    make_spare(log)
    large = b"x" * 100_000
    write(log, [large, *BODIES])
    assert read(tmp_path / "log")[0] == [large, *BODIES]


def test_the_log_continues_in_the_segment_made_ahead(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    generation = make_spare(log)
    write(log, BODIES[:30])
    assert headers(tmp_path / "log", generation)


def test_the_next_segment_is_made_once_half_of_the_current_one_is_used(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    for number in range(60):
        assert log.needs_spare == (number > 0 and 2 * headers(tmp_path / "log")[-1].end > SEGMENT_BYTES)
        write(log, [b"%04d" % number])
    assert log.needs_spare
    make_spare(log)
    assert not log.needs_spare


def test_a_segment_that_was_made_too_late_is_not_used_out_of_order(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    generation, reused = log.begin_spare()
    write(log, BODIES[:60])
    log.make_spare(generation, reused)
    log.end_spare(generation)
    write(log, BODIES[60:])
    assert read(tmp_path / "log")[0] == BODIES
    assert not headers(tmp_path / "log", generation)


def test_old_frames_of_a_segment_that_is_used_again_are_never_taken_for_new_ones(tmp_path: Path) -> None:
    """Each time, the new frames end in the middle of old frames of the same size."""
    log, directory = begin(tmp_path / "log"), tmp_path / "log"
    covered, since = START, list[bytes]()
    reused_any = False
    for round in range(30):
        bodies = [b"round %04d " % round * 40] * 7
        write(log, bodies)
        since += bodies
        if log.needs_spare:
            generation, reused = log.begin_spare()
            reused_any = reused_any or reused is not None
            log.make_spare(generation, reused)
            log.end_spare(generation)
        assert read(directory, covered)[0] == since
        if round % 3 == 2:
            covered, since = log.position, []
            log.release(covered)
            log.delete(log.take_surplus())
    assert reused_any


# --- Zeros ahead of the frames -----------------------------------------------------------------------------------


def test_a_segment_made_in_advance_has_zeros_for_its_first_frames_and_no_more(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    for generation in (1, make_spare(log)):
        raw = segment_path(tmp_path / "log", generation).read_bytes()
        assert raw[FIRST_FRAME_OFFSET:] == bytes(ZEROS_BYTES)


def test_the_file_grows_in_steps_of_zeros_and_most_frames_do_not_lengthen_it(tmp_path: Path) -> None:
    """A sync of a frame that extends the file is more expensive, because it also writes metadata of the file system."""
    log = begin(tmp_path / "log")
    bodies = [b"%04d" % number for number in range(30)]
    sizes = []
    for body in bodies:
        write(log, [body])
        raw, end = segment_path(tmp_path / "log", 1).read_bytes(), headers(tmp_path / "log")[-1].end
        assert not any(raw[end:])
        assert len(raw) - end <= ZEROS_BYTES
        sizes.append(len(raw))
    frames_in_a_step = ZEROS_BYTES // frame_size(len(bodies[0]))
    assert 1 < len(set(sizes)) <= 1 + len(bodies) // frames_in_a_step
    assert read(tmp_path / "log")[0] == bodies


def test_a_segment_never_grows_past_its_size(tmp_path: Path) -> None:
    log, bodies = begin(tmp_path / "log"), [b"%04d" % number for number in range(100)]
    write(log, bodies)
    assert log.position.generation > 1
    assert size_of(tmp_path / "log") == SEGMENT_BYTES
    assert read(tmp_path / "log")[0] == bodies


def test_a_commit_succeeds_though_there_is_no_room_for_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = begin(tmp_path / "log")
    pwrite = os.pwrite

    def without_room(descriptor: int, data: bytes, at: int) -> int:
        if not any(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", without_room)
    write(log, BODIES[:6])
    assert size_of(tmp_path / "log") == headers(tmp_path / "log")[-1].end
    assert read(tmp_path / "log")[0] == BODIES[:6]


def test_the_last_frame_of_a_segment_is_followed_by_no_new_zeros(tmp_path: Path) -> None:
    """The next frame does not fit, and no later frame uses the rest of the segment."""
    log = begin(tmp_path / "log")
    up_to_the_zeros = b"x" * (ZEROS_BYTES - frame_size(0))
    write(log, [up_to_the_zeros, b"y" * SEGMENT_BYTES])
    assert size_of(tmp_path / "log") == headers(tmp_path / "log")[-1].end < SEGMENT_BYTES


def test_a_frame_that_needs_a_segment_of_its_own_writes_no_zeros_into_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begin(tmp_path / "log")
    made: list[int] = []
    replace = Path.replace

    def noted(path: Path, target: Path) -> Path:
        made.append(path.stat().st_size)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", noted)
    write(log, [b"x" * 100_000])
    assert made == [FIRST_FRAME_OFFSET]


def test_a_reused_segment_that_is_short_grows_behind_its_old_frames_alone(tmp_path: Path) -> None:
    log, directory = begin(tmp_path / "log"), tmp_path / "log"
    write(log, [*BODIES[:3], b"x" * SEGMENT_BYTES])
    old = segment_path(directory, 1).read_bytes()
    assert len(old) < SEGMENT_BYTES
    log.release(log.position)
    generation, covered = make_spare(log), log.position
    write(log, [BODIES[3]])
    assert log.position.generation == generation
    end = headers(directory, generation)[-1].end
    assert segment_path(directory, generation).read_bytes()[end:] == old[end:]
    write(log, BODIES[4:9])
    assert len(old) < size_of(directory, generation) <= SEGMENT_BYTES
    assert read(directory, covered)[0] == BODIES[3:9]


def test_a_segment_that_is_being_made_is_left_alone_while_others_are_deleted(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    write(log, BODIES)
    (tmp_path / "log" / "000000000099.new").write_bytes(b"half of it")
    log.release(log.position)
    log.delete(log.take_surplus())
    assert (tmp_path / "log" / "000000000099.new").exists()
    delete_all_but(tmp_path / "log", log.position.generation)
    assert [file.name for file in (tmp_path / "log").iterdir()] == [f"{log.position.generation:012}.log"]


def test_a_copy_of_a_log_in_use_leaves_out_what_comes_after_it_and_keeps_what_follows_a_freed_segment(
    tmp_path: Path,
) -> None:
    log = begin(tmp_path / "log")
    write(log, BODIES)
    first, second, *_, last = list_segments(tmp_path / "log")
    raw = segment_path(tmp_path / "log", first).read_bytes()
    whole = headers(tmp_path / "log", first)
    assert find_whole_part(raw, first, [first, second, last]) == (whole[-1].end, True)
    assert find_whole_part(raw, first, [first, last]) == (whole[-1].end, True), "the second one has been freed"
    assert find_whole_part(raw, first, [first]) == (whole[-1].offset, False), (
        "the second one was made after the copy began"
    )


def test_a_sync_holds_for_what_was_written_when_it_began(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    write(log, BODIES[:2], syncs=False)
    pending = log.begin_sync()
    write(log, BODIES[2:4], syncs=False)
    log.sync(pending)
    log.end_sync(pending)
    assert (log.number, log.synced) == (4, 2)
    sync(log)
    assert log.synced == 4


def test_a_sync_covers_the_segments_that_were_filled_since_the_last_one(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    write(log, BODIES, syncs=False)
    assert len(log.begin_sync().descriptors) > 3
    sync(log)
    assert len(log.begin_sync().descriptors) == 1


def test_each_frame_says_what_was_synced_when_it_was_written(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    write(log, BODIES[:3])
    write(log, BODIES[3:5], syncs=False)
    assert [header.synced for header in headers(tmp_path / "log")] == [0, 1, 2, 3, 3]


def test_a_log_that_begins_again_at_a_position_continues_its_numbers(tmp_path: Path) -> None:
    log = begin(tmp_path / "log", LogPosition(41, 7))
    write(log, BODIES[:3])
    log.close()
    bodies, replayed = read(tmp_path / "log", LogPosition(41, 7))
    assert (bodies, replayed.number) == (BODIES[:3], 44)
