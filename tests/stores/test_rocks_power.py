"""After a power cut: what was not synced may be gone in any order, and is cut off; what was synced must be there."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks import database
from holdfast.stores.rocks.backup import backup
from holdfast.stores.rocks.database import Database
from holdfast.stores.rocks.log_check import logs_of
from holdfast.stores.rocks.log_records import BLOCK
from holdfast.stores.rocks.marker import MARKER
from holdfast.stores.rocks.reopening import open_settled
from tests.crash.rocks import contents, copy_store, open_store
from tests.stores.damage import cut, flip, log_of, payload, read_all, records_of

MESSAGES = 12


def kill(path: Path, durability: str) -> Path:
    hf = open_store(path / "running", durability=durability)
    for number in range(MESSAGES):
        hf.queue("mail").enqueue(payload(number))
    killed = copy_store(path / "running", path / f"killed {durability}")
    hf.close()
    return killed


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Killed, with a log whose end was not synced, and with one that was synced after each message."""
    place = tmp_path_factory.mktemp("killed")
    return {durability: kill(place / durability, durability) for durability in ("os", "fsync")}


def in_another_boot(store: Path) -> Path:
    marker = json.loads((store / MARKER).read_text())
    (store / MARKER).write_text(json.dumps({**marker, "boot": "the one before"}))
    return store


def message_record(log: Path, number: int) -> tuple[int, int]:
    """Counted from the end: the first batches are the store's own."""
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
    """The system drops the pages that it could not write."""
    store = copy_store(stores["os"], tmp_path / "store")
    zero(log_of(store), *message_record(log_of(store), 5))
    open_settled(store).close()
    assert read_all(store) == first(5)


def test_a_hole_in_what_was_synced_is_refused_after_a_power_cut_too(stores: dict[str, Path], tmp_path: Path) -> None:
    """A later batch still says that it had been on disk."""
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
    """Of the batch that opens a session it is known that it was synced, even with durability `os`."""
    for durability, store in stores.items():
        copy = copy_store(store, tmp_path / durability)
        zero(log_of(copy), *records_of(log_of(copy))[0])
        check_refused(in_another_boot(copy))


def split(store: Path, at: int, missing: int = 0) -> Path:
    """As if another log had been begun there. The first loses its last bytes."""
    log = log_of(store)
    raw = log.read_bytes()
    log.write_bytes(raw[: at - missing])
    (log.parent / f"{int(log.stem) + 90:06}.log").write_bytes(raw[at:])
    return store


def test_records_missing_at_the_end_of_a_log_that_another_goes_on_from_are_seen(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    """Whole ones, so that nothing is torn. To go on with the next log would lose them in silence."""
    at, _ = message_record(log_of(stores["os"]), 7)
    missing = at - message_record(log_of(stores["os"]), 5)[0]
    store = split(copy_store(stores["os"], tmp_path / "store"), at, missing)
    check_refused(store, "whole records are missing there")
    assert read_all(in_another_boot(store)) == first(5)


def test_an_empty_log_before_one_that_goes_on_is_seen(stores: dict[str, Path], tmp_path: Path) -> None:
    at, _ = message_record(log_of(stores["os"]), 7)
    store = split(copy_store(stores["os"], tmp_path / "store"), at)
    cut(logs_of(store / "db")[0], 0)
    check_refused(store, "it is empty, but a later log goes on")


@pytest.mark.parametrize("has_power_failed", [False, True])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_what_is_left_of_a_log_that_is_done_with_does_not_matter(
    stores: dict[str, Path], tmp_path: Path, durability: str, has_power_failed: bool
) -> None:
    """Logs are deleted in any order, and the end of one that was flushed is never synced."""
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
    """The file has grown, and what it grew by was not written: RocksDB refuses all of it."""
    with open_store(tmp_path / "running", durability="os") as hf:
        hf.queue("mail").enqueue(payload(0))
        size = log_of(tmp_path / "running").stat().st_size
        hf.queue("mail").enqueue(b"x" * 3 * BLOCK)
        killed = copy_store(tmp_path / "running", tmp_path / "killed")
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


def test_a_log_is_not_cut_while_another_process_has_the_store_open(tmp_path: Path) -> None:
    keeper = "import sys, holdfast; hf = holdfast.open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", keeper, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with log_of(tmp_path / "store").open("ab") as log:
            log.write(bytes(100) + b"of a write under way")
        in_another_boot(tmp_path / "store")  # as if it lay on a disk that another machine has mounted
        check_refused(tmp_path / "store", "is in use by process")
        process.kill()


# --- The manifest ----------------------------------------------------------------------------------------------------


def test_a_store_whose_making_a_power_cut_ended_is_made_again(tmp_path: Path) -> None:
    """The file that names the first list of files is on disk, and the list is not."""
    Database(tmp_path / "store").close()
    shutil.rmtree(tmp_path / "store" / "db")
    (tmp_path / "store" / "db").mkdir()
    (tmp_path / "store" / "db" / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(StoreUnavailable, match="MANIFEST-000001"):  # no kill leaves that
        open_store(copy_store(tmp_path / "store", tmp_path / "killed"))
    with open_store(in_another_boot(tmp_path / "store")) as hf:
        hf.queue("mail").enqueue(payload(0))
    assert read_all(tmp_path / "store") == first(1)


def test_a_manifest_whose_name_a_power_cut_took_is_passed_over_for_the_one_before(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    """RocksDB has named it, and had not synced the directory that has both names."""
    store = copy_store(stores["fsync"], tmp_path / "store")
    (store / "db" / "CURRENT").write_text("MANIFEST-999999\n")
    check_refused(store, "MANIFEST-999999")  # no kill leaves that
    assert read_all(in_another_boot(store)) == first(MESSAGES)


def test_a_manifest_that_is_gone_is_not_passed_over_for_one_whose_log_was_done_with(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    """Then the one that is gone had been in use, and tells of files that the one before does not."""
    store = copy_store(stores["fsync"], tmp_path / "store")
    before = manifest_of(store).read_bytes()
    name = manifest_of(store).name
    open_store(store).close()
    manifest_of(store).unlink()
    (store / "db" / name).write_bytes(before)
    check_refused(in_another_boot(store), "MANIFEST-")


def manifest_of(store: Path) -> Path:
    return store / "db" / (store / "db" / "CURRENT").read_text().strip()


def test_a_torn_change_of_the_manifest_that_was_not_carried_out_is_cut(stores: dict[str, Path], tmp_path: Path) -> None:
    store = in_another_boot(copy_store(stores["fsync"], tmp_path / "store"))
    with manifest_of(store).open("ab") as manifest:
        manifest.write(bytes(30) + b"the later half of a change")
    assert read_all(store) == first(MESSAGES)
    assert not list((store / "db").glob("*.torn"))


def test_a_manifest_whose_last_change_was_carried_out_and_is_damaged_is_refused(tmp_path: Path) -> None:
    """RocksDB takes a length that points past the end for an end that was cut short, and would delete the files that
    the change told of."""
    for number, offset in enumerate((0, 4, 5, 8)):
        store = tmp_path / str(number)
        with open_store(store) as hf:
            hf.queue("mail").enqueue(payload(0))
        start, _ = records_of(manifest_of(store))[-1]
        flip(manifest_of(store), start + offset, bits=0x40)
        check_refused(store, "MANIFEST-.* is damaged")
        check_refused(in_another_boot(store), "MANIFEST-.* is damaged")


def test_a_manifest_is_put_back_when_the_store_cannot_be_opened_with_what_stands_before_the_damage(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    store = in_another_boot(copy_store(stores["fsync"], tmp_path / "store"))
    with manifest_of(store).open("ab") as manifest:
        manifest.write(bytes(30) + b"the later half of a change")
    flip(store / "db" / "CURRENT", 3)
    check_refused(store, "cannot be opened")
    flip(store / "db" / "CURRENT", 3)
    assert read_all(store) == first(MESSAGES)


# --- Names, and syncs that fail --------------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were synced, as far as Python did it."""
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


def failing_sync(number: int) -> Callable[[int], None]:
    """The so-manieth sync of a folder fails."""
    count = 0

    def fsync(fd: int) -> None:
        nonlocal count
        count += stat.S_ISDIR(os.fstat(fd).st_mode)
        if count == number:
            raise OSError(errno.EIO, "Input/output error")

    return fsync


def test_an_opening_or_closing_whose_sync_fails_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(tmp_path / "store").close()
    for number in (1, 2, 3):  # RocksDB's folder, the marker of the owner, the marker of the end
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing_sync(number))
            with pytest.raises(StoreUnavailable, match=r"cannot be opened|not closed in order"):
                open_store(tmp_path / "store").close()
        open_store(tmp_path / "store").close()


def test_a_store_whose_first_or_last_sync_fails_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise Exception("IO error: Input/output error")  # as the binding does

    hf = open_store(tmp_path / "store")
    monkeypatch.setattr(database.Database, "sync", fail)
    with pytest.raises(StoreUnavailable, match="has stopped: IO error"):
        hf.close()
    with pytest.raises(StoreUnavailable, match="has stopped: IO error"):
        open_store(tmp_path / "store")


def test_a_backup_that_breaks_off_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, _: Any) -> None:
            raise Exception("IO error: No space left on device")  # as the binding does

    with open_store(tmp_path / "store") as hf:
        monkeypatch.setattr(database, "Checkpoint", Full)
        with pytest.raises(StoreUnavailable, match="broke off: IO error: No space left on device; remove"):
            hf.backup(str(tmp_path / "copy"))
