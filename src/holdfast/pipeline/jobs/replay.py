"""`replay`: enqueue archived messages again, selected by time, tenant, queue or a condition on their final records."""

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F

from holdfast.pipeline.jobs.progress import Check, Checked, Progress, silent
from holdfast.pipeline.jobs.targets import WriteTarget
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import MESSAGES, PAYLOADS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ReplaySummary(Checked, msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of `replay`."""

    matched: int
    # Matched messages whose payload is in the lake.
    replayable: int
    enqueued: int
    # Messages that were replayed before under the same name.
    known: int
    is_dry_run: bool = False
    checks: list[Check] = []


def select(
    spark: "SparkSession",
    lake: Lake,
    *,
    tenant: str | None = None,
    queue: str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    where: str | None = None,
) -> "DataFrame":
    """Select messages by their final records. Of several records of a message, the last one that matches is used.

    `since_ms` and `until_ms` apply to the time of settlement. `where` is a condition in SQL.
    """
    found = lake.read(spark, MESSAGES)
    if tenant is not None:
        found = found.where(F.col("tenant") == tenant)
    if queue is not None:
        found = found.where(F.col("queue") == queue)
    if since_ms is not None:
        found = found.where(F.unix_millis("settled_at") >= since_ms)
    if until_ms is not None:
        found = found.where(F.unix_millis("settled_at") < until_ms)
    if where is not None:
        found = found.where(where)
    last = found.groupBy("id").agg(F.max_by(F.struct("tenant", "queue", "priority"), "version").alias("last"))
    return last.select("id", "last.*")


def replay(
    spark: "SparkSession",
    lake: Lake,
    selected: "DataFrame",
    target: WriteTarget | None,
    *,
    name: str = "replay",
    into: str | None = None,
    progress: Progress = silent,
) -> ReplaySummary:
    """Enqueue the selected messages again, each once per `name`: a repeated replay adds only missing messages.

    `into`: the queue to enqueue into, in the same tenant. By default the queue of each message.
    `target`: None for a dry run, which only counts.
    """
    payloads = lake.read(spark, PAYLOADS).dropDuplicates(["id"])
    found = selected.join(
        payloads.select("id", "content_type", "headers", F.col("group"), "correlation_id", "payload"), "id", "left"
    ).cache()
    try:
        [counts] = found.agg(F.count(F.lit(1)).alias("matched"), F.count("payload").alias("replayable")).collect()
        matched, replayable = counts["matched"], counts["replayable"]
        progress("messages", 0, replayable)
        if target is None:
            return ReplaySummary(matched=matched, replayable=replayable, enqueued=0, known=0, is_dry_run=True)
        put = target.put(
            found.where(F.col("payload").isNotNull()).select(
                "payload",
                F.concat(F.lit(f"{name}:"), "id").alias("key"),
                "tenant",
                (F.col("queue") if into is None else F.lit(into)).alias("queue"),
                "content_type",
                "headers",
                F.col("priority").cast("int").alias("priority"),
                "group",
                "correlation_id",
            )
        )
    finally:
        found.unpersist()
    progress("messages", put.rows, replayable)
    return ReplaySummary(
        matched=matched,
        replayable=replayable,
        enqueued=put.enqueued,
        known=put.rows - put.enqueued,
        checks=[Check(what="messages offered to the queue", expected=replayable, found=put.rows)],
    )
