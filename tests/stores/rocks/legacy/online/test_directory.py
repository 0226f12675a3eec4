"""The directory while its messages are moved: nobody mistakes it for anything else, and every tool knows it."""

import json
import shutil
from pathlib import Path
from typing import cast

import msgspec
import pytest
from rocksdict import Options, Rdict, WriteBatch

from holdfast.client.client import AsyncHoldfast
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.stores.rocks.legacy.files import is_legacy
from holdfast.stores.rocks.legacy.migration import NEW, migrate_legacy
from holdfast.stores.rocks.legacy.online.moving_store import MovingStore
from holdfast.stores.rocks.offline.backup import backup
from holdfast.stores.rocks.offline.backup_reader import CopyMessages
from holdfast.stores.rocks.offline.resharding import reshard
from holdfast.stores.rocks.recovery.marker import FORMAT, MARKER
from holdfast.stores.rocks.verify.store_check import verify
from holdfast.testing import ManualClock
from tests.machinery.legacy.databases import LegacyWriter
from tests.stores.rocks.legacy.online.legacy_queue import (
    NO_ROOM,
    NOW_MS,
    core_of,
    list_all,
    make_queue,
    open_moving,
    own_ids,
    wait_until,
    wait_until_moved,
)


async def make_half_moved(path: Path, **messages: int) -> None:
    """Open a database, and close it before the background has moved anything but claimed messages."""
    make_queue(path, **messages)
    async with open_moving(path, ManualClock(NOW_MS), low_disk_bytes=NO_ROOM) as hf:
        await hf.queue().claim(1, wait=0)


@pytest.mark.spec("9.9")
@pytest.mark.parametrize("shards", [1, 4])
async def test_no_older_program_opens_a_half_moved_directory(tmp_path: Path, shards: int) -> None:
    path = tmp_path / "old"
    make_queue(path, foreign=500)
    async with open_moving(path, ManualClock(NOW_MS), shards=shards, low_disk_bytes=NO_ROOM):
        pass
    # Versions of Holdfast before this format refuse a higher one by its number.
    assert json.loads((path / MARKER).read_text())["format"] == FORMAT == 7
    assert not is_legacy(path)
    for creates in (False, True):
        options = Options(raw_mode=True)
        options.create_if_missing(creates)
        with pytest.raises(Exception, match="CURRENT"):
            Rdict(str(path), options)
    async with open_moving(path, ManualClock(NOW_MS)) as hf:
        assert (await hf.queue().stats()).ready == 500
        await wait_until_moved(hf)
    assert json.loads((path / MARKER).read_text())["format"] == (4 if shards == 1 else 6)
    assert sorted(each.name for each in path.iterdir() if each.is_file()) == [MARKER]


async def test_a_database_in_use_or_half_migrated_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "old"
    make_queue(path, foreign=3)
    writer = LegacyWriter(path)
    before = sorted(path.iterdir())
    with pytest.raises(StoreUnavailable, match="in use by another program"):
        async with open_moving(path, ManualClock(NOW_MS)):
            pass
    writer.close()
    assert not (path / MARKER).exists()
    assert {each.name for each in before} >= {"CURRENT"}
    (path / NEW).mkdir()
    with pytest.raises(InvalidArgument, match="holdfast db migrate"):
        async with open_moving(path, ManualClock(NOW_MS)):
            pass
    assert is_legacy(path)


async def test_a_database_begun_by_another_program_in_the_meantime_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "old"
    await make_half_moved(path, foreign=300)
    (path / "CURRENT").unlink()
    make_queue(path, foreign=1)
    with pytest.raises(StoreUnavailable, match="another database was begun"):
        async with open_moving(path, ManualClock(NOW_MS)):
            pass


async def test_a_copy_made_while_messages_are_moved_has_each_message_once(tmp_path: Path) -> None:
    path, copy = tmp_path / "old", tmp_path / "copy"
    make_queue(path, foreign=1_500, own=200, held=20)
    async with open_moving(path, ManualClock(NOW_MS)) as hf:
        await core_of(hf).store.backup(str(copy))
        left = (await hf.queue().stats()).legacy_left
        await wait_until_moved(hf)
    assert left is not msgspec.UNSET
    report = verify(copy)
    assert report.is_clean
    assert report.ready + report.in_flight + report.legacy == 1_720
    async with open_moving(copy, ManualClock(NOW_MS)) as hf:
        await wait_until_moved(hf)
        payloads = [each.payload for each in await list_all(hf)]
    assert len(payloads) == len(set(payloads)) == 1_720


async def test_a_half_moved_directory_that_is_closed_can_be_copied(tmp_path: Path) -> None:
    path, copy = tmp_path / "old", tmp_path / "copy"
    await make_half_moved(path, foreign=900, own=10)
    backup(path, copy)
    async with open_moving(copy, ManualClock(NOW_MS)) as hf:
        with pytest.raises(StoreUnavailable, match="in use"):
            backup(copy, tmp_path / "second")
        stats = await hf.queue().stats()
        assert stats.ready + stats.in_flight == 910


async def test_tools_that_read_files_refuse_a_half_moved_directory_by_name(tmp_path: Path) -> None:
    path = tmp_path / "old"
    await make_half_moved(path, foreign=500)
    for use in (lambda: reshard(path, 4), lambda: CopyMessages(path)):
        with pytest.raises(StoreUnavailable, match="holdfast db migrate"):
            use()
    report = verify(path)
    assert report.is_clean
    assert report.legacy >= 300
    assert report.ready + report.in_flight + report.legacy == 500


async def test_verify_finds_a_message_that_is_in_both_layouts(tmp_path: Path) -> None:
    path = tmp_path / "old"
    make_queue(path, own=300)
    shutil.copytree(path, tmp_path / "as it was")
    async with open_moving(path, ManualClock(NOW_MS), low_disk_bytes=NO_ROOM) as hf:
        await hf.queue().claim(1, wait=0)
        await wait_until(lambda: _is_deleted(hf))
    # The first message again, as if its deletion had been lost.
    [id] = own_ids(1)
    old = Rdict(str(tmp_path / "as it was"), Options(raw_mode=True))
    half = Rdict(str(path / "legacy"), Options(raw_mode=True))
    batch = WriteBatch(raw_mode=True)
    batch.put(b"available/" + id, old[b"available/" + id])
    half.write(batch)
    old.close()
    half.close()
    assert any("not marked as moved" in str(each) for each in verify(path).violations)


async def _is_deleted(hf: AsyncHoldfast) -> bool:
    return cast(MovingStore, core_of(hf).store)._moves.waiting == 0


async def test_keys_that_cannot_be_read_stay_until_their_number_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "old"
    make_queue(path, foreign=20)
    writer = LegacyWriter(path)
    writer.put(b"available/broken", b"no message")
    writer.put(b"jobs/1", b"of another kind")
    writer.close()
    clock = ManualClock(NOW_MS)
    async with open_moving(path, clock) as hf:
        store = core_of(hf).store

        async def is_stuck() -> bool:
            return (await store.figures()).legacy_unreadable == 2

        await wait_until(is_stuck)
        stats = await hf.queue().stats()
        assert (stats.ready, stats.legacy_left) == (20, 0)
        await hf.queue().enqueue(b"goes on")
    with pytest.raises(InvalidArgument, match=r"2 keys or values cannot be read.*--accept-unreadable 2"):
        await migrate_legacy(path, clock=clock)
    with pytest.raises(InvalidArgument, match="--accept-unreadable 3 is a different number"):
        await migrate_legacy(path, accept_unreadable=3, clock=clock)
    result = await migrate_legacy(path, accept_unreadable=2, clock=clock)
    assert (result.is_done, result.messages) == (True, 20)
    assert len((path / "legacy-unreadable.jsonl").read_text().splitlines()) == 2
    assert not (path / "legacy").exists()
    assert verify(path).is_clean


async def test_the_offline_command_finishes_a_half_moved_directory(tmp_path: Path) -> None:
    path = tmp_path / "old"
    await make_half_moved(path, foreign=700)
    result = await migrate_legacy(path)
    assert (result.is_done, result.messages) == (True, 700)
    report = verify(path)
    assert report.is_clean
    assert report.ready + report.in_flight == 700
    assert not (await migrate_legacy(path)).is_done
