"""A legacy database becomes a store completely or not at all, wherever the migration is interrupted."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.failures import Usage
from holdfast.cli.main import app
from holdfast.clock import SystemClock
from holdfast.model import ids
from holdfast.model.errors import StoreUnavailable
from holdfast.stores.rocks.legacy.entries import LegacyMessage
from holdfast.stores.rocks.legacy.legacy_database import opened
from holdfast.stores.rocks.legacy.message_import import MigrationProgress
from holdfast.stores.rocks.legacy.migration import NEW, UNREADABLE, LegacyMigration, migrate_legacy
from holdfast.stores.rocks.verify.store_check import verify
from tests.machinery.legacy.databases import LegacyWriter, index_key, make_legacy
from tests.machinery.legacy.kills import run_legacy_migration
from tests.machinery.outcomes import say_nothing
from tests.seeds import run_seed


class Stopped(Exception):
    """Raised to interrupt the migration as the end of the process would."""


def now_s() -> int:
    return SystemClock().now_ms() // 1_000


def names_in(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


@pytest.mark.spec("4.7")
async def test_every_message_is_in_the_store_with_its_state_its_time_and_its_id(tmp_path: Path) -> None:
    path = tmp_path / "store"
    own = ids.IdMaker(9).take(1, (now_s() - 60) * 1_000)[0]
    writer = LegacyWriter(path)
    writer.add(ids.to_bytes(own), b"kept", now_s() - 10)
    writer.add(b"any bytes\xff", b"foreign", now_s() - 20)
    writer.add(b"later", b"delayed", now_s() + 3_600)
    writer.put(b"in_progress/left", writer.item(b"left", b"unheld", index_key(now_s() - 30, b"left")))
    writer.claim(b"lease", {b"one": b"held", b"two": b"held too"}, now_s() + 600)
    writer.claim(b"over", {b"three": b"expired"}, now_s() - 5)
    writer.close()

    migrated = await migrate_legacy(path)

    assert (migrated.messages, migrated.ready, migrated.in_flight) == (7, 5, 2)
    assert names_in(path) == ["HOLDFAST", "db"]
    assert verify(path, None).is_clean
    async with holdfast.open_async(str(path)) as hf:
        queue = hf.queue()
        stats = await queue.stats()
        assert (stats.ready, stats.delayed, stats.in_flight) == (4, 1, 2)
        assert (await queue.get(own)).state == "ready"
        # By the time that each was visible from; one that expired is back as of its expiry.
        claimed = await queue.claim(10, lease=60)
        assert [message.payload for message in claimed] == [b"unheld", b"foreign", b"kept", b"expired"]
        assert bytes.fromhex(claimed[1].headers["legacy-id"]) == b"any bytes\xff"
        assert "legacy-id" not in claimed[2].headers
        [new] = await queue.enqueue("after")
        assert new.snowflake > own
        for message in claimed:
            await message.ack()


async def test_a_record_that_is_no_message_is_reported_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "store"
    expected = make_legacy(path, 1_500, seed=run_seed(), now_s=now_s())
    with opened(path) as database:
        raw = {bytes(found.key): found.value for _, found in database.read() if hasattr(found, "kind")}

    migrated = await migrate_legacy(path, accept_unreadable=expected.unreadable)

    assert Counter(migrated.oddities) == expected.oddities
    assert migrated.messages == expected.count
    assert migrated.kept == str(path / UNREADABLE)
    lines = [json.loads(line) for line in (path / UNREADABLE).read_text().splitlines()]
    kinds = Counter(line["kind"] for line in lines)
    assert kinds == {kind: count for kind, count in expected.oddities.items() if "without" not in kind}
    for line in lines:
        assert raw[base64.b64decode(line["key_base64"])] == base64.b64decode(line["value_base64"])


async def test_a_migration_that_is_over_is_not_done_again(tmp_path: Path) -> None:
    make_legacy(tmp_path / "store", 50, seed=1, now_s=now_s(), is_damaged=False)
    assert (await migrate_legacy(tmp_path / "store")).is_done
    async with holdfast.open_async(str(tmp_path / "store")) as hf:
        await hf.queue().enqueue("since")

    assert not (await migrate_legacy(tmp_path / "store")).is_done
    assert verify(tmp_path / "store", None).messages == 51


async def test_a_message_lost_in_the_copy_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    make_legacy(path, 300, seed=1, now_s=now_s(), is_damaged=False)
    migration = LegacyMigration(path)
    await migration.open()
    put = migration._importer.put

    async def lose_one(messages: Sequence[LegacyMessage], progress: MigrationProgress, at: int) -> None:
        await put(messages[1:], progress, at)

    monkeypatch.setattr(migration._importer, "put", lose_one)
    while await migration.copy_once():
        pass
    with pytest.raises(StoreUnavailable, match="Nothing was removed"):
        await migration.check()
    await migration.close()

    with pytest.raises(StoreUnavailable, match="Nothing was removed"):
        await migrate_legacy(path)
    assert (path / "CURRENT").exists()
    assert not (path / "HOLDFAST").exists()


@pytest.mark.spec("4.7")
async def test_interrupted_anywhere_it_continues(tmp_path: Path) -> None:
    """Interrupt the migration at each report of its progress, and run it again."""
    path = tmp_path / "store"
    expected = make_legacy(path, 400, seed=run_seed(), now_s=now_s())
    stops = 0
    while True:
        left = 1 + stops // 4

        def stop(stage: str, done: int, total: int | None) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Stopped

        try:
            await migrate_legacy(path, stop, step=40, accept_unreadable=expected.unreadable)
        except Stopped:
            stops += 1
        else:
            break
    assert stops > 20
    kept = [UNREADABLE] if expected.oddities.keys() & {"unreadable", "unknown key"} else []
    assert names_in(path) == ["HOLDFAST", "db", *kept]
    report = verify(path, None)
    assert report.is_clean
    assert report.messages == expected.count


async def test_a_directory_that_is_half_switched_is_still_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "store"
    make_legacy(path, 20, seed=1, now_s=now_s(), is_damaged=False)

    def stop(stage: str, done: int, total: int | None) -> None:
        if stage == "marking the store":
            raise Stopped

    with pytest.raises(Stopped):
        await migrate_legacy(path, stop)
    async with holdfast.open_async(str(path), legacy_read_only=True) as hf:
        assert len(await hf.queue().list()) == 20
        with pytest.raises(holdfast.InvalidArgument, match="holdfast db migrate"):
            await hf.queue().enqueue("x")

    with pytest.raises(holdfast.InvalidArgument, match="holdfast db migrate"):
        async with holdfast.open_async(str(path)):
            pass
    await migrate_legacy(path)
    assert verify(path, None).messages == 20


async def test_a_database_that_was_written_to_after_the_check_is_not_thrown_away(tmp_path: Path) -> None:
    path = tmp_path / "store"
    make_legacy(path, 20, seed=1, now_s=now_s(), is_damaged=False)

    def stop(stage: str, done: int, total: int | None) -> None:
        if stage == "switch":
            raise Stopped

    with pytest.raises(Stopped):
        await migrate_legacy(path, stop)
    writer = LegacyWriter(path)
    writer.add(b"since", b"x", now_s())
    writer.close()

    with pytest.raises(StoreUnavailable, match="was written to since"):
        await migrate_legacy(path)
    shutil.rmtree(path / NEW)
    assert (await migrate_legacy(path)).messages == 21


MIGRATING = """
import asyncio, sys
from holdfast.stores.rocks.legacy.migration import LegacyMigration

async def migrate(path):
    migration = LegacyMigration(path)
    await migration.open()
    await migration.copy_once(limit=3)
    print("begun", flush=True)
    sys.stdin.read()

asyncio.run(migrate(sys.argv[1]))
"""


def test_a_directory_that_another_process_migrates_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "store"
    make_legacy(path, 20, seed=1, now_s=now_s(), is_damaged=False)
    with subprocess.Popen(
        [sys.executable, "-c", MIGRATING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        for _ in range(2):  # to be refused takes nothing from whoever has it
            with pytest.raises(StoreUnavailable, match="in use by another program"):
                asyncio.run(migrate_legacy(path))
            with pytest.raises(StoreUnavailable, match="in use by another program"):
                holdfast.open(str(path))
            with pytest.raises(Exception, match="lock"):  # the program that wrote it
                LegacyWriter(path)
        other.kill()
    assert asyncio.run(migrate_legacy(path)).messages == 20


async def test_a_directory_that_this_process_migrates_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "store"
    make_legacy(path, 20, seed=1, now_s=now_s(), is_damaged=False)
    migration = LegacyMigration(path)
    await migration.open()
    await migration.copy_once(limit=3)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=f"in use by process {os.getpid()}, this one"), opened(path):
            pass
    await migration.close()
    assert (await migrate_legacy(path)).messages == 20


@pytest.mark.spec("9.9")
@pytest.mark.slow
def test_killed_in_the_middle_it_ends_with_equal_counts_and_hashes() -> None:
    outcome = run_legacy_migration(4_000, seed=run_seed(), progress=say_nothing, kills=4, step=200)

    assert not outcome.violations
    assert outcome.done > 3_500
    assert outcome.counts["kills"] >= 3


def test_the_command_migrates_and_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "store"
    expected = make_legacy(path, 100, seed=1, now_s=now_s(), is_damaged=False)
    for said in (": 100 messages in default/default", "nothing to do"):
        app(["db", "migrate", str(path)], standalone_mode=False)
        assert said in capsys.readouterr().out
    assert expected.count == 100
    with pytest.raises(Usage, match="neither"):
        app(["db", "migrate", str(tmp_path)], standalone_mode=False)
    with pytest.raises(Usage, match="not both"):
        app(["db", "migrate", str(path), "--store", "postgres://x"], standalone_mode=False)


def test_a_large_payload_is_copied_whole(tmp_path: Path) -> None:
    path = tmp_path / "store"
    payload = os.urandom(3 << 20)
    writer = LegacyWriter(path)
    writer.add(b"large", payload, 1)
    writer.close()

    asyncio.run(migrate_legacy(path))

    with holdfast.open(str(path)) as hf:
        [message] = hf.queue().claim()
        assert message.payload == payload
    assert not (path / NEW).exists()
