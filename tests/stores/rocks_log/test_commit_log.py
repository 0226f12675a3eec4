"""Writing the commit log: frames in order, over as many segments as it takes, and segments used again."""

from pathlib import Path

from holdfast.stores.rocks.log.commit_log import START, CommitLog, LogPosition
from holdfast.stores.rocks.log.segments import delete_all_but, list_segments, segment_path, whole_part
from tests.stores.rocks_log.logs import begin, headers, read, sync, write

BODIES = [b"commit %04d " % number * 40 for number in range(120)]


def make_spare(log: CommitLog, room_bytes: int = 1 << 30) -> int:
    generation, size, reused = log.begin_spare(room_bytes)
    log.make_spare(generation, size, reused)
    log.end_spare(generation, size)
    return generation


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


def test_the_log_continues_in_the_segment_made_ahead_which_is_twice_as_large(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    generation = make_spare(log)
    write(log, BODIES[:30])
    assert headers(tmp_path / "log", generation)
    first, second = (segment_path(tmp_path / "log", each).stat().st_size for each in (1, generation))
    assert second == 2 * first


def test_a_segment_that_was_made_too_late_is_not_used_out_of_order(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    generation, size, reused = log.begin_spare(1 << 30)
    write(log, BODIES[:60])
    log.make_spare(generation, size, reused)
    log.end_spare(generation, size)
    write(log, BODIES[60:])
    assert read(tmp_path / "log")[0] == BODIES
    assert not headers(tmp_path / "log", generation)


def test_old_frames_of_a_segment_that_is_used_again_are_never_taken_for_new_ones(tmp_path: Path) -> None:
    """Each time round, the new frames end in the middle of old ones of the same size."""
    log, directory = begin(tmp_path / "log"), tmp_path / "log"
    covered, since = START, list[bytes]()
    reused_any = False
    for round in range(30):
        bodies = [b"round %04d " % round * 40] * 7
        write(log, bodies)
        since += bodies
        if log.needs_spare:
            generation, size, reused = log.begin_spare(1 << 30)
            reused_any = reused_any or reused is not None
            log.make_spare(generation, size, reused)
            log.end_spare(generation, size)
        assert read(directory, covered)[0] == since
        if round % 3 == 2:
            covered, since = log.position, []
            log.release(covered)
            log.delete(log.take_surplus())
    assert reused_any


def test_a_segment_made_ahead_takes_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    generation = make_spare(log, room_bytes=0)
    assert segment_path(tmp_path / "log", generation).stat().st_size == segment_path(tmp_path / "log", 1).stat().st_size


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
    assert whole_part(raw, first, [first, second, last]) == (whole[-1].end, True)
    assert whole_part(raw, first, [first, last]) == (whole[-1].end, True), "the second one has been freed"
    assert whole_part(raw, first, [first]) == (whole[-1].at, False), "the second one was made after the copy began"


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
