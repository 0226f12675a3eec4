"""One directory is opened only once, however its path is spelled (SPEC 4.6, 4.9)."""

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.buffered.log.wal import LogInUse, Wal
from holdfast.stores.rocks.engine.database import Database, lock_directory
from holdfast.stores.rocks.legacy.legacy_database import LegacyDatabase
from holdfast.stores.rocks.legacy.migration import migrate_legacy
from holdfast.stores.rocks.recovery.marker import check_directory, write_marker
from tests.crash.openings import STORE, spellings
from tests.machinery.legacy.databases import make_legacy

PATIENCE_S = 30


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a working directory with links to the store."""
    monkeypatch.chdir(tmp_path)
    spellings(tmp_path)
    return tmp_path


def refuse_all(place: Path) -> None:
    for path in spellings(place):
        with pytest.raises(StoreUnavailable, match=f"in use by process {os.getpid()}, this one") as raised:
            holdfast.open(path)
        assert raised.value.facts["pid"] == os.getpid()


@pytest.mark.spec("4.9")
@pytest.mark.parametrize("first", range(3))
def test_a_store_opened_under_another_spelling_is_refused(place: Path, first: int) -> None:
    with holdfast.open(spellings(place)[5 * first]) as hf:
        ids = hf.queue("mail").enqueue([b"1", b"2", b"3", b"4", b"5"])
        refuse_all(place)
        assert [each.id for each in hf.queue("mail").claim(5)] == ids
    with holdfast.open(spellings(place)[-1]) as hf:
        assert hf.queue("mail").stats().in_flight == 5


@pytest.mark.spec("4.9")
def test_a_store_opened_through_a_bind_mount_is_refused(place: Path) -> None:
    """Bind-mount the store. Needs the right to mount, as the tests of a full disk do."""
    holdfast.open(STORE).close()
    (place / "mounted").mkdir()
    subprocess.run(["mount", "--bind", STORE, "mounted"], check=True, timeout=PATIENCE_S)
    try:
        with holdfast.open(STORE), pytest.raises(StoreUnavailable, match="in use by process"):
            holdfast.open("mounted")
        with holdfast.open("mounted"), pytest.raises(StoreUnavailable, match="in use by process"):
            holdfast.open(STORE)
    finally:
        subprocess.run(["umount", "--lazy", "mounted"], check=True, timeout=PATIENCE_S)


def test_a_refused_opening_does_not_let_another_process_in(place: Path) -> None:
    """A refused opening must not release the lock that keeps other processes out."""
    other = [sys.executable, "-c", "import holdfast, sys; holdfast.open(sys.argv[1])", str(place / STORE)]
    with holdfast.open(STORE) as hf:
        refuse_all(place)
        tried = subprocess.run(other, capture_output=True, text=True, timeout=PATIENCE_S)
        assert f"in use by process {os.getpid()}: " in tried.stderr
        assert hf.queue("mail").enqueue(b"goes on")


def test_a_refused_opening_without_a_boot_id_does_not_let_another_process_in(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a boot id, every opening once took and released RocksDB's own lock."""
    monkeypatch.setattr("holdfast.stores.rocks.recovery.marker.read_boot_id", lambda: None)
    test_a_refused_opening_does_not_let_another_process_in(place)


@pytest.mark.parametrize("path", [STORE, "link"])
def test_an_open_store_does_not_move_with_the_working_directory_or_a_link(place: Path, path: str) -> None:
    (place / "beside" / STORE).mkdir()
    with holdfast.open(path) as hf:
        hf.queue("mail").enqueue(b"before")
        os.chdir("beside")
        (place / "link").unlink()
        (place / "link").symlink_to(place / "beside")
        hf.queue("mail").enqueue(b"after")
        hf.backup(str(place / "copy"))
    assert not list((place / "beside" / STORE).iterdir())
    with holdfast.open(str(place / STORE)) as hf:
        assert hf.queue("mail").stats().ready == 2


def test_a_directory_that_cannot_be_locked_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreUnavailable, match=r"cannot be locked \(No locks available\).*local file system"):
        holdfast.open(str(tmp_path / STORE))
    assert not list((tmp_path / STORE).iterdir())


def test_a_store_that_another_opening_makes_meanwhile_is_not_taken_for_a_foreign_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Path.iterdir

    def made_meanwhile(path: Path) -> Iterator[Path]:
        write_marker(path, None)
        (path / "db").mkdir()
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", made_meanwhile)
    check_directory(tmp_path)


def test_a_lock_of_the_callers_own_outlives_the_database(tmp_path: Path) -> None:
    """The store can thereby close and reopen RocksDB without letting another process in."""
    lock = lock_directory(tmp_path)
    for _ in range(2):
        Database(tmp_path, lock=lock).close()
        with pytest.raises(StoreUnavailable, match="this one"):
            Database(tmp_path)
    lock.release()
    Database(tmp_path).close()


def test_a_lock_is_free_once_released_though_a_copy_of_its_descriptor_is_open(tmp_path: Path) -> None:
    """A child that is about to run another program holds the lock for a moment."""
    lock = lock_directory(tmp_path)
    copy = os.dup(lock._descriptor)
    lock.release()
    lock_directory(tmp_path).release()
    os.close(copy)


def test_a_database_that_nobody_holds_any_more_frees_its_directory(tmp_path: Path) -> None:
    Database(tmp_path)
    Database(tmp_path).close()


# --- Other directories -----------------------------------------------------------------------------------------------


def test_a_log_opened_under_another_spelling_is_refused(place: Path) -> None:
    log = Wal(STORE)
    for path in spellings(place):
        with pytest.raises(LogInUse, match=f"in use by process {os.getpid()}, this one"):
            Wal(path)
    log.close()
    Wal("link").close()


def test_a_legacy_directory_opened_under_another_spelling_is_refused(place: Path) -> None:
    make_legacy(place / STORE, 5, seed=1, now_s=1_800_000_000)
    database = LegacyDatabase(STORE)
    for path in spellings(place):
        for opens in (LegacyDatabase, holdfast.open):
            with pytest.raises(StoreUnavailable, match=f"in use by process {os.getpid()}, this one"):
                opens(path)
    database.close()
    LegacyDatabase("link").close()


def test_a_migration_keeps_every_opening_out_until_it_has_ended(place: Path) -> None:
    make_legacy(place / STORE, 5, seed=1, now_s=1_800_000_000)
    stages = set()

    def told(stage: str, done: int, total: int | None) -> None:
        stages.add(stage)
        with pytest.raises(StoreUnavailable, match="in use by"):
            holdfast.open("link")

    asyncio.run(migrate_legacy(STORE, told))
    assert {"copy", "check", "switch", "marking the store", "removing the old files"} <= stages
    holdfast.open("link").close()


def test_a_bucket_on_disk_is_the_same_bucket_under_every_spelling(place: Path) -> None:
    """Many openings are legal there: each has a node number of its own, and all see the same messages."""
    paths = [
        f"file://{place}/{path}" for path in (STORE, "link", "here/again", f"beside/../{STORE}", "here/beside/../link")
    ]
    with ExitStack() as stack:
        opened = [stack.enter_context(holdfast.open(path, durability="os")) for path in paths]
        ids = [hf.queue("mail").enqueue(b"x")[0] for hf in opened]
        assert len({(each.snowflake >> 12) & 1_023 for each in ids}) == len(opened)
        assert sorted(each.id for hf in opened for each in hf.queue("mail").claim(1)) == sorted(ids)


def test_a_bucket_on_disk_is_found_as_the_system_follows_its_path(place: Path) -> None:
    """`beyond/..` is the parent of the link's target, not of the link."""
    (place / "far" / "away").mkdir(parents=True)
    (place / "beyond").symlink_to("far/away")
    with holdfast.open(f"file://{place}/beyond/../bucket", durability="os") as hf:
        hf.queue("mail").enqueue(b"x")
    assert (place / "far" / "bucket").is_dir()
    assert not (place / "bucket").exists()
