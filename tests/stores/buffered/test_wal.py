"""The log keeps what it answered for, whatever is done to its files."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.buffered.log.log_disk import Disk
from holdfast.stores.buffered.log.records import HEADER_BYTES, RECORD_BYTES
from holdfast.stores.buffered.log.segments import LogDamaged
from holdfast.stores.buffered.log.wal import LogInUse, LogStopped, Wal


def append(wal: Wal, *bodies: bytes, shard: int = 0) -> list[int]:
    """In one write; answers the numbers."""
    numbers = wal.take_numbers(shard, len(bodies))
    wal.make_room(sum(RECORD_BYTES + len(body) for body in bodies))
    wal.append((shard, number, body) for number, body in zip(numbers, bodies, strict=True))
    return list(numbers)


class QuickDisk(Disk):
    """For tests that open thousands of logs and cut no power: syncs nothing."""

    def sync(self, descriptor: int) -> None: ...
    def sync_all(self, descriptor: int) -> None: ...
    def sync_directory(self, path: Path) -> None: ...


def bodies_of(path: Path) -> list[bytes]:
    wal = Wal(path, segment_bytes=4_096, disk=QuickDisk())
    try:
        return [logged.body for logged in wal.replay()]
    finally:
        wal.close()


def crash(wal: Wal) -> None:
    """Its process is gone: the files stay as they are."""
    os.close(wal._file)
    wal._lock.release()


def the_segment(path: Path) -> Path:
    return sorted(path.glob("*.wal"))[-1]


# --- What it gives back --------------------------------------------------------------------------------------------


def test_what_was_appended_is_replayed_in_order_with_its_place(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    append(wal, b"a", b"b")
    append(wal, b"c", shard=1)
    append(wal, b"d")
    crash(wal)
    again = Wal(tmp_path)
    replayed = again.replay()
    assert [(logged.position.shard, logged.position.number, logged.body) for logged in replayed] == [
        (0, 0, b"a"),
        (0, 1, b"b"),
        (1, 0, b"c"),
        (0, 2, b"d"),
    ]
    assert {(logged.position.node, logged.position.epoch) for logged in replayed} == {(wal.node, wal.epoch)}
    assert (again.node, again.replay()) == (wal.node, [])
    assert again.epoch != wal.epoch
    again.close()


def test_a_log_that_was_never_trimmed_is_replayed_over_many_openings(tmp_path: Path) -> None:
    for number in range(5):
        wal = Wal(tmp_path)
        append(wal, f"{number}".encode())
        crash(wal) if number % 2 else wal.close()
    assert bodies_of(tmp_path) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_segment_that_is_full_is_followed_by_another(tmp_path: Path) -> None:
    wal = Wal(tmp_path, segment_bytes=500)
    written = [f"{number:0100}".encode() for number in range(20)]
    for body in written:
        append(wal, body)
    append(wal, b"x" * 5_000)  # longer than a segment: it has one of its own length
    crash(wal)
    assert len(list(tmp_path.glob("*.wal"))) > 7
    assert bodies_of(tmp_path) == [*written, b"x" * 5_000]


def test_what_was_voided_is_not_replayed(tmp_path: Path) -> None:
    wal = Wal(tmp_path, segment_bytes=300)
    numbers = append(wal, b"a", b"b", b"c")
    append(wal, b"1" * 200)
    wal.void([(0, numbers[1])])
    crash(wal)
    assert bodies_of(tmp_path) == [b"a", b"c", b"1" * 200]


# --- Trimming ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("5.5")
def test_a_segment_goes_once_all_of_it_has_landed_and_not_before(tmp_path: Path) -> None:
    wal = Wal(tmp_path, segment_bytes=300)
    for number in range(6):
        append(wal, b"%d" % number * 100)
    crash(wal)
    wal = Wal(tmp_path, segment_bytes=300)
    first, *others = wal.replay()
    assert wal.waiting == 6
    wal.landed(logged.segment for logged in others)
    assert wal.trim() == 0, "the oldest has not landed"
    assert len(list(tmp_path.glob("*.wal"))) == 7
    wal.landed([first.segment])
    assert wal.trim() == 6
    assert len(list(tmp_path.glob("*.wal"))) == 1
    wal.close()
    assert bodies_of(tmp_path) == []


def test_the_segment_that_is_written_stays_though_all_of_it_has_landed(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    append(wal, b"a")
    wal.landed([1])
    assert wal.trim() == 0
    append(wal, b"b")
    crash(wal)
    assert bodies_of(tmp_path) == [b"a", b"b"]


# --- Files that were damaged ----------------------------------------------------------------------------------------


def make_log(path: Path) -> list[bytes]:
    """Not closed: its last record was written alone."""
    wal = Wal(path, segment_bytes=4_096)
    append(wal, b"first")
    append(wal, b"second", b"third" * 4)
    append(wal, b"the last one")
    crash(wal)
    return [b"first", b"second", b"third" * 4, b"the last one"]


def test_a_log_torn_at_any_byte_of_its_last_record_loses_that_record_alone(tmp_path: Path) -> None:
    written = make_log(tmp_path / "whole")
    raw = the_segment(tmp_path / "whole").read_bytes().rstrip(b"\x00")
    start = len(raw) - RECORD_BYTES - len(written[-1])
    for how, end in ((how, end) for how in ("short", "empty", "garbage") for end in range(start, len(raw) + 1)):
        path = tmp_path / f"{how}{end}"
        shutil.copytree(tmp_path / "whole", path)
        rest = {"short": b"", "empty": b"\x00" * 50, "garbage": b"\xa5" * 50}[how]
        the_segment(path).write_bytes(raw[:end] + rest)
        expected = written if end == len(raw) else written[:-1]
        assert bodies_of(path) == expected, (how, end)
        assert bodies_of(path) == expected, "the second opening finds what the first left"


def test_records_of_one_write_may_be_torn_in_any_order(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    append(wal, b"kept")
    append(wal, b"torn", b"whole")
    crash(wal)
    path = the_segment(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"torn", b"\x00\x00\x00\x00"))
    assert bodies_of(tmp_path) == [b"kept"], "neither was answered for"


@pytest.mark.slow
def test_every_bit_that_is_flipped_is_found_or_costs_the_last_write_at_most(tmp_path: Path) -> None:
    written = make_log(tmp_path / "whole")
    original = the_segment(tmp_path / "whole").read_bytes()
    ends = len(original.rstrip(b"\x00"))
    last = ends - RECORD_BYTES - len(written[-1])
    path = tmp_path / "flipped"
    for bit in range(8 * ends):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", path)
        raw = bytearray(original)
        raw[bit // 8] ^= 1 << bit % 8
        the_segment(path).write_bytes(raw)
        if bit // 8 < last:
            with pytest.raises(LogDamaged):
                bodies_of(path)
        else:
            assert bodies_of(path) == written[:-1], bit


@pytest.mark.slow
def test_every_bit_that_is_flipped_in_a_closed_log_is_found(tmp_path: Path) -> None:
    wal = Wal(tmp_path / "whole", segment_bytes=150)
    written = [b"a" * 20, b"b" * 20]
    for body in written:
        append(wal, body)
    wal.close()
    for segment in sorted((tmp_path / "whole").glob("*.wal")):
        is_last = segment == the_segment(tmp_path / "whole")
        original = segment.read_bytes()
        path = tmp_path / "flipped"
        for bit in range(8 * len(original)):
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(tmp_path / "whole", path)
            raw = bytearray(original)
            raw[bit // 8] ^= 1 << bit % 8
            (path / segment.name).write_bytes(raw)
            if is_last and bit // 8 >= len(original) - RECORD_BYTES:
                assert bodies_of(path) == written, "of the last seal nothing depends"
            else:
                with pytest.raises(LogDamaged):
                    bodies_of(path)


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_a_segment_in_the_middle_that_is_gone_or_short_is_named(tmp_path: Path, harm: Callable[[Path], Any]) -> None:
    wal = Wal(tmp_path, segment_bytes=200)
    for number in range(4):
        append(wal, b"%d" % number * 100)
    wal.close()
    middle = sorted(tmp_path.glob("*.wal"))[1]
    harm(middle)
    with pytest.raises(LogDamaged, match=middle.name):
        Wal(tmp_path)


def test_a_segment_of_another_log_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        wal = Wal(tmp_path / name, segment_bytes=200)
        for number in range(3):
            append(wal, b"%d" % number * 100)
        wal.close()
    name = sorted((tmp_path / "a").glob("*.wal"))[1].name
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    with pytest.raises(LogDamaged, match="another log"):
        Wal(tmp_path / "a")


def test_bytes_in_a_payload_that_look_like_a_record_are_not_read_as_one(tmp_path: Path) -> None:
    make_log(tmp_path / "other")
    other = the_segment(tmp_path / "other").read_bytes().rstrip(b"\x00")
    wal = Wal(tmp_path / "log")
    append(wal, b"kept")
    append(wal, other[HEADER_BYTES:] * 3)
    crash(wal)
    path = the_segment(tmp_path / "log")
    raw = path.read_bytes()
    path.write_bytes(raw[: HEADER_BYTES + RECORD_BYTES + 4] + b"\xff" + raw[HEADER_BYTES + RECORD_BYTES + 5 :])
    assert bodies_of(tmp_path / "log") == [b"kept"]


# --- Two openers -----------------------------------------------------------------------------------------------------


def test_a_log_is_open_once(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    with pytest.raises(LogInUse, match=f"process {os.getpid()}"):
        Wal(tmp_path)
    append(wal, b"a")
    wal.close()
    assert bodies_of(tmp_path) == [b"a"]


def test_a_directory_that_cannot_be_made_is_refused_by_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument) as refused:
        Wal(tmp_path / "file" / "log")
    assert refused.value.facts == {"field": "wal_dir"}


# --- A disk that fails ------------------------------------------------------------------------------------------------


class FailingDisk(QuickDisk):
    """Fails one kind of call from its `at`th on, or once."""

    def __init__(self, call: str, at: int, number: int = errno.EIO, *, once: bool = False) -> None:
        self._left = at
        self._number = number

        def failing(*args: Any) -> Any:
            self._left -= 1
            if self._left < 0 and not (once and self._left < -1):
                raise OSError(self._number, os.strerror(self._number))
            return real(*args)

        real = getattr(self, call)
        setattr(self, call, failing)


@pytest.mark.parametrize("call", ["write", "sync"])
def test_after_a_failed_write_or_sync_the_log_takes_nothing_more(tmp_path: Path, call: str) -> None:
    # The header is written first, and synced with the file's length.
    wal = Wal(tmp_path, disk=FailingDisk(call, 2 + (call == "write"), once=True))
    append(wal, b"a")
    append(wal, b"b")
    with pytest.raises(LogStopped, match="Input/output error"):
        append(wal, b"c")
    # The disk works again, which proves nothing.
    for _ in range(3):
        with pytest.raises(LogStopped):
            append(wal, b"d")
    assert isinstance(wal.failure, StoreUnavailable)
    wal.close()
    assert bodies_of(tmp_path)[:2] == [b"a", b"b"]


@pytest.mark.parametrize("call", ["write", "sync", "sync_all", "sync_directory", "truncate", "rename", "create"])
def test_wherever_the_disk_fails_nothing_answered_for_is_lost(tmp_path: Path, call: str) -> None:
    number, has_failed = 0, True
    while has_failed:
        path = tmp_path / f"{call}{number}"
        answered, has_failed = [], False
        try:
            wal = Wal(path, segment_bytes=300, disk=FailingDisk(call, number))
            for count in range(8):
                body = b"%d" % count * 60
                append(wal, body)
                answered.append(body)
        except StoreUnavailable:
            has_failed = True
        if path.exists() and "wal" in locals():
            wal.close()
        found = bodies_of(path)
        assert found[: len(answered)] == answered, (call, number)
        assert len(found) <= len(answered) + 1
        number += 1
    assert number > 2 or call == "truncate"


@pytest.mark.parametrize("call", ["write", "sync", "sync_all", "sync_directory", "truncate", "rename", "create"])
def test_wherever_the_disk_failed_a_log_continues_once_it_works_again(tmp_path: Path, call: str) -> None:
    for number in range(1, 12):
        path = tmp_path / f"{call}{number}"
        wal = Wal(path, segment_bytes=300, disk=FailingDisk(call, number + 1, once=True))
        answered, unknown = [], set()
        for count in range(8):
            body = b"%d" % count * 60
            try:
                append(wal, body)
                answered.append(body)
            except StoreUnavailable:
                unknown.add(body)
                try:
                    wal.recover()
                except StoreUnavailable:
                    wal.recover()  # the call that fails was in the recovery
            assert wal.failure is None
        assert len(unknown) <= 1
        wal.close()
        found = bodies_of(path)
        assert [body for body in found if body not in unknown] == answered, (call, number)


def test_a_log_whose_disk_still_fails_is_not_recovered_and_one_that_was_closed_never(tmp_path: Path) -> None:
    wal = Wal(tmp_path, disk=FailingDisk("write", 2))
    append(wal, b"a")
    with pytest.raises(LogStopped):
        append(wal, b"b")
    for _ in range(3):
        with pytest.raises(LogStopped, match="recovers by itself"):
            wal.recover()
        with pytest.raises(LogStopped):
            append(wal, b"c")
    wal.close()
    wal.recover()
    with pytest.raises(LogStopped):
        append(wal, b"d")
    assert bodies_of(tmp_path)[:1] == [b"a"]


def test_a_full_disk_refuses_and_continues_once_there_is_room(tmp_path: Path) -> None:
    disk = FailingDisk("create", 1, errno.ENOSPC, once=True)
    wal = Wal(tmp_path, segment_bytes=300, disk=disk)
    append(wal, b"a" * 90)
    with pytest.raises(StoreUnavailable, match="full"):
        append(wal, b"b" * 90)
    assert wal.failure is None
    append(wal, b"c" * 90)
    wal.close()
    assert bodies_of(tmp_path) == [b"a" * 90, b"c" * 90]
