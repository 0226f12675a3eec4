"""The journal as a source: a log, so a micro-batch can be read again exactly.

An offset holds a position and how many events lie before it. The count is what tells a range that has lost events,
because the store's retention passed over it, from one that never had more.
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
from holdfast.pipeline.sources.options import PLACE, StoreAddress, count, duration, flag, parse_options, place_of, text

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTIONS = {
    **PLACE,
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
    """What a query wants of the journal: its options, parsed."""

    place: StoreAddress
    tenant: str | None
    starting: str | None
    ending: str | None
    max_rows: int
    min_rows: int
    max_delay_ms: int
    rows_per_partition: int
    fails_on_loss: bool


def ask_of(given: Mapping[str, str]) -> JournalOptions:
    options = parse_options("holdfast_journal", given, OPTIONS)
    if ("minRows" in options) != ("maxDelay" in options):
        raise InvalidArgument("minRows and maxDelay go together: the one says what to wait for, the other how long")
    return JournalOptions(
        place=place_of("holdfast_journal", options),
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
    """Events behind `after` up to `until`: `events` of them."""

    after: str | None
    until: str
    events: int


class Walk(NamedTuple):
    ranges: list[Range]
    # How far was looked: behind the last range, if there was nothing more.
    position: str | None

    @property
    def events(self) -> int:
        return sum(each.events for each in self.ranges)


def walk(feed: Feed, after: str | None, *, limit: int = _NO_LIMIT, until: str | None = None, step: int) -> Walk:
    """The events behind a position, up to `limit` of them, in ranges of about `step`."""
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
    return Walk(ranges, position)


def read_range(
    ask: JournalOptions, columns: TableSchema, open_feed: OpenFeed, range: Range
) -> Iterator[pa.RecordBatch]:
    """On whichever machine. One that has lost events fails, at its end."""
    feed = open_feed(ask.place, ask.tenant)
    seen = 0
    try:
        for batch in feed.read(range.after, range.until):
            seen += batch.num_rows
            if batch.num_rows:
                yield as_instants(batch, columns)
    finally:
        feed.close()
    if seen != range.events and ask.fails_on_loss:
        raise lost_events(f"between {range.after} and {range.until}", seen, range.events)


def lost_events(where: str, found: int, had: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"the journal has {found} events {where}, and had {had}: the store's retention passed over the others before "
        "they were read. Raise journal_retention, or set failOnDataLoss to false to go on without them"
    )


class JournalReader(DataSourceReader):
    def __init__(self, ask: JournalOptions, columns: TableSchema, open_feed: OpenFeed) -> None:
        self._ask = ask
        self._columns = columns
        self._open_feed = open_feed

    def partitions(self) -> list[Range]:
        ask = self._ask
        feed = self._open_feed(ask.place, ask.tenant)
        try:
            start = first_position(feed, ask)
            ranges = walk(feed, start, until=ask.ending, step=ask.rows_per_partition).ranges
        finally:
            feed.close()
        return ranges or [Range(None, "", 0)]  # of no partitions at all Spark makes one of None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        if partition.events:
            yield from read_range(self._ask, self._columns, self._open_feed, partition)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of its own beside the driver, as long as the query. A copy of it goes to each task."""

    def __init__(self, ask: JournalOptions, columns: TableSchema, open_feed: OpenFeed) -> None:
        self._ask = ask
        self._columns = columns
        self._open_feed = open_feed
        self._feed: Feed | None = None
        # Found when the batch was admitted: read again if the process is a new one.
        self._planned: dict[str, list[Range]] = {}
        # Behind an offset nothing was found up to here: a tenant's events may lie far apart.
        self._looked_through: tuple[str | None, str | None] = ("", None)
        self._pending_since: float | None = None
        self._target: str | None = None
        self._latest: Offset | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A task reads ranges and needs no more: no connection goes along."""
        return JournalStreamReader, (self._ask, self._columns, self._open_feed)

    @property
    def feed(self) -> Feed:
        if self._feed is None:
            self._feed = self._open_feed(self._ask.place, self._ask.tenant)
        return self._feed

    def initialOffset(self) -> Offset:
        position = first_position(self.feed, self._ask)
        return offset_of(position, 0, position)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._ask.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = end_of(self.feed, None)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        most = _NO_LIMIT if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", self._ask.max_rows)
        after = start["position"]
        came_from, looked_through = self._looked_through
        walked = walk(
            self.feed,
            looked_through if came_from == after else after,
            limit=most,
            until=self._target,
            step=self._ask.rows_per_partition,
        )
        if not walked.ranges:
            self._looked_through = after, walked.position
            self._latest = {**start, "behind": 0}
            return start
        end = offset_of(walked.ranges[-1].until, start["events"] + walked.events, start["from"])
        if self._waits_for_more(walked.events):
            self._latest = {**start, "behind": walked.events}
            return start
        self._latest = {**end, "behind": self._behind(end["position"])}
        self._pending_since = None
        # Only the batch under way can be asked for.
        self._planned = {end["position"]: walked.ranges}
        return end

    def _waits_for_more(self, rows: int) -> bool:
        if self._target is not None or rows >= self._ask.min_rows:
            return False
        now = steady_s()
        if self._pending_since is None:
            self._pending_since = now
        return (now - self._pending_since) * 1_000 < self._ask.max_delay_ms

    def _behind(self, position: str) -> int:
        """Events that are there and not in this batch, as far as one step sees."""
        return self.feed.measure(position, self._ask.rows_per_partition, None)[0]

    def reportLatestOffset(self) -> Offset | None:
        return self._latest

    def partitions(self, start: Offset, end: Offset) -> list[Range]:
        planned = self._planned.get(end["position"])
        if planned and sum(each.events for each in planned) == end["events"] - start["events"]:
            return planned
        # Of the first batch Spark does not keep the start: it asks for it anew, and `latest` is then another.
        after = start["position"] if start["events"] else end["from"]
        walked = walk(self.feed, after, until=end["position"], step=self._ask.rows_per_partition)
        had = end["events"] - start["events"]
        if walked.events != had and self._ask.fails_on_loss:
            raise lost_events("in this batch", walked.events, had)
        return walked.ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return read_range(self._ask, self._columns, self._open_feed, partition)

    def commit(self, end: Offset) -> None:
        """Nothing to do: the checkpoint is all the state there is."""

    def stop(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None


def offset_of(position: str | None, events: int, first: str | None) -> Offset:
    """Read by later releases from checkpoints: `v` is raised with its shape. `from` is where the query began."""
    return {"v": 1, "position": position, "events": events, "from": first}


def first_position(feed: Feed, ask: JournalOptions) -> str | None:
    match ask.starting:
        case "earliest" | None:
            return None
        case "latest":
            return end_of(feed, None)
        case position:
            return position


def end_of(feed: Feed, after: str | None) -> str | None:
    """Where the journal ends now."""
    while True:
        _, end = feed.measure(after, _NO_LIMIT, None)
        if end == after:
            return after
        after = end


class JournalSource(DataSource):
    """Subclassed where the stores are known."""

    open_feed: OpenFeed

    @classmethod
    def name(cls) -> str:
        return "holdfast_journal"

    def schema(self) -> str:
        return EVENTS.ddl

    def reader(self, schema: "StructType") -> JournalReader:
        return JournalReader(ask_of(self.options), EVENTS.only(schema.fieldNames()), type(self).open_feed)

    def streamReader(self, schema: "StructType") -> JournalStreamReader:
        return JournalStreamReader(ask_of(self.options), EVENTS.only(schema.fieldNames()), type(self).open_feed)
