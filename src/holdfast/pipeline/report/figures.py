"""What the report counts, as functions of the events: DataFrame → DataFrame."""

from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

from holdfast.pipeline.lake.tables import COUNTED
from holdfast.pipeline.lake.writing import day_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MINUTE_MS = 60_000


def wait_ms() -> Column:
    """Of a first claim: how long the message was there unclaimed. A retry's delay is not waiting."""
    return F.when(
        (F.col("event") == "claimed") & (F.col("attempt") == 1), F.unix_millis("at") - F.unix_millis("enqueued_at")
    )


def work_ms() -> Column:
    """Of an attempt that ended by its holder's word: from the claim to it."""
    ended = F.col("event").isin("succeeded", "retried") | (
        (F.col("event") == "failed") & F.col("reason").isin("final", "retries")
    )
    return F.when(ended, F.unix_millis("at") - F.unix_millis("claimed_at"))


def is_late(promise_ms: int) -> Column:
    """Succeeded later after its enqueue than was promised; or failed, whenever that was."""
    took = F.unix_millis("at") - F.unix_millis("enqueued_at")
    return ((F.col("event") == "succeeded") & (took > promise_ms)) | (F.col("event") == "failed")


def counts(promise_ms: int) -> list[Column]:
    """Of any group of events: how many of each kind, bytes, and those that missed the promise."""
    return [
        *(F.count(F.when(F.col("event") == each, 1)).alias(each) for each in COUNTED),
        F.sum(F.when(F.col("event") == "enqueued", F.col("bytes")).otherwise(0)).alias("bytes_in"),
        F.sum(F.when(F.col("event") == "claimed", F.col("bytes")).otherwise(0)).alias("bytes_out"),
        F.count(F.when(is_late(promise_ms), 1)).alias("late"),
    ]


def percentiles(kind: str, values: Column) -> list[Column]:
    exact = F.percentile_approx(values, [0.5, 0.95, 0.99], 10_000)
    return [
        *(exact[number].alias(f"{kind}_{name}_ms") for number, name in enumerate(("p50", "p95", "p99"))),
        F.max(values).alias(f"{kind}_max_ms"),
    ]


def every_figure(promise_ms: int) -> list[Column]:
    return [*counts(promise_ms), *percentiles("wait", wait_ms()), *percentiles("work", work_ms())]


def by_minute(events: "DataFrame", promise_ms: int) -> "DataFrame":
    """The table `minute`."""
    minute = F.timestamp_millis(F.floor(F.unix_millis("at") / MINUTE_MS) * MINUTE_MS).alias("minute")
    return events.groupBy("tenant", "queue", minute).agg(*every_figure(promise_ms))


def over_time(events: "DataFrame", promise_ms: int, step_ms: int) -> "DataFrame":
    """All tenants together, by steps of time that begin at `start_ms`."""
    start = (F.floor(F.unix_millis("at") / step_ms) * step_ms).alias("start_ms")
    return events.groupBy(start).agg(*every_figure(promise_ms)).orderBy("start_ms")


def by_tenant_over_time(events: "DataFrame", step_ms: int) -> "DataFrame":
    start = (F.floor(F.unix_millis("at") / step_ms) * step_ms).alias("start_ms")
    return events.groupBy("tenant", start).agg(
        F.count(F.when(F.col("event") == "enqueued", 1)).alias("enqueued"),
        F.count(F.when(F.col("event") == "claimed", 1)).alias("claimed"),
    )


def by_queue(events: "DataFrame", promise_ms: int) -> "DataFrame":
    return events.groupBy("tenant", "queue").agg(*every_figure(promise_ms))


def by_tenant(events: "DataFrame", promise_ms: int) -> "DataFrame":
    """Each tenant, the noisiest first. A neighbour is noisy that takes more of the claims than its share of tenants
    while others wait: its share of claims, its share of bytes, and what its own messages waited stand side by side."""
    return events.groupBy("tenant").agg(*every_figure(promise_ms), F.count_distinct("queue").alias("queues"))


def by_day(events: "DataFrame") -> "DataFrame":
    """What is billed: exact counts, per day, tenant and queue."""
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
    """Jain's index of what each got: 1 when all got the same, 1/n when one got everything."""
    total = sum(shares)
    return 1.0 if not total else total**2 / (len(shares) * sum(each**2 for each in shares))
