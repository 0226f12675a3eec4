"""Rows of a DataFrame as new data files of a table, described for its log."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.lake.contract import NewFile
from holdfast.pipeline.lake.tables import DAY, TableShape

_DAY_MS = 86_400_000


def day_column(instant: str) -> Column:
    """The day in UTC, whatever the session's time zone."""
    return F.date_from_unix_date(F.floor(F.unix_millis(F.col(instant)) / F.lit(_DAY_MS)).cast("int"))


def write_files(spark: SparkSession, rows: DataFrame, shape: TableShape, directory: str) -> list[NewFile]:
    """Write the rows, split by day and sorted, into a new directory of their own; read them back and say what is there.

    Spark's own committer settles which attempt of a task counts. Whatever dies on the way leaves files that no log
    names: they are never read, and `compact` deletes them.
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
    writer.parquet(home)
    return _described(spark, rows, shape, home)


def _described(spark: SparkSession, rows: DataFrame, shape: TableShape, home: str) -> list[NewFile]:
    """What was written, by reading it: a file that cannot be read back never gets into a table."""
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
    """As the statistics of a Delta log spell it."""
    if isinstance(value, datetime):
        # Spark gives the machine's own time.
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    return None if value is None else str(value)
