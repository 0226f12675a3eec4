"""Detection of events that the journal has dropped before they were archived.

A store drops its oldest events after its retention. While the journal still has the last event of the lake, or
continues with the next number, no event after it was dropped. Otherwise events may be missing. The archive then stops,
or, if that is allowed, records the gap in `violations` and continues after it.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from holdfast.pipeline.jobs.journals import ArchiveJournal, position_numbers
from holdfast.pipeline.lake.contract import Mark
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import VIOLATIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULE = "journal-gap"
# Some stores skip this many numbers from one transaction or segment to the next.
_LEAP = 1 << 20


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A range of event numbers of one database or store that are missing in the lake and in the journal."""

    shard: int
    after: int
    until: int
    # The time of the first event after the gap.
    at: int
    # The number of missing events. None if the journal's numbering does not determine it.
    events: int | None

    def __str__(self) -> str:
        many = "events" if self.events is None else f"{self.events:,} events"
        verb = " may be" if self.events is None else (" is" if self.events == 1 else " are")
        when = datetime.fromtimestamp(self.at / 1_000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return (
            f"{many.removesuffix('s') if self.events == 1 else many} between number {self.after} and {self.until} of "
            f"shard {self.shard} (of {when}){verb} missing: retention dropped them before they were archived"
        )


def find_gaps(journal: ArchiveJournal, after: str | None) -> list[Gap]:
    """Find the gaps after the lake's last position. Before the first batch there are none: the lake begins anywhere."""
    if after is None:
        return []
    ends = {shard: seq for shard, seq in enumerate(position_numbers(after)) if seq > 0}
    doubtful = {shard: seq for shard, seq in ends.items() if not journal.has(shard, seq, after)}
    if not doubtful:
        return []
    firsts = journal.first(after)
    gaps = []
    for shard, seq in doubtful.items():
        # Without later events there is nothing to archive yet. The next event will show whether there is a gap.
        if shard not in firsts or firsts[shard][0] == seq + 1:
            continue
        until, at = firsts[shard]
        missing = until - seq - 1
        gaps.append(Gap(shard=shard, after=seq, until=until, at=at, events=missing if missing < _LEAP - 1 else None))
    return gaps


def record_gaps(spark: "SparkSession", lake: Lake, gaps: list[Gap], position: str, writer: str) -> None:
    """Record gaps in `violations`, once per position, even if the archive is killed and started again before it."""
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
