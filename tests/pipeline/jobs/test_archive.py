"""`archive`: the journal in the lake, each event once."""

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.pipeline.jobs import archive as job
from holdfast.pipeline.jobs.archive import archive
from holdfast.pipeline.jobs.journals import OpenedJournal
from holdfast.pipeline.lake.contract import Mark
from holdfast.pipeline.lake.lake import Lake, LakeKind
from holdfast.pipeline.lake.tables import EVENTS, MESSAGES
from holdfast.testing import ManualClock
from tests.pipeline.journal_made import facts_of, journal_of, make_traffic, rows_of, store
from tests.seeds import run_seed

pytestmark = pytest.mark.slow


class Died(BaseException):
    """A kill, as the job sees it: an exception that nothing catches."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def busy(tmp_path: Path, clock: ManualClock) -> Iterator[holdfast.Holdfast]:
    with store(tmp_path / "store", clock) as hf:
        make_traffic(hf, clock, random.Random(run_seed()))
        yield hf


@pytest.mark.spec("9.6")
@pytest.mark.parametrize("kind", [LakeKind.DELTA, LakeKind.PARQUET])
def test_the_lake_s_events_are_the_journal_s_wherever_the_archive_died(
    spark: Any, busy: holdfast.Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: LakeKind
) -> None:
    """It dies before and after each write and each commit of a batch, and is started again each time."""
    lake, journal = Lake(str(tmp_path / "lake"), kind), OpenedJournal(busy)
    events = journal_of(busy)
    rows = len(events) // 2 + 1
    for dies_at in range(8):
        with monkeypatch.context() as patch:
            _die_around(patch, dies_at)
            with pytest.raises(Died):
                archive(spark, journal, lake, batch_rows=rows)

    done = archive(spark, journal, lake, batch_rows=rows)

    assert done.is_sound
    assert rows_of(lake.read(spark, EVENTS)) == facts_of(events)
    assert _ends_in(spark, lake) == _ends_of(events)


@pytest.mark.parametrize("kind", list(LakeKind))
def test_of_two_archives_at_once_the_first_to_commit_says_where_a_batch_ends(
    spark: Any, busy: holdfast.Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: LakeKind
) -> None:
    """One has written its files when the other takes the batch, and ends it elsewhere."""
    lake, journal = Lake(str(tmp_path / "lake"), kind), OpenedJournal(busy)
    events = journal_of(busy)
    write, rivals = job.write_files, [len(events) // 4]

    def outrun(spark: Any, rows: Any, shape: Any, directory: str) -> Any:
        files = write(spark, rows, shape, directory)
        if shape is EVENTS and rivals:
            after, mark = _step(journal, lake, rivals.pop())
            archived = job.archive_range(spark, journal.frame(spark, after, mark.position), lake, mark)
            assert archived is not None
            assert all(archived)
        return files

    monkeypatch.setattr(job, "write_files", outrun)
    done = archive(spark, journal, lake, batch_rows=len(events) // 2)

    assert (done.is_sound, rivals) == (True, [])
    assert done.batches == 2, "the one that another took is not counted"
    assert 0 < done.events < len(events)
    assert rows_of(lake.read(spark, EVENTS)) == facts_of(events)
    assert _ends_in(spark, lake) == _ends_of(events)


def _step(journal: OpenedJournal, lake: Lake, rows: int) -> tuple[str | None, Mark]:
    step = job.next_step(journal, lake, job.WRITER, rows)
    assert step is not None
    return step


def _ends_in(spark: Any, lake: Lake) -> list[tuple[int, str, str]]:
    return sorted((row.seq, row.state, row.id) for row in lake.read(spark, MESSAGES).collect())


def _ends_of(events: list[Any]) -> list[tuple[int, str, str]]:
    return sorted((event.seq, str(event.event), event.id) for event in events if event.event in job.ENDS)


def _die_around(patch: pytest.MonkeyPatch, dies_at: int) -> None:
    """Before and after each of the four steps that leave something behind: two writes, two commits."""
    from holdfast.pipeline.lake import delta, lake, parquet

    moments = count()

    def is_time() -> bool:
        return next(moments) == dies_at

    def deadly(function: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if is_time():
                raise Died
            answer = function(*given, **named)
            if is_time():
                raise Died
            return answer

        return call

    patch.setattr(job, "write_files", deadly(job.write_files))
    patch.setattr(lake, "write_files", deadly(lake.write_files))
    patch.setattr(delta.DeltaFiles, "append", deadly(delta.DeltaFiles.append))
    patch.setattr(parquet.ParquetFiles, "append", deadly(parquet.ParquetFiles.append))
