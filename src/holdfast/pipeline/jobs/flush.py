"""`flush`: the logs of servers' fast paths into PostgreSQL, a task for each segment.

What has landed is written down with its rows, by whoever lands it: a segment that two tasks take, or a job that is
killed and run again, stores nothing twice.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F

from holdfast.pipeline.jobs.progress import Check, Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SegmentToFlush(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    number: int
    # Where the last pass over it ended.
    start: int = 0


class SegmentDone(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass over one segment did. `calls`: found in it. `stored`, `dropped`: messages. `skipped`: calls that had
    landed before. `open`: calls that are in no database afterwards."""

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


class FlushSummary(msgspec.Struct, frozen=True, kw_only=True):
    segments: int
    calls: int
    stored: int
    skipped: int
    # Messages whose queue is gone.
    dropped: int
    is_dry_run: bool = False
    checks: list[Check] = []

    @property
    def is_sound(self) -> bool:
        return all(each.is_met for each in self.checks)


# Lands one segment, in whichever process. Handed in: only those above the pipeline know the stores.
FlushSegment = Callable[[SegmentToFlush], SegmentDone]

_ANSWER = (
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
    """One pass over these segments. Answers what was done, and where each is to be gone on with."""
    if not segments:
        return FlushSummary(segments=0, calls=0, stored=0, skipped=0, dropped=0, is_dry_run=is_dry_run), []
    progress("segments", 0, len(segments))

    def land(path: str, number: int, start: int) -> tuple[object, ...]:
        return msgspec.structs.astuple(flush_segment(SegmentToFlush(path=path, number=number, start=start)))

    # Rows as they are: Arrow gains nothing here, and would want pandas.
    landed = F.udf(land, _ANSWER, useArrow=False)
    rows = [(each.path, each.number, each.start) for each in segments]
    frame = spark.createDataFrame(rows, "path string, number bigint, start bigint").repartition(len(rows))
    done = [
        SegmentDone(**row["done"].asDict())
        for row in frame.select(landed("path", "number", "start").alias("done")).collect()
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
            Check(what="segments gone through", expected=len(segments), found=len(done)),
            Check(what="calls that are in no database", expected=0, found=sum(each.open for each in done)),
        ],
    )
    return total, done
