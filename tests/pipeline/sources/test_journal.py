"""`holdfast_journal`: the journal read as a log."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.pipeline.schemas import EVENTS
from holdfast.pipeline.sources.journal import Range, find_ranges, parse_journal_options
from tests.server.served import Served


def journal(spark: Any, served: Served, **options: Any) -> Any:
    return spark.read.format("holdfast_journal").options(url=served.url, **options).load()


def end_of(hf: holdfast.Holdfast) -> str:
    position = None
    while True:
        page = hf.journal(position, 10_000)
        if page.next == position:
            return page.next
        position = page.next


def stream(spark: Any, served: Served, into: Path, **options: Any) -> Any:
    return (
        spark.readStream.format("holdfast_journal")
        .options(url=served.url, **options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(into / "out"))
        .option("checkpointLocation", str(into / "checkpoint"))
    )


def latest(progress: Any) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(progress["sources"][0]["latestOffset"])
    return said


def forget_commits(checkpoint: Path, first: int = 0) -> None:
    for log in (checkpoint / "commits").iterdir():
        number = log.name.strip(".").split(".")[0]
        if number.isdigit() and int(number) >= first:
            log.unlink()


def drain(writer: Any) -> Any:
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@pytest.mark.spec("9.2")
def test_a_batch_read_has_every_event_as_the_client_reads_it(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    start = end_of(hf)
    q = hf.queue(queue_name, tenant="acme")
    q.enqueue([b"a", b"b", b"c"], correlation_id="c-1")
    first, second = q.claim(limit=2)
    first.nack("disk \x00 full")
    second.ack()

    rows = journal(spark, served, startingPosition=start, tenant="acme").collect()

    events = hf.journal(start, tenant="acme")
    assert len(rows) == len(events) == 7
    for row, event in zip(rows, events, strict=True):
        assert row.at.timestamp() * 1_000 == pytest.approx(event.at, abs=0.001)
        assert row.claimed_at is None or int(row.claimed_at.timestamp() * 1_000) == event.claimed_at
        plain = [name for name in EVENTS.columns if not name.endswith("at")]
        assert [row[name] for name in plain] == [getattr(event, name) for name in plain]


def test_only_the_columns_asked_for_are_read(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    start = end_of(hf)
    hf.queue(queue_name).enqueue(b"a")

    frame = (
        spark.read.format("holdfast_journal")
        .schema("event string, id string")
        .options(url=served.url, startingPosition=start)
        .load()
    )

    assert frame.columns == ["event", "id"]
    assert [row.event for row in frame.collect()] == ["enqueued"]


@pytest.mark.spec("9.2")
def test_a_range_of_the_journal_is_read_in_many_partitions_and_always_the_same(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    start = end_of(hf)
    hf.queue(queue_name).enqueue([b"x"] * 250)
    end = end_of(hf)
    hf.queue(queue_name).enqueue([b"later"] * 10)

    frame = journal(spark, served, startingPosition=start, endingPosition=end, rowsPerPartition=60)

    assert frame.rdd.getNumPartitions() == 5
    first = [row.seq for row in frame.collect()]
    assert len(first) == 250
    assert sorted(first) == first
    assert [row.seq for row in frame.collect()] == first


@pytest.mark.spec("9.2")
def test_a_stream_takes_what_is_there_in_batches_and_later_continues_from_there(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str, tmp_path: Path
) -> None:
    start = end_of(hf)
    q = hf.queue(queue_name)
    q.enqueue([b"x"] * 70)

    first = drain(stream(spark, served, tmp_path, startingPosition=start, maxRows=30))
    assert [each["numInputRows"] for each in first.recentProgress if each["numInputRows"]] == [30, 30, 10]
    assert [latest(each)["behind"] for each in first.recentProgress][:3] == [40, 10, 0]
    q.enqueue([b"y"] * 5)
    second = drain(stream(spark, served, tmp_path, startingPosition=start, maxRows=30))

    assert [each["numInputRows"] for each in second.recentProgress if each["numInputRows"]] == [5]
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.seq for row in rows) == [event.seq for event in hf.journal(start)]


@pytest.mark.spec("9.2")
def test_a_batch_that_was_not_committed_is_read_again_exactly(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str, tmp_path: Path
) -> None:
    """A driver that was killed after its offsets were written left only these: the batch is planned again from them.
    The second time it even begins at the end, and yet the first batch is the same."""
    start = end_of(hf)
    q = hf.queue(queue_name)
    q.enqueue([b"x"] * 40)
    drain(stream(spark, served, tmp_path, startingPosition=start, rowsPerPartition=7))
    q.enqueue([b"later"] * 3)
    forget_commits(tmp_path / "checkpoint")
    batches: dict[int, list[int]] = {}

    writer = (
        spark.readStream.format("holdfast_journal")
        .options(url=served.url, startingPosition="latest", rowsPerPartition=7)
        .load()
        .writeStream.foreachBatch(lambda frame, n: batches.update({n: [row.seq for row in frame.collect()]}))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    drain(writer)

    events = [event.seq for event in hf.journal(start)]
    assert batches == {0: events[:40], 1: events[40:]}


def test_a_quiet_journal_makes_no_batches_until_there_are_enough_rows_or_they_waited_long_enough(
    spark: Any,
    served: Served,
    hf: holdfast.Holdfast,
    queue_name: str,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> None:
    start = end_of(hf)
    q = hf.queue(queue_name)
    q.enqueue([b"x"] * 4)
    writer = stream(spark, served, tmp_path, startingPosition=start, minRows=10, maxDelay="1h")
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        wait_until(lambda: query.lastProgress is not None)
        assert latest(query.lastProgress)["behind"] == 4
        q.enqueue([b"x"] * 6)
        wait_until(lambda: any(each["numInputRows"] for each in query.recentProgress))
    finally:
        query.stop()

    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [10]


class Trimmed:
    """A journal whose oldest events are gone."""

    def measure(self, after: str | None, limit: int, until: str | None) -> tuple[int, str]:
        position = max(int(after or 0), 5)
        last = min(position + limit, 10 if until is None else int(until))
        return max(0, last - position), str(max(last, position))


def test_a_walk_ends_where_the_journal_does() -> None:
    walked = find_ranges(Trimmed(), None, step=2)  # type: ignore[arg-type]  # a stub
    assert walked.ranges == [Range(None, "7", 2), Range("7", "9", 2), Range("9", "10", 1)]
    assert walked.position == "10"
    assert find_ranges(Trimmed(), "10", step=2).ranges == []  # type: ignore[arg-type]  # a stub


def test_events_that_retention_passed_over_stop_the_query_unless_it_may_lose_them(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str, tmp_path: Path
) -> None:
    start = end_of(hf)
    hf.queue(queue_name).enqueue([b"x"] * 4)
    drain(stream(spark, served, tmp_path, startingPosition=start))
    forget_commits(tmp_path / "checkpoint")
    offsets = tmp_path / "checkpoint" / "offsets" / "0"
    offsets.write_text(offsets.read_text().replace('"events": 4', '"events": 6'))
    (offsets.parent / ".0.crc").unlink()

    def again(**options: Any) -> Any:
        """Into nothing: a file sink would not look at a batch it has."""
        source = spark.readStream.format("holdfast_journal").options(url=served.url, **options).load()
        return source.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))

    with pytest.raises(Exception, match=r"the journal has 4 events in this batch, but had 6"):
        drain(again())
    drain(again(failOnDataLoss="false"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxRow": "5"}, "'maxRow' is not an option of holdfast_journal; its options are endingPosition"),
        ({"maxRows": "many"}, "option maxRows is 'many': give a whole number above 0"),
        ({"minRows": "5"}, "minRows and maxDelay must be given together"),
        ({"token": "abc", "tokenFile": "/x"}, "give token or tokenFile, not both"),
        ({"url": ""}, "option url is empty"),
        ({"urlFile": "/x"}, "holdfast_journal needs option url, or urlFile"),
        ({"url": "postgres://u:geheim@h/db"}, "option url contains a password"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, str], said: str) -> None:
    with pytest.raises(holdfast.InvalidArgument, match=said) as refused:
        parse_journal_options({"url": "http://127.0.0.1:1", **options})
    assert "geheim" not in str(refused.value)


def test_what_the_server_refuses_reaches_the_caller_of_spark(spark: Any, served: Served) -> None:
    with pytest.raises(Exception, match="'soon' is not a journal position"):
        journal(spark, served, startingPosition="soon").collect()
