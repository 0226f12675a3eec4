"""`flush`: store the logs of servers' fast paths in PostgreSQL, with one task per segment.

The rows and the record that a call was flushed are written in one transaction. A segment that two tasks flush, or a job
that is killed and run again, therefore stores nothing twice.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F

from holdfast.pipeline.jobs.progress import Check, Checked, Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SegmentToFlush(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of a server's log."""

    path: str
    number: int
    # The offset at which the previous pass ended.
    start: int = 0


class SegmentDone(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a pass over one segment.

    `calls`: calls in the segment. `stored`, `dropped`: messages. `skipped`: calls that had been flushed before. `open`:
    calls that are in no database afterwards.
    """

    path: str
    number: int
    end: int
    is_whole: bool
    calls: int
    messages: int
    stored: int
    skipped: int
    dropped: int
    open: int


class FlushSummary(Checked, msgspec.Struct, frozen=True, kw_only=True):
    """The result of one pass over all segments."""

    segments: int
    calls: int
    stored: int
    skipped: int
    # Messages whose queue was deleted.
    dropped: int
    is_dry_run: bool = False
    checks: list[Check] = []


# A function that flushes one segment, in any process. It is passed in, because the pipeline must not import a store.
FlushSegment = Callable[[SegmentToFlush], SegmentDone]

_RESULT_TYPE = (
    "struct<path string, number bigint, end bigint, is_whole boolean, calls bigint, messages bigint, stored bigint, "
    "skipped bigint, dropped bigint, open bigint>"
)


def flush(
    spark: "SparkSession",
    segments: Sequence[SegmentToFlush],
    flush_segment: FlushSegment,
    *,
    is_dry_run: bool = False,
    progress: Progress = silent,
) -> tuple[FlushSummary, list[SegmentDone]]:
    """Flush these segments once. Return a summary, and for each segment where the next pass begins."""
    if not segments:
        return FlushSummary(segments=0, calls=0, stored=0, skipped=0, dropped=0, is_dry_run=is_dry_run), []
    progress("segments", 0, len(segments))

    def flush_one(path: str, number: int, start: int) -> tuple[object, ...]:
        return msgspec.structs.astuple(flush_segment(SegmentToFlush(path=path, number=number, start=start)))

    # Without Arrow, which has no benefit here, and would require pandas.
    flushed = F.udf(flush_one, _RESULT_TYPE, useArrow=False)
    rows = [(each.path, each.number, each.start) for each in segments]
    frame = spark.createDataFrame(rows, "path string, number bigint, start bigint").repartition(len(rows))
    done = [
        SegmentDone(**row["done"].asDict())
        for row in frame.select(flushed("path", "number", "start").alias("done")).collect()
    ]
    progress("segments", len(done), len(segments))
    total = FlushSummary(
        segments=len(done),
        calls=sum(each.calls for each in done),
        stored=sum(each.stored for each in done),
        skipped=sum(each.skipped for each in done),
        dropped=sum(each.dropped for each in done),
        is_dry_run=is_dry_run,
        checks=[]
        if is_dry_run
        else [
            Check(what="segments processed", expected=len(segments), found=len(done)),
            Check(what="calls that are in no database", expected=0, found=sum(each.open for each in done)),
        ],
    )
    return total, done
