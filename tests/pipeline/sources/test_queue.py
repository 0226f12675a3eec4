"""`holdfast` as a source: claimed as a stream, looked at in batches."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import holdfast
from holdfast.pipeline.schemas import MESSAGES
from holdfast.pipeline.sources.claims import Claim, ClaimStreamReader, parse_stream_options
from holdfast.server.bulk import open_client
from tests.server.served import Served
from tests.waiting import wait_until

LIMIT = ReadMaxRows(1_000)


def reader_of(served: Served, queue: str, consumer: str = "spark", **options: str) -> ClaimStreamReader:
    """Return a reader like that of the process beside the driver, without Spark."""
    options = parse_stream_options({"url": served.url, "queue": queue, "consumer": consumer, **options})
    return ClaimStreamReader(options, MESSAGES, open_client)


def ids_of(reader: ClaimStreamReader, offset: dict[str, Any]) -> list[str]:
    return [id for number in offset["claims"] for batch in reader.read(Claim(number)) for id in batch["id"].to_pylist()]


def stream(spark: Any, served: Served, queue: str, into: Path, seen: dict[int, list[Any]], **options: Any) -> Any:
    return (
        spark.readStream.format("holdfast")
        .options(url=served.url, queue=queue, consumer="spark", **options)
        .load()
        .writeStream.foreachBatch(lambda frame, number: seen.update({number: frame.collect()}))
        .option("checkpointLocation", str(into / "checkpoint"))
    )


@pytest.mark.spec("9.3")
def test_a_stream_delivers_everything_once_and_acks_its_last_batch(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str, tmp_path: Path
) -> None:
    q = hf.queue(queue_name)
    ids = q.enqueue([holdfast.NewMessage(f"m{n}".encode(), priority=n % 3, headers={"n": str(n)}) for n in range(25)])
    large = q.enqueue(os.urandom(1_500_000), group="g", correlation_id="c-large")[0]
    seen: dict[int, list[Any]] = {}

    writer = stream(spark, served, queue_name, tmp_path, seen, maxRows=10, rowsPerPartition=4)
    writer.trigger(availableNow=True).start().awaitTermination()

    rows = [row for number in sorted(seen) for row in seen[number]]
    assert [len(seen[number]) for number in sorted(seen)] == [10, 10, 6]
    assert sorted(row.id for row in rows) == sorted([*ids, large])
    assert q.stats().in_flight == 0
    assert q.ledger("spark") == []
    [row] = [row for row in rows if row.id == large]
    assert (len(row.payload), row.group, row.correlation_id, row.bytes) == (1_500_000, "g", "c-large", 1_500_000)
    [first] = [row for row in rows if row.id == ids[0]]
    assert (bytes(first.payload), first.headers, first.priority) == (b"m0", {"n": "0"}, 0)
    assert (first.tenant, first.queue, first.state, first.attempt, first.version) == (
        "default",
        queue_name,
        "in_flight",
        1,
        1,
    )
    assert q.ack([first.receipt])[0].error == "stale_lease"


def test_an_idle_stream_has_acked_its_last_batch(
    spark: Any,
    served: Served,
    hf: holdfast.Holdfast,
    queue_name: str,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> None:
    """Spark says that a batch is committed only once the next one is planned, and there is no next one."""
    q = hf.queue(queue_name)
    q.enqueue([b"x"] * 7)
    seen: dict[int, list[Any]] = {}
    query = stream(spark, served, queue_name, tmp_path, seen).trigger(processingTime="0 seconds").start()
    try:
        wait_until(lambda: sum(map(len, seen.values())) == 7)
        wait_until(lambda: q.stats().in_flight == 0)
        said = json.loads(query.lastProgress["sources"][0]["latestOffset"])
        assert said["ready"] == 0
    finally:
        query.stop()
    assert [event.event for event in hf.journal(limit=10_000) if event.queue == queue_name].count("succeeded") == 7


@pytest.mark.spec("9.3")
def test_a_batch_that_failed_is_delivered_again_whole_when_the_query_is_started_again(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str, tmp_path: Path
) -> None:
    q = hf.queue(queue_name)
    ids = q.enqueue([b"x"] * 5)
    checkpoint = str(tmp_path / "checkpoint")

    def fail(frame: Any, number: int) -> None:
        raise ValueError("the sink is down")

    source = spark.readStream.format("holdfast").options(url=served.url, queue=queue_name, consumer="spark")
    failing = source.load().writeStream.foreachBatch(fail).option("checkpointLocation", checkpoint)
    with pytest.raises(Exception, match="the sink is down"):
        failing.trigger(availableNow=True).start().awaitTermination()
    assert q.stats().in_flight == 5
    seen: dict[int, list[Any]] = {}
    stream(spark, served, queue_name, tmp_path, seen).trigger(availableNow=True).start().awaitTermination()

    assert [sorted(row.id for row in rows) for rows in seen.values()] == [sorted(ids)]
    assert [row.attempt for row in seen[0]] == [1] * 5
    assert q.stats().in_flight == 0


def test_a_reader_started_again_finds_the_claim_that_was_left_open(
    served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    """Killed after the claim, before Spark had written its number down."""
    ids = hf.queue(queue_name).enqueue([b"x"] * 9)
    first = reader_of(served, queue_name, rowsPerPartition="4")
    start = first.initialOffset()
    end = first.latestOffset(start, LIMIT)
    assert end["claims"] == [1, 2, 3]
    first.stop()
    hf.queue(queue_name).enqueue([b"later"])

    second = reader_of(served, queue_name)
    assert second.latestOffset(start, LIMIT) == end
    assert sorted(ids_of(second, end)) == sorted(ids)
    assert second.latestOffset(end, LIMIT)["claims"] == [4]
    assert [entry.number for entry in hf.queue(queue_name).ledger("spark")] == [4]
    second.stop()


def test_what_lost_its_lease_is_neither_read_again_nor_acked(
    served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    q = hf.queue(queue_name)
    q.enqueue([b"x"] * 6)
    reader = reader_of(served, queue_name)
    end = reader.latestOffset(reader.initialOffset(), LIMIT)
    before = ids_of(reader, end)
    held = q.ledger("spark")[0].deliveries
    q.release([each.receipt for each in held[:2]])
    [*rival] = q.claim(limit=10, owner="rival")
    assert len(rival) == 2

    assert ids_of(reader, end) == before[2:]
    assert reader.latestOffset(end, LIMIT) == end
    assert {info.id for info in q.list("in_flight")} == {message.id for message in rival}
    q.ack(rival)
    reader.stop()


def test_a_claim_outlives_its_lease_while_the_query_lives(
    served: Served, hf: holdfast.Holdfast, queue_name: str, wait_until: Callable[..., None]
) -> None:
    q = hf.queue(queue_name)
    q.enqueue([b"x"] * 3)
    # Long enough that a reader which stands still for some seconds has not lost it yet.
    reader = reader_of(served, queue_name, lease="12s")
    end = reader.latestOffset(reader.initialOffset(), LIMIT)
    granted_until = max(held.lease_expires_at for held in q.list("in_flight"))

    wait_until(lambda: all(held.lease_expires_at > granted_until for held in q.list("in_flight")))
    assert q.claim(limit=10) == []
    assert len(ids_of(reader, end)) == 3
    reader.stop()


def test_two_queries_of_one_consumer_cannot_pass_unnoticed(
    served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    hf.queue(queue_name).enqueue([b"x"] * 3)
    first, second = reader_of(served, queue_name), reader_of(served, queue_name)
    start = first.initialOffset()
    end = first.latestOffset(start, LIMIT)
    assert second.latestOffset(start, LIMIT) == end
    first.latestOffset(end, LIMIT)

    with pytest.raises(holdfast.InvalidArgument, match=r"claim 1 of consumer 'spark' is closed.*[Aa]nother query"):
        ids_of(second, end)
    first.stop()
    second.stop()


def test_a_new_checkpoint_continues_behind_what_the_consumer_had_acked(
    served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    q = hf.queue(queue_name)
    q.enqueue([b"x"] * 2)
    first = reader_of(served, queue_name, rowsPerPartition="1")
    end = first.latestOffset(first.initialOffset(), LIMIT)
    assert first.latestOffset(end, LIMIT) == end
    first.stop()
    q.enqueue([b"y"])

    second = reader_of(served, queue_name)
    assert second.latestOffset(second.initialOffset(), LIMIT)["claims"] == [3]
    second.stop()


def test_a_reader_goes_to_its_tasks_without_its_connections(
    served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    from pyspark.cloudpickle import dumps, loads

    hf.queue(queue_name).enqueue(b"x")
    reader = reader_of(served, queue_name)
    end = reader.latestOffset(reader.initialOffset(), LIMIT)
    threads = threading.active_count()

    copied = loads(dumps(reader))

    assert threading.active_count() == threads
    assert len(ids_of(copied, end)) == 1
    reader.stop()


def test_few_messages_wait_until_they_are_enough_or_have_waited_long_enough(
    served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    q = hf.queue(queue_name)
    q.enqueue([b"x"] * 3)
    patient = reader_of(served, queue_name, minRows="5", maxDelay="1h")
    start = patient.initialOffset()
    assert patient.latestOffset(start, LIMIT) == start
    q.enqueue([b"x"] * 2)
    end = patient.latestOffset(start, LIMIT)
    assert len(ids_of(patient, end)) == 5
    patient.stop()
    q.enqueue(b"one")
    hasty = reader_of(served, queue_name, "other", minRows="5", maxDelay="1ms")
    wait_until(lambda: len(ids_of(hasty, hasty.latestOffset(start, LIMIT))) == 1)
    hasty.stop()


# --- In batches ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("9.3")
def test_a_batch_read_shows_a_state_and_claims_nothing(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    q = hf.queue(queue_name, tenant="acme")
    ids = q.enqueue([f"m{n}".encode() for n in range(30)])
    held, doomed = q.claim(limit=2, lease="1h")
    doomed.nack("no such card", final=True)
    position = hf.journal(tenant="acme", limit=10_000).next

    def read(**options: Any) -> list[Any]:
        source = spark.read.format("holdfast").options(url=served.url, tenant="acme", queue=queue_name, **options)
        rows: list[Any] = source.load().collect()
        return rows

    ready, failed = read(state="ready", rowsPerPartition=7), read(state="failed")

    assert [row.id for row in ready] == ids[2:]
    assert [bytes(row.payload) for row in ready[:2]] == [b"m2", b"m3"]
    assert [row.id for row in read(state="in_flight")] == [held.id]
    assert [(row.id, row.error, row.failures, row.receipt) for row in failed] == [(doomed.id, "no such card", 1, None)]
    assert len(read()) == 30
    assert hf.journal(position, tenant="acme") == []


def test_payloads_are_not_read_if_they_are_not_asked_for(
    spark: Any, served: Served, hf: holdfast.Holdfast, queue_name: str
) -> None:
    hf.queue(queue_name, tenant="umbrella").enqueue([b"x"] * 3)
    hf.queue(queue_name + "b", tenant="umbrella").enqueue([b"y"])

    frame = (
        spark.read.format("holdfast")
        .schema("queue string, id string")
        .options(url=served.url, tenant="umbrella", queue="*")
        .load()
    )

    counted = {row["queue"]: row["count"] for row in frame.groupBy("queue").count().collect()}
    assert counted == {queue_name: 3, queue_name + "b": 1}


# --- Options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"consumers": "a"}, "'consumers' is not an option of a holdfast stream"),
        ({}, "needs option consumer"),
        ({"consumer": "a", "lease": "10ms"}, "option lease is less than a second"),
        ({"consumer": "a", "queue": "no/name"}, "'no/name'"),
        ({"consumer": "a" * 300}, "consumer"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, str], said: str) -> None:
    with pytest.raises(holdfast.HoldfastError, match=said):
        parse_stream_options({"url": "http://127.0.0.1:1", **options})
