"""A table as Iceberg, by pyiceberg: no JVM, no jar. For a lake on a local disk, with its catalog in an SQLite file.

    LAKE/iceberg-catalog.db      which metadata file each table is at
    LAKE/TABLE/metadata/…        Iceberg's own
    LAKE/TABLE/data/RUN/…        data files as they were written; they are never moved

A writer's mark is a table property, set in the commit that adds its files; the snapshot names the batch as well. Every
commit makes a snapshot, if an empty one: so each stands on the one before it, and of two at once the second is refused.
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
_MARK = "holdfast.mark."
# A commit that lost to another is judged anew by us: the library would append over it without a look.
_PROPERTIES = {"commit.retry.num-retries": "0", "write.parquet.compression-codec": "zstd"}


class IcebergFiles:
    def __init__(self, directory: str, schema: pa.Schema, *, day_of: str | None) -> None:
        """`schema`: the columns of the files. `day_of`: the instant whose day splits them."""
        if "://" in directory and not directory.startswith("file://"):
            raise InvalidArgument(
                f"Iceberg tables need a local disk for their catalog, and {directory} is none: choose Delta",
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
                raise StoreUnavailable(f"{self._root} was changed meanwhile: compact again")
        return Compacted(before, len(self.files()), self._sweep(keep_hours))

    def _join(self, small: list[Any]) -> str:
        import pyarrow.dataset as ds
        import pyarrow.parquet as pq

        # Older files may lack columns that came later: those are null in the new one.
        source = ds.dataset([_local(each.file_path) for each in small], schema=self._schema, format="parquet")
        new = self._root / "data" / f"joined-{uuid4().hex}" / "part-00000.parquet"
        new.parent.mkdir(parents=True)
        with pq.ParquetWriter(new, self._schema, compression="zstd") as writer:
            for batch in source.to_batches():
                writer.write_batch(batch)
        return str(new)

    def _sweep(self, keep_hours: float) -> int:
        """Forget old snapshots, and delete the data files that none of the others names."""
        before_ms = SystemClock().now_ms() - keep_hours * _HOUR_MS
        table = self._open()
        if len(table.metadata.snapshots) > 1:
            # By the library's own clock: a snapshot of this very moment counts as older.
            edge = datetime.fromtimestamp(before_ms / 1_000, UTC) + timedelta(milliseconds=1)
            with suppress(CommitFailedException):
                table.maintenance.expire_snapshots().older_than(edge).commit()
            table = self._open()
        named = {
            _local(entry.data_file.file_path)
            for snapshot in table.metadata.snapshots
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        }
        gone = 0
        for file in (self._root / "data").rglob("*.parquet"):
            if str(file) not in named and file.stat().st_mtime_ns // 1_000_000 <= before_ms:
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
        """All of it or nothing; False if another commit came first."""
        said = {} if writer is None or mark is None else {"holdfast.writer": writer, "holdfast.batch": str(mark.batch)}
        remove = list(remove)
        try:
            with table.transaction() as change:
                if writer is not None and mark is not None:
                    change.set_properties({_MARK + writer: json.dumps([mark.batch, mark.position])})
                steps = change.update_snapshot(snapshot_properties=said)
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
        """The table, made if it is not there, with every column that its rows now have."""
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
        # Made whole, or not at all; one that is there already is another process's.
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
            # Spark writes files without the numbers of columns: they are found by name.
            made.set_properties({"schema.name-mapping.default": mapping})

    def _too_fast(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._root} changes faster than a commit can be made: try again later")


def _mark(table: IcebergTable, writer: str) -> Mark | None:
    said = table.properties.get(_MARK + writer)
    return None if said is None else Mark(*json.loads(said))


def _data_files(table: IcebergTable) -> "Iterable[tuple[str | None, Any]]":
    """The files of the table now, each with its day."""
    for task in table.scan().plan_files():
        yield _day(task.file), task.file


def _day(file: Any) -> str | None:
    if not len(file.partition):
        return None
    number = file.partition[0]
    return None if number is None else str(date(1970, 1, 1) + timedelta(days=number))


def _local(path: str) -> str:
    return path.removeprefix("file://")
