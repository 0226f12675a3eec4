"""The data pipeline beside Spark or PostgreSQL doing the plain part of the same work: `python -m bench.pipeline`.

`--events N` sets the size of the whole (default 4,000,000): growth goes from N/4 to N events, archive and audit are
measured at N/4, load at N/8 rows. Runs of both sides are interleaved, medians count. Name parts to run only those.
"""

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from bench.embedded.raw import scratch
from bench.report import HEAD, Figure

ROUNDS = 3
PAYLOAD_BYTES = 256
PARTS = ("load", "audit", "archive", "growth", "tenants")
# What an audit judges.
_NOT_JUDGED = ("priority", "bytes", "error")
# Numbers of runs: each writes to a place of its own.
_RUNS = itertools.count()


def measure(events: int = 4_000_000, parts: Sequence[str] = PARTS) -> Iterator[Figure]:
    from holdfast.pipeline.session import open_session

    spark = open_session("bench", settings={"spark.driver.memory": "3g"})
    try:
        with scratch() as place:
            for part in parts:
                yield from _MEASURED[part](spark, place, events)
    finally:
        spark.stop()


def made_events(spark: Any, place: Path, events: int, tenants: int) -> Any:
    """A journal as Parquet files: messages of several tenants that are enqueued, claimed and acked over a day."""
    from holdfast.pipeline.schemas import EVENTS

    target = place / f"journal-{events}-{tenants}"
    if target.exists():
        return spark.read.schema(EVENTS.spark).parquet(str(target))
    _say(f"making {events:,} events of {tenants:,} tenants")
    messages = events // 3
    frame = spark.range(messages).selectExpr(
        "id as n",
        f"concat('tenant', cast(id % {tenants} as string)) as tenant",
        "concat('queue', cast(id % 7 as string)) as queue",
        "concat(lpad(hex(id), 8, '0'), '-0000-7000-8000-000000000000') as id",
        f"1790000000000 + cast(id * (80000000 / {messages}) as bigint) as start",
        "explode(array(0, 1, 2)) as step",
    )
    rows = frame.selectExpr(
        "n * 3 + step as seq",
        "0 as shard",
        "timestamp_millis(start + step * 40) as at",
        "element_at(array('enqueued', 'claimed', 'succeeded'), step + 1) as event",
        "tenant",
        "queue",
        "lower(id) as id",
        "cast(if(step > 0, 1, 0) as int) as attempt",
        "cast(if(step > 0, 1, 0) as bigint) as version",
        "cast(100 as smallint) as priority",
        "timestamp_millis(start) as enqueued_at",
        "if(step > 0, timestamp_millis(start + 40), null) as claimed_at",
        f"cast({PAYLOAD_BYTES} as bigint) as bytes",
        "cast(null as string) as error",
        "cast(null as string) as reason",
        "lower(id) as correlation_id",
    )
    rows.select(*EVENTS.columns).write.parquet(str(target))
    return spark.read.schema(EVENTS.spark).parquet(str(target))


def _archiving(spark: Any, place: Path, frame: Any) -> Callable[[], None]:
    """One commit of the lake, both tables."""
    from holdfast.pipeline.jobs.archive import archive_range
    from holdfast.pipeline.lake.contract import Mark
    from holdfast.pipeline.lake.lake import Lake

    def run() -> None:
        archive_range(spark, frame, Lake(str(place / f"lake-{next(_RUNS)}")), Mark(1, "1"))

    return run


def _auditing(spark: Any, frame: Any, events: int) -> Callable[[], None]:
    from holdfast.pipeline.jobs.audit import audit

    def run() -> None:
        found = audit(spark, frame)
        assert found.is_sound, found.violations[:3]
        assert found.events == events // 3 * 3

    return run


def _archive(spark: Any, place: Path, events: int) -> Iterator[Figure]:
    events //= 4
    frame = made_events(spark, place, events, 100)

    def plain() -> None:
        frame.write.option("compression", "zstd").parquet(str(place / f"plain-{next(_RUNS)}"))

    ours_s, plain_s = interleaved("archive", _archiving(spark, place, frame), plain, rounds=2)
    yield Figure(
        f"archive of {events:,} events into the lake, warm",
        f"{events / ours_s:,.0f} events/s",
        "Spark writing the same rows to plain Parquet",
        f"{events / plain_s:,.0f} events/s",
        plain_s / ours_s,
        goal=0.4,
    )


def _audit(spark: Any, place: Path, events: int) -> Iterator[Figure]:
    from pyspark.sql import functions as F

    events //= 4
    frame = made_events(spark, place, events, 100)

    def plain() -> None:
        # One hash aggregate that reads every column which is judged, and sorts nothing.
        judged = [each for each in frame.columns if each not in _NOT_JUDGED]
        seen = frame.groupBy("id").agg(F.count(F.lit(1)), F.bit_xor(F.xxhash64(*judged)))
        seen.write.format("noop").mode("overwrite").save()

    ours_s, plain_s = interleaved("audit", _auditing(spark, frame, events), plain)
    yield Figure(
        f"audit of {events:,} events",
        f"{events / ours_s:,.0f} events/s",
        "a bare group-by by message over the same columns",
        f"{events / plain_s:,.0f} events/s",
        plain_s / ours_s,
        goal=0.5,
    )


def _growth(spark: Any, place: Path, events: int) -> Iterator[Figure]:
    """Four times the events, beside a quarter of them before and after."""
    small, large = (made_events(spark, place, each, 100) for each in (events // 4, events))
    for job, few, many in (
        ("archive", _archiving(spark, place, small), _archiving(spark, place, large)),
        ("audit", _auditing(spark, small, events // 4), _auditing(spark, large, events)),
    ):
        # The first of them warms up.
        _, before_s, many_s, after_s = (_timed(f"growth of {job}", each) for each in (few, few, many, few))
        few_s = (before_s + after_s) / 2
        yield Figure(
            f"{job} of {events:,} events",
            f"{many_s:.1f} s",
            f"of {events // 4:,}",
            f"{few_s:.1f} s",
            many_s / few_s,
            goal=4.4,
            lower_is_better=True,
        )


def _tenants(spark: Any, place: Path, events: int) -> Iterator[Figure]:
    """Measure the same number of events, of a thousand times the tenants."""
    events //= 8
    crowd, few = (made_events(spark, place, events, each) for each in (10_000, 10))
    for job, many_work, few_work in (
        ("archive", _archiving(spark, place, crowd), _archiving(spark, place, few)),
        ("audit", _auditing(spark, crowd, events), _auditing(spark, few, events)),
    ):
        crowd_s, few_s = interleaved(f"tenants, {job}", many_work, few_work, rounds=2)
        yield Figure(
            f"{job} of {events:,} events of 10,000 tenants",
            f"{crowd_s:.1f} s",
            "of 10 tenants",
            f"{few_s:.1f} s",
            crowd_s / few_s,
            goal=1.1,
            lower_is_better=True,
        )


def _load(spark: Any, place: Path, events: int) -> Iterator[Figure]:
    """Through the sink, with keys, beside one connection that copies the same rows straight into such tables: messages,
    keys and events. And the messages alone. Every table grows by as much in each round."""
    from holdfast.model.names import QueueRef
    from holdfast.pipeline.jobs.load import Format, load
    from holdfast.pipeline.jobs.targets import SinkTarget
    from tests.postgres.server import PostgresServer

    rows = events // 8
    files = str(place / "files")
    spark.range(rows).selectExpr("id as n", f"repeat('x', {PAYLOAD_BYTES}) as text").write.parquet(files)
    server = PostgresServer(fsync=True)
    server.start()
    try:
        [url] = server.make_databases("load")
        asyncio.run(_execute(url, _TABLES))
        target = SinkTarget({"url": url})

        def ours() -> None:
            ref = QueueRef("default", f"q{next(_RUNS)}")
            done = load(spark, [files], ref, target, format=Format.PARQUET, key=["n"], payload="text")
            assert done.enqueued == rows, done

        def bare() -> None:
            asyncio.run(_copy(url, rows, _BARE))

        def messages_alone() -> None:
            asyncio.run(_copy(url, rows, _BARE[:1]))

        ours_s, bare_s, messages_s = interleaved("load", ours, bare, messages_alone)
    finally:
        server.close()
    yield Figure(
        f"load of {rows:,} rows into PostgreSQL with safe retries",
        f"{rows / ours_s:,.0f} rows/s",
        "one connection that copies the same rows (messages, keys, events) into tables with the store's indexes "
        f"(the messages alone: {rows / messages_s:,.0f} rows/s)",
        f"{rows / bare_s:,.0f} rows/s",
        bare_s / ours_s,
        goal=1,
    )


class _Bare(NamedTuple):
    """The table and rows that one connection copies."""

    table: str
    columns: tuple[str, ...]
    # Of a round's number, and a row's.
    row: Callable[[int, int], tuple[Any, ...]]


_BODY = b"x" * PAYLOAD_BYTES
_BARE = (
    _Bare(
        "items",
        ("queue_key", "id", "status", "priority", "deliver_after", "created_at", "bytes", "is_json", "payload"),
        lambda run, n: (run, n, 0, 100, n, n, len(_BODY), False, _BODY),
    ),
    _Bare(
        "seen_keys",
        ("queue_key", "key", "id", "ends_at"),
        lambda run, n: (run, sha256(b"%d %d" % (run, n)).hexdigest()[:40], n, run),
    ),
    _Bare(
        "journal",
        ("seq", "at", "queue_key", "id", "event", "priority", "attempt", "version", "created_at", "bytes"),
        lambda run, n: (run << 32 | n, n, run, n, 0, 100, 0, 0, n, len(_BODY)),
    ),
)
_TABLES = "".join(
    f"CREATE TABLE holdfast.bare_{each.table} (LIKE holdfast.{each.table} INCLUDING ALL);" for each in _BARE
)


async def _execute(url: str, sql: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


async def _copy(url: str, rows: int, tables: Sequence[_Bare]) -> None:
    import asyncpg

    run = next(_RUNS)
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            for table, columns, row in tables:
                records = (row(run, n) for n in range(rows))
                await connection.copy_records_to_table(
                    f"bare_{table}", records=records, columns=columns, schema_name="holdfast"
                )
    finally:
        await connection.close()


_MEASURED = {"archive": _archive, "audit": _audit, "growth": _growth, "load": _load, "tenants": _tenants}


def interleaved(what: str, *sides: Callable[[], None], rounds: int = ROUNDS) -> list[float]:
    """The median of each side in seconds; the first round of each warms up."""
    times: dict[int, list[float]] = {number: [] for number in range(len(sides))}
    for turn in range(rounds + 1):
        order = list(enumerate(sides))
        for number, work in order if turn % 2 else reversed(order):
            took_s = _timed(f"{what}, round {turn} of {rounds}", work)
            if turn:
                times[number].append(took_s)
    return [statistics.median(each) for each in times.values()]


def _timed(what: str, work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    took_s = time.perf_counter() - started
    _say(f"{what}: {took_s:.1f} s")
    return took_s


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"some of {', '.join(PARTS)}")
    given = parser.parse_args()
    print(HEAD, flush=True)
    for figure in measure(given.events, given.parts):
        print(figure.row(), flush=True)


if __name__ == "__main__":
    main()
