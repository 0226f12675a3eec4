"""`load`: enqueue one message per row of files, exactly once even if the job is run several times."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as F

from holdfast.model.errors import InvalidArgument
from holdfast.model.message import JSON
from holdfast.model.names import QueueRef
from holdfast.pipeline.jobs.progress import Check, Checked, Progress, silent
from holdfast.pipeline.jobs.targets import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_KEY_LENGTH = 40


class Format(StrEnum):
    """The file formats that can be loaded."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    TEXT = "text"


class LoadSummary(Checked, msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of `load`."""

    rows: int
    enqueued: int
    # Rows whose key was already in the queue.
    known: int
    is_dry_run: bool = False
    checks: list[Check] = []


def load(
    spark: "SparkSession",
    paths: Sequence[str],
    ref: QueueRef,
    target: WriteTarget | None,
    *,
    format: Format,
    options: Mapping[str, str] | None = None,
    key: Sequence[str] = (),
    payload: str | None = None,
    priority: int | None = None,
    progress: Progress = silent,
) -> LoadSummary:
    """Enqueue the rows of files.

    `key`: columns that identify a row. By default, a row is identified by its file and its number or content there.
    `payload`: the column with the payload. By default, the payload is the whole row as JSON.
    `target`: None for a dry run, which only counts the rows.
    """
    rows = make_messages(read_files(spark, paths, format, options or {}), format, key, payload).withColumns(
        {"tenant": F.lit(ref.tenant), "queue": F.lit(ref.queue)}
    )
    if priority is not None:
        rows = rows.withColumn("priority", F.lit(priority))
    count = rows.count()
    progress("rows", 0, count)
    if target is None:
        return LoadSummary(rows=count, enqueued=0, known=0, is_dry_run=True)
    put = target.put(rows)
    progress("rows", put.rows, count)
    return LoadSummary(
        rows=count,
        enqueued=put.enqueued,
        known=put.rows - put.enqueued,
        checks=[Check(what="rows offered to the queue", expected=count, found=put.rows)],
    )


def read_files(spark: "SparkSession", paths: Sequence[str], format: Format, options: Mapping[str, str]) -> "DataFrame":
    """Read files with Spark. Raise InvalidArgument without paths."""
    if not paths:
        raise InvalidArgument("give the files to load", field="paths")
    return spark.read.format(format.value).options(**options).load(list(paths))


def make_messages(rows: "DataFrame", format: Format, key: Sequence[str], payload: str | None) -> "DataFrame":
    """Return the columns payload, content_type and key. Raise InvalidArgument for a missing column."""
    names = rows.columns
    for each in (*key, *([payload] if payload is not None else [])):
        if each not in names:
            raise InvalidArgument(
                f"{each!r} is not a column of these files; their columns are {', '.join(names)}", field=each
            )
    if payload is not None:
        body, kind = F.col(f"`{payload}`"), None
    elif format is Format.TEXT:
        body, kind = F.col("value"), None
    else:
        body, kind = F.to_json(F.struct(*(F.col(f"`{each}`") for each in names))), JSON
    made = rows.select(
        body.alias("payload"),
        F.lit(kind).cast("string").alias("content_type"),
        F.to_json(F.struct(*(F.col(f"`{each}`") for each in key or names))).alias("_content"),
        F.col("_metadata.file_path").alias("_file"),
        *([F.col("_metadata.row_index").alias("_row")] if format is Format.PARQUET else []),
    )
    return made.withColumn("key", _key(key, format)).select("payload", "content_type", "key")


def _key(key: Sequence[str], format: Format) -> "Column":
    if key:
        parts = [F.col("_content")]
    elif format is Format.PARQUET:
        parts = [F.col("_file"), F.col("_row").cast("string")]
    else:
        # These files have no row numbers. Equal rows of one file are numbered. Which of them gets which number does not
        # matter, so a retry may number them differently.
        same = Window.partitionBy("_file", "_content").orderBy(F.lit(1))
        parts = [F.col("_file"), F.col("_content"), F.row_number().over(same).cast("string")]
    return F.substring(F.sha2(F.to_json(F.array(*parts)), 256), 1, _KEY_LENGTH)
