"""`migrate`: copy the messages of one store to another one of any kind, while neither is in use.

Messages get ids of the new store. The key `migrate:ID` ensures that each message is copied once, even if the job is run
several times. Each queue is written by one task in the order of its ids, so groups keep their order. Afterwards the
copies are read back from the new store: their number and contents must be the same.

A message in flight is copied as ready, and visible when its lease expires. As in the old store, it cannot be claimed
before that, and as the head of a group it blocks the group until then. It is not leased in the new store: a store
cannot be given a lease from outside, the lease would have no owner to settle it, and its expiry would count against the
message's retries.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from holdfast.pipeline.jobs.progress import Check, Checked, Progress, silent
from holdfast.pipeline.jobs.targets import WriteTarget
from holdfast.pipeline.schemas import INSTANT, MESSAGES

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import Column, DataFrame, SparkSession

    from holdfast.client.blocking import Holdfast

_PAGE = 500
# The columns that are copied.
READ = MESSAGES.only(
    (
        *("tenant", "queue", "id", "snowflake", "state", "payload", "content_type", "headers", "priority"),
        *("enqueued_at", "visible_at", "lease_expires_at", "group", "correlation_id"),
    )
)
OLD_ID = "migrated-from"
# The latest datetime. A legacy database may have instants in any year.
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)


class MigrateSummary(Checked, msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of `migrate`."""

    # The number of messages in the old store, by state.
    found: dict[str, int]
    copied: int
    # Messages that an earlier run had copied.
    known: int
    # Dead letters that were not copied.
    left: int
    is_dry_run: bool = False
    # The sum of the hashes of all copied contents, in hexadecimal. It does not depend on the order of messages.
    digest: str = ""
    checks: list[Check] = []
    # The order of the fields in the values of a legacy directory. None if the old store is not one.
    legacy_order: str | None = None


def migrate(
    snapshot: "DataFrame",
    target: WriteTarget | None,
    *,
    read_back: "Callable[[], AbstractContextManager[DataFrame]] | None" = None,
    with_failed: bool = False,
    progress: Progress = silent,
) -> MigrateSummary:
    """Copy the messages of `snapshot`, which has the columns of `READ`.

    `target`: the new store. None for a dry run, which only counts.
    `read_back`: opens the messages of the new store, to compare the number and the contents of the copies.
    `with_failed`: also copy dead letters, which become ready in the new store.
    """
    found = {row["state"]: row["count"] for row in snapshot.groupBy("state").count().collect()}
    left = 0 if with_failed else found.get("failed", 0)
    expected = sum(found.values()) - left - found.get("succeeded", 0)
    progress("messages", 0, expected)
    if target is None:
        return MigrateSummary(found=found, copied=0, known=0, left=left, is_dry_run=True)
    states = ["ready", "in_flight", *(["failed"] if with_failed else [])]
    rows = (
        snapshot.where(F.col("state").isin(states))
        .repartition("tenant", "queue")
        .sortWithinPartitions("tenant", "queue", "snowflake")
        .select(
            "payload",
            F.concat(F.lit("migrate:"), "id").alias("key"),
            "tenant",
            "queue",
            "content_type",
            _headers().alias("headers"),
            F.col("priority").cast("int").alias("priority"),
            _due_at().alias("deliver_at"),
            "group",
            "correlation_id",
        )
    )
    put = target.put(rows)
    progress("messages", put.rows, expected)
    checks = [Check(what="messages offered to the new store", expected=expected, found=put.rows)]
    digest = ""
    if read_back is not None:
        progress("copies read back", 0, expected)
        sent = _contents(snapshot.where(F.col("state").isin(states)), F.col("id"))
        many, total = _sum(sent)
        digest = f"{total:040x}"
        with read_back() as copies:
            # The new store may also have other messages.
            found_there = _contents(copies.where(F.col("headers").getItem(OLD_ID).isNotNull()), _old_id())
            there, total_there = _sum(found_there.join(sent.select("old"), "old", "left_semi"))
        progress("copies read back", there, expected)
        checks += [
            Check(what="copies in the new store", expected=many, found=there),
            Check(what="sum of the contents' hashes in the new store", expected=total, found=total_there),
        ]
    return MigrateSummary(
        found=found, copied=put.enqueued, known=put.rows - put.enqueued, left=left, digest=digest, checks=checks
    )


def _due_at() -> "Column":
    """Return when a copy can be claimed: not before the original, and dead letters at once."""
    is_held = F.col("state") == "in_flight"
    due_at = F.when(is_held, F.greatest("visible_at", "lease_expires_at")).when(
        F.col("state") == "ready", F.col("visible_at")
    )
    return F.least(due_at, F.lit(_LATEST))


def _old_id() -> "Column":
    return F.col("headers").getItem(OLD_ID)


def _contents(messages: "DataFrame", old: "Column") -> "DataFrame":
    """Return each message's id in the old store, and a hash of the content that must be the same in the new one."""
    own = F.map_filter(F.coalesce("headers", _no_headers()), lambda name, _: name != OLD_ID)
    content = [
        F.hex("payload"),
        F.coalesce("content_type", F.lit("")),
        F.col("priority").cast("string"),
        F.coalesce("group", F.lit("")),
        F.to_json(F.array_sort(F.map_entries(own))),
    ]
    # 56 bits of each hash, so that the sum over all messages does not overflow.
    hashed = F.conv(F.substring(F.sha2(F.concat_ws("\n", old, *content), 256), 1, 14), 16, 10)
    return messages.select(old.alias("old"), hashed.cast("decimal(38,0)").alias("hash"))


def _sum(contents: "DataFrame") -> tuple[int, int]:
    [row] = contents.agg(F.count(F.lit(1)).alias("many"), F.sum("hash").alias("total")).collect()
    return row["many"], int(row["total"] or 0)


def _headers() -> "Column":
    """Return the headers with the old id, which replaces that of an earlier migration."""
    own = F.coalesce("headers", _no_headers())
    return F.map_concat(F.map_filter(own, lambda name, _: name != OLD_ID), F.create_map(F.lit(OLD_ID), "id"))


def _no_headers() -> "Column":
    return F.expr("cast(map() as map<string,string>)")


def read_source_snapshot(
    spark: "SparkSession", options: dict[str, str], tenant: str = "*", queue: str = "*"
) -> "DataFrame":
    """Read messages with the columns of `READ`, by Spark's tasks. `*` stands for all tenants or queues."""
    reader = spark.read.format("holdfast").schema(READ.spark)
    return reader.options(**options, tenant=tenant, queue=queue).load()


@contextmanager
def read_opened_snapshot(
    spark: "SparkSession", opened: "Holdfast", tenant: str = "*", queue: str = "*"
) -> "Iterator[DataFrame]":
    """Read messages of a store that only this process has open, page by page, into a file for Spark."""
    with TemporaryDirectory(prefix="holdfast-snapshot-") as directory:
        path = Path(directory) / "messages.parquet"
        with pq.ParquetWriter(path, READ.arrow) as writer:
            for rows in _pages(opened, tenant, queue):
                writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=READ.arrow))
        yield spark.read.schema(READ.spark).parquet(str(path))


def _pages(opened: "Holdfast", tenant: str, queue: str) -> Iterator[list[dict[str, Any]]]:
    tenants = [each.tenant for each in opened.tenants()] if tenant == "*" else [tenant]
    for name in tenants:
        for each in opened.queues(name):
            if queue not in ("*", each.queue):
                continue
            cursor = None
            while True:
                page = opened.queue(each.queue, tenant=name).list(None, _PAGE, cursor, payload=True)
                yield [_row(name, each.queue, info) for info in page]
                if page.cursor is None:
                    break
                cursor = page.cursor


def _row(tenant: str, queue: str, info: Any) -> dict[str, Any]:
    row = {name: getattr(info, name) for name in READ.columns if name not in ("tenant", "queue", "state")}
    row |= {"tenant": tenant, "queue": queue, "state": info.state.value, "headers": list(info.headers.items())}
    for field in READ.fields:
        if field.type == INSTANT and row[field.name] is not None:
            row[field.name] *= 1_000
    return row
