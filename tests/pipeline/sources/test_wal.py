"""`holdfast_wal`: servers' logs, segment by segment."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxFiles

import holdfast
from holdfast.model.message import Draft
from holdfast.model.names import QueueRef
from holdfast.pipeline.schemas import LOGGED_CALLS
from holdfast.pipeline.sources.segments import SegmentStreamReader, parse_log_options
from holdfast.server.bulk import find_logs, open_log
from holdfast.stores.buffered.log.segments import LogDamaged
from holdfast.stores.buffered.log.wal import Wal
from holdfast.stores.formats.logged_enqueue import decode_call, encode_call, log_call

REF = QueueRef("acme", "payments")


def append(wal: Wal, first: int, calls: int) -> None:
    """Calls of two messages of a kilobyte each, so that a segment has three."""
    bodies = []
    for place in wal.take_numbers(0, calls):
        drafts = [Draft(payload=bytes(1_000)), Draft(payload=b"second")]
        call = log_call(REF, 7, drafts, [first + 2 * place, first + 2 * place + 1], 1_700_000_000_000 + place, None)
        bodies.append((0, place, encode_call(call)))
    for body in bodies:
        wal.make_room(len(body[2]) + 100)
        wal.append([body])


def a_log(directory: Path, calls: int, first: int = 1) -> Wal:
    wal = Wal(directory, segment_bytes=4_000)
    append(wal, first, calls)
    return wal


def reader_of(*paths: Path, **options: str) -> SegmentStreamReader:
    given = {"path": ",".join(map(str, paths)), **options}
    return SegmentStreamReader(parse_log_options(given, find_logs, open_log), LOGGED_CALLS)


def places(reader: SegmentStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
    return [
        (Path(row["log"]).name, row["place"])
        for segment in reader.partitions(start, end)
        for batch in reader.read(segment)
        for row in batch.to_pylist()
    ]


@pytest.mark.spec("9.5")
def test_whole_segments_of_every_log_are_read_once_and_in_order(tmp_path: Path) -> None:
    first, second = a_log(tmp_path / "n1", 8), a_log(tmp_path / "n2", 5, first=1_000)
    reader = reader_of(tmp_path)
    start = reader.initialOffset()

    end = reader.latestOffset(start, ReadMaxFiles(3))
    taken = places(reader, start, end)
    rest = reader.latestOffset(end, ReadMaxFiles(100))
    taken += places(reader, end, rest)

    assert reader.latestOffset(rest, ReadMaxFiles(100)) == rest
    for log, wal, calls in (("n1", first, 8), ("n2", second, 5)):
        seen = [place for name, place in taken if name == log]
        # The last segment is still written to.
        assert seen == list(range(len(seen)))
        assert 0 < len(seen) < calls
        append(wal, 5_000, 6)
    later = reader.latestOffset(rest, ReadMaxFiles(100))
    assert places(reader, rest, later)
    assert places(reader, start, end) + places(reader, end, rest) == taken
    first.close()
    second.close()


def test_of_a_server_that_is_gone_the_last_segment_is_read_too_as_far_as_it_is_whole(tmp_path: Path) -> None:
    wal = a_log(tmp_path, 8)
    last = sorted(tmp_path.glob("*.wal"))[-1]
    raw = last.read_bytes()
    wal.close()
    last.write_bytes(raw.rstrip(b"\x00")[:-5])
    reader = reader_of(tmp_path, isOver="true")

    end = reader.latestOffset(reader.initialOffset(), ReadMaxFiles(100))

    seen = [place for _, place in places(reader, reader.initialOffset(), end)]
    assert seen == list(range(len(seen)))
    assert len(seen) == 7


def test_damage_in_the_middle_of_a_log_is_named_and_nothing_is_skipped(tmp_path: Path) -> None:
    wal = a_log(tmp_path, 8)
    wal.close()
    first = sorted(tmp_path.glob("*.wal"))[0]
    raw = bytearray(first.read_bytes())
    raw[300] ^= 1
    first.write_bytes(raw)
    reader = reader_of(tmp_path)

    with pytest.raises(LogDamaged, match=first.name):
        places(reader, reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ReadMaxFiles(9)))


def test_a_call_whose_caller_was_refused_is_not_read(tmp_path: Path) -> None:
    wal = a_log(tmp_path, 4)
    wal.make_room(200)
    wal.void([(0, 3)])
    append(wal, 500, 4)
    reader = reader_of(tmp_path)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxFiles(9))
    seen = [place for _, place in places(reader, reader.initialOffset(), end)]
    assert 2 in seen
    assert 3 not in seen
    assert 4 in seen
    wal.close()


def test_what_was_removed_because_it_is_stored_is_read_as_nothing(tmp_path: Path) -> None:
    wal = a_log(tmp_path, 8)
    reader = reader_of(tmp_path)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxFiles(9))
    planned = reader.partitions(reader.initialOffset(), end)
    wal.close()
    sorted(tmp_path.glob("*.wal"))[0].unlink()

    assert list(reader.read(planned[0])) == []
    assert len(reader.partitions(reader.initialOffset(), end)) == len(planned) - 1


def test_spark_reads_a_log_as_it_was_written(spark: Any, tmp_path: Path) -> None:
    wal = a_log(tmp_path / "log", 8)
    frame = spark.read.format("holdfast_wal").option("path", str(tmp_path / "log")).load()
    rows = sorted(frame.collect(), key=lambda row: row.place)
    assert [(row.tenant, row.queue, row.queue_id, row.messages) for row in rows[:1]] == [("acme", "payments", 7, 2)]
    call = decode_call(bytes(rows[1].call))
    assert [message.id for message in call.messages] == [3, 4]
    query = (
        spark.readStream.format("holdfast_wal")
        .schema("place bigint")
        .option("path", str(tmp_path / "log"))
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(rows)
    wal.close()


def test_a_path_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(holdfast.InvalidArgument, match="is not a directory"):
        reader_of(tmp_path / "nowhere").latestOffset({"v": 1, "logs": {}}, ReadMaxFiles(1))
    with pytest.raises(holdfast.InvalidArgument, match="needs option path"):
        parse_log_options({}, find_logs, open_log)
