"""Calls that Linux has and macOS lacks: each has a fallback, tested by taking the Linux call away."""

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.buffered.log.wal import Wal
from holdfast.stores.disk.file_sync import reserve, sync_data, sync_directory, sync_file
from holdfast.stores.disk.processes import is_running
from holdfast.stores.rocks.offline.backup_reader import CopyJournal
from holdfast.stores.rocks.recovery import marker

FULL_SYNC = 51


@pytest.fixture
def full_syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Simulate a system with F_FULLFSYNC but without fdatasync and posix_fallocate. Return the files synced in full."""
    synced: list[int] = []
    call = fcntl.fcntl

    def record(descriptor: int, command: int, *arguments: Any) -> Any:
        if command != FULL_SYNC:
            return call(descriptor, command, *arguments)
        synced.append(os.fstat(descriptor).st_ino)
        return os.fsync(descriptor)

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", record)
    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    return synced


@pytest.mark.parametrize("sync", [sync_file, sync_data])
def test_a_file_is_synced_through_the_drives_cache_where_the_system_can(
    tmp_path: Path, full_syncs: list[int], sync: Callable[[int], None]
) -> None:
    with (tmp_path / "file").open("wb") as file:
        sync(file.fileno())
        assert full_syncs == [os.fstat(file.fileno()).st_ino]
    sync_directory(tmp_path)
    assert full_syncs[1:] == [tmp_path.stat().st_ino]


def test_a_file_system_without_full_syncs_is_synced_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, command: int) -> None:
        raise OSError(errors.pop(), "not here")

    errors = [errno.ENOTSUP, errno.EIO]
    synced: list[int] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    with (tmp_path / "file").open("wb") as file:
        with pytest.raises(OSError, match="not here"):  # a failed sync is one, and is not tried in another way
            sync_file(file.fileno())
        assert not synced
        sync_file(file.fileno())
        assert synced == [file.fileno()]


def test_room_is_reserved_by_writing_where_the_system_cannot_set_it_aside(
    tmp_path: Path, full_syncs: list[int]
) -> None:
    size = (2 << 20) + 7
    with (tmp_path / "file").open("w+b") as file:
        reserve(file.fileno(), size)
        assert os.fstat(file.fileno()).st_size == size
        assert os.fstat(file.fileno()).st_blocks * 512 >= size


def test_a_log_is_kept_without_fdatasync_and_fallocate(tmp_path: Path, full_syncs: list[int]) -> None:
    log = Wal(tmp_path, segment_bytes=4_096)
    log.make_room(100)
    full_syncs.clear()
    log.append([(0, log.take_numbers(0, 1)[0], b"kept")])
    assert len(full_syncs) == 1
    log.close()
    again = Wal(tmp_path, segment_bytes=4_096)
    assert [each.body for each in again.replay()] == [b"kept"]
    again.close()


def test_a_live_store_is_not_taken_for_a_backup_where_there_is_no_proc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: not str(path).startswith("/proc") and exists(path))
    with (
        holdfast.open(str(tmp_path / "store")),
        pytest.raises(StoreUnavailable, match=f"in use by process {os.getpid()}"),
    ):
        CopyJournal(str(tmp_path / "store"), None)
    CopyJournal(str(tmp_path / "store"), None).close()


def test_a_process_is_known_by_its_number_on_every_system() -> None:
    assert is_running(os.getpid())
    assert is_running(1)
    for nobody in (0, -1, 2**22 + 1, 2**70):
        assert not is_running(nobody)


# --- The boot -------------------------------------------------------------------------------------------------------


class FakeLibrary:
    """A fake of macOS's C library that has or lacks a system value."""

    def __init__(self, value: bytes | None) -> None:
        self._value = value

    def sysctlbyname(self, name: bytes, value: Any, size: Any, new: None, length: int) -> int:
        assert name == b"kern.bootsessionuuid"
        if self._value is None:
            return -1
        ctypes.memmove(value, self._value + b"\0", len(self._value) + 1)
        return 0


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(marker, "_BOOT_ID", Path("/nowhere/boot_id"))
    marker.read_boot_id.cache_clear()
    yield
    marker.read_boot_id.cache_clear()


@pytest.mark.usefixtures("no_proc")
def test_the_boot_is_known_by_the_systems_value_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeLibrary(b"8D2C1F5A-0000"))
    assert marker.read_boot_id() == "8D2C1F5A-0000"


@pytest.mark.usefixtures("no_proc")
@pytest.mark.parametrize("library", [FakeLibrary(None), object()])
def test_a_store_opens_where_the_boot_id_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: object
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(ctypes, "CDLL", lambda name: library)
        assert marker.read_boot_id() is None
    for number in range(3):
        with holdfast.open(str(tmp_path / "store")) as hf:
            hf.queue("mail").enqueue(b"x")
            assert hf.queue("mail").stats().ready == number + 1
