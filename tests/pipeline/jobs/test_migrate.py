"""`migrate`: a directory of the legacy layout into a store, in its place or elsewhere; a store into another."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.stores.rocks.legacy.message_import import LegacyImport
from holdfast.stores.rocks.legacy.migration import LegacyMigration
from holdfast.stores.rocks.verify.store_check import verify
from tests.machinery.legacy.databases import LegacyWriter, make_legacy
from tests.pipeline.conftest import Run
from tests.seeds import run_seed


def now_s() -> int:
    return SystemClock().now_ms() // 1_000


def names_in(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


async def begin(path: Path, messages: int, unreadable: int) -> None:
    """Begin a migration and leave it as a kill would."""
    migration = LegacyMigration(path, accept_unreadable=unreadable)
    await migration.open()
    await migration.copy_once(messages)
    await migration.close()


@pytest.mark.spec("9.9")
def test_a_legacy_directory_becomes_a_store_in_place_and_continues_where_it_was_stopped(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "old"
    expected = make_legacy(path, 300, seed=run_seed(), now_s=now_s())
    before = names_in(path)

    code, out, err = run("migrate", "--url", path, "--dry-run", "--json")
    told = json.loads(out)
    assert (code, sum(told["found"].values()), told["oddities"]) == (0, expected.count, dict(expected.oddities)), err
    assert names_in(path) == before

    asyncio.run(begin(path, 70, expected.unreadable))
    code, out, err = run("migrate", "--url", path, "--json", "--accept-unreadable", expected.unreadable)
    told = json.loads(out)
    assert (code, told["is_done"], told["messages"]) == (0, True, expected.count), err
    assert told["oddities"] == dict(expected.oddities)
    report = verify(path, None)
    assert (report.is_clean, report.messages) == (True, expected.count)

    code, out, _ = run("migrate", "--url", path)
    assert (code, "nothing to do" in out) == (0, True)


def test_a_message_lost_on_the_way_into_its_place_is_found_out_and_nothing_is_removed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old"
    make_legacy(path, 60, seed=run_seed(), now_s=now_s(), is_damaged=False)
    put = LegacyImport.put

    async def lose_one(self: LegacyImport, messages: Any, progress: Any, at: int) -> None:
        await put(self, messages[1:], progress, at)

    monkeypatch.setattr(LegacyImport, "put", lose_one)
    code, _, err = run("migrate", "--url", path)

    assert (code != 0, "Nothing was removed" in err) == (True, True)
    assert (path / "CURRENT").exists()


def test_a_store_of_this_layout_is_not_migrated_into_itself(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with holdfast.open(str(path), durability="os") as hf:
        hf.queue("a").enqueue(b"x")
    for arguments in (("--to", path), ("--to", f"{path}/../store")):
        code, _, err = run("migrate", "--url", path, *arguments)
        assert (code, "give another --to" in err) == (2, True), err
    code, _, err = run("migrate", "--url", tmp_path / "nowhere")
    assert (code, "give --to URL|DIR" in err) == (2, True), err


@pytest.mark.spec("9.9")
def test_a_legacy_directory_goes_into_an_object_store_and_from_there_into_a_directory(
    spark: Any, run: Run, tmp_path: Path
) -> None:
    old, objects, new = tmp_path / "old", f"file://{tmp_path / 'objects'}", tmp_path / "new"
    expected = make_legacy(old, 50, seed=run_seed(), now_s=now_s())
    assert expected.messages is not None
    writer = LegacyWriter(old)
    writer.put(b"metrics/x", b"no message")
    writer.close()
    payloads = sorted(contents for contents, _ in expected.messages.values())

    unreadable = expected.unreadable + 1
    code, _, err = run("migrate", "--url", old, "--to", objects, "--json")
    assert (code, f"give --accept-unreadable {unreadable}" in err) == (4, True), err
    assert not (tmp_path / "objects").exists()

    code, out, err = run("migrate", "--url", old, "--to", objects, "--json", "--accept-unreadable", unreadable)
    told = json.loads(out)
    assert (code, told["copied"], sum(told["found"].values())) == (0, expected.count, expected.count), err
    assert [(each["expected"], each["found"]) for each in told["checks"]][:2] == [(expected.count, expected.count)] * 2
    assert len(told["checks"]) == 3
    assert "also has keys that are not messages" in err
    assert told["legacy_order"] == "contents, visibility_ts_index_key, id"

    code, out, err = run("migrate", "--url", objects, "--to", new)
    assert (code, f"{expected.count:,} copied" in out, "contents agree" in out) == (0, True, True), err
    with holdfast.open(str(new), durability="os") as hf:
        page = hf.queue().list(None, 1_000, payload=True)
        assert sorted(each.payload or b"" for each in page) == payloads
        # Delivered, and gone: a copy that is not there any more is missed.
        hf.queue().remove(page[0].id)

    code, out, err = run("migrate", "--url", objects, "--to", new)
    assert f"0 copied, {expected.count:,} already copied" in out
    said = f"copies in the new store: {expected.count - 1:,}, but expected {expected.count:,}"
    assert (code, said in err) == (4, True), err


@pytest.mark.spec("9.9")
def test_contents_that_changed_on_the_way_are_found_out(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    from holdfast.pipeline.jobs.migrate import migrate, read_opened_snapshot
    from holdfast.pipeline.jobs.targets import OpenedTarget, PutResult

    class Careless(OpenedTarget):
        def put(self, frame: Any) -> PutResult:
            return super().put(frame.withColumn("payload", F.lit(b"?").cast("binary")))

    with (
        holdfast.open(str(tmp_path / "old"), durability="os") as old,
        holdfast.open(str(tmp_path / "new"), durability="os") as new,
    ):
        old.queue("a").enqueue([b"one", b"two"], headers={"k": "v"}, group="g")
        with read_opened_snapshot(spark, old) as snapshot:
            done = migrate(snapshot, Careless(new), read_back=lambda: read_opened_snapshot(spark, new))

    assert not done.is_sound
    assert [each.is_met for each in done.checks] == [True, True, False]
