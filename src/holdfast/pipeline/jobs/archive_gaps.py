"""What a journal no longer had when the archive came back to it.

A store drops its oldest events after its retention. The lake ends with an event; while that one is kept, or the next
number follows it, nothing behind it has been dropped. Otherwise something may have been, and the archive does not go on
as if nothing were: it stops there, or, told to, writes down the gap in `violations` and goes on behind it.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from holdfast.pipeline.jobs.journals import ArchiveJournal, numbers_of
from holdfast.pipeline.lake.contract import Mark
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import VIOLATIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULE = "journal-gap"
# Where a journal's numbers leap from one transaction, or one segment, to the next, they leap by this.
_LEAP = 1 << 20


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Events between two numbers of one database (or store) that are not in the lake, and can no longer be."""

    shard: int
    after: int
    until: int
    # Of the first event that is there again.
    at: int
    # How many are missing; None where the journal's numbers do not tell.
    events: int | None

    def __str__(self) -> str:
        many = "events" if self.events is None else f"{self.events:,} events"
        perhaps = " may be" if self.events is None else (" is" if self.events == 1 else " are")
        when = datetime.fromtimestamp(self.at / 1_000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return (
            f"{many.removesuffix('s') if self.events == 1 else many} between number {self.after} and {self.until} of "
            f"shard {self.shard} (of {when}){perhaps} missing: the store's retention passed over them before they were "
            "archived"
        )


def find_gaps(journal: ArchiveJournal, after: str | None) -> list[Gap]:
    """Behind the position that a lake has come to. None before its first batch: it begins with what the journal has."""
    if after is None:
        return []
    ends = {shard: seq for shard, seq in enumerate(numbers_of(after)) if seq > 0}
    doubtful = {shard: seq for shard, seq in ends.items() if not journal.has(shard, seq, after)}
    if not doubtful:
        return []
    firsts = journal.first(after)
    gaps = []
    for shard, seq in doubtful.items():
        # Nothing behind it: there is nothing to go on with yet, and the next event will tell.
        if shard not in firsts or firsts[shard][0] == seq + 1:
            continue
        until, at = firsts[shard]
        missing = until - seq - 1
        gaps.append(Gap(shard=shard, after=seq, until=until, at=at, events=missing if missing < _LEAP - 1 else None))
    return gaps


def record_gaps(spark: "SparkSession", lake: Lake, gaps: list[Gap], position: str, writer: str) -> None:
    """Once for each position, however often the archive dies before it has come past it."""
    table, name = lake.table(VIOLATIONS), f"{writer}/gaps"
    known = table.mark(name)
    if known is not None and known.position == position:
        return
    rows = [
        (RULE, "*", "*", f"{gap.shard}:{gap.after}-{gap.until}", str(gap), datetime.fromtimestamp(gap.at / 1_000, UTC))
        for gap in gaps
    ]
    frame = spark.createDataFrame([(*row, writer) for row in rows], VIOLATIONS.table.spark)
    mark = Mark(1 if known is None else known.batch + 1, position)
    lake.append(spark, VIOLATIONS, frame, writer=name, mark=mark)
