"""`holdfast_lake`: a stream's batch is in the table once, however often it is run."""

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.pipeline.lake.lake import Lake, LakeKind
from holdfast.pipeline.lake.tables import EVENTS, VIOLATIONS
from holdfast.pipeline.sources.lake_sink import parse_lake_target
from tests.pipeline.sources.test_journal import drain, end_of, forget_commits
from tests.server.served import Served


def archive(spark: Any, served: Served, start: str, directory: Path, kind: LakeKind) -> Any:
    source = spark.readStream.format("holdfast_journal").options(url=served.url, startingPosition=start, maxRows=40)
    writer = source.load().writeStream.format("holdfast_lake")
    writer = writer.options(path=str(directory / "lake"), table="events", writer="archive", lakeFormat=kind.value)
    return drain(writer.option("checkpointLocation", str(directory / "checkpoint")))


@pytest.mark.parametrize("kind", [LakeKind.DELTA, LakeKind.ICEBERG])
def test_a_batch_that_is_run_again_adds_nothing(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str, tmp_path: Path, kind: LakeKind
) -> None:
    start = end_of(hf)
    hf.queue(queue_name).enqueue([b"x"] * 70)
    archive(spark, served, start, tmp_path, kind)
    forget_commits(tmp_path / "checkpoint", 1)  # as if the driver had been killed before it wrote that
    hf.queue(queue_name).enqueue([b"y"] * 5)
    archive(spark, served, start, tmp_path, kind)

    lake = Lake(str(tmp_path / "lake"), kind)
    rows = lake.read(spark, EVENTS).collect()
    assert sorted(row.seq for row in rows) == [event.seq for event in hf.journal(start)]
    assert {str(row.day) for row in rows} == {row.at.strftime("%Y-%m-%d") for row in rows}
    mark = lake.table(EVENTS).mark("archive")
    assert mark is not None
    assert mark.batch >= 3


def test_a_batch_write_is_one_commit_and_its_files_are_sorted(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql(
        "SELECT concat('r', id % 3) AS rule, 'acme' AS tenant, 'q' AS queue, concat('m', id) AS id, 'd' AS detail, "
        "timestamp '2026-01-01' AS first_seen, 'run' AS run FROM range(0, 100, 1, 2)"
    )
    frame.write.format("holdfast_lake").mode("append").options(path=str(tmp_path), table="violations").save()

    lake = Lake(str(tmp_path))
    assert lake.read(spark, VIOLATIONS).count() == 100
    files = lake.table(VIOLATIONS).files()
    assert len(files) == 2
    for file in files:
        rules = [row.rule for row in spark.read.parquet(file).collect()]
        assert rules == sorted(rules)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "events"}, "needs option path"),
        ({"path": "/x"}, "needs option table"),
        ({"path": "/x", "table": "event"}, "option table is 'event': give events or"),
        ({"path": "/x", "table": "events"}, "needs option writer"),
        ({"path": "/x", "table": "events", "writer": "w"}, "the rows lack columns of table events: attempt"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(spark: Any, options: dict[str, str], said: str) -> None:
    without = spark.createDataFrame([], EVENTS.table.spark).drop("attempt").schema
    with pytest.raises(holdfast.InvalidArgument, match=said):
        parse_lake_target(options, without, overwrite=False, streams=True)
