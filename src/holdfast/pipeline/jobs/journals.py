"""Journals as the jobs read them: in ranges between two positions, which can be read again."""

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
    """A journal that can be archived."""

    def ahead(self, after: str | None, rows: int) -> str | None:
        """Return a position about `rows` events after `after`, or at the end of the journal if that is nearer.

        Return None if there are no events after `after`.
        """
        ...

    def has(self, shard: int, seq: int, after: str) -> bool:
        """Return True if the journal still has the last event of this shard before the position `after`."""
        ...

    def first(self, after: str) -> "dict[int, tuple[int, int]]":
        """Return the number and the time of the first event of each shard in the page after a position."""
        ...

    def frame(self, spark: "SparkSession", after: str | None, until: str) -> "DataFrame":
        """Return the events between two positions. Every call returns the same events."""
        ...


class OpenedJournal:
    """The journal of a store that only this process can have open: it is read here, and passed to Spark."""

    def __init__(self, opened: "Holdfast") -> None:
        self._opened = opened

    def ahead(self, after: str | None, rows: int) -> str | None:
        end, seen = after, 0
        while seen < rows and (page := self._opened.journal(end, min(_PAGE, rows - seen))):
            end, seen = page.next, seen + len(page)
        return end if seen else None

    def has(self, shard: int, seq: int, after: str) -> bool:
        # With one sequence it is the next event. With several databases, events of the others may come before it.
        page = self._opened.journal(_before(after, shard), 1 if "-" not in after else _PAGE)
        return any(each.seq == seq and _part_of(after, each.shard) == shard for each in page)

    def first(self, after: str) -> dict[int, tuple[int, int]]:
        page = self._opened.journal(after, _PAGE)
        return _firsts((_part_of(after, each.shard), each.seq, each.at) for each in page)

    def frame(self, spark: "SparkSession", after: str | None, until: str) -> "DataFrame":
        batches = [events_to_arrow(page) for page in self._pages(after, until)]
        return spark.createDataFrame(pa.Table.from_batches(batches, EVENTS.arrow))

    def _pages(self, after: str | None, until: str) -> "Iterator[JournalEvents]":
        while after != until and (page := self._opened.journal(after, _PAGE)):
            if _is_beyond(page.next, until):
                # The page goes past `until`. Positions cannot be computed, so smaller pages are read until one ends
                # there.
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
    """The journal of a store that Spark's tasks can reach: it is read by the source `holdfast_journal`."""

    def __init__(self, options: Mapping[str, str], open_feed: "OpenFeed") -> None:
        from holdfast.pipeline.sources.journal import parse_journal_options

        self._options = dict(options)
        self._parsed = parse_journal_options(options)
        self._open_feed = open_feed

    def ahead(self, after: str | None, rows: int) -> str | None:
        from holdfast.pipeline.sources.journal import find_ranges

        feed = self._open_feed(self._parsed.store, self._parsed.tenant)
        try:
            ranges = find_ranges(feed, after, limit=rows, step=self._parsed.rows_per_partition).ranges
        finally:
            feed.close()
        return ranges[-1].until if ranges else None

    def has(self, shard: int, seq: int, after: str) -> bool:
        feed = self._open_feed(self._parsed.store, self._parsed.tenant)
        try:
            # Only that event is between the two positions.
            return feed.measure(_before(after, shard), 1, after)[0] == 1
        finally:
            feed.close()

    def first(self, after: str) -> dict[int, tuple[int, int]]:
        feed = self._open_feed(self._parsed.store, self._parsed.tenant)
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
    """Return True if some part of a position is after that part of the other. A position has one number per shard."""
    here, there = ([int(part) for part in each.split("-")] for each in (position, until))
    width = max(len(here), len(there))
    here += [0] * (width - len(here))
    there += [0] * (width - len(there))
    return any(a > b for a, b in zip(here, there, strict=True))


def position_numbers(position: str) -> list[int]:
    """Return the number of the last event of each database, or of the store if it has one sequence."""
    return [int(part) for part in position.split("-")]


def _before(position: str, shard: int) -> str:
    return "-".join(str(number - (at == shard)) for at, number in enumerate(position_numbers(position)))


def _part_of(position: str, shard: int) -> int:
    """Return the part of a position that counts an event: its database's, or the only part of one sequence."""
    return shard if "-" in position else 0


def _firsts(
    events: Iterable[tuple[int, int, int]], found: dict[int, tuple[int, int]] | None = None
) -> dict[int, tuple[int, int]]:
    found = found or {}
    for part, seq, at in events:
        if part not in found or seq < found[part][0]:
            found[part] = seq, at
    return found


def events_to_arrow(events: "list[Any]") -> pa.RecordBatch:
    """Convert events to a batch with the columns of `EVENTS`."""
    columns = []
    for field in EVENTS.fields:
        values = [getattr(event, field.name) for event in events]
        if field.type == INSTANT:
            columns.append(pa.array(values, pa.timestamp("ms", tz="UTC")).cast(INSTANT))
        else:
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=EVENTS.arrow)
