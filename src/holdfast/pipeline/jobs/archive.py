"""`archive`: copy the journal to the lake, each event exactly once, even if a process is killed on the way.

A batch is a numbered range of the journal. Its events, and the final records of the messages that ended in it, are
written as files. Then `events` and after it `messages` get one commit each, which contains the batch's number and the
position after it. The next batch begins at the position in `events`. A batch that is only in `events` is completed from
there, because the journal may have dropped its events meanwhile. If two archives run at once, the first one to commit a
batch to `events` determines where the batch ends.
"""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F

from holdfast.model.errors import Internal
from holdfast.pipeline.jobs.archive_gaps import Gap, find_gaps, record_gaps
from holdfast.pipeline.jobs.journals import ArchiveJournal, position_numbers
from holdfast.pipeline.jobs.progress import Check, Progress, silent
from holdfast.pipeline.lake.contract import Mark
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import EVENTS, MESSAGES, PAYLOADS
from holdfast.pipeline.lake.writing import write_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BATCH_ROWS = 500_000
WRITER = "archive"
# The events that end a message.
ENDS = ("succeeded", "failed", "removed")


class ArchiveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of `archive`."""

    lake: str
    batches: int
    events: int
    messages: int
    position: str | None
    # Ranges of dropped events: skipped if that was allowed, otherwise the run stopped at the first one.
    gaps: list[Gap] = []
    is_stopped: bool = False
    checks: list[Check] = []

    @property
    def is_sound(self) -> bool:
        """Return True if the run was not stopped by a gap, and the counts of every check agree."""
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
    """Archive batch by batch until the end of the journal. A lake belongs to the journal of one store.

    If the journal has dropped events that are not in the lake, the run stops there, as does every later run. With
    `allow_gap` the gap is recorded, and the run continues after it.
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
        new_events, ends = archived
        batches, events, messages = batches + 1, events + new_events, messages + ends
        progress("events", events, None)
    mark_now = lake.table(EVENTS).mark(writer)
    return ArchiveSummary(
        lake=lake.url,
        batches=batches,
        events=events,
        messages=messages,
        position=None if mark_now is None else mark_now.position,
        gaps=gaps,
        is_stopped=is_stopped,
        checks=check_lake(spark, lake),
    )


def next_step(journal: ArchiveJournal, lake: Lake, writer: str, rows: int) -> tuple[str | None, Mark] | None:
    """Return the position where the next batch begins, and its mark. Return None at the end of the journal."""
    done = lake.table(EVENTS).mark(writer)
    number, after = (0, None) if done is None else done
    until = journal.ahead(after, rows)
    return None if until is None else (after, Mark(number + 1, until))


def finish_batch(spark: "SparkSession", lake: Lake, writer: str = WRITER) -> int:
    """Complete the last batch if the process that committed it to `events` died before it committed to `messages`.

    Return how many final records were added.
    """
    done, behind = lake.table(EVENTS).mark(writer), lake.table(MESSAGES).mark(writer)
    message_batches, event_batches = (0 if mark is None else mark.batch for mark in (behind, done))
    if done is None or message_batches == event_batches:
        return 0
    if message_batches != event_batches - 1:
        raise Internal(
            f"{lake.url}: messages has {message_batches} batches and events {event_batches}: "
            "they were not written by one archive"
        )
    rows = lake.read(spark, EVENTS).where(_is_between(None if behind is None else behind.position, done.position))
    return lake.append(spark, MESSAGES, final_records(rows), writer=writer, mark=done)


def _is_between(after: str | None, until: str) -> "Column":
    """Return the condition that an event is after one position and not after another."""
    ends = position_numbers(until)
    begins = position_numbers(after) if after is not None else []
    begins += [0] * (len(ends) - len(begins))
    seq = F.col("seq")
    within = [(seq > begin) & (seq <= end) for begin, end in zip(begins, ends, strict=True)]
    if len(within) == 1:
        return within[0]  # one sequence for all shards of the store
    return reduce(or_, ((F.col("shard") == shard) & each for shard, each in enumerate(within)))


def archive_range(
    spark: "SparkSession", frame: "DataFrame", lake: Lake, mark: Mark, writer: str = WRITER
) -> tuple[int, int] | None:
    """Archive one batch, reading the journal once. Return the numbers of its events and final records.

    Return None if another archive has committed this batch first.
    """
    events, messages = lake.table(EVENTS), lake.table(MESSAGES)
    files = write_files(spark, frame.select(*EVENTS.table.columns), EVENTS, events.new_files)
    ends = []
    if files:
        written = spark.read.schema(EVENTS.table.spark).parquet(*(f"{events.directory}/{each.path}" for each in files))
        rows = final_records(written).select(*MESSAGES.table.columns)
        ends = write_files(spark, rows, MESSAGES, messages.new_files)
    if not events.append(files, writer=writer, mark=mark):
        return None
    # Has no effect if another archive completed the batch meanwhile, with the same final records.
    messages.append(ends, writer=writer, mark=mark)
    return sum(each.rows for each in files), sum(each.rows for each in ends)


def final_records(events: "DataFrame") -> "DataFrame":
    """Return a row for each event that ended a message. `wait_ms` and `work_ms` are those of the last attempt."""
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
    """Append the payloads of the messages in the store to the lake, except those that it already has.

    Return how many were added. The journal has no payloads, and an acked message is gone. Messages that may be replayed
    must therefore be archived before they are acked.
    """
    known = lake.read(spark, PAYLOADS).select("id")
    return lake.append(spark, PAYLOADS, snapshot.join(known, "id", "left_anti").dropDuplicates(["id"]))


def check_lake(spark: "SparkSession", lake: Lake) -> list[Check]:
    """Count the lake's rows: no event may be there twice, and each event that ends a message needs a final record."""
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
