"""`archive`: the journal into the lake, each event once, whatever dies on the way.

A batch is a range of the journal, numbered. Its events and the ends among them are written as files; then `events` and
after it `messages` get one commit each, which holds the batch's number and the position after it. The next batch begins
at the position that `events` has. A batch that only `events` has is finished from there: the journal, which forgets,
is not asked again. Of two archives at once the first to commit a batch to `events` says where it ends.
"""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F

from holdfast.model.errors import Internal
from holdfast.pipeline.jobs.archive_gaps import Gap, find_gaps, record_gaps
from holdfast.pipeline.jobs.journals import ArchiveJournal, numbers_of
from holdfast.pipeline.jobs.progress import Check, Progress, silent
from holdfast.pipeline.lake.contract import Mark
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import EVENTS, MESSAGES, PAYLOADS
from holdfast.pipeline.lake.writing import write_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BATCH_ROWS = 500_000
WRITER = "archive"
ENDS = ("succeeded", "failed", "removed")


class ArchiveSummary(msgspec.Struct, frozen=True, kw_only=True):
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
    journal: ArchiveJournal,
    lake: Lake,
    *,
    batch_rows: int = BATCH_ROWS,
    writer: str = WRITER,
    allow_gap: bool = False,
    progress: Progress = silent,
) -> ArchiveSummary:
    """Bring the lake up to the journal's end as it was found batch by batch. A lake belongs to one store's journal.

    Where the journal has dropped events that the lake does not have it stops, and every run says so again; with
    `allow_gap` it writes that down and goes on.
    """
    batches = events = messages = 0
    gaps: list[Gap] = []
    is_stopped = False
    while True:
        messages += finish_batch(spark, lake, writer)
        step = next_step(journal, lake, writer, batch_rows)
        if step is None:
            break
        after, mark = step
        if after is not None and (missing := find_gaps(journal, after)):
            gaps += missing
            if not allow_gap:
                is_stopped = True
                break
            record_gaps(spark, lake, missing, after, writer)
        archived = archive_range(spark, journal.frame(spark, after, mark.position), lake, mark, writer)
        if archived is None:
            continue
        some, ends = archived
        batches, events, messages = batches + 1, events + some, messages + ends
        progress("events", events, None)
    mark_now = lake.table(EVENTS).mark(writer)
    return ArchiveSummary(
        lake=lake.place,
        batches=batches,
        events=events,
        messages=messages,
        position=None if mark_now is None else mark_now.position,
        gaps=gaps,
        is_stopped=is_stopped,
        checks=check_lake(spark, lake),
    )


def next_step(journal: ArchiveJournal, lake: Lake, writer: str, rows: int) -> tuple[str | None, Mark] | None:
    """Where the next batch begins, and its mark; None when there is none."""
    done = lake.table(EVENTS).mark(writer)
    number, after = (0, None) if done is None else done
    until = journal.ahead(after, rows)
    return None if until is None else (after, Mark(number + 1, until))


def finish_batch(spark: "SparkSession", lake: Lake, writer: str = WRITER) -> int:
    """Give `messages` what it lacks of the last batch, if whoever committed that to `events` died before; answers how
    many ends of messages that were."""
    done, behind = lake.table(EVENTS).mark(writer), lake.table(MESSAGES).mark(writer)
    has, lacks = (0 if mark is None else mark.batch for mark in (behind, done))
    if done is None or has == lacks:
        return 0
    if has != lacks - 1:
        raise Internal(f"{lake.place}: messages has {has} batches and events {lacks}: it is not one archive's")
    rows = lake.read(spark, EVENTS).where(_is_between(None if behind is None else behind.position, done.position))
    return lake.append(spark, MESSAGES, final_records(rows), writer=writer, mark=done)


def _is_between(after: str | None, until: str) -> "Column":
    """Whether an event lies behind one position and not behind another."""
    ends = numbers_of(until)
    begins = numbers_of(after) if after is not None else []
    begins += [0] * (len(ends) - len(begins))
    seq = F.col("seq")
    within = [(seq > begin) & (seq <= end) for begin, end in zip(begins, ends, strict=True)]
    if len(within) == 1:
        return within[0]  # one sequence for all shards of the store
    return reduce(or_, ((F.col("shard") == shard) & each for shard, each in enumerate(within)))


def archive_range(
    spark: "SparkSession", frame: "DataFrame", lake: Lake, mark: Mark, writer: str = WRITER
) -> tuple[int, int] | None:
    """One batch; answers how many events and ends of messages were in it, or None if another archive was quicker. The
    journal is read once."""
    events, messages = lake.table(EVENTS), lake.table(MESSAGES)
    files = write_files(spark, frame.select(*EVENTS.table.columns), EVENTS, events.new_files)
    ends = []
    if files:
        written = spark.read.schema(EVENTS.table.spark).parquet(*(f"{events.directory}/{each.path}" for each in files))
        rows = final_records(written).select(*MESSAGES.table.columns)
        ends = write_files(spark, rows, MESSAGES, messages.new_files)
    if not events.append(files, writer=writer, mark=mark):
        return None
    # Refused if another archive finished the batch meanwhile: then it has the same ends.
    messages.append(ends, writer=writer, mark=mark)
    return sum(each.rows for each in files), sum(each.rows for each in ends)


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
