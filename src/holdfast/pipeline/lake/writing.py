"""Writing of data files from a DataFrame, with the descriptions that the table's log needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.lake.contract import NewFile
from holdfast.pipeline.lake.tables import DAY, TableShape

_DAY_MS = 86_400_000
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


def day_column(instant: str) -> Column:
    """Return the day of an instant in UTC, whatever the session's time zone."""
    return F.date_from_unix_date(F.floor(F.unix_millis(F.col(instant)) / F.lit(_DAY_MS)).cast("int"))


def write_files(spark: SparkSession, rows: DataFrame, shape: TableShape, directory: str) -> list[NewFile]:
    """Write the rows, partitioned by day and sorted, to a new directory, and return the files.

    Spark's committer decides which attempt of a task counts. A killed process leaves unreferenced files, which are
    never read, and which `compact` deletes.
    """
    home = f"{directory}/{uuid4().hex}"
    if shape.day_of is not None:
        rows = rows.withColumn(DAY, day_column(shape.day_of))
    order = [DAY, *shape.sorted_by] if shape.day_of is not None else list(shape.sorted_by)
    writer = (
        rows.sortWithinPartitions(*order)
        .write.option("compression", "zstd")
        .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    )
    if shape.day_of is not None:
        writer = writer.partitionBy(DAY)
    with _standard_timestamps(spark):
        writer.parquet(home)
    is_local = "://" not in home
    return _describe_by_footers(shape, Path(home)) if is_local else _describe_by_reading(spark, rows, shape, home)


@contextmanager
def _standard_timestamps(spark: SparkSession) -> Iterator[None]:
    """Write timestamps as microseconds. Spark's default has no statistics, and other readers read it as nanoseconds."""
    before = spark.conf.get(_TIMESTAMPS)
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(_TIMESTAMPS, before)


def _describe_by_footers(shape: TableShape, home: Path) -> list[NewFile]:
    """Describe local files by their Parquet footers. A truncated file has no footer, and raises an error."""
    import pyarrow.parquet as pq

    described: list[NewFile] = []
    for file in sorted(home.rglob("*.parquet")) if home.is_dir() else []:
        about = pq.read_metadata(file)
        if not about.num_rows:
            continue
        found = file.stat()
        bounds = [_bounds(about, column) for column in shape.bounds]
        described.append(
            NewFile(
                path=str(file.relative_to(home.parent.parent)),
                size=found.st_size,
                modified_at=found.st_mtime_ns // 1_000_000,
                rows=about.num_rows,
                day=file.parent.name.removeprefix(f"{DAY}=") if shape.day_of is not None else None,
                lowest={name: _text(low) for name, (low, _) in zip(shape.bounds, bounds, strict=True)},
                highest={name: _text(high) for name, (_, high) in zip(shape.bounds, bounds, strict=True)},
            )
        )
    return described


def _bounds(about: Any, column: str) -> tuple[Any, Any]:
    index = about.schema.names.index(column)
    stats = [about.row_group(each).column(index).statistics for each in range(about.num_row_groups)]
    if any(each is None or not each.has_min_max for each in stats):
        return None, None
    return min(each.min for each in stats), max(each.max for each in stats)


def _describe_by_reading(spark: SparkSession, rows: DataFrame, shape: TableShape, home: str) -> list[NewFile]:
    """Describe files that possibly only Spark can reach, by one aggregate over their rows."""
    name = home.rpartition("/")[2]
    parent = home.rpartition("/")[0].rpartition("/")[2]
    kept = F.col(DAY).cast("string") if shape.day_of is not None else F.lit(None).cast("string")
    found = (
        spark.read.schema(rows.schema)
        .parquet(home)
        .groupBy(
            F.col("_metadata.file_path").alias("path"),
            F.col("_metadata.file_size").alias("size"),
            F.unix_millis("_metadata.file_modification_time").alias("modified_at"),
            kept.alias("day"),
        )
        .agg(
            F.count(F.lit(1)).alias("rows"),
            *(F.min(each).alias(f"low_{each}") for each in shape.bounds),
            *(F.max(each).alias(f"high_{each}") for each in shape.bounds),
        )
        .collect()
    )
    return [
        NewFile(
            path=f"{parent}/{name}/{row['path'].rpartition(f'/{name}/')[2]}",
            size=row["size"],
            modified_at=row["modified_at"],
            rows=row["rows"],
            day=row["day"],
            lowest={each: _text(row[f"low_{each}"]) for each in shape.bounds},
            highest={each: _text(row[f"high_{each}"]) for each in shape.bounds},
        )
        for row in found
    ]


def _text(value: Any) -> str | None:
    """Format a bound as in the statistics of a Delta log."""
    if isinstance(value, datetime):
        # Spark returns local times without a zone.
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    return None if value is None else str(value)
