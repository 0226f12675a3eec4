"""`flush`: the log of a server that died, landed by Spark's tasks, once."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast.cli.pipeline.segment_flush import flusher, list_segments
from holdfast.pipeline.jobs.flush import flush
from holdfast.stores.buffered.log.wal import Wal
from holdfast.stores.formats.logged_enqueue import encode_call
from tests.postgres.landing_calls import REF, Log
from tests.postgres.server import PostgresServer
from tests.redis.buffered import opened, put, take
from tests.redis.server import RedisServer

pytestmark = pytest.mark.slow


async def _rows(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        number: int = await connection.fetchval("SELECT count(*) FROM holdfast.items")
        return number
    finally:
        await connection.close()


@pytest.mark.spec("9.5")
def test_segments_land_in_parallel_and_another_pass_stores_nothing(
    spark: Any, postgres: PostgresServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    urls, total = postgres.make_databases("spark_flush"), 90

    async def prepare() -> int:
        async with opened(urls, redis_server.url, tmp_path / "server") as store:
            await put(store, b"first")
            assert await take(store) == [b"first"]
            row = await store.directory.find_queue(REF)
            assert row is not None
            return row.queue_id

    queue_id = asyncio.run(prepare())
    log, wal = Log(), Wal(tmp_path / "dead", segment_bytes=4_096)
    for _, each in log.calls(queue_id, total):
        body = encode_call(each)
        wal.make_room(len(body) + 100)
        [place] = wal.take_numbers(0, 1)
        wal.append([(0, place, body)])
    wal.close()
    try:
        segments = list_segments([tmp_path / "dead"])
        assert len(segments) > 2

        dry, _ = flush(spark, segments, flusher(urls, is_over=True, is_dry_run=True), is_dry_run=True)
        assert (dry.calls, dry.stored) == (total, 0)
        assert asyncio.run(_rows(urls[0])) == 0
        first, ends = flush(spark, segments, flusher(urls, is_over=True, is_dry_run=False))
        again, _ = flush(spark, segments, flusher(urls, is_over=True, is_dry_run=False))

        assert (first.calls, first.stored, first.skipped, first.is_sound) == (total, total, 0, True)
        assert (again.calls, again.stored, again.skipped, again.is_sound) == (total, 0, total, True)
        assert all(each.is_whole for each in ends)
        assert asyncio.run(_rows(urls[0])) == total
    finally:
        postgres.empty(urls)
        redis_server.flush()
