"""The lake's tables: what a commit holds, what a reader sees, and what compaction leaves as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import InvalidArgument
from holdfast.pipeline.lake.contract import LakeTable, Mark, NewFile
from holdfast.pipeline.lake.lake import Lake, LakeKind
from holdfast.pipeline.lake.tables import EVENTS, VIOLATIONS, TableShape
from tests.pipeline.audit.test_rules import life
from tests.pipeline.journal_made import frame_of


@pytest.fixture(params=list(LakeKind))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), request.param)


def made(table: LakeTable, name: str, rows: int = 3) -> NewFile:
    """A file as Spark would have written it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(table.new_files) / name / "part-0.parquet"
    path.parent.mkdir(parents=True)
    empty = pa.table({field.name: pa.nulls(rows, field.type) for field in VIOLATIONS.table.arrow})
    pq.write_table(empty, path)
    where = str(path.relative_to(table.directory))
    return NewFile(path=where, size=path.stat().st_size, modified_at=1, rows=rows)


@pytest.mark.spec("9.6")
def test_a_batch_that_was_committed_is_not_committed_again(lake: Lake) -> None:
    table = lake.table(VIOLATIONS)
    assert table.mark("w") is None
    assert table.append([made(table, "a")], writer="w", mark=Mark(1, "12-7"))
    # What a process that died after its commit would offer again, and what a rival has written.
    assert not table.append([made(table, "b")], writer="w", mark=Mark(1, "12-7"))
    assert table.append([made(table, "c")], writer="other", mark=Mark(1, "99"))

    assert table.mark("w") == Mark(1, "12-7")
    assert table.mark("other") == Mark(1, "99")
    assert len(table.files()) == 2


@pytest.mark.parametrize("position", ["", "1", "1234567", "12345678", "9" * 19 + "-" + "8" * 19, "é—x", "\x00\x01"])
def test_a_position_of_any_text_comes_back_as_it_was(lake: Lake, position: str) -> None:
    table = lake.table(VIOLATIONS)
    table.append([], writer="w", mark=Mark(1, "a much longer position than the one that follows"))
    table.append([], writer="w", mark=Mark(2, position))
    assert lake.table(VIOLATIONS).mark("w") == Mark(2, position)


def test_a_batch_out_of_turn_is_refused(lake: Lake) -> None:
    table = lake.table(VIOLATIONS)
    table.append([], writer="w", mark=Mark(1, "1"))
    with pytest.raises(InvalidArgument, match="w has committed 1 batches: 3 cannot be the next"):
        table.append([], writer="w", mark=Mark(3, "3"))


def test_two_writers_at_once_commit_a_batch_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second looks before the first commits, and commits after it."""
    mine, rival = lake.table(VIOLATIONS), lake.table(VIOLATIONS)
    mine.append([], writer="w", mark=Mark(1, "1"))
    commit: Callable[..., Any] = type(mine)._commit
    raced = []

    def slow(self: Any, *given: Any, **named: Any) -> Any:
        if not raced:
            raced.append(True)
            assert rival.append([made(rival, "rival")], writer="w", mark=Mark(2, "2"))
        return commit(self, *given, **named)

    monkeypatch.setattr(type(mine), "_commit", slow)
    assert not mine.append([made(mine, "mine")], writer="w", mark=Mark(2, "2"))
    assert len(mine.files()) == 1


@pytest.mark.spec("9.6")
def test_a_lake_keeps_the_format_it_was_begun_with(lake: Lake) -> None:
    lake.table(VIOLATIONS).append([], writer="w", mark=Mark(1, "1"))
    assert Lake(lake.url).kind is lake.kind
    other = next(kind for kind in LakeKind if kind is not lake.kind)
    with pytest.raises(InvalidArgument, match=f"has {lake.kind} tables: omit the format"):
        Lake(lake.url, other)


def test_files_of_a_writer_that_died_are_read_by_nobody_and_swept(lake: Lake) -> None:
    table = lake.table(VIOLATIONS)
    table.append([made(table, "kept")], writer="w", mark=Mark(1, "1"))
    lost = Path(table.directory) / made(table, "lost").path
    assert len(table.files()) == 1
    table.compact(keep_hours=1)
    assert lost.exists(), "a writer may be about to commit it"
    table.compact(keep_hours=0)
    assert not lost.exists()
    assert len(table.files()) == 1


@pytest.mark.spec("9.6")
@pytest.mark.slow
def test_small_files_are_joined_and_rows_marks_and_days_stay(spark: Any, lake: Lake) -> None:
    frame = frame_of(spark, [each for n in range(6) for each in life("enqueued", "claimed", "succeeded", id=n)])
    for number in range(1, 4):
        lake.append(spark, EVENTS, frame.where(f"seq % 3 = {number - 1}"), writer="w", mark=Mark(number, str(number)))
    before = sorted(tuple(row) for row in lake.read(spark, EVENTS).collect())
    small = len(lake.table(EVENTS).files())

    done = lake.compact(keep_hours=0)["events"]

    assert (done.files_before, done.files_after) == (small, len(lake.table(EVENTS).files()))
    assert done.files_after < small
    assert sorted(tuple(row) for row in lake.read(spark, EVENTS).collect()) == before
    assert lake.table(EVENTS).mark("w") == Mark(3, "3")
    assert len(before) == 18
    # A day alone is read from its own files.
    assert lake.read(spark, EVENTS, ["1999-01-01"]).count() == 0
    day = str(lake.read(spark, EVENTS).first().day)
    assert lake.read(spark, EVENTS, [day]).count() == sum(str(row[-1]) == day for row in before)
    # Without a word of Holdfast: Parquet readers and Delta readers see the same rows.
    if lake.kind is LakeKind.DELTA:
        from deltalake import DeltaTable

        assert DeltaTable(lake.table(EVENTS).directory).to_pyarrow_table().num_rows == 18
    elif lake.kind is LakeKind.ICEBERG:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("lake", uri=f"sqlite:///{lake.url}/iceberg-catalog.db")
        assert catalog.load_table("holdfast.events").scan().to_arrow().num_rows == 18
    else:
        assert spark.read.parquet(lake.table(EVENTS).directory).count() == 18


@pytest.mark.spec("9.6")
@pytest.mark.slow
def test_a_column_that_came_later_is_null_in_older_files(spark: Any, lake: Lake) -> None:
    import pyarrow as pa

    from holdfast.pipeline.schemas import Field

    rows = spark.createDataFrame([("lost", "t", "q", "1", "d", None, "r")], VIOLATIONS.table.spark)
    lake.append(spark, VIOLATIONS, rows)
    wider = VIOLATIONS.table._replace(fields=(*VIOLATIONS.table.fields, Field("severity", pa.int32())))
    newer: TableShape = VIOLATIONS._replace(table=wider)
    from pyspark.sql import functions as F

    lake.append(spark, newer, rows.withColumn("severity", F.lit(3)))

    assert sorted(row.severity or 0 for row in lake.read(spark, newer).collect()) == [0, 3]
    assert lake.read(spark, VIOLATIONS).count() == 2
