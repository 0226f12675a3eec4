"""`archive`: the journal into the lake, each event once, whatever dies on the way.

A batch is a range of the journal, numbered. Its events and the ends among them are written as files; then `messages`
and after it `events` get one commit each, which holds the batch's number and the position after it. The next batch
begins at the position that `events` has. A batch that only `messages` has is done again over the same range: its commit
there is refused by its number, and the one to `events` follows.
"""

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F

from holdfast.model.errors import Internal
from holdfast.pipeline.jobs.archive_gaps import Gap, find_gaps, record_gaps
from holdfast.pipeline.jobs.journals import Journal
from holdfast.pipeline.jobs.progress import Check, Progress, silent
from holdfast.pipeline.lake.contract import Mark
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import EVENTS, MESSAGES, PAYLOADS
from holdfast.pipeline.lake.writing import write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 500_000
WRITER = "archive"
ENDS = ("succeeded", "failed", "removed")


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    lake: str
    batches: int
    events: int
    messages: int
    position: str | None
    # Where the journal had dropped events: passed over if that was allowed, else it stopped there.
    gaps: list[Gap] = []
    is_stopped: bool = False
    checks: list[Check] = []

    @property
    def is_sound(self) -> bool:
        return not self.is_stopped and all(each.is_met for each in self.checks)


def archive(
    spark: "SparkSession",
    journal: Journal,
    lake: Lake,
    *,
    batch_rows: int = BATCH_ROWS,
    writer: str = WRITER,
    allow_gap: bool = False,
    progress: Progress = silent,
) -> Archived:
    """Bring the lake up to the journal's end as it was found batch by batch. A lake belongs to one store's journal.

    Where the journal has dropped events that the lake does not have it stops, and every run says so again; with
    `allow_gap` it writes that down and goes on.
    """
    batches = events = messages = 0
    gaps: list[Gap] = []
    is_stopped = False
    while (step := next_step(journal, lake, writer, batch_rows)) is not None:
        after, mark = step
        if after is not None and (missing := find_gaps(journal, after)):
            gaps += missing
            if not allow_gap:
                is_stopped = True
                break
            record_gaps(spark, lake, missing, after, writer)
        some, ends = archive_range(spark, journal.frame(spark, after, mark.position), lake, mark, writer)
        batches, events, messages = batches + 1, events + some, messages + ends
        progress("events", events, None)
    mark_now = lake.table(EVENTS).mark(writer)
    return Archived(
        lake=lake.place,
        batches=batches,
        events=events,
        messages=messages,
        position=None if mark_now is None else mark_now.position,
        gaps=gaps,
        is_stopped=is_stopped,
        checks=check_lake(spark, lake),
    )


def next_step(journal: Journal, lake: Lake, writer: str, rows: int) -> tuple[str | None, Mark] | None:
    """Where the next batch begins, and its mark; None when there is none."""
    done = lake.table(EVENTS).mark(writer)
    ahead = lake.table(MESSAGES).mark(writer)
    number, after = (0, None) if done is None else done
    if ahead is not None and ahead.batch > number + 1:
        raise Internal(f"{lake.place}: messages has {ahead.batch} batches and events {number}: it is not one archive's")
    if ahead is not None and ahead.batch == number + 1:
        return after, ahead
    until = journal.ahead(after, rows)
    return None if until is None else (after, Mark(number + 1, until))


def archive_range(
    spark: "SparkSession", frame: "DataFrame", lake: Lake, mark: Mark, writer: str = WRITER
) -> tuple[int, int]:
    """One batch; answers how many events and ends of messages were in it. The journal is read once."""
    table = lake.table(EVENTS)
    files = write_files(spark, frame.select(*EVENTS.table.columns), EVENTS, table.new_files)
    written = [f"{table.directory}/{each.path}" for each in files]
    ends = 0
    if written:
        rows = final_records(spark.read.schema(EVENTS.table.spark).parquet(*written))
        ends = lake.append(spark, MESSAGES, rows, writer=writer, mark=mark)
    else:
        lake.table(MESSAGES).append([], writer=writer, mark=mark)
    table.append(files, writer=writer, mark=mark)
    return sum(each.rows for each in files), ends


def final_records(events: "DataFrame") -> "DataFrame":
    """A row for each event that ended a message. What it waited and worked is of its last attempt."""
    at, claimed = F.unix_millis("at"), F.unix_millis("claimed_at")
    return events.where(F.col("event").isin(*ENDS)).select(
        "id",
        "tenant",
        "queue",
        F.col("event").alias("state"),
        "priority",
        F.col("attempt").alias("attempts"),
        "version",
        "enqueued_at",
        "claimed_at",
        F.col("at").alias("settled_at"),
        (claimed - F.unix_millis("enqueued_at")).alias("wait_ms"),
        (at - claimed).alias("work_ms"),
        "bytes",
        "error",
        "reason",
        "correlation_id",
        "shard",
        "seq",
    )


def keep_payloads(spark: "SparkSession", snapshot: "DataFrame", lake: Lake) -> int:
    """Payloads of what stands in the store, into the lake's table; those that are there already are left alone.

    The journal has no payloads, and an acked message is gone: what is to be replayed has to be kept before that.
    """
    known = lake.read(spark, PAYLOADS).select("id")
    return lake.append(spark, PAYLOADS, snapshot.join(known, "id", "left_anti").dropDuplicates(["id"]))


def check_lake(spark: "SparkSession", lake: Lake) -> list[Check]:
    """What the lake holds, counted by reading it: no event twice, and a final record for each end."""
    events = lake.read(spark, EVENTS)
    [row] = events.agg(
        F.count(F.lit(1)).alias("events"),
        F.count_distinct("shard", "seq").alias("distinct"),
        F.count(F.when(F.col("event").isin(*ENDS), 1)).alias("ends"),
    ).collect()
    return [
        Check(what="distinct events in the lake", expected=row["events"], found=row["distinct"]),
        Check(what="final records in the lake", expected=row["ends"], found=lake.read(spark, MESSAGES).count()),
    ]
