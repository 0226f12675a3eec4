"""`audit`: every rule over the whole journal, and over the stores behind it, naming each violation."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast.clock import SystemClock
from holdfast.model.errors import InvalidArgument
from holdfast.pipeline.audit.checks import check_against_store, check_events, last_words, measure
from holdfast.pipeline.audit.rules import Rule
from holdfast.pipeline.jobs.progress import Progress, silent
from holdfast.pipeline.lake.contract import Mark
from holdfast.pipeline.lake.lake import Lake, run_name
from holdfast.pipeline.lake.tables import VIOLATIONS
from holdfast.pipeline.schemas import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Violations named in the answer; the table has them all.
MAX_NAMED = 200
_WRITER = "audit"


class Named(msgspec.Struct, frozen=True, kw_only=True):
    rule: str
    tenant: str | None
    queue: str | None
    id: str | None
    detail: str

    def __str__(self) -> str:
        where = "/".join(each for each in (self.tenant, self.queue) if each)
        return f"{self.rule}: {' '.join(each for each in (where, self.id) if each)}: {self.detail}"


class AuditSummary(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    events: int
    stores: int
    # By rule; those that were kept are left out.
    broken: dict[str, int]
    violations: list[Named]

    @property
    def violation_count(self) -> int:
        return sum(self.broken.values())

    @property
    def is_sound(self) -> bool:
        return not self.broken


class StoreFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of one store directory found, as (what, queue, id)."""

    path: str
    found: list[tuple[str, str | None, str | None]] = []
    # All of them: `found` names the first.
    number: int = 0


# Checks the keys, indexes and counters of a store directory that nobody has open (SPEC 4.1). Handed in, and run by
# Spark's workers: only those above the pipeline know the stores.
CheckStore = Callable[[str], StoreFindings]


def audit(
    spark: "SparkSession",
    events: DataFrame | Sequence[DataFrame],
    *,
    snapshot: DataFrame | None = None,
    stores: Sequence[str] = (),
    check_store: CheckStore | None = None,
    held: Mapping[str, tuple[DataFrame, DataFrame]] | None = None,
    max_retries: int | None = None,
    lake: Lake | None = None,
    progress: Progress = silent,
) -> AuditSummary:
    """`events`: of the lake, a journal or a backup; of several, each is judged by itself. `snapshot`: the messages of
    the same store at rest, to hold against the first. `stores`: directories of backups, each checked whole; `held`: of
    those the journal and the messages, held against each other where the check found nothing. The violations are
    appended to the lake's table."""
    with ExitStack() as kept:
        journals = [events] if isinstance(events, DataFrame) else list(events)
        found, count = _judged(journals, snapshot, max_retries, progress, kept)
        if stores:
            assert check_store is not None
            findings, damaged = _check_stores(spark, stores, check_store)
            found.append(findings)
            found += [_held(*each) for store, each in (held or {}).items() if store not in damaged]
        return _told(spark, found, count, len(stores), lake, progress, kept)


def _judged(
    journals: list[DataFrame], snapshot: DataFrame | None, max_retries: int | None, progress: Progress, kept: ExitStack
) -> tuple[list[DataFrame], int]:
    found: list[DataFrame] = []
    count = 0
    for number, events in enumerate(journals):
        count += events.count()
        progress("events", 0, count)
        found.append(check_events(events, max_retries=max_retries, kept=kept))
        if snapshot is not None and not number:
            found.append(_held(events, snapshot))
    return found, count


def _held(events: DataFrame, snapshot: DataFrame) -> DataFrame:
    extent = measure(events)
    return check_against_store(last_words(events, extent), snapshot, extent)


def _told(
    spark: "SparkSession",
    found: list[DataFrame],
    count: int,
    stores: int,
    lake: Lake | None,
    progress: Progress,
    kept: ExitStack,
) -> AuditSummary:
    run = run_name()
    if not found:
        raise InvalidArgument("there is nothing to audit: give events, or the directory of a store")
    table = found[0]
    for each in found[1:]:
        table = table.unionByName(each)
    # Computed once: counted by rule, listed, and kept.
    rows = table.select("rule", "tenant", "queue", "id", "detail", "first_seen").cache()
    kept.callback(rows.unpersist)
    broken = {row["rule"]: row["count"] for row in rows.groupBy("rule").count().orderBy("rule").collect()}
    progress("events", count, count)
    named = rows.orderBy("rule", "first_seen").limit(MAX_NAMED).collect() if broken else []
    if lake is not None:
        _keep(spark, lake, rows.withColumn("run", F.lit(run)), run, sum(broken.values()))
    return AuditSummary(
        run=run,
        events=count,
        stores=stores,
        broken=broken,
        violations=[
            Named(rule=row["rule"], tenant=row["tenant"], queue=row["queue"], id=row["id"], detail=row["detail"])
            for row in named
        ],
    )


def snapshot_of_place(spark: "SparkSession", url: str) -> DataFrame:
    """The messages of a backup's directory, a server or databases, with what is held against the journal."""
    columns = MESSAGES.only(["id", "tenant", "queue", "state", "enqueued_at"])
    return spark.read.format("holdfast").schema(columns.spark).options(url=url, tenant="*", queue="*").load()


def _keep(spark: "SparkSession", lake: Lake, rows: DataFrame, run: str, number: int) -> None:
    """That it ran is kept too: the table's mark tells of the last run, also of one that found nothing."""
    table = lake.table(VIOLATIONS)
    before = table.mark(_WRITER)
    mark = Mark(1 if before is None else before.batch + 1, f"{run} {number}")
    if number:
        lake.append(spark, VIOLATIONS, rows, writer=_WRITER, mark=mark)
    else:
        table.append([], writer=_WRITER, mark=mark)


def last_audit(lake: Lake) -> int | None:
    """How many violations the last audit into this lake found; None if there was none."""
    mark = lake.table(VIOLATIONS).mark(_WRITER)
    return None if mark is None else int(mark.position.split()[1])


def _check_stores(spark: "SparkSession", stores: Sequence[str], check_store: CheckStore) -> tuple[DataFrame, set[str]]:
    """One task for each directory; answers also which of them are not whole."""

    def check(path: str) -> list[tuple[str, str | None, str | None]]:
        report = check_store(path)
        unnamed = report.number - len(report.found)
        return [*report.found, *([(f"and {unnamed} more", None, None)] if unnamed > 0 else [])]

    # Rows as they are: Arrow gains nothing here, and would want pandas.
    checked = F.udf(check, "array<struct<what string, queue string, id string>>", useArrow=False)
    paths = spark.createDataFrame([(each,) for each in stores], "path string").repartition(len(stores))
    # Done with before anything else reads these directories: a check is alone with its store.
    rows = paths.select("path", F.explode(checked("path")).alias("found")).collect()
    schema = "path string, found struct<what string, queue string, id string>"
    found = spark.createDataFrame(rows, schema).select(
        F.lit(Rule.STORE.value).alias("rule"),
        F.nullif(F.substring_index("found.queue", "/", 1), F.lit("")).alias("tenant"),
        F.nullif(F.substring_index("found.queue", "/", -1), F.lit("")).alias("queue"),
        F.col("found.id").alias("id"),
        F.concat_ws(": ", "path", "found.what").alias("detail"),
        F.timestamp_millis(F.lit(SystemClock().now_ms())).alias("first_seen"),
    )
    return found, {row["path"] for row in rows}
