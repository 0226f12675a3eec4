"""Iceberg tables, written by pyiceberg without a JVM. For lakes on a local disk, with the catalog in an SQLite file.

    LAKE/iceberg-catalog.db      the current metadata file of each table
    LAKE/TABLE/metadata/…        metadata of Iceberg
    LAKE/TABLE/data/RUN/…        data files; they are never moved

A writer's mark is a table property, set in the commit that adds its files. The snapshot contains the batch as well.
Every commit creates a snapshot, even an empty one. Each therefore depends on the previous one, and of two simultaneous
commits the second is refused.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import DayTransform

from holdfast.clock import SystemClock
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.pipeline.lake.contract import Compacted, Mark, NewFile
from holdfast.pipeline.lake.tables import DAY, ICEBERG_CATALOG

NAMESPACE = "holdfast"
_TRIES = 20
_HOUR_MS = 3_600_000
_TARGET_BYTES = 100 << 20
# How to change this format: a mark is a JSON array of the batch and the position. Use another prefix for another form,
# and read this one where the new one is missing.
_MARK = "holdfast.mark."
# A commit that lost to another one is decided again here. The library would append its files without a check.
_PROPERTIES = {"commit.retry.num-retries": "0", "write.parquet.compression-codec": "zstd"}


class IcebergFiles:
    """A table of the lake with Iceberg metadata."""

    def __init__(self, directory: str, schema: pa.Schema, *, day_of: str | None) -> None:
        """`schema`: the columns of the files. `day_of`: the instant whose day partitions them."""
        if "://" in directory and not directory.startswith("file://"):
            raise InvalidArgument(
                f"Iceberg tables need a local disk for their catalog, and {directory} is not on one: choose Delta",
                field="lake",
            )
        self._root = Path(directory.removeprefix("file://"))
        self._schema = schema
        self._day_of = day_of
        self._name = (NAMESPACE, self._root.name)
        self._opened: SqlCatalog | None = None

    @property
    def directory(self) -> str:
        return str(self._root)

    @property
    def new_files(self) -> str:
        return str(self._root / "data")

    def exists(self) -> bool:
        return (self._root.parent / ICEBERG_CATALOG).exists() and self._catalog.table_exists(self._name)

    def mark(self, writer: str) -> Mark | None:
        return _mark(self._open(), writer) if self.exists() else None

    def append(self, files: Sequence[NewFile], *, writer: str | None = None, mark: Mark | None = None) -> bool:
        for _ in range(_TRIES):
            table = self._ready()
            done = None if writer is None else _mark(table, writer)
            batches = 0 if done is None else done.batch
            if mark is not None and batches >= mark.batch:
                return False
            if mark is not None and batches + 1 < mark.batch:
                raise InvalidArgument(f"{writer} has committed {batches} batches: {mark.batch} cannot be the next")
            if self._commit(table, add=self._paths(files), writer=writer, mark=mark):
                return True
        raise self._too_fast()

    def replace(self, files: Sequence[NewFile], days: Sequence[str] | None) -> None:
        for _ in range(_TRIES):
            table = self._ready()
            gone = [each for day, each in _data_files(table) if days is None or day in days]
            if self._commit(table, add=self._paths(files), remove=gone):
                return
        raise self._too_fast()

    def files(self, days: Sequence[str] | None = None) -> list[str]:
        if not self.exists():
            return []
        return [each.file_path for day, each in _data_files(self._open()) if days is None or day in (None, *days)]

    def compact(self, *, keep_hours: float) -> Compacted:
        if not self.exists():
            return Compacted(0, 0, 0)
        table = self._open()
        by_day: dict[str | None, list[Any]] = {}
        before = 0
        for day, each in _data_files(table):
            before += 1
            if each.file_size_in_bytes < _TARGET_BYTES:
                by_day.setdefault(day, []).append(each)
        for small in by_day.values():
            if len(small) > 1 and not self._commit(self._open(), add=[self._join(small)], remove=small):
                raise StoreUnavailable(f"{self._root} was changed during the compaction: compact again")
        return Compacted(before, len(self.files()), self._sweep(keep_hours))

    def _join(self, small: list[Any]) -> str:
        import pyarrow.dataset as ds
        import pyarrow.parquet as pq

        # Older files may lack columns that were added later. Their values are null in the new file.
        source = ds.dataset([_local(each.file_path) for each in small], schema=self._schema, format="parquet")
        new = self._root / "data" / f"joined-{uuid4().hex}" / "part-00000.parquet"
        new.parent.mkdir(parents=True)
        with pq.ParquetWriter(new, self._schema, compression="zstd") as writer:
            for batch in source.to_batches():
                writer.write_batch(batch)
        return str(new)

    def _sweep(self, keep_hours: float) -> int:
        """Expire old snapshots, and delete data files that the remaining snapshots do not reference."""
        before_ms = SystemClock().now_ms() - keep_hours * _HOUR_MS
        table = self._open()
        if len(table.metadata.snapshots) > 1:
            # With keep_hours=0, a snapshot of the current millisecond must count as older.
            expires_before = datetime.fromtimestamp(before_ms / 1_000, UTC) + timedelta(milliseconds=1)
            with suppress(CommitFailedException):
                table.maintenance.expire_snapshots().older_than(expires_before).commit()
            table = self._open()
        referenced = {
            _local(entry.data_file.file_path)
            for snapshot in table.metadata.snapshots
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        }
        gone = 0
        for file in (self._root / "data").rglob("*.parquet"):
            if str(file) not in referenced and file.stat().st_mtime_ns // 1_000_000 <= before_ms:
                file.unlink()
                gone += 1
        return gone

    # --- Commits -------------------------------------------------------------------------------------------------

    def _commit(
        self,
        table: IcebergTable,
        *,
        add: list[str],
        remove: Iterable[Any] = (),
        writer: str | None = None,
        mark: Mark | None = None,
    ) -> bool:
        """Commit atomically. Return False if another commit came first."""
        snapshot_properties = (
            {} if writer is None or mark is None else {"holdfast.writer": writer, "holdfast.batch": str(mark.batch)}
        )
        remove = list(remove)
        try:
            with table.transaction() as change:
                if writer is not None and mark is not None:
                    change.set_properties({_MARK + writer: json.dumps([mark.batch, mark.position])})
                steps = change.update_snapshot(snapshot_properties=snapshot_properties)
                with steps.overwrite() if remove else steps.fast_append() as snapshot:
                    for gone in remove:
                        snapshot.delete_data_file(gone)
                    for new in parquet_files_to_data_files(table.io, change.table_metadata, iter(add)):
                        snapshot.append_data_file(new)
        except CommitFailedException:
            return False
        return True

    def _paths(self, files: Sequence[NewFile]) -> list[str]:
        return [str(self._root / each.path) for each in files]

    @property
    def _catalog(self) -> SqlCatalog:
        if self._opened is None:
            lake = self._root.parent
            lake.mkdir(parents=True, exist_ok=True)
            self._opened = SqlCatalog("lake", uri=f"sqlite:///{lake / ICEBERG_CATALOG}", warehouse=lake.as_uri())
        return self._opened

    def _open(self) -> IcebergTable:
        return self._catalog.load_table(self._name)

    def _ready(self) -> IcebergTable:
        """Open the table. Create it if it is missing, and add missing columns."""
        if not self.exists():
            self._create()
        table = self._open()
        known = {field.name for field in table.schema().fields}
        if any(name not in known for name in self._schema.names):
            with table.update_schema() as change:
                change.union_by_name(self._schema)
        return table

    def _create(self) -> None:
        with suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace(NAMESPACE)
        # Atomic. If the table exists by now, another process has created it.
        with (
            suppress(TableAlreadyExistsError, CommitFailedException),
            self._catalog.create_table_transaction(
                self._name, self._schema, location=self._root.as_uri(), properties=_PROPERTIES
            ) as made,
        ):
            if self._day_of is not None:
                with made.update_spec() as split:
                    split.add_field(self._day_of, DayTransform(), DAY)
            mapping = made.table_metadata.schema().name_mapping.model_dump_json()
            # Spark writes files without column ids, so columns are mapped by name.
            made.set_properties({"schema.name-mapping.default": mapping})

    def _too_fast(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._root} has too many simultaneous commits: try again later")


def _mark(table: IcebergTable, writer: str) -> Mark | None:
    text = table.properties.get(_MARK + writer)
    return None if text is None else Mark(*json.loads(text))


def _data_files(table: IcebergTable) -> "Iterable[tuple[str | None, Any]]":
    """Yield the table's current files, each with its day."""
    for task in table.scan().plan_files():
        yield _day(task.file), task.file


def _day(file: Any) -> str | None:
    if not len(file.partition):
        return None
    number = file.partition[0]
    return None if number is None else str(date(1970, 1, 1) + timedelta(days=number))


def _local(path: str) -> str:
    return path.removeprefix("file://")
