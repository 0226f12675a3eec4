"""The lake: its tables by name, read and written through Spark."""

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
    DELTA = "delta"
    PARQUET = "parquet"
    ICEBERG = "iceberg"


def default_kind() -> LakeKind:
    """Delta where delta-rs is installed."""
    return LakeKind.DELTA if importlib.util.find_spec("deltalake") is not None else LakeKind.PARQUET


def kind_at(place: str) -> LakeKind | None:
    """The format that a lake on a local disk was begun with; None of one that is not there yet, or elsewhere."""
    if "://" in place and not place.startswith("file://"):
        return None
    root = Path(place.removeprefix("file://"))
    if (root / ICEBERG_CATALOG).exists():
        return LakeKind.ICEBERG
    if any(root.glob("*/_delta_log")):
        return LakeKind.DELTA
    return LakeKind.PARQUET if any(root.glob("*/_log")) else None


class Lake:
    """A directory, or a place in an object store, with a table in each of its folders. It keeps the format that it was
    begun with."""

    def __init__(self, place: str, kind: LakeKind | None = None, storage: Mapping[str, str] | None = None) -> None:
        if not place:
            raise InvalidArgument("give the lake's directory", field="lake")
        self.place = place.rstrip("/")
        found = kind_at(self.place)
        if found is not None and kind not in (None, found):
            raise InvalidArgument(f"{self.place} has {found} tables: leave the format out", field="lake_format")
        self.kind = kind or found or default_kind()
        self._storage = dict(storage or {})

    def table(self, shape: TableShape) -> LakeTable:
        directory = f"{self.place}/{shape.name}"
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
        """The table's rows as of now, with `day` where it has days. A table that is not there yet has none.

        The files are named one by one: what a writer that died left beside them is not read.
        """
        files = self.table(shape).files(days)
        rows = spark.read.schema(shape.table.spark).parquet(*files) if files else none_of(spark, shape)
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
        """Add rows in one commit; answers how many. 0 if the writer has committed this batch already."""
        table = self.table(shape)
        files = write_files(spark, rows.select(*shape.table.columns), shape, table.new_files)
        if not files and mark is None:
            return 0
        return sum(each.rows for each in files) if table.append(files, writer=writer, mark=mark) else 0

    def replace(
        self, spark: "SparkSession", shape: TableShape, rows: "DataFrame", days: Sequence[str] | None = None
    ) -> int:
        """Put rows in the place of what the table has of these days (None: of all it has), in one commit."""
        table = self.table(shape)
        files = write_files(spark, rows.select(*shape.table.columns), shape, table.new_files)
        table.replace(files, days)
        return sum(each.rows for each in files)

    def compact(self, *, keep_hours: float) -> dict[str, Compacted]:
        """Of each table that is there."""
        found = {name: self.table(shape) for name, shape in TABLES.items()}
        return {name: table.compact(keep_hours=keep_hours) for name, table in found.items() if table.exists()}


def none_of(spark: "SparkSession", shape: TableShape) -> "DataFrame":
    return spark.createDataFrame([], shape.table.spark)


def run_name() -> str:
    """What a run is called in a table of several runs."""
    return uuid4().hex[:12]
