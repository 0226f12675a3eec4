"""`report`: write the tables `minute` and `bill_day`, and an HTML page."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F

from holdfast.clock import SystemClock
from holdfast.pipeline.jobs.audit import last_audit
from holdfast.pipeline.jobs.progress import Check, Checked, Progress, silent
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import BILL_DAY, EVENTS, MINUTE
from holdfast.pipeline.report import figures
from holdfast.pipeline.report.facts import gather
from holdfast.pipeline.report.page import page

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROMISE_MS = 60_000
# A day is billed this long after its end, when its last events have been archived.
CLOSED_AFTER_MS = 3_600_000
_BILLED = ("messages", "deliveries", "bytes_in", "bytes_out")


class ReportSummary(Checked, msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of `report`."""

    page: str | None
    events: int
    minutes: int
    billed: int
    checks: list[Check] = []


def report(
    spark: "SparkSession",
    lake: Lake,
    *,
    page_at: Path | None,
    title: str = "Holdfast",
    days: Sequence[str] | None = None,
    tenant: str | None = None,
    promise_ms: int = PROMISE_MS,
    now_ms: int | None = None,
    progress: Progress = silent,
) -> ReportSummary:
    """Report on the whole lake, or on some days of it. `tenant` restricts the page, but not the tables."""
    now_ms = SystemClock().now_ms() if now_ms is None else now_ms
    events = lake.read(spark, EVENTS, days)
    minutes = _write_minutes(spark, lake, events, days, promise_ms)
    billed = bill(spark, lake, now_ms)
    facts = gather(
        events if tenant is None else events.where(F.col("tenant") == tenant), promise_ms=promise_ms, progress=progress
    )
    if facts is not None and page_at is not None:
        made = datetime.fromtimestamp(now_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M UTC")
        page_at.parent.mkdir(parents=True, exist_ok=True)
        page_at.write_text(page(facts, title=title, made_at=made, violations=last_audit(lake)), encoding="utf-8")
    return ReportSummary(
        page=None if facts is None or page_at is None else str(page_at),
        events=0 if facts is None else facts.totals["events"],
        minutes=minutes,
        billed=billed,
        checks=_checks(spark, lake, events, days),
    )


def _write_minutes(
    spark: "SparkSession", lake: Lake, events: "DataFrame", days: Sequence[str] | None, promise_ms: int
) -> int:
    """Replace the rows of these days, so that events that were archived late are counted in their minute."""
    return lake.replace(spark, MINUTE, figures.by_minute(events, promise_ms), days)


def bill(spark: "SparkSession", lake: Lake, now_ms: int) -> int:
    """Append the bills of closed days, and return how many rows were added.

    A queue without a bill for a day gets a row of kind `bill`. If the counts of a billed day have changed, a row of
    kind `adjustment` contains the difference. Existing rows are never changed, and a second run adds nothing.
    """
    last = datetime.fromtimestamp((now_ms - CLOSED_AFTER_MS) / 1_000, UTC).date()
    due = figures.by_day(lake.read(spark, EVENTS)).where(F.col("date") < F.lit(last))
    key = ("date", "tenant", "queue")
    billed = lake.read(spark, BILL_DAY).groupBy(*key).agg(*(F.sum(each).alias(f"had_{each}") for each in _BILLED))
    rows = (
        due.join(billed, list(key), "full_outer")
        .select(
            *key,
            F.when(F.col("had_messages").isNull(), F.lit("bill")).otherwise(F.lit("adjustment")).alias("kind"),
            *((F.coalesce(each, F.lit(0)) - F.coalesce(f"had_{each}", F.lit(0))).alias(each) for each in _BILLED),
            F.timestamp_millis(F.lit(now_ms)).alias("written_at"),
        )
        .where(" or ".join(f"{each} != 0" for each in _BILLED))
    )
    return lake.append(spark, BILL_DAY, rows)


def _checks(spark: "SparkSession", lake: Lake, events: "DataFrame", days: Sequence[str] | None) -> list[Check]:
    """Check that the sums over all minutes equal the counts of events."""
    [row] = (
        lake.read(spark, MINUTE, days).agg(F.sum("enqueued").alias("came"), F.sum("succeeded").alias("done")).collect()
    )
    [counted] = events.agg(
        F.count(F.when(F.col("event") == "enqueued", 1)).alias("came"),
        F.count(F.when(F.col("event") == "succeeded", 1)).alias("done"),
    ).collect()
    return [
        Check(what="arrivals in the minutes", expected=counted["came"], found=row["came"] or 0),
        Check(what="completions in the minutes", expected=counted["done"], found=row["done"] or 0),
    ]
