"""`triage` and `redrive`: dead letters by what went wrong, and a selection of them brought back at a rate."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F

from holdfast.pipeline.jobs.error_patterns import clusters, normalised
from holdfast.pipeline.jobs.progress import Check, Progress, silent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.client.blocking import Holdfast

# As many as one bulk step changes.
_STEP = 1_000
_PAGE = 1_000
# What is looked at of a dead letter.
COLUMNS = "tenant string, queue string, id string, error string, reason string, at timestamp"


class FailureCluster(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    queue: str
    cluster: str
    messages: int
    first_at: int
    last_at: int
    sample: str | None
    sample_id: str


class RedriveSummary(msgspec.Struct, frozen=True, kw_only=True):
    matched: int
    redriven: int
    # Settled, redriven or removed by others between the look and the redrive.
    gone: int
    is_dry_run: bool = False
    checks: list[Check] = []

    @property
    def is_sound(self) -> bool:
        return all(each.is_met for each in self.checks)


def letters_of_source(spark: "SparkSession", options: dict[str, str], tenant: str, queue: str) -> "DataFrame":
    """The dead letters of a server, read by Spark's tasks without their payloads. `*` stands for every one."""
    found = (
        spark.read.format("holdfast")
        .schema("tenant string, queue string, id string, error string, reason string, visible_at timestamp")
        .options(**options, tenant=tenant, queue=queue, state="failed")
        .load()
    )
    return found.withColumnRenamed("visible_at", "at")


def letters_of_opened(spark: "SparkSession", opened: "Holdfast", tenant: str, queue: str) -> "DataFrame":
    """The same of what `holdfast.open` answered: read here."""
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
    """The clusters, the largest first."""
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
    """Of one cluster, as `triage` named it; with a text in the error; or by a condition in SQL."""
    if cluster is not None:
        said = F.coalesce(normalised(F.col("error")), F.concat(F.lit("("), "reason", F.lit(")")), F.lit("(no error)"))
        letters = letters.where(said == cluster)
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
    """Bring them back, by id. What is no longer a dead letter when its turn comes is left alone: run again after a
    kill, it goes on with those that still are."""
    chosen = selected.select("tenant", "queue", "id").orderBy("tenant", "queue", "id").cache()
    try:
        matched = chosen.count()
        progress("dead letters", 0, matched)
        if is_dry_run:
            return RedriveSummary(matched=matched, redriven=0, gone=0, is_dry_run=True)
        done = taken = 0
        rows = chosen.toLocalIterator()
        while some := list(islice(rows, _STEP)):
            by_queue: dict[tuple[str, str], list[str]] = {}
            for row in some:
                by_queue.setdefault((row["tenant"], row["queue"]), []).append(row["id"])
            for (tenant, queue), ids in by_queue.items():
                changed = opened.queue(queue, tenant=tenant).redrive({"ids": ids}, rate_per_s=rate_per_s)
                done += changed.changed
            taken += len(some)
            progress("dead letters", taken, matched)
    finally:
        chosen.unpersist()
    return RedriveSummary(
        matched=matched,
        redriven=done,
        gone=matched - done,
        checks=[Check(what="dead letters taken up", expected=matched, found=taken)],
    )
