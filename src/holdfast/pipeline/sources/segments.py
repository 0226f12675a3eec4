"""Segments of servers' logs as a source: calls that were confirmed, and may not be in a database yet.

A segment does not change after the next one has begun and its end is decided. An offset is therefore the number of the
last segment that was read of each log. This source does not know which calls are already in a database: `land` records
that in the transaction that stores them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from holdfast.model.errors import InvalidArgument
from holdfast.pipeline.schemas import LOGGED_CALLS, TableSchema, as_instants
from holdfast.pipeline.sources.options import count, flag, names, parse_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTIONS = {"path": names, "isOver": flag, "maxSegments": count}
_MAX_SEGMENTS = 64
_NO_LIMIT = 1 << 62

Offset = dict[str, Any]


class Log(Protocol):
    """The log of one server."""

    def numbers(self) -> list[int]:
        """Return the numbers of the complete segments."""

    def calls(self, number: int) -> Sequence[tuple[Any, ...]]:
        """Return rows with the columns of `LOGGED_CALLS`, without `log`."""


# Functions that find the logs below a path, and open one log. They are passed in, because only `server` may import the
# stores.
FindLogs = Callable[[str], list[str]]
OpenLog = Callable[[str, bool], Log]


@dataclass(frozen=True)
class Logs:
    """The logs of a query."""

    paths: tuple[str, ...]
    # True if the servers do not run any more: then the last segment of each log is read too.
    is_over: bool
    max_segments: int
    find: FindLogs
    open: OpenLog

    def segments(self) -> dict[str, list[int]]:
        """Return the numbers of the complete segments of each log."""
        found = [log for path in self.paths for log in self.find(path)]
        return {log: self.open(log, self.is_over).numbers() for log in found}

    def read(self, segment: "SegmentOf", columns: TableSchema) -> Iterator[pa.RecordBatch]:
        rows = self.open(segment.log, self.is_over).calls(segment.number)
        if not rows:
            return
        wire = [
            (field.name, pa.int64() if field.name == "enqueued_at" else field.type) for field in LOGGED_CALLS.fields
        ]
        values = [[segment.log] * len(rows), *zip(*rows, strict=True)]
        arrays = [pa.array(list(each), kind) for each, (_, kind) in zip(values, wire, strict=True)]
        yield as_instants(pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in wire]), columns)


def parse_log_options(given: Mapping[str, str], find: FindLogs, open: OpenLog) -> Logs:
    """Parse the options of a query on logs. Raise InvalidArgument for a wrong or missing option."""
    options = parse_options("holdfast_wal", given, OPTIONS)
    if "path" not in options:
        raise InvalidArgument(
            "holdfast_wal needs option path: the wal_dir of a server, or several separated by commas", field="path"
        )
    return Logs(
        paths=options["path"],
        is_over=options.get("isOver", False),
        max_segments=options.get("maxSegments", _MAX_SEGMENTS),
        find=find,
        open=open,
    )


@dataclass(frozen=True)
class SegmentOf(InputPartition):
    """One segment of a log."""

    log: str
    number: int


class SegmentReader(DataSourceReader):
    """A batch read of all complete segments."""

    def __init__(self, logs: Logs, columns: TableSchema) -> None:
        self._logs = logs
        self._columns = columns

    def partitions(self) -> list[SegmentOf]:
        found = [SegmentOf(log, number) for log, numbers in self._logs.segments().items() for number in numbers]
        return found or [SegmentOf("", -1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentOf)
        if partition.number >= 0:
            yield from self._logs.read(partition, self._columns)


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of complete segments."""

    def __init__(self, logs: Logs, columns: TableSchema) -> None:
        self._logs = logs
        self._columns = columns
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> Offset:
        """Return the offset before the first segment: for each log, the number of the last segment that was read.

        How to change this format: increase `v`, and keep reading old versions: later releases read existing
        checkpoints.
        """
        return {"v": 1, "logs": {}}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self._logs.max_segments)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {log: max(numbers, default=-1) for log, numbers in self._logs.segments().items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Take the oldest segments of all logs in turn, so that no log waits for the backlog of another."""
        remaining = _NO_LIMIT if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_files", _MAX_SEGMENTS)
        ends: dict[str, int] = dict(start["logs"])
        waiting = {
            log: [each for each in numbers if each > ends.get(log, -1) and self._is_wanted(log, each)]
            for log, numbers in self._logs.segments().items()
        }
        while remaining and any(waiting.values()):
            for log, numbers in waiting.items():
                if remaining and numbers:
                    ends[log] = numbers.pop(0)
                    remaining -= 1
        return {"v": 1, "logs": ends}

    def _is_wanted(self, log: str, number: int) -> bool:
        return self._target is None or number <= self._target.get(log, -1)

    def partitions(self, start: Offset, end: Offset) -> list[SegmentOf]:
        """Return the segments by number. Segments that were removed meanwhile are in a database, and read as empty."""
        firsts = {log: numbers[0] for log, numbers in self._logs.segments().items() if numbers}
        return [
            SegmentOf(log, number)
            for log, last in end["logs"].items()
            for number in range(max(start["logs"].get(log, -1) + 1, firsts.get(log, last)), last + 1)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentOf)
        return self._logs.read(partition, self._columns)

    def commit(self, end: Offset) -> None:
        """Do nothing: a server removes its segments after they were stored in a database."""


class SegmentSource(DataSource):
    """The source `holdfast_wal`. A subclass sets the functions that open logs."""

    find_logs: FindLogs
    open_log: OpenLog

    @classmethod
    def name(cls) -> str:
        return "holdfast_wal"

    def schema(self) -> str:
        return LOGGED_CALLS.ddl

    def _logs(self) -> Logs:
        return parse_log_options(self.options, type(self).find_logs, type(self).open_log)

    def reader(self, schema: "StructType") -> SegmentReader:
        return SegmentReader(self._logs(), LOGGED_CALLS.only(schema.fieldNames()))

    def streamReader(self, schema: "StructType") -> SegmentStreamReader:
        return SegmentStreamReader(self._logs(), LOGGED_CALLS.only(schema.fieldNames()))
