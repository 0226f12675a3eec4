"""The journal as a source. It is a log, so a micro-batch can be read again exactly.

An offset contains a position and the number of events before it. By this count, a range whose events were dropped by
the store's retention is distinguished from a range that never had more events.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holdfast.clock import steady_s
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.pipeline.schemas import EVENTS, TableSchema, as_instants
from holdfast.pipeline.sources.feed import Feed, OpenFeed
from holdfast.pipeline.sources.options import (
    STORE_OPTIONS,
    StoreAddress,
    count,
    duration,
    flag,
    parse_options,
    parse_store_address,
    text,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTIONS = {
    **STORE_OPTIONS,
    "tenant": text,
    "startingPosition": text,
    "endingPosition": text,
    "maxRows": count,
    "minRows": count,
    "maxDelay": duration,
    "rowsPerPartition": count,
    "failOnDataLoss": flag,
}
_MAX_ROWS = 200_000
_ROWS_PER_PARTITION = 50_000
_NO_LIMIT = 1 << 62

Offset = dict[str, Any]


@dataclass(frozen=True)
class JournalOptions:
    """The parsed options of a query on the journal."""

    store: StoreAddress
    tenant: str | None
    starting: str | None
    ending: str | None
    max_rows: int
    min_rows: int
    max_delay_ms: int
    rows_per_partition: int
    fails_on_loss: bool


def parse_journal_options(given: Mapping[str, str]) -> JournalOptions:
    """Parse the options of a query on the journal. Raise InvalidArgument for a wrong option."""
    options = parse_options("holdfast_journal", given, OPTIONS)
    if ("minRows" in options) != ("maxDelay" in options):
        raise InvalidArgument(
            "minRows and maxDelay must be given together: wait for minRows rows, but at most for maxDelay"
        )
    return JournalOptions(
        store=parse_store_address("holdfast_journal", options),
        tenant=options.get("tenant"),
        starting=options.get("startingPosition", "earliest"),
        ending=options.get("endingPosition"),
        max_rows=options.get("maxRows", _MAX_ROWS),
        min_rows=options.get("minRows", 1),
        max_delay_ms=options.get("maxDelay", 0),
        rows_per_partition=options.get("rowsPerPartition", _ROWS_PER_PARTITION),
        fails_on_loss=options.get("failOnDataLoss", True),
    )


@dataclass(frozen=True)
class Range(InputPartition):
    """The events after `after` up to `until`, with their number."""

    after: str | None
    until: str
    events: int


class FoundRanges(NamedTuple):
    """Ranges of events after a position."""

    ranges: list[Range]
    # The position up to which was searched. It is after the last range if no more events follow.
    position: str | None

    @property
    def events(self) -> int:
        return sum(each.events for each in self.ranges)


def find_ranges(
    feed: Feed, after: str | None, *, limit: int = _NO_LIMIT, until: str | None = None, step: int
) -> FoundRanges:
    """Divide the events after a position, up to `limit`, into ranges of about `step` events."""
    ranges: list[Range] = []
    start = position = after
    found, left = 0, limit
    while left:
        events, end = feed.measure(position, min(left, step - found), until)
        is_over = end in (position, until)
        if end != position:
            found += events
            left -= events
        position = end
        if found and (found >= step or is_over or not left):
            ranges.append(Range(start, position, found))
            start, found = position, 0
        if is_over:
            break
    return FoundRanges(ranges, position)


def read_range(
    options: JournalOptions, columns: TableSchema, open_feed: OpenFeed, range: Range
) -> Iterator[pa.RecordBatch]:
    """Read a range, on any machine. Raise StoreUnavailable at its end if events were dropped."""
    feed = open_feed(options.store, options.tenant)
    seen = 0
    try:
        for batch in feed.read(range.after, range.until):
            seen += batch.num_rows
            if batch.num_rows:
                yield as_instants(batch, columns)
    finally:
        feed.close()
    if seen != range.events and options.fails_on_loss:
        raise lost_events(f"between {range.after} and {range.until}", seen, range.events)


def lost_events(where: str, found: int, had: int) -> StoreUnavailable:
    """Return the error for a range whose events were dropped before they were read."""
    return StoreUnavailable(
        f"the journal has {found} events {where}, but had {had}: the store's retention dropped the others before "
        "they were read. Increase journal_retention, or set failOnDataLoss to false to continue without them"
    )


class JournalReader(DataSourceReader):
    """A batch read of the journal."""

    def __init__(self, options: JournalOptions, columns: TableSchema, open_feed: OpenFeed) -> None:
        self._options = options
        self._columns = columns
        self._open_feed = open_feed

    def partitions(self) -> list[Range]:
        options = self._options
        feed = self._open_feed(options.store, options.tenant)
        try:
            start = first_position(feed, options)
            ranges = find_ranges(feed, start, until=options.ending, step=options.rows_per_partition).ranges
        finally:
            feed.close()
        return ranges or [Range(None, "", 0)]  # without any partition, Spark would pass None to `read`

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        if partition.events:
            yield from read_range(self._options, self._columns, self._open_feed, partition)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of a query. It runs in a separate process beside the driver, and a copy is sent to each task."""

    def __init__(self, options: JournalOptions, columns: TableSchema, open_feed: OpenFeed) -> None:
        self._options = options
        self._columns = columns
        self._open_feed = open_feed
        self._feed: Feed | None = None
        # The ranges found by `latestOffset`. In a new process they are searched again.
        self._planned: dict[str, list[Range]] = {}
        # A position, and up to where no events were found after it: the events of one tenant may be far apart.
        self._searched: tuple[str | None, str | None] = ("", None)
        self._pending_since: float | None = None
        self._target: str | None = None
        self._latest: Offset | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy only the options to a task, which does not need the connection."""
        return JournalStreamReader, (self._options, self._columns, self._open_feed)

    @property
    def feed(self) -> Feed:
        if self._feed is None:
            self._feed = self._open_feed(self._options.store, self._options.tenant)
        return self._feed

    def initialOffset(self) -> Offset:
        position = first_position(self.feed, self._options)
        return make_offset(position, 0, position)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = end_of(self.feed, None)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        most = _NO_LIMIT if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", self._options.max_rows)
        after = start["position"]
        searched_from, searched_until = self._searched
        found = find_ranges(
            self.feed,
            searched_until if searched_from == after else after,
            limit=most,
            until=self._target,
            step=self._options.rows_per_partition,
        )
        if not found.ranges:
            self._searched = after, found.position
            self._latest = {**start, "behind": 0}
            return start
        end = make_offset(found.ranges[-1].until, start["events"] + found.events, start["from"])
        if self._waits_for_more(found.events):
            self._latest = {**start, "behind": found.events}
            return start
        self._latest = {**end, "behind": self._behind(end["position"])}
        self._pending_since = None
        # Spark asks only for the current batch.
        self._planned = {end["position"]: found.ranges}
        return end

    def _waits_for_more(self, rows: int) -> bool:
        if self._target is not None or rows >= self._options.min_rows:
            return False
        now = steady_s()
        if self._pending_since is None:
            self._pending_since = now
        return (now - self._pending_since) * 1_000 < self._options.max_delay_ms

    def _behind(self, position: str) -> int:
        """Count the events after this batch, at most one page."""
        return self.feed.measure(position, self._options.rows_per_partition, None)[0]

    def reportLatestOffset(self) -> Offset | None:
        return self._latest

    def partitions(self, start: Offset, end: Offset) -> list[Range]:
        planned = self._planned.get(end["position"])
        if planned and sum(each.events for each in planned) == end["events"] - start["events"]:
            return planned
        # Spark does not store the start of the first batch. It calls initialOffset again, where `latest` may differ.
        after = start["position"] if start["events"] else end["from"]
        found = find_ranges(self.feed, after, until=end["position"], step=self._options.rows_per_partition)
        had = end["events"] - start["events"]
        if found.events != had and self._options.fails_on_loss:
            raise lost_events("in this batch", found.events, had)
        return found.ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return read_range(self._options, self._columns, self._open_feed, partition)

    def commit(self, end: Offset) -> None:
        """Do nothing: all state is in the checkpoint."""

    def stop(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None


def make_offset(position: str | None, events: int, first: str | None) -> Offset:
    """Return an offset for a checkpoint. `from` is the position where the query began.

    How to change this format: increase `v`, and keep reading old versions: later releases read existing checkpoints.
    """
    return {"v": 1, "position": position, "events": events, "from": first}


def first_position(feed: Feed, options: JournalOptions) -> str | None:
    """Return the position at which a query begins."""
    match options.starting:
        case "earliest" | None:
            return None
        case "latest":
            return end_of(feed, None)
        case position:
            return position


def end_of(feed: Feed, after: str | None) -> str | None:
    """Return the position of the journal's end."""
    while True:
        _, end = feed.measure(after, _NO_LIMIT, None)
        if end == after:
            return after
        after = end


class JournalSource(DataSource):
    """The source `holdfast_journal`. A subclass sets the function that opens a journal."""

    open_feed: OpenFeed

    @classmethod
    def name(cls) -> str:
        return "holdfast_journal"

    def schema(self) -> str:
        return EVENTS.ddl

    def reader(self, schema: "StructType") -> JournalReader:
        return JournalReader(
            parse_journal_options(self.options), EVENTS.only(schema.fieldNames()), type(self).open_feed
        )

    def streamReader(self, schema: "StructType") -> JournalStreamReader:
        return JournalStreamReader(
            parse_journal_options(self.options), EVENTS.only(schema.fieldNames()), type(self).open_feed
        )
