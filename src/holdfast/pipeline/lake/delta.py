"""Delta tables, written by delta-rs without a JVM.

Spark, DuckDB, Polars and others can read these tables. A writer's mark is stored in `txn` actions, which every
checkpoint of the log contains. `commitInfo` would be deleted with old log files.
"""

import json
from collections.abc import Sequence
from typing import Any

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.pipeline.lake.contract import Compacted, Mark, NewFile
from holdfast.pipeline.lake.tables import DAY

# A commit that lost to another one is decided again, at most this often.
_TRIES = 20
# The bytes of a position that fit into one version number, which is a signed 64-bit integer.
_CHUNK = 7


class DeltaFiles:
    """A table of the lake with a Delta log."""

    def __init__(
        self, directory: str, schema: Schema, *, has_days: bool, storage: dict[str, str] | None = None
    ) -> None:
        self.directory = directory
        self._schema = schema
        self._days = [DAY] if has_days else []
        self._storage = storage

    @property
    def new_files(self) -> str:
        return f"{self.directory}/batches"

    def exists(self) -> bool:
        return DeltaTable.is_deltatable(self.directory, self._storage)

    def mark(self, writer: str) -> Mark | None:
        return _mark(self._open(), writer) if self.exists() else None

    def append(self, files: Sequence[NewFile], *, writer: str | None = None, mark: Mark | None = None) -> bool:
        metadata = (
            {} if mark is None else {"holdfast": {"writer": writer, "batch": mark.batch, "position": mark.position}}
        )
        moves = [] if mark is None or writer is None else _moves(writer, mark)
        for _ in range(_TRIES):
            table = self._ready()
            if writer is not None and mark is not None and _is_done(table, writer, mark):
                return False
            if self._commit(table, files, "append", CommitProperties(metadata, 0, moves)):
                return True
        raise StoreUnavailable(f"{self.directory} has too many simultaneous commits: try again later")

    def replace(self, files: Sequence[NewFile], days: Sequence[str] | None) -> None:
        only = None if days is None else [(DAY, "in", list(days))]
        for _ in range(_TRIES):
            if self._commit(self._ready(), files, "overwrite", CommitProperties(max_commit_retries=0), only):
                return
        raise StoreUnavailable(f"{self.directory} has too many simultaneous commits: try again later")

    def files(self, days: Sequence[str] | None = None) -> list[str]:
        if not self.exists():
            return []
        only = None if days is None or not self._days else [(DAY, "in", list(days))]
        return self._open().file_uris(file_pruning_predicate=only)

    def compact(self, *, keep_hours: float) -> Compacted:
        if not self.exists():
            return Compacted(0, 0, 0)
        table = self._open()
        before = len(table.file_uris())
        table.optimize.compact()
        gone = table.vacuum(
            # The library takes whole hours.
            int(keep_hours),
            dry_run=False,
            enforce_retention_duration=False,
            # Also deletes the files of a writer that was killed, and not only replaced files.
            full=True,
        )
        return Compacted(before, len(table.file_uris()), len(gone))

    def _open(self) -> DeltaTable:
        return DeltaTable(self.directory, storage_options=self._storage)

    def _ready(self) -> DeltaTable:
        """Open the table. Create it if it is missing, and add missing columns."""
        table = (
            self._open()
            if self.exists()
            else DeltaTable.create(
                self.directory, self._schema, mode="ignore", partition_by=self._days, storage_options=self._storage
            )
        )
        known = {field.name: field for field in table.schema().fields}
        for field in self._schema.fields:
            if field.name in known and known[field.name].type != field.type:
                raise InvalidArgument(
                    f"column {field.name} of {self.directory} is {known[field.name].type} instead of "
                    f"{field.type}: archive into a new directory"
                )
        if new := [field for field in self._schema.fields if field.name not in known]:
            table.alter.add_columns(new)
        return table

    def _commit(
        self,
        table: DeltaTable,
        files: Sequence[NewFile],
        mode: str,
        properties: CommitProperties,
        only: list[tuple[str, str, Any]] | None = None,
    ) -> bool:
        adds: list[AddAction | RemoveAction] = [
            AddAction(each.path, each.size, _partition(each), each.modified_at, True, _stats(each)) for each in files
        ]
        try:
            # The library must not retry: it would append a batch that another process has committed meanwhile.
            table.create_write_transaction(
                adds,
                mode,
                table.schema(),
                partition_by=self._days,
                partition_filters=only,
                commit_properties=properties,
            )
        except CommitFailedError:
            return False
        return True


def _is_done(table: DeltaTable, writer: str, mark: Mark) -> bool:
    done = table.transaction_version(writer)
    if done is not None and done + 1 < mark.batch:
        raise InvalidArgument(f"{writer} has committed {done} batches: {mark.batch} cannot be the next")
    return done is not None and done >= mark.batch


def _moves(writer: str, mark: Mark) -> list[Transaction]:
    """Encode a mark as transactions. Versions are numbers, so the text of the position is split into pieces.

    How to change this format: use another suffix after `#`, and read the old form where the new one is missing: a table
    has the marks of all its writers, also of those that ran last with an older version.
    """
    raw = mark.position.encode()
    pieces = [raw[at : at + _CHUNK] for at in range(0, len(raw), _CHUNK)]
    return [
        Transaction(writer, mark.batch),
        Transaction(f"{writer}#bytes", len(raw)),
        *(Transaction(f"{writer}#{n}", int.from_bytes(piece)) for n, piece in enumerate(pieces)),
    ]


def _mark(table: DeltaTable, writer: str) -> Mark | None:
    batch = table.transaction_version(writer)
    if batch is None:
        return None
    left = table.transaction_version(f"{writer}#bytes") or 0
    position, number = b"", 0
    while left > 0:
        piece = table.transaction_version(f"{writer}#{number}") or 0
        position += piece.to_bytes(min(left, _CHUNK))
        left, number = left - _CHUNK, number + 1
    return Mark(batch, position.decode())


def _partition(file: NewFile) -> dict[str, str | None]:
    return {} if file.day is None else {DAY: file.day}


def _stats(file: NewFile) -> str:
    return json.dumps({"numRecords": file.rows, "minValues": file.lowest, "maxValues": file.highest})
