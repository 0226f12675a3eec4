"""The sink `holdfast_lake`: tasks write files, and the driver commits them to a table of the lake.

A batch of a stream is committed with its number as the writer's mark. If the driver was killed before Spark recorded
the batch, Spark runs the batch again. It then finds the mark and adds nothing, and its files are deleted later.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from holdfast.model.errors import InvalidArgument
from holdfast.pipeline.lake.contract import Mark, NewFile
from holdfast.pipeline.lake.lake import Lake, LakeKind
from holdfast.pipeline.lake.tables import DAY, TABLES, TableShape
from holdfast.pipeline.sources.options import count, one_of, parse_options, text

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTIONS = {
    "path": text,
    "table": one_of(*TABLES),
    "writer": text,
    "lakeFormat": one_of(*(kind.value for kind in LakeKind)),
    "rowsPerFile": count,
}
# A task holds these rows in memory, because they are sorted before they are written.
_ROWS_PER_FILE = 500_000


@dataclass(frozen=True)
class LakeTarget:
    """The table to write to. Each process opens the table itself from these options."""

    path: str
    name: str
    writer: str | None
    kind: LakeKind | None
    rows_per_file: int

    @property
    def shape(self) -> TableShape:
        """Return the columns and the layout of the table."""
        return TABLES[self.name]

    @property
    def table(self) -> Any:
        return Lake(self.path, self.kind).table(self.shape)


def parse_lake_target(given: Mapping[str, str], schema: "StructType", *, overwrite: bool, streams: bool) -> LakeTarget:
    """Parse the options of a write. Raise InvalidArgument for wrong options, or if the rows lack columns."""
    if overwrite:
        raise InvalidArgument(
            "rows can only be appended to a table of the lake: write with mode('append')", field="mode"
        )
    options = parse_options("holdfast_lake", given, OPTIONS)
    for name in ("path", "table", *(("writer",) if streams else ())):
        if name not in options:
            raise InvalidArgument(f"holdfast_lake needs option {name}: {_DESCRIPTIONS[name]}", field=name)
    if not streams and "writer" in options:
        raise InvalidArgument("option writer is only for streams", field="writer")
    shape = TABLES[options["table"]]
    if missing := [name for name in shape.table.columns if name not in schema.fieldNames()]:
        raise InvalidArgument(f"the rows lack columns of table {shape.name}: {', '.join(missing)}")
    kind = options.get("lakeFormat")
    return LakeTarget(
        path=options["path"],
        name=shape.name,
        writer=options.get("writer"),
        kind=None if kind is None else LakeKind(kind),
        rows_per_file=options.get("rowsPerFile", _ROWS_PER_FILE),
    )


_DESCRIPTIONS = {
    "path": "the lake's directory",
    "table": f"one of {', '.join(TABLES)}",
    "writer": "a unique name for the stream, kept as long as its checkpoint",
}


@dataclass(frozen=True)
class Files(WriterCommitMessage):
    """The files that a task has written."""

    files: tuple[NewFile, ...]


def write_files(target: LakeTarget, batches: Iterator[pa.RecordBatch]) -> Files:
    """Write the rows of one task, with new files for each day and after `rows_per_file` rows.

    Readers ignore these files until they are committed.
    """
    shape = target.shape
    home = f"{target.table.new_files}/{uuid4().hex}"
    written: list[NewFile] = []
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(batch.select(shape.table.columns))
        rows += batch.num_rows
        if rows >= target.rows_per_file:
            written += _write_days(target, home, pending)
            pending, rows = [], 0
    written += _write_days(target, home, pending)
    return Files(tuple(written))


def _write_days(target: LakeTarget, home: str, batches: list[pa.RecordBatch]) -> Iterator[NewFile]:
    shape = target.shape
    table = pa.Table.from_batches(batches, schema=batches[0].schema).cast(shape.table.arrow) if batches else None
    if table is None or not table.num_rows:
        return
    table = table.sort_by([(name, "ascending") for name in shape.sorted_by])
    if shape.day_of is None:
        yield _write_file(target, f"{home}/part-{uuid4().hex}.parquet", table, None)
        return
    days = pc.cast(table[shape.day_of], pa.date32())
    for day in pc.unique(days):
        part = table.filter(pc.equal(days, day))
        yield _write_file(target, f"{home}/{DAY}={day.as_py()}/part-{uuid4().hex}.parquet", part, str(day.as_py()))


def _write_file(target: LakeTarget, path: str, table: pa.Table, day: str | None) -> NewFile:
    files, file_path = pa.fs.FileSystem.from_uri(path) if "://" in path else (pa.fs.LocalFileSystem(), path)
    files.create_dir(file_path.rpartition("/")[0], recursive=True)
    pq.write_table(table, file_path, filesystem=files, compression="zstd")
    about = files.get_file_info(file_path)
    bounds = {name: pc.min_max(table[name]) for name in target.shape.bounds}
    return NewFile(
        path=path.removeprefix(f"{target.table.directory}/"),
        size=about.size,
        modified_at=(about.mtime_ns or 0) // 1_000_000,
        rows=table.num_rows,
        day=day,
        lowest={name: _text(each["min"].as_py()) for name, each in bounds.items()},
        highest={name: _text(each["max"].as_py()) for name, each in bounds.items()},
    )


def _text(value: Any) -> str | None:
    """Format a bound as in the statistics of a Delta log."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    return None if value is None else str(value)


def commit_files(target: LakeTarget, messages: list[WriterCommitMessage | None], batch: int | None) -> None:
    """Commit the files of all tasks. `batch` is the number of a stream's batch, and None for a batch write."""
    files = [file for each in messages if isinstance(each, Files) for file in each.files]
    if batch is None:
        if files:
            target.table.append(files)
        return
    # Marks are numbered from 1, Spark's batches from 0.
    target.table.append(files, writer=target.writer, mark=Mark(batch + 1, str(batch)))


class LakeWriter(DataSourceArrowWriter):
    """A batch write to a table of the lake."""

    def __init__(self, target: LakeTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Files:
        return write_files(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_files(self._target, messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: uncommitted files are never read, and the next compaction deletes them."""


class LakeStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write to a table of the lake."""

    def __init__(self, target: LakeTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Files:
        return write_files(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit_files(self._target, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing, as for a batch write."""


class LakeSink(DataSource):
    """The sink `holdfast_lake`."""

    @classmethod
    def name(cls) -> str:
        return "holdfast_lake"

    def writer(self, schema: "StructType", overwrite: bool) -> LakeWriter:
        return LakeWriter(parse_lake_target(self.options, schema, overwrite=overwrite, streams=False))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> LakeStreamWriter:
        return LakeStreamWriter(parse_lake_target(self.options, schema, overwrite=overwrite, streams=True))
