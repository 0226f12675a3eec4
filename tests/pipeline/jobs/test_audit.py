"""`holdfast pipeline audit` and its neighbours, as a shell runs them."""

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.pipeline.jobs.audit import last_audit
from holdfast.pipeline.lake.contract import Mark
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import EVENTS, VIOLATIONS
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.database import Database
from holdfast.testing import ManualClock
from tests.pipeline.audit.test_rules import life
from tests.pipeline.conftest import Run
from tests.pipeline.journal_made import frame_of, journal_of, make_traffic, store
from tests.postgres.server import PostgresServer
from tests.seeds import run_seed


def made_store(path: Path) -> None:
    clock = ManualClock()
    with store(path, clock) as hf:
        make_traffic(hf, clock, random.Random(run_seed()), rounds=30)


@pytest.mark.spec("9.8")
@pytest.mark.slow
def test_a_clean_backup_and_lake_pass_and_what_is_planted_is_named_with_exit_code_4(
    spark: Any, run: Run, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    made_store(tmp_path / "clean")
    lake.append(spark, EVENTS, frame_of(spark, life("enqueued", "claimed", "succeeded", id=1)))

    code, out, err = run("audit", "--lake", lake.url, "--store", tmp_path / "clean", "--json")

    assert (code, json.loads(out)["broken"]) == (0, {}), err
    assert json.loads(out)["events"] > 3
    assert last_audit(lake) == 0

    made_store(tmp_path / "damaged")
    _lose_a_message(tmp_path / "damaged")
    lake.append(
        spark, EVENTS, frame_of(spark, life("enqueued", "claimed", "claimed", id=2)), writer="w", mark=Mark(1, "1")
    )

    code, out, err = run("audit", "--lake", lake.url, "--store", tmp_path / "damaged", "--store", tmp_path / "clean")

    assert code == 4
    assert "double-lease: acme/pay" in out
    assert f"{tmp_path / 'damaged'}: " in out
    assert str(tmp_path / "clean") not in out
    found = lake.read(spark, VIOLATIONS).collect()
    assert {row.rule for row in found} == {"double-lease", "store"}
    assert last_audit(lake) == len(found)


@pytest.mark.slow
def test_a_lake_is_held_against_the_store_at_rest_whose_journal_it_has(spark: Any, run: Run, tmp_path: Path) -> None:
    lake, path = Lake(str(tmp_path / "lake")), tmp_path / "store"
    with holdfast.open(str(path), durability="os") as hf:
        hf.queue("mail", tenant="acme").enqueue([b"x"] * 3)
        hf.queue("mail", tenant="acme").claim()[0].ack()
        lake.append(spark, EVENTS, frame_of(spark, journal_of(hf)))
    cached = spark._jsparkSession.sharedState().cacheManager().isEmpty()

    with holdfast.open(str(path), durability="os") as hf:
        hf.queue("mail", tenant="acme").enqueue(b"nobody archived it")
    _lose_a_message(path)

    code, out, err = run("audit", "--lake", lake.url, "--against", path, "--json")

    assert (code, json.loads(out)["broken"]) == (4, {"lost": 1, "unrecorded": 1}), err
    # Nothing of it is kept in memory.
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty() == cached


def _lose_a_message(path: Path) -> None:

    database = Database(path)
    [key, *_] = database.scan(keys.MESSAGES, b"", b"\xff" * 40)
    database.commit.delete(key, keys.MESSAGES)
    database.write()
    database.close()


@pytest.mark.spec("9.11")
@pytest.mark.slow
def test_a_store_is_archived_reported_and_compacted_from_the_shell(spark: Any, run: Run, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with holdfast.open(str(tmp_path / "store"), durability="os") as hf:
        queue = hf.queue("mail", tenant="acme")
        for _ in range(2):
            queue.enqueue([b"x"] * 5)
            queue.ack(queue.claim(limit=5))

    first = run("archive", "--url", tmp_path / "store", "--lake", lake, "--payloads", "--batch-rows", "12", "--json")
    again = run("archive", "--url", tmp_path / "store", "--lake", lake)
    assert (first[0], json.loads(first[1])["events"], json.loads(first[1])["messages"]) == (0, 30, 10)
    assert json.loads(first[1])["batches"] == 3
    assert (again[0], again[1].split(":")[0]) == (0, "0 events and 0 final records in 0 commits")
    code, out, _ = run("report", "--lake", lake, "--out", tmp_path / "r.html", "--promise", "1ms")
    assert (code, (tmp_path / "r.html").exists()) == (0, True), out
    code, out, _ = run("compact", "--lake", lake, "--json", "--keep-hours", "0")
    tables = {row["table"]: row for row in map(json.loads, out.splitlines())}
    assert code == 0
    assert tables["events"]["files after"] < tables["events"]["files before"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("audit",), "give --lake DIR, or --store"),
        (("audit", "--store", ".", "--against", "x"), "--against needs the events of a lake: give --lake DIR too"),
        (("audit", "--store", "/nowhere"), "--store /nowhere is not a directory"),
        (("archive", "--lake", "x", "--lake-format", "orc"), "--lake-format 'orc' is unknown"),
        (("archive", "--lake", "x", "--conf", "novalue"), "--conf 'novalue' is not KEY=VALUE"),
        (("load", "q", "file.xls"), "the file extensions do not determine the format"),
        (("drain", "q", "--lake", "x", "--url", "./d"), "drain claims messages in Spark's processes"),
        (("replay", "--lake", "x", "--since", "soon"), "--since 'soon' is not a time"),
        (("flush", "/nowhere"), "/nowhere is not a directory"),
        (("reshard", "--store", "mysql://x"), "give --store postgres://"),
    ],
)
def test_a_wrong_call_is_refused_with_the_reason_before_anything_starts(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    code, _, err = run(*arguments)
    assert (code, said in err) == (2, True), err


async def _create(url: str, name: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()


@pytest.mark.spec("9.9")
@pytest.mark.slow
def test_a_store_is_spread_over_a_database_that_joined_it(
    run: Run, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = postgres.make_databases("spread_a")
    with holdfast.open(urls[0]) as hf:
        for number in range(12):
            hf.queue(f"q{number}").enqueue(b"x")
    asyncio.run(_create(postgres.url("postgres"), "spread_b"))
    every = ",".join([*urls, postgres.url("spread_b")])
    monkeypatch.setattr(sys, "argv", ["holdfast", "db", "migrate", "--store", every])
    with pytest.raises(SystemExit):
        main()

    dry, moved, after = (run("reshard", "--store", every, "--json", *more) for more in (["--dry-run"], [], []))

    assert [dry[0], moved[0], after[0]] == [0, 0, 0], moved
    assert json.loads(dry[1].splitlines()[-1])["slots"] == json.loads(moved[1])["slots"] == 512
    assert json.loads(moved[1])["left"] == 0
    assert 0 < json.loads(moved[1])["messages"] < 12
    assert json.loads(after[1])["slots"] == 0
    with holdfast.open(every) as hf:
        assert [len(hf.queue(f"q{number}").claim(limit=9)) for number in range(12)] == [1] * 12
