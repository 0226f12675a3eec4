"""The data pipeline beside Spark doing the plain part of the same work, in one session: `python -m bench.pipeline`.

`--events N` sets the size (default 1,000,000); the steps of growth are N/4 to N. Runs are interleaved, medians count.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.raw import scratch
from bench.report import HEAD, Figure

ROUNDS = 3
PAYLOAD_BYTES = 256


PARTS = ("archive", "audit", "growth", "load")


def measure(events: int = 1_000_000, parts: Sequence[str] = PARTS) -> Iterator[Figure]:
    from holdfast.pipeline.session import open_session

    spark = open_session("bench", settings={"spark.driver.memory": "3g"})
    try:
        with scratch() as place:
            for part in parts:
                yield from _MEASURED[part](spark, place, events)
    finally:
        spark.stop()


def made_events(spark: Any, place: Path, events: int, tenants: int) -> Any:
    """A journal as Parquet files: messages that are enqueued, claimed and done, of so many tenants, over a day."""
    from holdfast.pipeline.schemas import EVENTS

    target = str(place / f"journal-{events}-{tenants}")
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
    rows.select(*EVENTS.columns).write.mode("overwrite").parquet(target)
    return spark.read.schema(EVENTS.spark).parquet(target)


def _archive(spark: Any, place: Path, events: int) -> Iterator[Figure]:
    """One commit of the lake, both tables, beside Spark writing the same rows to plain Parquet."""
    from holdfast.pipeline.jobs.archive import archive_range
    from holdfast.pipeline.lake.contract import Mark
    from holdfast.pipeline.lake.lake import Lake

    frame = made_events(spark, place, events, 100)
    runs = iter(range(1_000))

    def ours() -> None:
        archive_range(spark, frame, Lake(str(place / f"lake-{next(runs)}")), Mark(1, "1"))

    def plain() -> None:
        frame.write.option("compression", "zstd").parquet(str(place / f"plain-{next(runs)}"))

    ours_s, plain_s = interleaved(ours, plain)
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

    from holdfast.pipeline.jobs.audit import audit

    frame = made_events(spark, place, events, 100)

    def ours() -> None:
        found = audit(spark, frame)
        assert found.is_sound, found.violations[:3]
        assert found.events == events // 3 * 3

    def plain() -> None:
        # Of every column that is judged: both sides read the same.
        others = [F.max(each) for each in frame.columns if each not in ("id", "priority", "bytes", "error")]
        frame.groupBy("id").agg(*others).write.format("noop").mode("overwrite").save()

    ours_s, plain_s = interleaved(ours, plain)
    yield Figure(
        f"audit of {events:,} events",
        f"{events / ours_s:,.0f} events/s",
        "a bare group-by by message over the same columns",
        f"{events / plain_s:,.0f} events/s",
        plain_s / ours_s,
        goal=0.5,
    )


def _growth(spark: Any, place: Path, events: int) -> Iterator[Figure]:
    """Time for an event, with four times the events and with a thousand times the tenants."""
    from holdfast.pipeline.jobs.archive import archive_range
    from holdfast.pipeline.jobs.audit import audit
    from holdfast.pipeline.lake.contract import Mark
    from holdfast.pipeline.lake.lake import Lake

    runs = iter(range(1_000))

    def both(frame: Any) -> Callable[[], None]:
        def run() -> None:
            archive_range(spark, frame, Lake(str(place / f"grown-{next(runs)}")), Mark(1, "1"))
            audit(spark, frame)

        return run

    few, many = (made_events(spark, place, each, 100) for each in (events // 4, events))
    many_s, few_s = interleaved(both(many), both(few))
    yield Figure(
        "archive and audit, time for one event",
        f"{many_s / events * 1e6:.1f} us of {events:,}",
        f"of {events // 4:,}",
        f"{few_s / (events // 4) * 1e6:.1f} us",
        many_s / 4 / few_s,
        goal=1.1,
        lower_is_better=True,
    )
    crowd, few_tenants = (made_events(spark, place, events // 2, each) for each in (10_000, 10))
    crowd_s, few_tenants_s = interleaved(both(crowd), both(few_tenants))
    yield Figure(
        f"archive and audit of {events // 2:,} events of 10,000 tenants",
        f"{crowd_s:.1f} s",
        "of 10 tenants",
        f"{few_tenants_s:.1f} s",
        crowd_s / few_tenants_s,
        goal=1.1,
        lower_is_better=True,
    )


def _load(spark: Any, place: Path, events: int) -> Iterator[Figure]:
    """Through the sink, with keys, beside one connection that copies the same rows into a bare table."""
    rows = events // 10
    from holdfast.model.names import QueueRef
    from holdfast.pipeline.jobs.load import Format, load
    from holdfast.pipeline.jobs.targets import SinkTarget
    from tests.postgres.server import PostgresServer

    files = str(place / "files")
    spark.range(rows).selectExpr("id as n", f"repeat('x', {PAYLOAD_BYTES}) as text").write.parquet(files)
    server = PostgresServer()
    server.start()
    try:
        url, bare_url = server.make_databases("load", "bare")
        target, runs = SinkTarget({"url": url}), iter(range(1_000))

        def ours() -> None:
            ref = QueueRef("default", f"q{next(runs)}")
            done = load(spark, [files], ref, target, format=Format.PARQUET, key=["n"], payload="text")
            assert done.enqueued == rows, done

        ours_s, bare_s = interleaved(ours, lambda: asyncio.run(_copy(bare_url, rows)))
    finally:
        server.close()
    yield Figure(
        f"load of {rows:,} rows into PostgreSQL with safe retries",
        f"{rows / ours_s:,.0f} rows/s",
        "one connection that copies them into a bare table",
        f"{rows / bare_s:,.0f} rows/s",
        bare_s / ours_s,
        goal=1,
    )


async def _copy(url: str, rows: int) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute("DROP TABLE IF EXISTS bare")
        await connection.execute(
            "CREATE TABLE bare (id bigint PRIMARY KEY, queue int, key text, priority int, at bigint, payload bytea)"
        )
        payload = b"x" * PAYLOAD_BYTES
        records = ((n, 1, f"key-{n}", 100, n, payload) for n in range(rows))
        await connection.copy_records_to_table("bare", records=records)
    finally:
        await connection.close()


_MEASURED = {"archive": _archive, "audit": _audit, "growth": _growth, "load": _load}


def interleaved(ours: Callable[[], None], plain: Callable[[], None]) -> tuple[float, float]:
    """Medians in seconds; the first round of each warms up."""
    times: dict[str, list[float]] = {"ours": [], "plain": []}
    for number in range(ROUNDS + 1):
        sides = [("ours", ours), ("plain", plain)]
        for name, work in sides if number % 2 else reversed(sides):
            started = time.perf_counter()
            work()
            if number:
                times[name].append(time.perf_counter() - started)
    return statistics.median(times["ours"]), statistics.median(times["plain"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"some of {', '.join(PARTS)}")
    given = parser.parse_args()
    print(HEAD, flush=True)
    for figure in measure(given.events, given.parts):
        print(figure.row(), flush=True)


if __name__ == "__main__":
    main()
