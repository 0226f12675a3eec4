"""The contents of the report: small lists that are computed from the events, with a maximum number of rows."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F

from holdfast.pipeline.jobs.error_patterns import clusters
from holdfast.pipeline.jobs.progress import Progress, silent
from holdfast.pipeline.report import figures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_STEPS = 120
MAX_ROWS = 100
MAX_TENANTS = 12
MAX_CLUSTERS = 20

# The possible lengths of a time step, in milliseconds. The shortest one with at most MAX_STEPS steps is used.
STEPS_MS = tuple(
    seconds * 1_000
    for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400, 604_800)
)

Row = Mapping[str, Any]


class ReportFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of the page."""

    start_ms: int
    end_ms: int
    step_ms: int
    promise_ms: int
    totals: Row
    steps: list[Row]
    queues: list[Row]
    queue_count: int
    tenants: list[Row]
    tenant_count: int
    # The tenants with the most claims by time step. All others are summed as "others".
    shares: list[Row]
    clusters: list[Row]
    # Jain's index for each time step in which several tenants had waiting messages.
    fairness: list[tuple[int, float]]


def gather(events: "DataFrame", *, promise_ms: int, progress: Progress = silent) -> ReportFacts | None:
    """Compute the figures. Return None if there are no events."""
    [totals] = _rows(
        events.agg(
            F.min(F.unix_millis("at")).alias("start_ms"),
            F.max(F.unix_millis("at")).alias("end_ms"),
            F.count(F.lit(1)).alias("events"),
            F.count(F.when((F.col("event") == "claimed") & (F.col("attempt") > 1), 1)).alias("again"),
            *figures.every_figure(promise_ms),
        )
    )
    if not totals["events"]:
        return None
    progress("report", 1, 6)
    step_ms = step_for(totals["end_ms"] - totals["start_ms"])
    steps = _rows(figures.over_time(events, promise_ms, step_ms))
    progress("report", 2, 6)
    by_queue = figures.by_queue(events, promise_ms).orderBy(F.desc("enqueued"), "tenant", "queue")
    queues = _rows(by_queue.withColumn("of", F.count(F.lit(1)).over(_everything())).limit(MAX_ROWS))
    progress("report", 3, 6)
    by_tenant = figures.by_tenant(events, promise_ms).orderBy(F.desc("claimed"), "tenant")
    tenants = _rows(by_tenant.withColumn("of", F.count(F.lit(1)).over(_everything())).limit(MAX_ROWS))
    progress("report", 4, 6)
    shares = _rows(_shares(events, [row["tenant"] for row in tenants[:MAX_TENANTS]], step_ms))
    progress("report", 5, 6)
    failures = events.where(F.col("event").isin("failed", "retried"))
    worst = _rows(
        clusters(failures)
        .limit(MAX_CLUSTERS)
        .withColumns({name: F.unix_millis(name) for name in ("first_at", "last_at")})
    )
    progress("report", 6, 6)
    return ReportFacts(
        start_ms=totals["start_ms"],
        end_ms=totals["end_ms"],
        step_ms=step_ms,
        promise_ms=promise_ms,
        totals=totals,
        steps=steps,
        queues=queues,
        queue_count=queues[0]["of"] if queues else 0,
        tenants=_with_noise(tenants, shares),
        tenant_count=tenants[0]["of"] if tenants else 0,
        shares=shares,
        clusters=worst,
        fairness=fairness_by_step(shares),
    )


def step_for(span_ms: int) -> int:
    """Return the length of a time step for a time span."""
    return next((each for each in STEPS_MS if span_ms <= each * (MAX_STEPS - 1)), STEPS_MS[-1])


def _shares(events: "DataFrame", named: list[str], step_ms: int) -> "DataFrame":
    """Return arrivals, claims and waiting times per tenant and time step."""
    tenant = F.when(F.col("tenant").isin(named), F.col("tenant")).otherwise(F.lit("others"))
    start = (F.floor(F.unix_millis("at") / step_ms) * step_ms).alias("start_ms")
    return (
        events.groupBy(tenant.alias("tenant"), start)
        .agg(
            F.count(F.when(F.col("event") == "enqueued", 1)).alias("enqueued"),
            F.count(F.when(F.col("event") == "claimed", 1)).alias("claimed"),
            F.count(F.when((F.col("event") == "claimed") & (F.col("attempt") == 1), 1)).alias("begun"),
            F.percentile_approx(figures.wait_ms(), 0.95, 1_000).alias("wait_p95_ms"),
        )
        .orderBy("start_ms", "tenant")
    )


def fairness_by_step(shares: list[Row]) -> list[tuple[int, float]]:
    """Compute for each time step how evenly the tenants with waiting messages were served."""
    waiting: dict[str, int] = {}
    found: list[tuple[int, float]] = []
    for start_ms in sorted({row["start_ms"] for row in shares}):
        here = {row["tenant"]: row for row in shares if row["start_ms"] == start_ms and row["tenant"] != "others"}
        for tenant, row in here.items():
            waiting[tenant] = waiting.get(tenant, 0) + row["enqueued"]
        claimed = {
            tenant: here[tenant]["claimed"] if tenant in here else 0 for tenant, number in waiting.items() if number > 0
        }
        if len(claimed) > 1 and any(claimed.values()):
            # A tenant whose waiting messages were all delivered was not limited by the others.
            limited = {t: n for t, n in claimed.items() if waiting[t] > (here[t]["begun"] if t in here else 0)}
            if len(limited) > 1:
                found.append((start_ms, figures.fairness([float(each) for each in limited.values()])))
        for tenant, row in here.items():
            waiting[tenant] = max(0, waiting[tenant] - row["begun"])
    return found


def _with_noise(tenants: list[Row], shares: list[Row]) -> list[Row]:
    """Add the waiting times of other tenants: in steps where most arrivals were this tenant's, and in other steps."""
    by_step: dict[int, list[Row]] = {}
    for row in shares:
        by_step.setdefault(row["start_ms"], []).append(row)
    return [{**row, **_noise(row["tenant"], by_step.values())} for row in tenants]


def _noise(tenant: str, steps: Iterable[list[Row]]) -> dict[str, int | None]:
    loud: list[int] = []
    quiet: list[int] = []
    for rows in steps:
        came = sum(row["enqueued"] for row in rows)
        own = sum(row["enqueued"] for row in rows if row["tenant"] == tenant)
        waits = [row["wait_p95_ms"] for row in rows if row["tenant"] != tenant and row["wait_p95_ms"] is not None]
        (loud if came and own * 2 > came else quiet).extend(waits)
    return {"others_loud_ms": _median(loud), "others_quiet_ms": _median(quiet)}


def _median(values: list[int]) -> int | None:
    return sorted(values)[len(values) // 2] if values else None


def _everything() -> Any:
    from pyspark.sql import Window

    return Window.partitionBy(F.lit(1))


def _rows(frame: "DataFrame") -> list[Row]:
    return [row.asDict() for row in frame.collect()]
