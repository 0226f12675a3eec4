"""After a power cut, unsynced writes may be missing in any order and are cut off; synced ones must be there.

The tests of RocksDB's own logs upgrade stores of format 1 (format_one.py). RocksDB's list of its files, the manifest,
is damaged in both formats. tests/stores/rocks/log damages the commit log of the current format.
"""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Checkpoint

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks import RocksStore
from holdfast.stores.rocks.engine import database
from holdfast.stores.rocks.engine.database import Database
from holdfast.stores.rocks.engine.reopening import open_after_failure
from holdfast.stores.rocks.log import commit_log
from holdfast.stores.rocks.log.commit_log import LogPosition
from holdfast.stores.rocks.log.frames import read_header
from holdfast.stores.rocks.log.segments import DIRECTORY as LOG
from holdfast.stores.rocks.log.segments import FIRST_FRAME_OFFSET, list_segments
from holdfast.stores.rocks.offline.backup import backup
from holdfast.stores.rocks.recovery.layout import read_layout
from holdfast.stores.rocks.recovery.marker import MARKER, write_marker
from holdfast.stores.rocks.recovery.opening import open_rocksdb, read_covered_position
from holdfast.stores.rocks.recovery.wal_check import list_logs
from holdfast.stores.rocks.recovery.wal_records import BLOCK
from tests.crash.rocks import contents, copy_store, core_of, open_store
from tests.stores.rocks.damage import cut, flip, log_of, payload, read_all, records_of
from tests.stores.rocks.format_one import close_format_one, kill_format_one

MESSAGES = 12


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Killed stores of format 1, by durability: with a log whose end was not synced, and with one that was synced after
    each message."""
    place = tmp_path_factory.mktemp("format one")
    return {each: kill_format_one(place / each, first(MESSAGES), each) for each in ("os", "fsync")}


@pytest.fixture(scope="module")
def current_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A killed store of the current format. RocksDB has none of its messages."""
    place = tmp_path_factory.mktemp("current")
    with open_store(place / "running", durability="fsync") as hf:
        for number in range(MESSAGES):
            hf.queue("mail").enqueue(payload(number))
        return copy_store(place / "running", place / "killed")


@pytest.fixture(scope="module")
def both_formats(stores: dict[str, Path], current_store: Path) -> dict[str, Path]:
    return {"format 1": stores["fsync"], "current format": current_store}


def in_another_boot(store: Path) -> Path:
    marker = json.loads((store / MARKER).read_text())
    (store / MARKER).write_text(json.dumps({**marker, "boot": "the one before"}))
    return store


def message_record(log: Path, number: int) -> tuple[int, int]:
    """Return a record by its number, counted from the end: the first batches are the store's own."""
    return records_of(log)[number - MESSAGES]


def zero(log: Path, start: int, length: int) -> None:
    raw = log.read_bytes()
    log.write_bytes(raw[:start] + bytes(length) + raw[start + length :])


def check_refused(store: Path, says: str = "restore a backup") -> None:
    before = contents(store)
    with pytest.raises(StoreUnavailable, match=says):
        open_store(store)
    assert contents(store) == before


def first(number: int) -> list[bytes]:
    return [payload(each) for each in range(number)]


# --- The log ---------------------------------------------------------------------------------------------------------


def test_a_hole_in_what_was_not_synced_is_cut_after_a_power_cut_and_refused_after_a_kill(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    store = copy_store(stores["os"], tmp_path / "store")
    zero(log_of(store), *message_record(log_of(store), 5))
    check_refused(store)
    assert read_all(in_another_boot(store)) == first(5)


def test_a_hole_that_a_failed_sync_left_is_cut_when_the_store_is_reopened_in_the_same_boot(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    """The operating system drops the pages that it could not write."""
    store = copy_store(stores["os"], tmp_path / "store")
    zero(log_of(store), *message_record(log_of(store), 5))
    [database] = open_after_failure(read_layout(store)).databases
    database.close()
    assert read_all(store) == first(5)


def test_a_hole_in_what_was_synced_is_refused_after_a_power_cut_too(stores: dict[str, Path], tmp_path: Path) -> None:
    """A later batch still records that the lost data had been synced."""
    for number in (0, 5, MESSAGES - 2):
        store = copy_store(stores["fsync"], tmp_path / str(number))
        zero(log_of(store), *message_record(log_of(store), number))
        check_refused(in_another_boot(store))


def test_the_last_record_destroyed_is_cut_after_a_power_cut_for_nothing_says_that_it_was_synced(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    for durability, store in stores.items():
        copy = copy_store(store, tmp_path / durability)
        start, _ = message_record(log_of(copy), MESSAGES - 1)
        flip(log_of(copy), start + 30)
        check_refused(copy)
        assert read_all(in_another_boot(copy)) == first(MESSAGES - 1)


def test_a_log_whose_first_record_is_gone_is_cut_to_nothing_or_refused_as_it_was_synced(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    """The first batch of a session is known to have been synced, even with durability `os`."""
    for durability, store in stores.items():
        copy = copy_store(store, tmp_path / durability)
        zero(log_of(copy), *records_of(log_of(copy))[0])
        check_refused(in_another_boot(copy))


def split(store: Path, at: int, missing: int = 0) -> Path:
    """Begin another log there. The first one loses its last bytes."""
    log = log_of(store)
    raw = log.read_bytes()
    log.write_bytes(raw[: at - missing])
    (log.parent / f"{int(log.stem) + 90:06}.log").write_bytes(raw[at:])
    return store


def test_records_missing_at_the_end_of_a_log_that_another_continues_from_are_seen(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    """Whole records are missing, so nothing is torn. Continuing with the next log would lose them silently."""
    at, _ = message_record(log_of(stores["os"]), 7)
    missing = at - message_record(log_of(stores["os"]), 5)[0]
    store = split(copy_store(stores["os"], tmp_path / "store"), at, missing)
    check_refused(store, "records are missing between")
    assert read_all(in_another_boot(store)) == first(5)


def test_an_empty_log_before_one_that_continues_is_seen(stores: dict[str, Path], tmp_path: Path) -> None:
    at, _ = message_record(log_of(stores["os"]), 7)
    store = split(copy_store(stores["os"], tmp_path / "store"), at)
    cut(list_logs(store / "db")[0], 0)
    check_refused(store, "it is empty, but a later log exists")


@pytest.mark.parametrize("has_power_failed", [False, True])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_what_is_left_of_a_log_that_is_done_with_does_not_matter(
    stores: dict[str, Path], tmp_path: Path, durability: str, has_power_failed: bool
) -> None:
    """Logs are deleted in any order, and the end of a flushed log is never synced."""
    store = copy_store(stores[durability], tmp_path / "store")
    log = log_of(store)
    older = log.with_name(f"{int(log.stem) - 1:06}.log")
    older.write_bytes(log.read_bytes()[: records_of(log)[0][1] - 1])
    assert read_all(in_another_boot(store) if has_power_failed else store) == first(MESSAGES)


def test_bytes_behind_zeros_are_no_end_that_a_kill_leaves(stores: dict[str, Path], tmp_path: Path) -> None:
    store = copy_store(stores["os"], tmp_path / "store")
    with log_of(store).open("ab") as log:
        log.write(bytes(40_000) + b"left over" * 100)
    check_refused(store, "zeros are there")
    assert read_all(in_another_boot(store)) == first(MESSAGES)


def test_a_batch_whose_later_blocks_are_zeros_is_cut_after_a_power_cut_and_refused_by_place_after_a_kill(
    tmp_path: Path,
) -> None:
    """The file has grown without the new part being written, and RocksDB refuses the whole log."""
    killed = kill_format_one(tmp_path, [payload(0), b"x" * 3 * BLOCK])
    size, _ = records_of(log_of(killed))[2]  # behind the batch that opens the session, and that of the first message
    for blocks in (1, 2, 3):
        store = copy_store(killed, tmp_path / str(blocks))
        start = (size // BLOCK + blocks) * BLOCK
        zero(log_of(store), start, log_of(store).stat().st_size - start)
        check_refused(store, f"damaged at byte {start}: .*restore a backup")
        assert read_all(in_another_boot(store)) == first(1)


def test_what_is_enqueued_after_a_cut_is_there_after_the_next_opening(stores: dict[str, Path], tmp_path: Path) -> None:
    store = in_another_boot(copy_store(stores["os"], tmp_path / "store"))
    zero(log_of(store), *message_record(log_of(store), 5))
    with open_store(store) as hf:
        hf.queue("mail").enqueue(payload(5))
    assert read_all(store) == first(6)


# Keeps a store of format 1 open as an earlier version of Holdfast does, which has RocksDB's own lock alone.
ROCKSDB_KEEPER = """
import sys, pathlib
from holdfast.stores.rocks.recovery.opening import open_rocksdb
database = open_rocksdb(pathlib.Path(sys.argv[1]))
"""
KEEPER = """
import sys, holdfast
hf = holdfast.open(sys.argv[1])
hf.queue("mail").enqueue(b"a")
"""


@contextmanager
def kept_open(store: Path, script: str) -> Iterator[subprocess.Popen[str]]:
    """Keep the store open in another process."""
    waits = "\nprint('open', flush=True)\nsys.stdin.read()\n"
    command = [sys.executable, "-c", script + waits, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_a_log_of_rocksdb_is_not_cut_while_another_process_has_the_store_open(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    # As on a disk that another machine has mounted.
    store = in_another_boot(copy_store(stores["os"], tmp_path / "store"))
    with kept_open(store, ROCKSDB_KEEPER) as keeper:
        with log_of(store).open("ab") as log:
            log.write(bytes(100) + b"of a write under way")
        (store / MARKER).write_text(json.dumps({"format": 1, "pid": keeper.pid, "boot": "the one before"}))
        check_refused(store, "is in use by process")


def test_a_segment_is_not_cut_while_another_process_has_the_store_open(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with kept_open(store, KEEPER) as keeper:
        [segment] = (store / LOG).glob("*.log")
        raw = segment.read_bytes()
        end = FIRST_FRAME_OFFSET
        while (header := read_header(raw, end, int(segment.stem))) is not None:
            end = header.end
        segment.write_bytes(raw[:end] + b"of a write under way".ljust(len(raw) - end, b"\0"))
        in_another_boot(store)
        check_refused(store, f"is in use by process {keeper.pid}")


# --- The manifest ----------------------------------------------------------------------------------------------------


def test_a_store_whose_making_a_power_cut_ended_is_made_again(tmp_path: Path) -> None:
    """The file that names the first manifest is on disk, and the manifest is not."""
    Database(tmp_path / "store").close()
    shutil.rmtree(tmp_path / "store" / "db")
    (tmp_path / "store" / "db").mkdir()
    (tmp_path / "store" / "db" / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(StoreUnavailable, match="MANIFEST-000001"):  # no kill leaves that
        open_store(copy_store(tmp_path / "store", tmp_path / "killed"))
    with open_store(in_another_boot(tmp_path / "store")) as hf:
        hf.queue("mail").enqueue(payload(0))
    assert read_all(tmp_path / "store") == first(1)


@pytest.fixture
def unmade(tmp_path: Path) -> Path:
    """A store whose creation a power cut ended: RocksDB had named its second manifest, and lost it with the directory
    that was not synced."""
    store = tmp_path / "unmade"
    store.mkdir()
    write_marker(store, None)
    open_rocksdb(store).close()
    manifest_of(store).unlink()
    return store


@pytest.mark.parametrize("has_first_list", [False, True])
def test_a_store_whose_second_list_a_power_cut_took_while_it_was_made_is_made_again(
    unmade: Path, has_first_list: bool
) -> None:
    if has_first_list:
        (unmade / "db" / "MANIFEST-000001").write_bytes(b"")
    check_refused(unmade, "MANIFEST-")  # no kill leaves that
    with open_store(in_another_boot(unmade)) as hf:
        hf.queue("mail").enqueue(payload(0))
    assert read_all(unmade) == first(1)


@pytest.mark.parametrize("beside", ["db/000042.sst", LOG])
def test_a_store_that_was_made_is_not_made_again_when_its_list_is_gone(unmade: Path, beside: str) -> None:
    """A backup has a marker like that of a store that was never opened."""
    if beside == LOG:
        (unmade / LOG).mkdir()
    else:
        (unmade / beside).touch()
    check_refused(in_another_boot(unmade), "MANIFEST-")


@pytest.mark.parametrize("is_of_another_boot", [False, True])
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_store_whose_current_file_is_no_text_is_refused_by_a_named_error(
    current_store: Path, tmp_path: Path, is_closed: bool, is_of_another_boot: bool
) -> None:
    store = copy_store(current_store, tmp_path / "store")
    if is_closed:
        open_store(store).close()
    flip(store / "db" / "CURRENT", 7, 0x80)
    check_refused(in_another_boot(store) if is_of_another_boot else store, "cannot be opened")


FORMATS = ["format 1", "current format"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_manifest_whose_name_a_power_cut_took_is_passed_over_for_the_one_before(
    both_formats: dict[str, Path], tmp_path: Path, format: str
) -> None:
    """RocksDB has named it, and had not synced the directory with both names."""
    store = copy_store(both_formats[format], tmp_path / "store")
    (store / "db" / "CURRENT").write_text("MANIFEST-999999\n")
    check_refused(store, "MANIFEST-999999")  # no kill leaves that
    assert read_all(in_another_boot(store)) == first(MESSAGES)


def test_in_format_1_a_manifest_that_is_gone_is_not_passed_over_for_one_whose_log_was_done_with(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    """The missing manifest had been in use, and listed files that the previous one does not."""
    store = copy_store(stores["fsync"], tmp_path / "store")
    before = manifest_of(store)
    raw = before.read_bytes()
    open_rocksdb(store).close()  # which replays the log, and flushes
    manifest_of(store).unlink()
    before.write_bytes(raw)
    check_refused(in_another_boot(store), "MANIFEST-")


@pytest.mark.parametrize("has_rocksdb_log", [False, True])
def test_in_the_current_format_a_manifest_that_is_gone_is_not_passed_over_for_one_whose_segment_was_freed(
    current_store: Path, tmp_path: Path, has_rocksdb_log: bool
) -> None:
    """RocksDB's own log may exist by chance: it is empty, and deleted in an order that a power cut may change."""
    store = copy_store(current_store, tmp_path / "store")
    before, rocksdb_log = manifest_of(store), log_of(store)
    raw = before.read_bytes()
    open_store(store).close()
    manifest_of(store).unlink()
    before.write_bytes(raw)
    if has_rocksdb_log:
        rocksdb_log.touch()
    check_refused(in_another_boot(store), "MANIFEST-")


def manifest_of(store: Path) -> Path:
    return store / "db" / (store / "db" / "CURRENT").read_text().strip()


@pytest.mark.parametrize("format", FORMATS)
def test_a_torn_change_of_the_manifest_that_was_not_carried_out_is_cut(
    both_formats: dict[str, Path], tmp_path: Path, format: str
) -> None:
    store = in_another_boot(copy_store(both_formats[format], tmp_path / "store"))
    with manifest_of(store).open("ab") as manifest:
        manifest.write(bytes(30) + b"the later half of a change")
    assert read_all(store) == first(MESSAGES)
    assert not list((store / "db").glob("*.torn"))


def close_current(place: Path, payloads: list[bytes]) -> Path:
    with open_store(place) as hf:
        for each in payloads:
            hf.queue("mail").enqueue(each)
    return place


@pytest.mark.parametrize("close", [close_format_one, close_current])
def test_a_manifest_whose_last_change_was_carried_out_and_is_damaged_is_refused(
    tmp_path: Path, close: Callable[[Path, list[bytes]], Path]
) -> None:
    """RocksDB takes a length that points past the end for a manifest that was cut short, and would delete the files
    that the change listed."""
    for number, offset in enumerate((0, 4, 5, 8)):
        store = close(tmp_path / str(number), first(1))
        start, _ = records_of(manifest_of(store))[-1]
        flip(manifest_of(store), start + offset, bits=0x40)
        check_refused(store, "MANIFEST-.* is damaged")
        check_refused(in_another_boot(store), "MANIFEST-.* is damaged")


@pytest.mark.parametrize("close", [close_format_one, close_current])
def test_a_manifest_cut_in_the_header_of_a_change_that_was_carried_out_is_refused(
    tmp_path: Path, close: Callable[[Path, list[bytes]], Path]
) -> None:
    """Fewer bytes than a header remain of the change, and RocksDB ignores them."""
    closed = close(tmp_path / "made", first(1))
    start, _ = records_of(manifest_of(closed))[-2]
    for left in range(1, 7):
        store = copy_store(closed, tmp_path / str(left))
        cut(manifest_of(store), start + left)
        check_refused(store, "MANIFEST-.* is damaged")
        check_refused(in_another_boot(store), "MANIFEST-.* is damaged")


@pytest.mark.parametrize("format", FORMATS)
def test_a_manifest_is_put_back_when_the_store_cannot_be_opened_with_what_stands_before_the_damage(
    both_formats: dict[str, Path], tmp_path: Path, format: str
) -> None:
    store = in_another_boot(copy_store(both_formats[format], tmp_path / "store"))
    with manifest_of(store).open("ab") as manifest:
        manifest.write(bytes(30) + b"the later half of a change")
    flip(store / "db" / "CURRENT", 3)
    check_refused(store, "cannot be opened")
    flip(store / "db" / "CURRENT", 3)
    assert read_all(store) == first(MESSAGES)


# --- A manifest that is shorter than it was, in the current format ----------------------------------------------------


def kill_after_checkpoint(place: Path, messages: int = MESSAGES) -> tuple[Path, int]:
    """Kill a store in which a checkpoint was flushed before the last message.

    Return it, and the size of its manifest before that checkpoint."""
    with open_store(place / "running", durability="fsync") as hf:
        for number in range(messages - 1):
            hf.queue("mail").enqueue(payload(number))
        size = manifest_of(place / "running").stat().st_size
        store = core_of(hf).store
        assert isinstance(store, RocksStore)
        hf._driver.run(store.shards[0].checkpoints.run_once())
        hf.queue("mail").enqueue(payload(messages - 1))
        return copy_store(place / "running", place / "killed"), size


def places_in_changes(manifest: Path, start: int) -> list[int]:
    """Return offsets after `start`, in the middle of each record of a manifest and in its header."""
    return [place for at, length in records_of(manifest) if at >= start for place in (at + 3, at + length // 2)]


@pytest.mark.parametrize("has_power_failed", [False, True])
def test_a_shortened_manifest_is_accepted_while_its_segment_is_there(tmp_path: Path, has_power_failed: bool) -> None:
    """The frames that the lost flush covered are replayed."""
    killed, size = kill_after_checkpoint(tmp_path)
    for place in [size, *places_in_changes(manifest_of(killed), size)]:
        store = copy_store(killed, tmp_path / str(place))
        cut(manifest_of(store), place)
        assert read_all(in_another_boot(store) if has_power_failed else store) == first(MESSAGES), f"cut at {place}"


def test_a_hole_in_a_manifest_is_cut_after_a_power_cut_while_its_segment_is_there(tmp_path: Path) -> None:
    killed, size = kill_after_checkpoint(tmp_path)
    for place in places_in_changes(manifest_of(killed), size):
        store = copy_store(killed, tmp_path / str(place))
        flip(manifest_of(store), place)
        assert read_all(in_another_boot(store)) == first(MESSAGES), f"flipped at {place}"


def position_after_cut(store: Path, place: int, copy: Path) -> LogPosition:
    """Return the log position of RocksDB in a copy of a store whose manifest is cut there."""
    cut(manifest_of(copy_store(store, copy)), place)
    database = open_rocksdb(copy, is_read_only=True)
    position = read_covered_position(database)
    database.close()
    return position


@pytest.mark.parametrize("has_power_failed", [False, True])
def test_a_shortened_manifest_is_refused_and_nothing_changed_if_its_segment_was_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_power_failed: bool
) -> None:
    monkeypatch.setattr(commit_log, "SEGMENT_BYTES", FIRST_FRAME_OFFSET + (4 << 10))
    killed, size = kill_after_checkpoint(tmp_path, 3 * MESSAGES)
    outcomes = set()
    for place in places_in_changes(manifest_of(killed), size):
        position = position_after_cut(killed, place, tmp_path / f"position {place}")
        store = copy_store(killed, tmp_path / str(place))
        cut(manifest_of(store), place)
        if has_power_failed:
            in_another_boot(store)
        is_there = position.generation in list_segments(killed / LOG)
        if is_there:
            assert read_all(store) == first(3 * MESSAGES), f"cut at {place}"
        else:
            check_refused(store, "MANIFEST-.* is damaged: the newest files are missing from it; restore a backup")
        outcomes.add(is_there)
    # The last change of a flush only says which of RocksDB's own logs it needs no more.
    assert outcomes == {True, False}


# --- Names, and syncs that fail --------------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that Python code has synced."""
    found: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        found.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    return found


def test_the_names_of_a_new_store_and_of_every_folder_above_it_are_synced(tmp_path: Path, synced: list[str]) -> None:
    open_store(tmp_path / "a" / "b" / "store").close()
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= set(synced)


def test_the_names_of_a_backup_and_of_every_folder_above_it_are_synced(tmp_path: Path, synced: list[str]) -> None:
    with open_store(tmp_path / "store") as hf:
        hf.queue("mail").enqueue(payload(0))
        hf.backup(str(tmp_path / "own" / "copy"))
    backup(tmp_path / "store", tmp_path / "other" / "copy")
    for place in ("own", "other"):
        assert {str(tmp_path / place), str(tmp_path / place / "copy")} <= set(synced)
        assert read_all(tmp_path / place / "copy") == first(1)


class FailingSync:
    """A replacement of `os.fsync` that does nothing, except that the sync of the directory with this number, counted
    from 1, fails."""

    def __init__(self, number: int | None) -> None:
        self._number = number
        self.done = 0

    def __call__(self, fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            self.done += 1
            if self.done == self._number:
                raise OSError(errno.EIO, "Input/output error")


def test_an_opening_or_closing_whose_sync_fails_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(tmp_path / "store").close()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", count := FailingSync(None))
        open_store(tmp_path / "store").close()
    # At least: the first segment, RocksDB's folder, the marker of the owner, the marker of the end.
    assert count.done >= 4
    for number in range(1, count.done + 1):
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", FailingSync(number))
            with pytest.raises(StoreUnavailable, match=r"cannot be opened|not closed properly"):
                open_store(tmp_path / "store").close()
        open_store(tmp_path / "store").close()


def test_a_store_whose_first_or_last_sync_fails_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    hf = open_store(tmp_path / "store")
    monkeypatch.setattr(database.Database, "sync", fail)
    with pytest.raises(StoreUnavailable, match=r"has stopped: .*Input/output error"):
        hf.close()
    with pytest.raises(StoreUnavailable, match=r"has stopped: .*Input/output error"):
        open_store(tmp_path / "store")


def test_a_backup_that_breaks_off_raises_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        """A RocksDB checkpoint on a full disk for backups."""

        def __init__(self, opened: Any) -> None:
            self._checkpoint = Checkpoint(opened)

        def create_checkpoint(self, target: str) -> None:
            if target.startswith(str(tmp_path / "copy")):
                raise Exception("IO error: No space left on device")  # as the binding does
            self._checkpoint.create_checkpoint(target)

    with open_store(tmp_path / "store") as hf:
        monkeypatch.setattr(database, "Checkpoint", Full)
        with pytest.raises(StoreUnavailable, match="failed: IO error: No space left on device; remove"):
            hf.backup(str(tmp_path / "copy"))
        assert hf.queue("mail").enqueue(b"the store goes on")
