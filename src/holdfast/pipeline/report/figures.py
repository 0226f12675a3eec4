"""The figures of the report, as functions from a DataFrame of events to a DataFrame."""

from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

from holdfast.pipeline.lake.tables import COUNTED
from holdfast.pipeline.lake.writing import day_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MINUTE_MS = 60_000


def wait_ms() -> Column:
    """Return how long a message waited for its first claim. The delay of a retry does not count."""
    return F.when(
        (F.col("event") == "claimed") & (F.col("attempt") == 1), F.unix_millis("at") - F.unix_millis("enqueued_at")
    )


def work_ms() -> Column:
    """Return the time from claim to verdict, for attempts that ended with a verdict."""
    ended = F.col("event").isin("succeeded", "retried") | (
        (F.col("event") == "failed") & F.col("reason").isin("final", "retries")
    )
    return F.when(ended, F.unix_millis("at") - F.unix_millis("claimed_at"))


def is_late(promise_ms: int) -> Column:
    """Return the condition for an end that missed the promise: a late success, or any failure."""
    took = F.unix_millis("at") - F.unix_millis("enqueued_at")
    return ((F.col("event") == "succeeded") & (took > promise_ms)) | (F.col("event") == "failed")


def counts(promise_ms: int) -> list[Column]:
    """Return aggregates for a group of events: the number of each kind, bytes, and late ends."""
    return [
        *(F.count(F.when(F.col("event") == each, 1)).alias(each) for each in COUNTED),
        F.sum(F.when(F.col("event") == "enqueued", F.col("bytes")).otherwise(0)).alias("bytes_in"),
        F.sum(F.when(F.col("event") == "claimed", F.col("bytes")).otherwise(0)).alias("bytes_out"),
        F.count(F.when(is_late(promise_ms), 1)).alias("late"),
    ]


def percentiles(kind: str, values: Column) -> list[Column]:
    """Return aggregates for the median, the 95th and 99th percentile and the maximum, with an accuracy of 1/10,000."""
    found = F.percentile_approx(values, [0.5, 0.95, 0.99], 10_000)
    return [
        *(found[number].alias(f"{kind}_{name}_ms") for number, name in enumerate(("p50", "p95", "p99"))),
        F.max(values).alias(f"{kind}_max_ms"),
    ]


def every_figure(promise_ms: int) -> list[Column]:
    """Return all aggregates of the report."""
    return [*counts(promise_ms), *percentiles("wait", wait_ms()), *percentiles("work", work_ms())]


def by_minute(events: "DataFrame", promise_ms: int) -> "DataFrame":
    """Return the rows of the table `minute`."""
    minute = F.timestamp_millis(F.floor(F.unix_millis("at") / MINUTE_MS) * MINUTE_MS).alias("minute")
    return events.groupBy("tenant", "queue", minute).agg(*every_figure(promise_ms))


def over_time(events: "DataFrame", promise_ms: int, step_ms: int) -> "DataFrame":
    """Return the figures of all tenants together by time step, with its begin `start_ms`."""
    start = (F.floor(F.unix_millis("at") / step_ms) * step_ms).alias("start_ms")
    return events.groupBy(start).agg(*every_figure(promise_ms)).orderBy("start_ms")


def by_queue(events: "DataFrame", promise_ms: int) -> "DataFrame":
    """Return the figures of each queue."""
    return events.groupBy("tenant", "queue").agg(*every_figure(promise_ms))


def by_tenant(events: "DataFrame", promise_ms: int) -> "DataFrame":
    """Return the figures of each tenant, and its number of queues."""
    return events.groupBy("tenant").agg(*every_figure(promise_ms), F.count_distinct("queue").alias("queues"))


def by_day(events: "DataFrame") -> "DataFrame":
    """Return the billed counts per day, tenant and queue. They are exact."""
    return (
        events.withColumn("date", day_column("at"))
        .groupBy("date", "tenant", "queue")
        .agg(
            F.count(F.when(F.col("event") == "enqueued", 1)).alias("messages"),
            F.count(F.when(F.col("event") == "claimed", 1)).alias("deliveries"),
            F.sum(F.when(F.col("event") == "enqueued", F.col("bytes")).otherwise(0)).alias("bytes_in"),
            F.sum(F.when(F.col("event") == "claimed", F.col("bytes")).otherwise(0)).alias("bytes_out"),
        )
        .where("messages > 0 or deliveries > 0")
    )


def fairness(shares: list[float]) -> float:
    """Return Jain's index: 1 if all shares are equal, 1/n if one of n shares has everything."""
    total = sum(shares)
    return 1.0 if not total else total**2 / (len(shares) * sum(each**2 for each in shares))
