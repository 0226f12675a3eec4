"""A table as plain Parquet files with a log of our own: for where delta-rs is not installed, on a local disk.

    TABLE/_log/00000000000000000007.json   one commit: files added, files removed, marks moved
    TABLE/_new/RUN/...                      written, not yet committed, or not yet moved to its place
    TABLE/day=2026-01-31/RUN-part-....parquet

A commit is the log file's coming into being, by a hard link that fails if the number is taken. Only then are its files
moved out of `_new`, which readers of Parquet directories skip; whoever opens the table next finishes the moves of a
process that died. So a program that reads the directory sees each committed row once, a batch perhaps a moment late.
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
# Files below this are joined, as many as make up about this much.
_TARGET_BYTES = 100 << 20


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    # Below the table's directory: where it was written, and where it belongs.
    new: str
    path: str
    size: int
    rows: int
    day: str | None = None


class ParquetCommit(msgspec.Struct, frozen=True, kw_only=True):
    add: list[Placed] = []
    remove: list[str] = []
    # Writer → (batch, position).
    marks: dict[str, tuple[int, str]] = {}


class ParquetState(msgspec.Struct):
    """The log's commits, folded."""

    number: int = 0
    files: dict[str, Placed] = {}
    marks: dict[str, tuple[int, str]] = {}


class ParquetFiles:
    def __init__(self, directory: str, *, has_days: bool) -> None:
        if "://" in directory and not directory.startswith("file://"):
            raise InvalidArgument(
                f"plain Parquet tables need a local disk, and {directory} is none: pip install deltalake, which "
                "brings Delta tables",
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
        mark = self._settled().marks.get(writer)
        return None if mark is None else Mark(*mark)

    def append(self, files: Sequence[NewFile], *, writer: str | None = None, mark: Mark | None = None) -> bool:
        for _ in range(_TRIES):
            state = self._settled()
            done = 0 if writer is None else state.marks.get(writer, (0, ""))[0]
            if mark is not None and done >= mark.batch:
                return False
            if mark is not None and done + 1 < mark.batch:
                raise InvalidArgument(f"{writer} has committed {done} batches: {mark.batch} cannot be the next")
            marks = {} if writer is None or mark is None else {writer: (mark.batch, mark.position)}
            if self._commit(state, ParquetCommit(add=[_placed(each) for each in files], marks=marks)):
                return True
        raise StoreUnavailable(f"{self._root} changes faster than a commit can be made: try again later")

    def replace(self, files: Sequence[NewFile], days: Sequence[str] | None) -> None:
        for _ in range(_TRIES):
            state = self._settled()
            gone = [path for path, each in state.files.items() if days is None or each.day in days]
            if self._commit(state, ParquetCommit(add=[_placed(each) for each in files], remove=gone)):
                return
        raise StoreUnavailable(f"{self._root} changes faster than a commit can be made: try again later")

    def files(self, days: Sequence[str] | None = None) -> list[str]:
        found = self._settled().files.values()
        return [str(self._root / each.path) for each in found if days is None or each.day is None or each.day in days]

    def compact(self, *, keep_hours: float) -> Compacted:
        state = self._settled()
        before = len(state.files)
        for day in {each.day for each in state.files.values()}:
            small = [each for each in state.files.values() if each.day == day and each.size < _TARGET_BYTES]
            if len(small) > 1:
                state = self._join(state, small, day)
        return Compacted(before, len(state.files), self._sweep(state, keep_hours))

    def _join(self, state: ParquetState, small: list[Placed], day: str | None) -> ParquetState:
        import pyarrow.dataset as ds
        import pyarrow.parquet as pq

        # The order within a file is kept file by file: rows stay sorted in runs, and row groups keep their bounds.
        source = ds.dataset([str(self._root / each.path) for each in small], format="parquet")
        name = f"joined-{state.number + 1}-{os.getpid()}"
        new = self._root / "_new" / name / "part-00000.parquet"
        new.parent.mkdir(parents=True)
        with pq.ParquetWriter(new, source.schema, compression="zstd") as writer:
            for batch in source.to_batches():
                writer.write_batch(batch)
        place = "" if day is None else f"{DAY}={day}/"
        joined = Placed(
            new=f"_new/{name}/part-00000.parquet",
            path=f"{place}{name}-part-00000.parquet",
            size=new.stat().st_size,
            rows=sum(each.rows for each in small),
            day=day,
        )
        if not self._commit(state, ParquetCommit(add=[joined], remove=[each.path for each in small])):
            raise StoreUnavailable(f"{self._root} was changed meanwhile: compact again")
        return self._settled()

    def _sweep(self, state: ParquetState, keep_hours: float) -> int:
        """Delete what no log names, once nobody can be reading or writing it any more.

        What was written in this very millisecond is old for who keeps nothing.
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

    def _settled(self) -> ParquetState:
        """The table now; what a process that died had committed and not moved is in its place."""
        state = self._read()
        for each in state.files.values():
            self._place(each)
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
        with tempfile.NamedTemporaryFile(dir=log, prefix="writing-", delete=False) as file:
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
            self._place(each)
        for path in commit.remove:
            # Out of the sight of readers of the directory; those that have it open go on.
            hidden = self._root / "_new" / "removed" / path.replace("/", "-")
            hidden.parent.mkdir(parents=True, exist_ok=True)
            (self._root / path).replace(hidden)
        return True

    def _place(self, each: Placed) -> None:
        target = self._root / each.path
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            (self._root / each.new).replace(target)
        except FileNotFoundError:
            if not target.exists():  # else another process has just moved it
                raise StoreUnavailable(f"{target} is gone, and the table's log names it: restore a backup") from None


def _placed(file: NewFile) -> Placed:
    _, run, rest = file.path.split("/", 2)
    folder, _, name = rest.rpartition("/")
    return Placed(
        new=file.path,
        path=f"{folder}/{run}-{name}" if folder else f"{run}-{name}",
        size=file.size,
        rows=file.rows,
        day=file.day,
    )
