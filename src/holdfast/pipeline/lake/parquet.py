"""Tables of plain Parquet files with a log of JSON files, for machines without delta-rs. For lakes on a local disk.

    TABLE/_log/00000000000000000007.json   one commit: files added, files removed, marks of writers
    TABLE/_new/RUN/...                      files that are not yet committed, or not yet moved to their final path
    TABLE/day=2026-01-31/RUN-part-....parquet

A commit is made by a hard link that creates the log file, and fails if the number is taken. After that its files are
moved out of `_new`, which readers of Parquet directories skip. If the process is killed before that, the next process
that opens the table moves them. A program that reads the directory therefore sees each committed row exactly once, but
a batch may appear slightly late.

How to change this format: `ParquetCommit` and `TableFile` are read from old logs, so new fields need defaults, and
existing fields keep their meaning.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.clock import SystemClock
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.pipeline.lake.contract import Compacted, Mark, NewFile
from holdfast.pipeline.lake.tables import DAY

_TRIES = 20
_HOUR_MS = 3_600_000
# Smaller files are merged.
_TARGET_BYTES = 100 << 20


class TableFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file in the log."""

    # Relative to the table's directory: the path where it was written, and its final path.
    new: str
    path: str
    size: int
    rows: int
    day: str | None = None


class ParquetCommit(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a log file."""

    add: list[TableFile] = []
    remove: list[str] = []
    # Writer → (batch, position).
    marks: dict[str, tuple[int, str]] = {}


class ParquetState(msgspec.Struct):
    """The state of a table after all commits of its log."""

    number: int = 0
    files: dict[str, TableFile] = {}
    marks: dict[str, tuple[int, str]] = {}


class ParquetFiles:
    """A table of the lake as plain Parquet files."""

    def __init__(self, directory: str, *, has_days: bool) -> None:
        if "://" in directory and not directory.startswith("file://"):
            raise InvalidArgument(
                f"plain Parquet tables need a local disk, and {directory} is not on one: pip install deltalake "
                "for Delta tables",
                field="lake",
            )
        self._root = Path(directory.removeprefix("file://"))
        self._has_days = has_days

    @property
    def directory(self) -> str:
        return str(self._root)

    @property
    def new_files(self) -> str:
        return str(self._root / "_new")

    def exists(self) -> bool:
        return (self._root / "_log").is_dir()

    def mark(self, writer: str) -> Mark | None:
        mark = self._load_state().marks.get(writer)
        return None if mark is None else Mark(*mark)

    def append(self, files: Sequence[NewFile], *, writer: str | None = None, mark: Mark | None = None) -> bool:
        for _ in range(_TRIES):
            state = self._load_state()
            done = 0 if writer is None else state.marks.get(writer, (0, ""))[0]
            if mark is not None and done >= mark.batch:
                return False
            if mark is not None and done + 1 < mark.batch:
                raise InvalidArgument(f"{writer} has committed {done} batches: {mark.batch} cannot be the next")
            marks = {} if writer is None or mark is None else {writer: (mark.batch, mark.position)}
            if self._commit(state, ParquetCommit(add=[_table_file(each) for each in files], marks=marks)):
                return True
        raise StoreUnavailable(f"{self._root} has too many simultaneous commits: try again later")

    def replace(self, files: Sequence[NewFile], days: Sequence[str] | None) -> None:
        for _ in range(_TRIES):
            state = self._load_state()
            gone = [path for path, each in state.files.items() if days is None or each.day in days]
            if self._commit(state, ParquetCommit(add=[_table_file(each) for each in files], remove=gone)):
                return
        raise StoreUnavailable(f"{self._root} has too many simultaneous commits: try again later")

    def files(self, days: Sequence[str] | None = None) -> list[str]:
        found = self._load_state().files.values()
        return [str(self._root / each.path) for each in found if days is None or each.day is None or each.day in days]

    def compact(self, *, keep_hours: float) -> Compacted:
        state = self._load_state()
        before = len(state.files)
        for day in {each.day for each in state.files.values()}:
            small = [each for each in state.files.values() if each.day == day and each.size < _TARGET_BYTES]
            if len(small) > 1:
                state = self._join(state, small, day)
        return Compacted(before, len(state.files), self._sweep(state, keep_hours))

    def _join(self, state: ParquetState, small: list[TableFile], day: str | None) -> ParquetState:
        import pyarrow.dataset as ds
        import pyarrow.parquet as pq

        # The files are copied one after the other. Rows stay sorted within each run, and row groups keep their bounds.
        source = ds.dataset([str(self._root / each.path) for each in small], format="parquet")
        name = f"joined-{state.number + 1}-{os.getpid()}"
        new = self._root / "_new" / name / "part-00000.parquet"
        new.parent.mkdir(parents=True)
        with pq.ParquetWriter(new, source.schema, compression="zstd") as writer:
            for batch in source.to_batches():
                writer.write_batch(batch)
        folder = "" if day is None else f"{DAY}={day}/"
        joined = TableFile(
            new=f"_new/{name}/part-00000.parquet",
            path=f"{folder}{name}-part-00000.parquet",
            size=new.stat().st_size,
            rows=sum(each.rows for each in small),
            day=day,
        )
        if not self._commit(state, ParquetCommit(add=[joined], remove=[each.path for each in small])):
            raise StoreUnavailable(f"{self._root} was changed during the compaction: compact again")
        return self._load_state()

    def _sweep(self, state: ParquetState, keep_hours: float) -> int:
        """Delete unreferenced files that are too old to be read or written any more.

        With `keep_hours` 0, files of the current millisecond are deleted too.
        """
        before_ms = SystemClock().now_ms() - keep_hours * _HOUR_MS
        gone = 0
        for file in self._root.rglob("*.parquet"):
            if (
                str(file.relative_to(self._root)) not in state.files
                and file.stat().st_mtime_ns // 1_000_000 <= before_ms
            ):
                file.unlink()
                gone += 1
        for run in (self._root / "_new").glob("*"):
            if not any(run.rglob("*.parquet")) and run.stat().st_mtime_ns // 1_000_000 <= before_ms:
                shutil.rmtree(run)
        return gone

    # --- The log ---------------------------------------------------------------------------------------------

    def _load_state(self) -> ParquetState:
        """Read the table's state, and move committed files that a killed process has not moved."""
        state = self._read()
        for each in state.files.values():
            self._publish(each)
        return state

    def _read(self) -> ParquetState:
        state = ParquetState()
        for path in sorted((self._root / "_log").glob("*.json")):
            commit = msgspec.json.decode(path.read_bytes(), type=ParquetCommit)
            state.number = int(path.stem)
            for gone in commit.remove:
                state.files.pop(gone, None)
            state.files |= {each.path: each for each in commit.add}
            state.marks |= commit.marks
        return state

    def _commit(self, state: ParquetState, commit: ParquetCommit) -> bool:
        log = self._root / "_log"
        log.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=log, prefix="options-", delete=False) as file:
            file.write(msgspec.json.encode(commit))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(file.name, log / f"{state.number + 1:020}.json")
        except FileExistsError:
            return False
        finally:
            os.unlink(file.name)
        for each in commit.add:
            self._publish(each)
        for path in commit.remove:
            # Hidden from new readers of the directory. Readers that have the file open can continue.
            hidden = self._root / "_new" / "removed" / path.replace("/", "-")
            hidden.parent.mkdir(parents=True, exist_ok=True)
            (self._root / path).replace(hidden)
        return True

    def _publish(self, each: TableFile) -> None:
        target = self._root / each.path
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            (self._root / each.new).replace(target)
        except FileNotFoundError:
            if not target.exists():  # else another process has just moved it
                raise StoreUnavailable(
                    f"{target} is missing, but the table's log references it: restore a backup"
                ) from None


def _table_file(file: NewFile) -> TableFile:
    _, run, rest = file.path.split("/", 2)
    folder, _, name = rest.rpartition("/")
    return TableFile(
        new=file.path,
        path=f"{folder}/{run}-{name}" if folder else f"{run}-{name}",
        size=file.size,
        rows=file.rows,
        day=file.day,
    )
