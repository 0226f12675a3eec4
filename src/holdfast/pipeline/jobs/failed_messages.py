"""`triage` and `redrive`: group dead letters by error, and return selected ones to their queues at a given rate."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F

from holdfast.pipeline.jobs.error_patterns import clusters, normalise
from holdfast.pipeline.jobs.progress import Check, Checked, Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.client.blocking import Holdfast

# The number of messages that one step of a bulk operation changes.
_STEP = 1_000
_PAGE = 1_000
# The columns of dead letters.
COLUMNS = "tenant string, queue string, id string, error string, reason string, at timestamp"


class FailureCluster(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one queue with the same normalised error."""

    tenant: str
    queue: str
    cluster: str
    messages: int
    first_at: int
    last_at: int
    sample: str | None
    sample_id: str


class RedriveSummary(Checked, msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of `redrive`."""

    matched: int
    redriven: int
    # Redriven or removed by others after they were selected.
    gone: int
    is_dry_run: bool = False
    checks: list[Check] = []


def read_source_letters(spark: "SparkSession", options: dict[str, str], tenant: str, queue: str) -> "DataFrame":
    """Read dead letters without payloads, by Spark's tasks. `*` stands for all tenants or queues."""
    found = (
        spark.read.format("holdfast")
        .schema("tenant string, queue string, id string, error string, reason string, visible_at timestamp")
        .options(**options, tenant=tenant, queue=queue, state="failed")
        .load()
    )
    return found.withColumnRenamed("visible_at", "at")


def read_opened_letters(spark: "SparkSession", opened: "Holdfast", tenant: str, queue: str) -> "DataFrame":
    """Read dead letters without payloads, by this process. `*` stands for all tenants or queues."""
    rows = [
        (name, each.queue, info.id, info.last_error, info.reason, _instant(info.settled_at or info.enqueued_at))
        for name in ([each.tenant for each in opened.tenants()] if tenant == "*" else [tenant])
        for each in opened.queues(name)
        if queue in ("*", each.queue)
        for info in _failed(opened.queue(each.queue, tenant=name))
    ]
    return spark.createDataFrame(rows, COLUMNS)


def _instant(at_ms: int) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1_000, UTC)


def _failed(queue: Any) -> Iterator[Any]:
    cursor = None
    while True:
        page = queue.list("failed", _PAGE, cursor)
        yield from page
        if page.cursor is None:
            return
        cursor = page.cursor


def triage(letters: "DataFrame", limit: int = 100) -> list[FailureCluster]:
    """Return the largest clusters, the largest first."""
    return [
        FailureCluster(
            tenant=row["tenant"],
            queue=row["queue"],
            cluster=row["cluster"],
            messages=row["messages"],
            first_at=row["first_at"],
            last_at=row["last_at"],
            sample=row["sample"],
            sample_id=row["sample_id"],
        )
        for row in clusters(letters)
        .withColumns({each: F.unix_millis(each) for each in ("first_at", "last_at")})
        .limit(limit)
        .collect()
    ]


def select(
    letters: "DataFrame", *, cluster: str | None = None, error_contains: str | None = None, where: str | None = None
) -> "DataFrame":
    """Select dead letters by a cluster of `triage`, by a text in the error, and by a condition in SQL."""
    if cluster is not None:
        normalised = F.coalesce(
            normalise(F.col("error")), F.concat(F.lit("("), "reason", F.lit(")")), F.lit("(no error)")
        )
        letters = letters.where(normalised == cluster)
    if error_contains is not None:
        letters = letters.where(F.col("error").contains(error_contains))
    return letters if where is None else letters.where(where)


def redrive(
    selected: "DataFrame",
    opened: "Holdfast",
    *,
    rate_per_s: float | None = None,
    is_dry_run: bool = False,
    progress: Progress = silent,
) -> RedriveSummary:
    """Redrive the selected dead letters by id, and return how many were redriven.

    A message that is no longer a dead letter is skipped, so a run that was killed can be repeated.
    """
    chosen = selected.select("tenant", "queue", "id").orderBy("tenant", "queue", "id").cache()
    try:
        matched = chosen.count()
        progress("dead letters", 0, matched)
        if is_dry_run:
            return RedriveSummary(matched=matched, redriven=0, gone=0, is_dry_run=True)
        done = offered = 0
        rows = chosen.toLocalIterator()
        while batch := list(islice(rows, _STEP)):
            by_queue: dict[tuple[str, str], list[str]] = {}
            for row in batch:
                by_queue.setdefault((row["tenant"], row["queue"]), []).append(row["id"])
            for (tenant, queue), ids in by_queue.items():
                changed = opened.queue(queue, tenant=tenant).redrive({"ids": ids}, rate_per_s=rate_per_s)
                done += changed.changed
            offered += len(batch)
            progress("dead letters", offered, matched)
    finally:
        chosen.unpersist()
    return RedriveSummary(
        matched=matched,
        redriven=done,
        gone=matched - done,
        checks=[Check(what="dead letters redriven or skipped", expected=matched, found=offered)],
    )
