"""A legacy database opened for reading: its directory does not change, and leases end while it is open."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.legacy.legacy_database import opened
from holdfast.testing import ManualClock
from tests.listing import listing_of
from tests.machinery.legacy.databases import LegacyWriter, make_legacy

NOW_S = 1_900_000_000

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.machinery.legacy.databases import LegacyWriter

writer = LegacyWriter(Path(sys.argv[1]))
for n in range(20):
    writer.add(b"id%d" % n, b"payload", 1)
writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""

READING_AS_NOBODY = """
import os, sys
import holdfast

# Loads every module that is needed: the next user may not be allowed to read them.
with holdfast.open(sys.argv[2], legacy_read_only=True) as hf:
    hf.queue().list()
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    open(os.path.join(sys.argv[1], "probe"), "w")
    print("this user may write there")
except PermissionError:
    pass
with holdfast.open(sys.argv[1], legacy_read_only=True) as hf:
    print(len(hf.queue().list(None, 100)))
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """Return a directory that every user may read, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(dir="/tmp", prefix="holdfast-test-"))
    path.chmod(0o755)
    yield path
    for folder in path.iterdir():
        folder.chmod(0o755)
    shutil.rmtree(path)


@pytest.mark.spec("4.7")
@pytest.mark.parametrize("families", [False, True], ids=["one family", "families"])
async def test_reading_changes_nothing_in_the_directory(tmp_path: Path, families: bool) -> None:
    path = tmp_path / "old"
    make_legacy(path, 100, seed=1, now_s=NOW_S, families=families)
    for name in ("rocksdict-config.json", "LOCK"):
        (path / name).unlink()
    before = listing_of(path)

    for _ in range(2):
        async with holdfast.open_async(str(path), legacy_read_only=True, clock=ManualClock(NOW_S * 1_000)) as hf:
            assert listing_of(path) == before
            [first, *_] = await hf.queue().peek(5)
            await hf.queue().get(first.id, payload=True)
            assert await hf.queue().list(limit=100, payload=True)
            assert (await hf.queue().stats()).ready
            assert await hf.queues()
        assert listing_of(path) == before


def test_a_database_whose_program_was_killed_is_read_whole_and_stays_as_it_was(tmp_path: Path) -> None:
    """The last writes of a killed program are only in RocksDB's log."""
    path = tmp_path / "old"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    before = listing_of(path)

    with holdfast.open(str(path), legacy_read_only=True) as hf:
        assert hf.queue().stats().ready == 20

    assert listing_of(path) == before


def test_a_directory_that_cannot_be_written_to_is_read(open_to_all: Path) -> None:
    path = open_to_all / "old"
    make_legacy(path, 30, seed=1, now_s=NOW_S, is_damaged=False)
    shutil.copytree(path, open_to_all / "copy")
    for each in path.iterdir():
        each.chmod(0o444)
    path.chmod(0o555)
    before = listing_of(path)

    ran = subprocess.run(
        [sys.executable, "-c", READING_AS_NOBODY, str(path), str(open_to_all / "copy")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": "/tmp"},
    )

    assert (ran.returncode, ran.stdout) == (0, "30\n"), ran.stderr
    assert listing_of(path) == before


def test_a_program_that_writes_keeps_readers_out_and_the_reverse(tmp_path: Path) -> None:
    path = tmp_path / "old"
    writer = LegacyWriter(path)
    writer.add(b"id", b"x", 1)
    with pytest.raises(StoreUnavailable, match="in use by another program"), opened(path):
        pass
    writer.close()
    with opened(path), pytest.raises(Exception, match="lock"):
        LegacyWriter(path)


def test_nothing_is_left_behind_in_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    make_legacy(tmp_path / "old", 5, seed=1, now_s=NOW_S)
    with opened(tmp_path / "old") as database:
        assert list(place.iterdir())
        assert list(database.read())
    assert not list(place.iterdir())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    for _ in range(2):  # the lock is not kept
        with pytest.raises(StoreUnavailable, match="temporary directory"), opened(tmp_path / "old"):
            pass
    monkeypatch.setattr("tempfile.tempdir", str(place))
    (tmp_path / "old" / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(StoreUnavailable), opened(tmp_path / "old"):
        pass
    assert not list(place.iterdir())


async def test_a_message_whose_lease_has_ended_is_ready(tmp_path: Path) -> None:
    writer = LegacyWriter(tmp_path / "old")
    writer.add(b"ready", b"ready", NOW_S - 50)
    writer.claim(b"first", {b"a": b"ended"}, NOW_S - 100)
    writer.claim(b"second", {b"b": b"ends"}, NOW_S + 10)
    writer.claim(b"third", {b"c": b"held"}, NOW_S + 60)
    writer.close()
    clock = ManualClock(NOW_S * 1_000)

    async with holdfast.open_async(str(tmp_path / "old"), legacy_read_only=True, clock=clock) as hf:
        queue = hf.queue()

        async def seen() -> tuple[int, int, list[bytes]]:
            stats = await queue.stats()
            assert len(await queue.list(state="in_flight")) == stats.in_flight
            assert len(await queue.list(state="ready")) == stats.ready
            return stats.ready, stats.in_flight, [message.payload for message in await queue.peek(5)]

        assert await seen() == (2, 2, [b"ended", b"ready"])
        clock.advance(9_999)
        assert await seen() == (2, 2, [b"ended", b"ready"])
        clock.advance(1)
        assert await seen() == (3, 1, [b"ended", b"ready", b"ends"])
        [ended] = [each for each in await queue.peek(5) if each.payload == b"ended"]
        info = await queue.get(ended.id)
        assert (info.state, info.lease_expires_at, info.visible_at) == ("ready", None, (NOW_S - 100) * 1_000)
