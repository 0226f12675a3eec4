"""A journal as the jobs read it: by ranges between two positions, each of which can be read again."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from holdfast.pipeline.schemas import EVENTS, INSTANT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.client.blocking import Holdfast
    from holdfast.model.answers import JournalEvents
    from holdfast.pipeline.sources.feed import OpenFeed

_PAGE = 10_000


class ArchiveJournal(Protocol):
    def ahead(self, after: str | None, rows: int) -> str | None:
        """A position about so many events further, or at the end if that is nearer; None if nothing came."""
        ...

    def has(self, shard: int, seq: int, after: str) -> bool:
        """Whether the event that a position ends with, of this shard, is still kept."""
        ...

    def first(self, after: str) -> "dict[int, tuple[int, int]]":
        """Of the events behind a position, the first of each shard that a page shows: its number and its time."""
        ...

    def frame(self, spark: "SparkSession", after: str | None, until: str) -> "DataFrame":
        """The events between two positions, as often as asked: the same ones each time."""
        ...


class OpenedJournal:
    """The journal of what `holdfast.open` answered, read here and handed to Spark: for a store that only one process
    can have open."""

    def __init__(self, opened: "Holdfast") -> None:
        self._opened = opened

    def ahead(self, after: str | None, rows: int) -> str | None:
        end, seen = after, 0
        while seen < rows and (page := self._opened.journal(end, min(_PAGE, rows - seen))):
            end, seen = page.next, seen + len(page)
        return end if seen else None

    def has(self, shard: int, seq: int, after: str) -> bool:
        # Of one sequence it is the next; of several databases the others' events may come before it.
        page = self._opened.journal(_before(after, shard), 1 if "-" not in after else _PAGE)
        return any(each.seq == seq and _part_of(after, each.shard) == shard for each in page)

    def first(self, after: str) -> dict[int, tuple[int, int]]:
        page = self._opened.journal(after, _PAGE)
        return _firsts((_part_of(after, each.shard), each.seq, each.at) for each in page)

    def frame(self, spark: "SparkSession", after: str | None, until: str) -> "DataFrame":
        batches = [arrow_of(page) for page in self._pages(after, until)]
        return spark.createDataFrame(pa.Table.from_batches(batches, EVENTS.arrow))

    def _pages(self, after: str | None, until: str) -> "Iterator[JournalEvents]":
        while after != until and (page := self._opened.journal(after, _PAGE)):
            if _is_beyond(page.next, until):
                # Positions cannot be taken apart here: the pages shrink until one ends there.
                yield from self._last_pages(after, until)
                return
            yield page
            after = page.next

    def _last_pages(self, after: str | None, until: str) -> "Iterator[JournalEvents]":
        size = _PAGE
        while after != until and size:
            page = self._opened.journal(after, size)
            if not page:
                return
            if _is_beyond(page.next, until):
                size //= 2
                continue
            yield page
            after = page.next


class SourceJournal:
    """The journal as the source `holdfast_journal` reads it: in many tasks at once, wherever they run."""

    def __init__(self, options: Mapping[str, str], open_feed: "OpenFeed") -> None:
        from holdfast.pipeline.sources.journal import ask_of

        self._options = dict(options)
        self._ask = ask_of(options)
        self._open_feed = open_feed

    def ahead(self, after: str | None, rows: int) -> str | None:
        from holdfast.pipeline.sources.journal import walk

        feed = self._open_feed(self._ask.place, self._ask.tenant)
        try:
            ranges = walk(feed, after, limit=rows, step=self._ask.rows_per_partition).ranges
        finally:
            feed.close()
        return ranges[-1].until if ranges else None

    def has(self, shard: int, seq: int, after: str) -> bool:
        feed = self._open_feed(self._ask.place, self._ask.tenant)
        try:
            # That event alone lies between the two.
            return feed.measure(_before(after, shard), 1, after)[0] == 1
        finally:
            feed.close()

    def first(self, after: str) -> dict[int, tuple[int, int]]:
        feed = self._open_feed(self._ask.place, self._ask.tenant)
        try:
            events, until = feed.measure(after, _PAGE, None)
            found: dict[int, tuple[int, int]] = {}
            for batch in feed.read(after, until) if events else ():
                columns = (batch.column(name).to_pylist() for name in ("shard", "seq", "at"))
                rows = ((_part_of(after, shard), seq, at) for shard, seq, at in zip(*columns, strict=True))
                found = _firsts(rows, found)
            return found
        finally:
            feed.close()

    def frame(self, spark: "SparkSession", after: str | None, until: str) -> "DataFrame":
        reader = spark.read.format("holdfast_journal").options(**self._options).option("endingPosition", until)
        return (reader if after is None else reader.option("startingPosition", after)).load()


def _is_beyond(position: str, until: str) -> bool:
    """Positions are numbers, one for each shard; some part of it lies behind the other's."""
    here, there = ([int(part) for part in each.split("-")] for each in (position, until))
    width = max(len(here), len(there))
    here += [0] * (width - len(here))
    there += [0] * (width - len(there))
    return any(a > b for a, b in zip(here, there, strict=True))


def numbers_of(position: str) -> list[int]:
    """The number of the last event of each part: of each database, or of the store."""
    return [int(part) for part in position.split("-")]


def _before(position: str, shard: int) -> str:
    return "-".join(str(number - (at == shard)) for at, number in enumerate(numbers_of(position)))


def _part_of(position: str, shard: int) -> int:
    """Whose number an event's is: its database's, or the store's, which has one for all its shards."""
    return shard if "-" in position else 0


def _firsts(
    events: Iterable[tuple[int, int, int]], found: dict[int, tuple[int, int]] | None = None
) -> dict[int, tuple[int, int]]:
    found = found or {}
    for part, seq, at in events:
        if part not in found or seq < found[part][0]:
            found[part] = seq, at
    return found


def arrow_of(events: "list[Any]") -> pa.RecordBatch:
    columns = []
    for field in EVENTS.fields:
        values = [getattr(event, field.name) for event in events]
        if field.type == INSTANT:
            columns.append(pa.array(values, pa.timestamp("ms", tz="UTC")).cast(INSTANT))
        else:
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=EVENTS.arrow)
