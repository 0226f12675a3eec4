"""The lake: its tables, read and written through Spark."""

import importlib.util
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from holdfast.model.errors import InvalidArgument
from holdfast.model.extras import install_command
from holdfast.pipeline.lake.contract import Compacted, LakeTable, Mark
from holdfast.pipeline.lake.parquet import ParquetFiles
from holdfast.pipeline.lake.tables import DAY, ICEBERG_CATALOG, TABLES, TableShape
from holdfast.pipeline.lake.writing import day_column, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class LakeKind(StrEnum):
    """The format of a lake's tables."""

    DELTA = "delta"
    PARQUET = "parquet"
    ICEBERG = "iceberg"


def default_kind() -> LakeKind:
    """Return Delta if delta-rs is installed, and plain Parquet otherwise."""
    return LakeKind.DELTA if importlib.util.find_spec("deltalake") is not None else LakeKind.PARQUET


def find_kind(url: str) -> LakeKind | None:
    """Return the format of an existing lake on a local disk, and None for any other lake."""
    if "://" in url and not url.startswith("file://"):
        return None
    root = Path(url.removeprefix("file://"))
    if (root / ICEBERG_CATALOG).exists():
        return LakeKind.ICEBERG
    if any(root.glob("*/_delta_log")):
        return LakeKind.DELTA
    return LakeKind.PARQUET if any(root.glob("*/_log")) else None


class Lake:
    """A directory, or a prefix in an object store, with one folder per table. An existing lake keeps its format."""

    def __init__(self, url: str, kind: LakeKind | None = None, storage: Mapping[str, str] | None = None) -> None:
        if not url:
            raise InvalidArgument("give the lake's directory", field="lake")
        self.url = url.rstrip("/")
        found = find_kind(self.url)
        if found is not None and kind not in (None, found):
            raise InvalidArgument(f"{self.url} has {found} tables: omit the format", field="lake_format")
        self.kind = kind or found or default_kind()
        self._storage = dict(storage or {})

    def table(self, shape: TableShape) -> LakeTable:
        """Return a table. Raise InvalidArgument if the packages for the lake's format are missing."""
        directory = f"{self.url}/{shape.name}"
        if self.kind is LakeKind.PARQUET:
            return ParquetFiles(directory, has_days=shape.day_of is not None)
        if self.kind is LakeKind.ICEBERG:
            try:
                from holdfast.pipeline.lake.iceberg import IcebergFiles
            except ImportError:
                raise InvalidArgument(
                    f"Iceberg tables need the iceberg extra: {install_command('iceberg')}", field="lake_format"
                ) from None
            return IcebergFiles(directory, shape.table.arrow, day_of=shape.day_of)
        try:
            from deltalake import Schema

            from holdfast.pipeline.lake.delta import DeltaFiles
        except ImportError:
            raise InvalidArgument(
                f"Delta tables need the spark extra: {install_command('spark')}, or choose plain Parquet",
                field="lake_format",
            ) from None
        schema = Schema.from_arrow(shape.arrow)
        return DeltaFiles(directory, schema, has_days=shape.day_of is not None, storage=self._storage or None)

    def read(self, spark: "SparkSession", shape: TableShape, days: Sequence[str] | None = None) -> "DataFrame":
        """Return the table's current rows, with a column `day` if it has days. A missing table has no rows.

        The files are listed one by one, so files that a killed writer has left are not read.
        """
        files = self.table(shape).files(days)
        rows = spark.read.schema(shape.table.spark).parquet(*files) if files else empty_frame(spark, shape)
        return rows if shape.day_of is None else rows.withColumn(DAY, day_column(shape.day_of))

    def append(
        self,
        spark: "SparkSession",
        shape: TableShape,
        rows: "DataFrame",
        *,
        writer: str | None = None,
        mark: Mark | None = None,
    ) -> int:
        """Append rows in one commit, and return how many. Return 0 if the writer has already committed this batch."""
        table = self.table(shape)
        files = write_files(spark, rows.select(*shape.table.columns), shape, table.new_files)
        if not files and mark is None:
            return 0
        return sum(each.rows for each in files) if table.append(files, writer=writer, mark=mark) else 0

    def replace(
        self, spark: "SparkSession", shape: TableShape, rows: "DataFrame", days: Sequence[str] | None = None
    ) -> int:
        """Replace all rows of these days (None: all rows of the table) in one commit, and return the number of rows."""
        table = self.table(shape)
        files = write_files(spark, rows.select(*shape.table.columns), shape, table.new_files)
        table.replace(files, days)
        return sum(each.rows for each in files)

    def compact(self, *, keep_hours: float) -> dict[str, Compacted]:
        """Compact all existing tables."""
        found = {name: self.table(shape) for name, shape in TABLES.items()}
        return {name: table.compact(keep_hours=keep_hours) for name, table in found.items() if table.exists()}


def empty_frame(spark: "SparkSession", shape: TableShape) -> "DataFrame":
    """Return a frame with the table's columns and no rows."""
    return spark.createDataFrame([], shape.table.spark)


def new_run_name() -> str:
    """Return a unique name for a run, which marks its rows in a table of several runs."""
    return uuid4().hex[:12]
