"""Events dropped by retention before they were archived are reported, counted, and skipped only if that is allowed."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.pipeline.jobs.archive import archive
from holdfast.pipeline.jobs.archive_gaps import RULE, find_gaps
from holdfast.pipeline.jobs.journals import ArchiveJournal, OpenedJournal, SourceJournal
from holdfast.pipeline.lake.delta import DeltaFiles
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import EVENTS, MESSAGES, VIOLATIONS
from holdfast.server.bulk import open_feed
from holdfast.testing import ManualClock
from tests.pipeline.conftest import Run
from tests.pipeline.journal_made import journal_of, store
from tests.postgres.server import PostgresServer

WEEK_MS = 7 * 86_400_000


@contextmanager
def aged(path: Path, clock: ManualClock) -> Iterator[holdfast.Holdfast]:
    """The store after a week in which nobody looked: what was in its journal is dropped."""
    clock.advance(WEEK_MS + 1_000)
    with store(path, clock) as hf:
        for _ in range(200):
            if not hf.journal():
                break
            # The sweep is the store's own, in its own time.
            asyncio.run(asyncio.sleep(0.02))
        assert not hf.journal(), "nothing was dropped"
        yield hf


def test_a_gap_is_found_only_where_events_were_dropped(tmp_path: Path) -> None:
    clock = ManualClock()
    with store(tmp_path / "store", clock) as hf:
        hf.queue("a").enqueue([b"x"] * 5)
        journal = OpenedJournal(hf)
        early = journal.ahead(None, 3)
        end = journal.ahead(None, 100)
        assert (early, end) == ("3", "5")
        assert find_gaps(journal, None) == find_gaps(journal, early) == find_gaps(journal, end) == []
    with aged(tmp_path / "store", clock) as hf:
        journal = OpenedJournal(hf)
        assert find_gaps(journal, early) == [], "there is nothing to go on with yet"
        hf.queue("a").enqueue(b"y")

        [gap] = find_gaps(journal, early)
        assert (gap.after, gap.until, gap.events) == (3, 6, 2)
        assert "2 events between number 3 and 6 of shard 0" in str(gap)
        # All that was dropped had been read.
        assert find_gaps(journal, end) == []


async def _drop(url: str, behind: int) -> None:
    """Drop the oldest events as retention does, up to the first event after a position."""
    connection = await asyncpg.connect(url)
    try:
        first = await connection.fetchval("SELECT min(seq) FROM holdfast.journal WHERE seq > $1", behind)
        await connection.execute("DELETE FROM holdfast.journal WHERE seq <= $1", first)
    finally:
        await connection.close()


def test_of_databases_the_last_event_that_was_read_must_still_be_there(postgres: PostgresServer) -> None:
    urls = postgres.make_databases("archive_gap_a", "archive_gap_b")
    try:
        with holdfast.open(",".join(urls)) as hf:
            for number in range(12):
                hf.queue(f"q{number}").enqueue([b"x"] * 2)
            journals: list[ArchiveJournal] = [OpenedJournal(hf), SourceJournal({"url": ",".join(urls)}, open_feed)]
            position = journals[1].ahead(None, 8)
            assert position is not None
            ends = [int(part) for part in position.split("-")]
            assert all(ends), "of each database some"
            for journal in journals:
                assert find_gaps(journal, position) == []

            asyncio.run(_drop(urls[0], ends[0]))

            for journal in journals:
                [gap] = find_gaps(journal, position)
                assert (gap.shard, gap.after, gap.until > gap.after + 1) == (0, ends[0], True)
    finally:
        postgres.empty(urls)


def test_an_archive_stops_at_a_gap_and_writes_it_down_when_it_may_continue(
    spark: Any, run: Run, tmp_path: Path
) -> None:
    clock, lake = ManualClock(), Lake(str(tmp_path / "lake"))
    with store(tmp_path / "store", clock) as hf:
        hf.queue("a").enqueue([b"x"] * 4)
        assert archive(spark, OpenedJournal(hf), lake).is_sound
        hf.queue("a").enqueue([b"lost"] * 3)
    with aged(tmp_path / "store", clock) as hf:
        hf.queue("a").enqueue([b"y"] * 2)
        events = journal_of(hf)

        for _ in range(2):  # as often as it is asked
            stopped = archive(spark, OpenedJournal(hf), lake)
            assert (stopped.is_sound, stopped.is_stopped, stopped.events) == (False, True, 0)
            assert [(gap.after, gap.until, gap.events) for gap in stopped.gaps] == [(4, 8, 3)]
        assert lake.read(spark, VIOLATIONS).count() == 0

        passed = archive(spark, OpenedJournal(hf), lake, allow_gap=True)
        again = archive(spark, OpenedJournal(hf), lake, allow_gap=True)

    assert (passed.is_sound, passed.events, [gap.events for gap in passed.gaps]) == (True, 2, [3])
    assert (again.gaps, again.events) == ([], 0)
    assert sorted(row.seq for row in lake.read(spark, EVENTS).collect()) == [1, 2, 3, 4, *(each.seq for each in events)]
    [row] = lake.read(spark, VIOLATIONS).collect()
    assert (row.rule, row.id) == (RULE, "0:4-8")
    assert "3 events between number 4 and 8" in row.detail


def test_a_batch_that_an_archive_left_half_done_is_finished_though_the_journal_has_lost_it(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, lake = ManualClock(), Lake(str(tmp_path / "lake"))

    append = DeltaFiles.append

    class Died(BaseException):
        pass

    def die_at_messages(self: DeltaFiles, *given: Any, **named: Any) -> bool:
        if self.directory.endswith("messages"):
            raise Died
        return append(self, *given, **named)

    with store(tmp_path / "store", clock) as hf:
        queue = hf.queue("a")
        queue.enqueue([b"x"] * 4)
        assert archive(spark, OpenedJournal(hf), lake).is_sound
        queue.ack(queue.claim(3))
        with monkeypatch.context() as patch:
            patch.setattr(DeltaFiles, "append", die_at_messages)
            with pytest.raises(Died):
                archive(spark, OpenedJournal(hf), lake)
    with aged(tmp_path / "store", clock) as hf:
        hf.queue("a").enqueue(b"y")
        done = archive(spark, OpenedJournal(hf), lake)

    assert (done.is_sound, done.gaps, done.events, done.messages) == (True, [], 1, 3), done
    assert {row.state for row in lake.read(spark, MESSAGES).collect()} == {"succeeded"}


def test_the_command_says_what_is_missing_and_exits_with_4(spark: Any, run: Run, tmp_path: Path) -> None:
    path, lake = tmp_path / "store", tmp_path / "lake"
    clock = ManualClock(1_500_000_000_000)
    with store(path, clock) as hf:
        hf.queue("a").enqueue(b"x")
        archive(spark, OpenedJournal(hf), Lake(str(lake)))
        hf.queue("a").enqueue(b"lost")
    # Years later, by the command's own clock.
    with holdfast.open(str(path), durability="os") as hf:
        for _ in range(200):
            if not hf.journal():
                break
            asyncio.run(asyncio.sleep(0.02))
        hf.queue("a").enqueue(b"y")

    code, _, err = run("archive", "--url", path, "--lake", lake)
    assert (code, "1 event between number 1 and 3" in err, "--allow-gap" in err) == (4, True, True), err
    code, out, err = run("archive", "--url", path, "--lake", lake, "--allow-gap")
    assert (code, out.split(" ")[0]) == (0, "1"), err
