"""The sources on a store itself: PostgreSQL databases, and the directory of a backup."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import holdfast
from holdfast.pipeline.schemas import EVENTS, MESSAGES, as_instants
from holdfast.pipeline.sources.claims import Claim, ClaimStreamReader, parse_stream_options
from holdfast.pipeline.sources.drafts import make_row_shape
from holdfast.pipeline.sources.journal import end_of, find_ranges
from holdfast.pipeline.sources.options import StoreAddress
from holdfast.pipeline.sources.sink import WriteOptions, write_rows
from holdfast.server.bulk import open_client, open_feed, open_writer
from tests.postgres.server import PostgresServer
from tests.server.served import Served


@pytest.fixture
def databases(postgres: PostgresServer) -> Iterator[str]:
    urls = postgres.make_databases("spark_a", "spark_b")
    yield ",".join(urls)
    postgres.empty(urls)


def make_traffic(hf: holdfast.Holdfast) -> list[str]:
    """Several tenants and queues, each event there is but a few; answers the ids in order."""
    ids = []
    for tenant in ("acme", "umbrella"):
        for queue in ("a", "b", "c"):
            q = hf.queue(queue, tenant=tenant)
            ids += q.enqueue([f"{queue}{n}".encode() for n in range(7)], correlation_id=f"c-{queue}")
            first, second, third = q.claim(limit=3, lease="1h")
            first.ack()
            second.nack("no \x00 way", final=True)
            third.extend("2h")
    return [str(each) for each in ids]


def events_of(place: StoreAddress, *, tenant: str | None = None, step: int = 10) -> list[dict[str, Any]]:
    feed = open_feed(place, tenant)
    try:
        ranges = find_ranges(feed, None, step=step).ranges
        assert all(each.events <= step for each in ranges)
        found = []
        for each in ranges:
            rows = [
                row for batch in feed.read(each.after, each.until) for row in as_instants(batch, EVENTS).to_pylist()
            ]
            assert len(rows) == each.events
            found += rows
        return found
    finally:
        feed.close()


def as_rows(events: list[Any]) -> list[dict[str, Any]]:
    rows = [{name: getattr(event, name) for name in EVENTS.columns} for event in events]
    for row in rows:
        row["event"] = str(row["event"])
        for name in ("at", "enqueued_at", "claimed_at"):
            row[name] = None if row[name] is None else pa.scalar(row[name], pa.timestamp("ms", tz="UTC")).as_py()
    return rows


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["shard"], row["seq"]))


def test_the_journal_of_databases_is_what_the_client_reads_there(databases: str) -> None:
    with holdfast.open(databases) as hf:
        make_traffic(hf)
        told = as_rows(hf.journal(limit=10_000))
        place = StoreAddress(databases)

        assert in_order(events_of(place)) == in_order(told)
        assert {row["shard"] for row in told} == {0, 1}
        assert in_order(events_of(place, tenant="acme")) == in_order([row for row in told if row["tenant"] == "acme"])


def test_a_range_of_databases_is_the_same_whatever_comes_later(databases: str) -> None:
    with holdfast.open(databases) as hf:
        make_traffic(hf)
        feed = open_feed(StoreAddress(databases), None)
        end = end_of(feed, None)
        assert end is not None
        before = [batch.to_pylist() for batch in feed.read(None, end)]
        make_traffic(hf)

        assert [batch.to_pylist() for batch in feed.read(None, end)] == before
        assert sum(each.events for each in find_ranges(feed, None, until=end, step=9).ranges) == sum(map(len, before))
        feed.close()


def test_a_position_of_the_client_is_one_of_the_feed_and_the_other_way_round(databases: str) -> None:
    with holdfast.open(databases) as hf:
        make_traffic(hf)
        position = hf.journal(limit=10_000).next
        ids = make_traffic(hf)
        feed = open_feed(StoreAddress(databases), None)
        end = end_of(feed, position)
        assert end is not None

        rows = [row for batch in feed.read(position, end) for row in batch.to_pylist()]

        assert sorted(row["id"] for row in rows if row["event"] == "enqueued") == sorted(ids)
        assert hf.journal(end) == []
        feed.close()


def test_a_server_over_databases_gives_a_range_again_exactly(databases: str) -> None:
    """With several databases, a page's end depends on the time of reading; so a range is requested by its end."""
    with Served("--store", databases) as served, holdfast.open(served.url) as hf:
        make_traffic(hf)
        feed = open_feed(StoreAddress(served.url), None)
        walked = find_ranges(feed, None, step=10)
        before = [[batch.to_pylist() for batch in feed.read(each.after, each.until)] for each in walked.ranges]
        make_traffic(hf)

        assert [[batch.to_pylist() for batch in feed.read(each.after, each.until)] for each in walked.ranges] == before
        assert find_ranges(feed, None, until=walked.position, step=7).events == walked.events
        assert [row["id"] for pages in before for page in pages for row in page] != []
        feed.close()
        position = walked.position
        assert position is not None
        direct = open_feed(StoreAddress(databases), None)
        rows = [row for batch in direct.read(None, position) for row in batch.to_pylist()]
        direct.close()
        assert in_order(rows) == in_order([row for pages in before for page in pages for row in page])


def test_a_store_that_is_named_in_part_is_refused(databases: str) -> None:
    with holdfast.open(databases) as hf:
        make_traffic(hf)
    with pytest.raises(holdfast.InvalidArgument, match="name each shard once"):
        open_feed(StoreAddress(databases.split(",")[1]), None)


def test_databases_are_claimed_from_and_written_to_without_a_server(databases: str) -> None:
    table = pa.table({"payload": [f"m{n}" for n in range(40)], "key": [f"k{n}" for n in range(40)]})
    shape = make_row_shape(table.schema, tenant=None, queue="in", key_columns=(), dedup=True, content_type=None)
    options = WriteOptions(StoreAddress(databases), shape, 15, None)
    assert write_rows(options, open_writer, table.to_batches()).enqueued == 40
    assert write_rows(options, open_writer, table.to_batches()).enqueued == 0
    options = parse_stream_options({"url": databases, "queue": "in", "consumer": "spark", "rowsPerPartition": "30"})

    reader = ClaimStreamReader(options, MESSAGES, open_client)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(1_000))
    rows = [row for number in end["claims"] for batch in reader.read(Claim(number)) for row in batch.to_pylist()]

    assert sorted(row["payload"] for row in rows) == sorted(f"m{n}".encode() for n in range(40))
    assert reader.latestOffset(end, ReadMaxRows(1_000)) == end
    reader.stop()
    with holdfast.open(databases) as hf:
        assert hf.queue("in").stats().in_flight == 0


def test_a_backup_is_read_in_many_processes_while_its_store_is_in_use(spark: Any, tmp_path: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    with holdfast.open(str(store), durability="os") as hf:
        ids = make_traffic(hf)
        large = hf.queue("a", tenant="acme").enqueue(b"x" * 700_000)[0]
        told = as_rows(hf.journal(limit=10_000))
        hf.backup(str(copy))
        with pytest.raises(holdfast.StoreUnavailable, match=r"is in use by process .*holdfast backup"):
            open_feed(StoreAddress(str(store)), None)

        journal = spark.read.format("holdfast_journal").options(url=str(copy), rowsPerPartition=11).load()
        messages = spark.read.format("holdfast").options(url=str(copy), tenant="*", queue="*")

        assert in_order(events_of(StoreAddress(str(copy)))) == in_order(told)
        assert journal.count() == len(told)
        rows = messages.load().collect()
        assert {row.id for row in rows} == {*ids, large} - {ids[n] for n in range(0, len(ids), 7)}
        assert [len(row.payload) for row in rows if row.id == large] == [700_000]
        failed = messages.option("state", "failed").load().collect()
        assert [(row.error, row.failures) for row in failed] == [("no \x00 way", 1)] * 6
        with hf.queue("b", tenant="acme").claim()[0]:
            pass


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(holdfast.InvalidArgument, match="holds no store"):
        open_feed(StoreAddress(str(tmp_path)), None)
    with pytest.raises(holdfast.InvalidArgument, match="has no journal"):
        open_feed(StoreAddress("ftp://x"), None)
    with pytest.raises(holdfast.InvalidArgument, match="cannot be shared by Spark's processes"):
        open_client(StoreAddress(str(tmp_path)))
