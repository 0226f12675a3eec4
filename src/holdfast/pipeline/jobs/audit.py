"""`audit`: check all rules over a whole journal and its stores, and list the violations."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast.clock import SystemClock
from holdfast.model.errors import InvalidArgument
from holdfast.pipeline.audit.checks import check_against_store, check_events, last_events, measure
from holdfast.pipeline.audit.rules import Rule
from holdfast.pipeline.jobs.progress import Progress, silent
from holdfast.pipeline.lake.contract import Mark
from holdfast.pipeline.lake.lake import Lake, new_run_name
from holdfast.pipeline.lake.tables import VIOLATIONS
from holdfast.pipeline.schemas import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The maximum number of violations in the summary. The table has all of them.
MAX_NAMED = 200
_WRITER = "audit"


class NamedViolation(msgspec.Struct, frozen=True, kw_only=True):
    """A violation of a rule by one message."""

    rule: str
    tenant: str | None
    queue: str | None
    id: str | None
    detail: str

    def __str__(self) -> str:
        where = "/".join(each for each in (self.tenant, self.queue) if each)
        return f"{self.rule}: {' '.join(each for each in (where, self.id) if each)}: {self.detail}"


class AuditSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one audit."""

    run: str
    events: int
    stores: int
    # The number of violations by rule. Rules without violations are left out.
    broken: dict[str, int]
    violations: list[NamedViolation]

    @property
    def violation_count(self) -> int:
        """Return the number of all violations."""
        return sum(self.broken.values())

    @property
    def is_sound(self) -> bool:
        """Return True if no rule was violated."""
        return not self.broken


class StoreFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The violations in one store directory, as (description, queue, id)."""

    path: str
    found: list[tuple[str, str | None, str | None]] = []
    # The number of all violations. `found` contains only the first ones.
    number: int = 0


# A function that checks the keys, indexes and counters of a store directory that is not in use (SPEC 4.1). It runs on
# Spark's workers. It is passed in, because the pipeline must not import a store.
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
    """Check journals and stores, append the violations to the lake's table, and return a summary.

    `events`: the events of a lake, a journal or a backup. Several journals are checked separately.
    `snapshot`: the messages of the first journal's store, at rest, which are compared with that journal.
    `stores`: directories of backups, each checked whole by `check_store`.
    `held`: the journal and messages of these backups, which are compared unless the check found violations.
    `max_retries`: if given, also check that no message was retried more often.
    """
    with ExitStack() as cleanup:
        journals = [events] if isinstance(events, DataFrame) else list(events)
        found, count = _check_journals(journals, snapshot, max_retries, progress, cleanup)
        if stores:
            assert check_store is not None
            findings, damaged = _check_stores(spark, stores, check_store)
            found.append(findings)
            found += [_compare_with_messages(*each) for store, each in (held or {}).items() if store not in damaged]
        return _summarise(spark, found, count, len(stores), lake, progress, cleanup)


def _check_journals(
    journals: list[DataFrame],
    snapshot: DataFrame | None,
    max_retries: int | None,
    progress: Progress,
    cleanup: ExitStack,
) -> tuple[list[DataFrame], int]:
    found: list[DataFrame] = []
    count = 0
    for number, events in enumerate(journals):
        count += events.count()
        progress("events", 0, count)
        found.append(check_events(events, max_retries=max_retries, cleanup=cleanup))
        if snapshot is not None and not number:
            found.append(_compare_with_messages(events, snapshot))
    return found, count


def _compare_with_messages(events: DataFrame, snapshot: DataFrame) -> DataFrame:
    extent = measure(events)
    return check_against_store(last_events(events, extent), snapshot, extent)


def _summarise(
    spark: "SparkSession",
    found: list[DataFrame],
    count: int,
    stores: int,
    lake: Lake | None,
    progress: Progress,
    cleanup: ExitStack,
) -> AuditSummary:
    run = new_run_name()
    if not found:
        raise InvalidArgument("nothing to audit: give events, or the directory of a store")
    table = found[0]
    for each in found[1:]:
        table = table.unionByName(each)
    # Cached, because they are counted by rule, listed, and appended to the table.
    rows = table.select("rule", "tenant", "queue", "id", "detail", "first_seen").cache()
    cleanup.callback(rows.unpersist)
    broken = {row["rule"]: row["count"] for row in rows.groupBy("rule").count().orderBy("rule").collect()}
    progress("events", count, count)
    named = rows.orderBy("rule", "first_seen").limit(MAX_NAMED).collect() if broken else []
    if lake is not None:
        _record_run(spark, lake, rows.withColumn("run", F.lit(run)), run, sum(broken.values()))
    return AuditSummary(
        run=run,
        events=count,
        stores=stores,
        broken=broken,
        violations=[
            NamedViolation(
                rule=row["rule"], tenant=row["tenant"], queue=row["queue"], id=row["id"], detail=row["detail"]
            )
            for row in named
        ],
    )


def read_backup_snapshot(spark: "SparkSession", url: str) -> DataFrame:
    """Read the messages of a backup, a server or databases, with the columns that the audit compares."""
    columns = MESSAGES.only(["id", "tenant", "queue", "state", "enqueued_at"])
    return spark.read.format("holdfast").schema(columns.spark).options(url=url, tenant="*", queue="*").load()


def _record_run(spark: "SparkSession", lake: Lake, rows: DataFrame, run: str, number: int) -> None:
    """Append the violations. The table's mark records the last audit, even if it found none."""
    table = lake.table(VIOLATIONS)
    before = table.mark(_WRITER)
    mark = Mark(1 if before is None else before.batch + 1, f"{run} {number}")
    if number:
        lake.append(spark, VIOLATIONS, rows, writer=_WRITER, mark=mark)
    else:
        table.append([], writer=_WRITER, mark=mark)


def last_audit(lake: Lake) -> int | None:
    """Return how many violations the last audit of this lake found. Return None if it was never audited."""
    mark = lake.table(VIOLATIONS).mark(_WRITER)
    return None if mark is None else int(mark.position.split()[1])


def _check_stores(spark: "SparkSession", stores: Sequence[str], check_store: CheckStore) -> tuple[DataFrame, set[str]]:
    """Check each directory in a task of its own. Return the violations, and the directories that have any."""

    def check(path: str) -> list[tuple[str, str | None, str | None]]:
        report = check_store(path)
        unnamed = report.number - len(report.found)
        return [*report.found, *([(f"and {unnamed} more", None, None)] if unnamed > 0 else [])]

    # Without Arrow, which has no benefit here, and would require pandas.
    checked = F.udf(check, "array<struct<what string, queue string, id string>>", useArrow=False)
    paths = spark.createDataFrame([(each,) for each in stores], "path string").repartition(len(stores))
    # Collected before anything else reads these directories, because a check requires exclusive access.
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
