"""Reading the log after a crash: a torn end is accepted, damage is refused, and nothing in between is skipped."""

import shutil
from pathlib import Path

import pytest

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.log.commit_log import START, LogPosition
from holdfast.stores.rocks.log.frames import FOOTER_SIZE
from holdfast.stores.rocks.log.replay import ReplayResult
from holdfast.stores.rocks.log.segments import FIRST_FRAME_OFFSET, find_whole_part, list_segments, segment_path
from tests.stores.rocks.log.logs import begin, change, headers, read, write

BODIES = [b"%04d" % number for number in range(6)]
MANY = [b"commit %04d " % number * 40 for number in range(60)]


@pytest.fixture
def synced_log(tmp_path: Path) -> Path:
    """Make a log that is synced after each commit."""
    write(begin(tmp_path / "synced"), BODIES)
    return tmp_path / "synced"


@pytest.fixture
def unsynced_log(tmp_path: Path) -> Path:
    write(begin(tmp_path / "unsynced"), BODIES, syncs=False)
    return tmp_path / "unsynced"


@pytest.fixture
def long_log(tmp_path: Path) -> Path:
    """Make a log of several segments, none of it synced."""
    write(begin(tmp_path / "long"), MANY, syncs=False)
    return tmp_path / "long"


def zero(directory: Path, number: int, generation: int = 1) -> None:
    header = headers(directory, generation)[number]
    change(segment_path(directory, generation), header.offset, bytes(header.end - header.offset))


@pytest.mark.parametrize("after_power_cut", [False, True])
def test_a_flipped_bit_in_any_byte_is_refused_or_changes_nothing(synced_log: Path, after_power_cut: bool) -> None:
    path = segment_path(synced_log, 1)
    raw = path.read_bytes()
    last = headers(synced_log)[-1]
    refused = 0
    for at in (*range(100), *range(FIRST_FRAME_OFFSET, last.end)):
        change(path, at, bytes([raw[at] ^ 1 << at % 8]))
        try:
            bodies, _ = read(synced_log, after_power_cut=after_power_cut)
        except StoreUnavailable:
            refused += 1
        else:
            # After a power cut nothing says that the last commit had been synced.
            may_end_early = after_power_cut and last.offset <= at
            assert bodies == BODIES or (may_end_early and bodies == BODIES[:-1]), f"byte {at}"
        change(path, at, raw[at : at + 1])
    assert refused > last.offset - FIRST_FRAME_OFFSET - len(BODIES) * (FOOTER_SIZE + 8)


def test_a_log_cut_at_any_byte_of_its_last_frame_loses_that_frame_alone(synced_log: Path) -> None:
    """The file ends there, or the zeros after its frames begin there."""
    path = segment_path(synced_log, 1)
    raw, last = path.read_bytes(), headers(synced_log)[-1]
    for at in range(last.offset, last.end - FOOTER_SIZE - 8):
        for rest in (b"", bytes(len(raw) - at)):
            path.write_bytes(raw[:at] + rest)
            for after_power_cut in (False, True):
                assert read(synced_log, after_power_cut=after_power_cut)[0] == BODIES[:-1], f"byte {at}"


def test_a_segment_may_end_anywhere_behind_its_last_frame(unsynced_log: Path) -> None:
    """A crash loses zeros that were to follow, or the file never had them."""
    path = segment_path(unsynced_log, 1)
    raw, end = path.read_bytes(), headers(unsynced_log)[-1].end
    assert len(raw) > end
    for size in range(end, len(raw) + 1):
        path.write_bytes(raw[:size])
        for after_power_cut in (False, True):
            assert read(unsynced_log, after_power_cut=after_power_cut) == (BODIES, ReplayResult(6, 6)), f"{size} bytes"
        assert find_whole_part(raw[:size], 1, [1]) == (end, False)


def test_a_frame_whose_end_alone_is_torn_is_whole(synced_log: Path) -> None:
    path, last = segment_path(synced_log, 1), headers(synced_log)[-1]
    change(path, last.end - FOOTER_SIZE, bytes(FOOTER_SIZE))
    assert read(synced_log)[0] == BODIES


def test_a_hole_in_what_was_not_synced_is_refused_after_a_kill_and_cut_after_a_power_cut(
    unsynced_log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    zero(unsynced_log, 2)
    with pytest.raises(StoreUnavailable, match=r"is damaged at byte \d+: commit 3 is missing, but commit 4 follows"):
        read(unsynced_log)
    bodies, replayed = read(unsynced_log, after_power_cut=True)
    assert bodies == BODIES[:2]
    assert replayed.was_cut
    assert [record.message for record in caplog.records] == ["log_cut"]


def test_a_hole_in_what_was_synced_is_refused_after_a_power_cut_too(synced_log: Path) -> None:
    zero(synced_log, 2)
    for after_power_cut in (False, True):
        with pytest.raises(StoreUnavailable, match="commit 3 is missing") as raised:
            read(synced_log, after_power_cut=after_power_cut)
        assert raised.value.facts["file"] == str(segment_path(synced_log, 1))
        assert raised.value.facts["at"] == headers(synced_log)[1].end


def test_a_last_frame_that_was_written_whole_and_is_damaged_is_refused_after_a_kill(unsynced_log: Path) -> None:
    path, last = segment_path(unsynced_log, 1), headers(unsynced_log)[-1]
    change(path, last.body_offset, b"!")
    with pytest.raises(StoreUnavailable, match="commit 6 is damaged"):
        read(unsynced_log)
    assert read(unsynced_log, after_power_cut=True)[0] == BODIES[:-1]


@pytest.mark.parametrize("after_power_cut", [False, True])
def test_a_missing_segment_is_refused(long_log: Path, tmp_path: Path, after_power_cut: bool) -> None:
    generations = list_segments(long_log)
    assert len(generations) > 3
    for generation in generations:
        copy = tmp_path / f"without {generation}"
        shutil.copytree(long_log, copy)
        segment_path(copy, generation).unlink()
        with pytest.raises(StoreUnavailable, match=rf"{generation:012}\.log is missing"):
            read(copy, after_power_cut=after_power_cut)


def test_a_log_may_be_missing_only_if_the_store_was_closed(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="though the store was not closed properly"):
        read(tmp_path / "log", LogPosition(7, 2))
    assert read(tmp_path / "log", LogPosition(7, 2), was_closed=True)[1].number == 7


def test_segments_before_the_covered_position_are_not_looked_at(tmp_path: Path) -> None:
    log = begin(tmp_path / "log")
    write(log, MANY[:40])
    covered = log.position
    write(log, MANY[40:])
    assert covered.generation > 1
    segment_path(tmp_path / "log", 1).write_bytes(b"anything")
    assert read(tmp_path / "log", covered)[0] == MANY[40:]


def test_damage_in_covered_frames_does_not_matter(synced_log: Path) -> None:
    zero(synced_log, 1)
    assert read(synced_log, LogPosition(3, 1))[0] == BODIES[3:]


def test_damage_that_reaches_the_first_frame_not_covered_is_refused(synced_log: Path) -> None:
    zero(synced_log, 2)
    zero(synced_log, 1)
    assert read(synced_log, LogPosition(3, 1))[0] == BODIES[3:]
    with pytest.raises(StoreUnavailable, match="commit 3 is missing"):
        read(synced_log, LogPosition(2, 1))


def test_the_end_of_a_segment_lost_with_the_name_of_the_next_is_seen(long_log: Path) -> None:
    """The frames of the next segment exist, but nothing refers to them."""
    last = headers(long_log)[-1]
    change(segment_path(long_log, 1), last.offset, bytes(last.end - last.offset))
    with pytest.raises(StoreUnavailable, match=f"commit {last.number} is missing"):
        read(long_log)
    bodies, replayed = read(long_log, after_power_cut=True)
    assert replayed.was_cut
    assert bodies == MANY[: last.number - 1]


def test_a_payload_that_holds_another_log_is_not_taken_for_frames(tmp_path: Path) -> None:
    """A frame torn in the middle of such a payload is a torn frame, though the frames in it fit this very segment."""
    inner = begin(tmp_path / "inner", LogPosition(10, 2))
    write(inner, BODIES)
    payload = segment_path(tmp_path / "inner", 2).read_bytes()
    log = begin(tmp_path / "log")
    write(log, [b"first", payload + b"tail" * 100])
    generation = list_segments(tmp_path / "log")[-1]
    assert generation == 2
    torn = headers(tmp_path / "log", generation)[-1]
    change(segment_path(tmp_path / "log", generation), torn.end - 200, bytes(200))
    assert read(tmp_path / "log")[0] == [b"first"]


def test_a_segment_without_a_header_that_nothing_was_written_to_is_empty(synced_log: Path) -> None:
    assert read(synced_log, START)[0] == BODIES
    change(segment_path(synced_log, 1), 0, bytes(64))
    with pytest.raises(StoreUnavailable, match="damaged at byte 0"):
        read(synced_log)
    segment_path(synced_log, 1).write_bytes(bytes(8_192))
    assert read(synced_log)[0] == []
