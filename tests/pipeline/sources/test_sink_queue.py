"""`holdfast` as a sink: every row once, however often and by whomever it is written."""

import json
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle

import holdfast
from holdfast.client.options import make_drafts as client_drafts_of
from holdfast.pipeline.sources.drafts import is_plain, make_drafts, make_messages, make_row_shape, make_rows
from holdfast.pipeline.sources.options import StoreAddress
from holdfast.pipeline.sources.queue import QueueSource
from holdfast.pipeline.sources.sink import ClientMessageWriter, WriteOptions, write_rows
from holdfast.server.bulk import open_client, open_writer
from holdfast.stores.postgres.bulk.bulk_messages import check_rows
from holdfast.stores.postgres.bulk.loader import Loader
from tests.pipeline.sources.test_journal import forget_commits
from tests.postgres.server import PostgresServer
from tests.server.served import Served


def frame_of(spark: Any, rows: int, partitions: int) -> Any:
    return spark.range(0, rows, 1, partitions).selectExpr("concat('m', id) AS payload", "concat('k', id) AS key")


def save(frame: Any, served: Served, queue: str, **options: Any) -> None:
    frame.write.format("holdfast").mode("append").options(url=served.url, queue=queue, **options).save()


def payloads(hf: holdfast.Holdfast, queue: str) -> list[bytes]:
    q, found, cursor = hf.queue(queue), list[bytes](), None
    while True:
        page = q.list(limit=10_000, cursor=cursor, payload=True)
        found += [each.payload or b"" for each in page]
        cursor = page.cursor
        if cursor is None:
            return sorted(found)


def expected(rows: int) -> list[bytes]:
    return sorted(f"m{n}".encode() for n in range(rows))


class DyingWriter(ClientMessageWriter):
    """The first attempt of each task ends after it has written everything, but before it has reported it."""

    def close(self) -> None:
        super().close()
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("killed after it had written")


class DyingSink(QueueSource):
    open_writer = staticmethod(partial(DyingWriter, open_client))

    @classmethod
    def name(cls) -> str:
        return "holdfast_dying"


@pytest.mark.spec("9.4")
def test_a_task_that_is_tried_again_after_it_wrote_adds_nothing_and_loses_nothing(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str, tmp_path: Path
) -> None:
    # The workers do not have the tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(DyingSink)
    writer = frame_of(spark, 2_000, 3).write.format("holdfast_dying").mode("append")
    writer.options(url=served.url, queue=queue_name, countsFile=tmp_path / "counts").save()

    assert payloads(hf, queue_name) == expected(2_000)
    [told] = [json.loads(line) for line in (tmp_path / "counts").read_text().splitlines()]
    assert told["rows"] == 2_000
    assert told["enqueued"] == 0  # by the attempts that came through: the others had written all of it


@pytest.mark.spec("9.4")
def test_a_job_run_again_with_other_partitions_and_two_at_once_add_nothing(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    def job(partitions: int) -> None:
        # Sources are looked up in the session of the thread, and only the first thread has one.
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
        save(frame_of(spark, 2_000, partitions), served, queue_name)

    jobs = [threading.Thread(target=job, args=(partitions,)) for partitions in (2, 5)]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join()
    save(frame_of(spark, 2_000, 3).repartition(4), served, queue_name)

    assert payloads(hf, queue_name) == expected(2_000)


@pytest.mark.spec("9.4")
def test_two_attempts_of_one_task_at_once_write_each_row_once(
    served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    """This is what speculation does, with the rows in opposite order."""
    table = pa.table({"payload": [f"m{n}" for n in range(3_000)], "key": [f"k{n}" for n in range(3_000)]})
    shape = make_row_shape(table.schema, tenant=None, queue=queue_name, key_columns=(), dedup=True, content_type=None)
    options = WriteOptions(StoreAddress(served.url), shape, 200, None)
    orders = [table, table.take(list(range(2_999, -1, -1)))]
    written: list[int] = []

    def attempt(order: pa.Table) -> None:
        written.append(write_rows(options, open_writer, order.to_batches(max_chunksize=500)).enqueued)

    attempts = [threading.Thread(target=attempt, args=(order,)) for order in orders]
    for each in attempts:
        each.start()
    for each in attempts:
        each.join()

    assert sum(written) == 3_000
    assert payloads(hf, queue_name) == expected(3_000)


class DyingLoader(Loader):
    """A loader whose first attempt of each task fails after it has committed all rows."""

    def close(self) -> None:
        super().close()
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("killed after it had written")


def open_dying_loader(place: StoreAddress) -> DyingLoader:
    return DyingLoader(place.databases, max_payload=1 << 20)


class DyingLoad(QueueSource):
    open_writer = staticmethod(open_dying_loader)

    @classmethod
    def name(cls) -> str:
        return "holdfast_dying_load"


def test_a_load_into_databases_survives_dying_tasks_other_partitions_and_two_jobs_at_once(
    spark: Any, postgres: PostgresServer, tmp_path: Path
) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(DyingLoad)
    urls = ",".join(postgres.make_databases("sink_a", "sink_b"))

    def save(format: str, partitions: int, counts: str) -> None:
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
        frame = frame_of(spark, 3_000, partitions).selectExpr("*", "concat('q', length(payload)) AS queue")
        writer = frame.repartition(partitions).write.format(format).mode("append")
        writer.options(url=urls, batchSize=400, countsFile=tmp_path / counts).save()

    def told(counts: str) -> tuple[int, int]:
        [line] = [json.loads(each) for each in (tmp_path / counts).read_text().splitlines()]
        return line["rows"], line["enqueued"]

    jobs = [threading.Thread(target=save, args=("holdfast_dying_load", n, f"dying{n}")) for n in (2, 3)]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join()
    save("holdfast", 5, "again")

    assert told("dying2") == told("dying3") == told("again") == (3_000, 0)
    with holdfast.open(urls) as hf:
        found = [payload for length in range(2, 6) for payload in payloads(hf, f"q{length}")]
        assert sorted(found) == expected(3_000)
        assert sum(hf.queue(f"q{length}").stats().ready for length in range(2, 6)) == 3_000


@pytest.mark.spec("9.4")
def test_a_stream_writes_each_row_once_even_if_a_batch_is_run_again(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str, tmp_path: Path
) -> None:
    frame_of(spark, 500, 2).write.parquet(str(tmp_path / "in"))
    frame_of(spark, 500, 1).selectExpr("payload", "concat(key, 'b') AS key").write.mode("append").parquet(
        str(tmp_path / "in")
    )

    def run() -> None:
        source = spark.readStream.schema("payload string, key string").option("maxFilesPerTrigger", 1)
        writer = source.parquet(str(tmp_path / "in")).writeStream.format("holdfast")
        writer = writer.options(url=served.url, queue=queue_name, countsFile=tmp_path / "counts")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    run()
    forget_commits(tmp_path / "checkpoint", 2)  # as if the driver had been killed before it wrote that
    run()

    assert payloads(hf, queue_name) == sorted([*expected(500), *expected(500)])
    told = [json.loads(line) for line in (tmp_path / "counts").read_text().splitlines()]
    assert [each["batch"] for each in told] == [0, 1, 2, 2]
    assert told[-1]["enqueued"] == 0


def test_a_message_has_what_its_row_says(spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str) -> None:
    frame = spark.sql(
        "SELECT to_json(struct(7 AS n)) AS payload, 'k' AS key, 'application/json' AS content_type, 3 AS priority, "
        "map('a', 'b') AS headers, 'c-1' AS correlation_id, 'g' AS group, 3600000L AS delay_ms, 2 AS max_retries, "
        "'acme' AS tenant"
    )
    save(frame, served, queue_name)

    [found] = hf.queue(queue_name, tenant="acme").list(payload=True)
    assert (found.payload, found.is_json, found.priority, found.headers) == (b'{"n":7}', True, 3, {"a": "b"})
    assert (found.correlation_id, found.group) == ("c-1", "g")
    assert found.visible_at - found.enqueued_at == 3_600_000


SHAPE = {"tenant": None, "queue": None, "key_columns": (), "dedup": True, "content_type": None}


@pytest.mark.parametrize(
    ("schema", "changes", "said"),
    [
        ({"payload": pa.string()}, {}, "a retried task would enqueue its rows again: give a column key"),
        ({"key": pa.string()}, {}, "column payload is missing among key"),
        ({"payload": pa.int64()}, {}, "column payload is int64"),
        (
            {"payload": pa.string(), "n": pa.int64()},
            {"key_columns": ("m",)},
            "keyColumns has 'm', which is not one of the columns",
        ),
        ({"payload": pa.string(), "key": pa.string(), "n": pa.int64()}, {}, "'n' is not a column of messages"),
        ({"payload": pa.string(), "key": pa.string()}, {"key_columns": ("payload",)}, "exclude each other"),
    ],
)
def test_what_is_wrong_with_the_columns_is_said_before_a_row_is_written(
    schema: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(holdfast.InvalidArgument, match=said):
        make_row_shape(pa.schema(list(schema.items())), **{**SHAPE, **changes})


@pytest.mark.spec("9.4")
def test_without_keys_a_write_is_refused_in_spark_too_unless_messages_may_come_twice(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    frame = frame_of(spark, 10, 1).select("payload")
    with pytest.raises(Exception, match="give a column key or keyColumns"):
        save(frame, served, queue_name)
    save(frame, served, queue_name, dedup="false")
    assert payloads(hf, queue_name) == expected(10)


def test_keys_of_columns_depend_on_every_value_and_its_kind_alone() -> None:
    def keys(*columns: pa.Array) -> list[str]:
        names = [f"c{n}" for n in range(len(columns))]
        batch = pa.RecordBatch.from_arrays([pa.array([b"x"] * len(columns[0])), *columns], ["payload", *names])
        shape = make_row_shape(batch.schema, **{**SHAPE, "key_columns": tuple(names)})
        return [message.options["key"] for _, message in make_messages(batch, shape)]

    assert keys(pa.array(["ab"]), pa.array(["c"])) != keys(pa.array(["a"]), pa.array(["bc"]))
    assert keys(pa.array([1])) != keys(pa.array(["1"]))
    assert keys(pa.array([None, "x"]))[1] == keys(pa.array(["x"]))[0]
    assert len(set(keys(pa.array([1.0, 0.1, None])))) == 3


def test_a_row_without_a_key_or_a_payload_is_refused() -> None:
    for columns in ({"payload": [b"x"], "key": [None]}, {"payload": [None], "key": ["k"]}):
        batch = pa.RecordBatch.from_pydict(columns, schema=pa.schema([("payload", pa.binary()), ("key", pa.string())]))
        for make in (make_messages, make_drafts, make_rows):
            with pytest.raises(holdfast.InvalidArgument, match="a row"):
                list(make(batch, make_row_shape(batch.schema, **SHAPE)))


@pytest.mark.parametrize("rare", [{}, {"group": ["g", None, "h"], "ttl_ms": [None, 5, 6]}], ids=["plain", "rare"])
@pytest.mark.parametrize("is_text", [True, False], ids=["text", "bytes"])
@pytest.mark.parametrize("content_type", [None, "application/json", "x/y"])
def test_rows_for_a_bulk_load_are_the_drafts_that_the_client_would_make(
    rare: dict[str, Any], is_text: bool, content_type: str | None
) -> None:
    payloads = [' {"a": 1}', "2", "[]"]
    batch = pa.RecordBatch.from_pydict(
        {
            "payload": payloads if is_text else [each.encode() for each in payloads],
            "tenant": ["acme", None, "acme"],
            "priority": pa.array([None, 1, 2], pa.int32()),
            "content_type": pa.array([None, "application/json", "a/b"]),
            "n": [1, 2, 3],
            **{name: pa.array(values) for name, values in rare.items()},
        }
    )
    shape = make_row_shape(batch.schema, **{**SHAPE, "key_columns": ("n", "payload"), "content_type": content_type})

    by_client = [(ref, *client_drafts_of(message, {})) for ref, message in make_messages(batch, shape)]
    assert list(make_drafts(batch, shape)) == by_client
    assert len({draft.key for _, draft in by_client}) == 3
    if is_plain(shape):
        by_column = check_rows(make_rows(batch, shape), 1 << 20).drafts()
        assert by_column == {ref: [draft for its, draft in by_client if its == ref] for ref, _ in by_client}
    else:
        assert rare


def test_a_bulk_has_as_many_rows_and_bytes_as_suit_a_transaction_whatever_sparks_batches_have() -> None:
    shape = make_row_shape(pa.schema([("payload", pa.binary()), ("key", pa.string())]), **SHAPE)

    class Recording:
        def __init__(self) -> None:
            self.bulks: list[list[bytes]] = []

        def load(self, drafts: Any) -> int:
            raise AssertionError("plain rows go by column")

        def load_rows(self, rows: pa.RecordBatch) -> int:
            self.bulks.append(rows.column("payload").to_pylist())
            return int(rows.num_rows)

        def close(self) -> None: ...

    def loaded(payloads: list[bytes], of: int, batch_size: int | None) -> list[list[bytes]]:
        table = pa.table({"payload": payloads, "key": [str(n) for n in range(len(payloads))]})
        recording = Recording()
        written = write_rows(
            WriteOptions(StoreAddress("postgres://x"), shape, batch_size, None),
            lambda place: recording,
            table.to_batches(max_chunksize=of),
        )
        assert written.rows == written.enqueued == len(payloads)
        assert [each for bulk in recording.bulks for each in bulk] == payloads
        return recording.bulks

    small = [b"%d" % n for n in range(25)]
    assert [len(bulk) for bulk in loaded(small, 4, 10)] == [10, 10, 5]
    assert [len(bulk) for bulk in loaded(small, 25, 10)] == [10, 10, 5]
    assert [len(bulk) for bulk in loaded(small, 3, None)] == [25]
    large = [bytes(6 << 20) for _ in range(7)]
    assert [len(bulk) for bulk in loaded(large, 2, None)] == [3, 3, 1]
    assert [len(bulk) for bulk in loaded([bytes(20 << 20), b"x"], 2, None)] == [1, 1]
