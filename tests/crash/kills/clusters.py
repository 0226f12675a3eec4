"""The databases of servers on PostgreSQL, and with the fast path a Redis, which tests kill as well.

Each server keeps its log in a separate directory, and has the same one when it is started again.
"""

import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import asyncpg

from holdfast.stores.postgres.schema.migrations import migrate
from tests.machinery.kills import ServedCluster, Target
from tests.machinery.kills.cluster import Fault, Footing
from tests.postgres.server import PostgresServer, run
from tests.redis.server import RedisServer

SERVERS = 2
_DATABASES = 2
# For a log to be trimmed, and Redis to be cleared, after the last message was acked.
_PATIENCE_S = 60.0

# Each in one statement, so that what runs beside it does not show.
_CHECKS = {
    "the counts are not those of the rows (ready, in flight, failed, kept, bytes)": """
        WITH counted (queue_key, counts) AS (
            SELECT queue_key, ARRAY[sum(waiting), sum(in_flight), sum(failed), sum(kept), sum(bytes)]::bigint[]
            FROM holdfast.all_counts GROUP BY queue_key
        ),
        found (queue_key, counts) AS (
            SELECT queue_key, ARRAY[
                count(*) FILTER (WHERE status IN (0, 4, 5)), count(*) FILTER (WHERE status = 1),
                count(*) FILTER (WHERE status = 3), count(*) FILTER (WHERE status = 2),
                coalesce(sum(bytes) FILTER (WHERE status <> 2), 0)]::bigint[]
            FROM holdfast.items GROUP BY queue_key
        ),
        each AS (
            SELECT queue_key, coalesce(counted.counts, '{0,0,0,0,0}') AS counted,
                   coalesce(found.counts, '{0,0,0,0,0}') AS found
            FROM counted FULL JOIN found USING (queue_key)
        )
        SELECT * FROM each WHERE counted <> found""",
    "a lease is no lease": """
        SELECT queue_key, id, status FROM holdfast.items
        WHERE (status = 1) <> (lease_token IS NOT NULL AND lease_expires_at IS NOT NULL)""",
    "a message of which the journal knows nothing": """
        SELECT queue_key, id FROM holdfast.items WHERE NOT EXISTS (
            SELECT FROM holdfast.journal WHERE journal.queue_key = items.queue_key AND journal.id = items.id)""",
    "a group has two heads, or a lease beside one": """
        SELECT queue_key, group_name FROM holdfast.items WHERE group_name IS NOT NULL AND status IN (0, 1, 5)
        GROUP BY queue_key, group_name HAVING count(*) FILTER (WHERE status <> 1) > 1
            OR (count(*) FILTER (WHERE status <> 1) = 1 AND count(*) FILTER (WHERE status = 1) > 0)""",
}


class DatabaseStopped:
    """`pg_ctl stop -m immediate` of one of the databases."""

    name = "database"

    def __init__(self, servers: list[PostgresServer]) -> None:
        self._servers = servers
        self._down: PostgresServer | None = None

    def strike(self, dice: random.Random) -> None:
        self._down = dice.choice(self._servers)
        self._down.stop(signal.SIGQUIT)

    def mend(self, dice: random.Random, *, is_alone: bool) -> bool:
        assert self._down is not None
        self._down.start()
        return True


class RedisFlushed:
    name = "flushall"

    def __init__(self, redis: RedisServer) -> None:
        self._redis = redis

    def strike(self, dice: random.Random) -> None:
        if self._redis.process is None:
            self._redis.start()
        self._redis.flush()

    def mend(self, dice: random.Random, *, is_alone: bool) -> bool:
        return True


class RedisKilled:
    name = "redis"

    def __init__(self, redis: RedisServer) -> None:
        self._redis = redis

    def strike(self, dice: random.Random) -> None:
        self._redis.kill()

    def mend(self, dice: random.Random, *, is_alone: bool) -> bool:
        if self._redis.process is None:
            self._redis.start()
        return True


class PostgresFooting:
    """Servers that write to their databases directly."""

    def __init__(self, databases: list[PostgresServer]) -> None:
        self._databases = databases
        self._urls = [each.url("postgres") for each in databases]

    def settings(self, server: int, dice: random.Random) -> Mapping[str, object]:
        return {"store": ",".join(self._urls)}

    def faults(self) -> Sequence[Fault]:
        return [DatabaseStopped(self._databases)]

    def verify(self) -> list[str]:
        broken: list[str] = run(self._verify())
        return broken

    async def _verify(self) -> list[str]:
        broken = []
        for database, url in zip(self._databases, self._urls, strict=True):
            if database.process is None:
                continue
            connection = await asyncpg.connect(url)
            try:
                for what, sql in _CHECKS.items():
                    broken += [f"{what}: {dict(row)}" for row in await connection.fetch(sql)]
            finally:
                await connection.close()
        return broken

    def verify_drained(self) -> list[str]:
        return self.verify()


class BufferedFooting(PostgresFooting):
    """Servers with the fast path. What each does without Redis is drawn whenever it starts."""

    def __init__(self, databases: list[PostgresServer], redis: RedisServer, directory: Path) -> None:
        super().__init__(databases)
        self._redis = redis
        self._directory = directory

    def settings(self, server: int, dice: random.Random) -> Mapping[str, object]:
        return {
            **super().settings(server, dice),
            "redis_url": self._redis.url,
            "wal_dir": self._directory / f"wal-{server}",
            "on_redis_down": dice.choice(["fail", "direct"]),
            "flush_interval": dice.choice(["5ms", "100ms", "2s"]),
        }

    def faults(self) -> Sequence[Fault]:
        return [*super().faults(), RedisFlushed(self._redis), RedisKilled(self._redis)]

    def verify_drained(self) -> list[str]:
        ends_s = time.monotonic() + _PATIENCE_S
        while (left := self._left()) and time.monotonic() < ends_s:
            time.sleep(0.05)
        return [*super().verify_drained(), *left]

    def _left(self) -> list[str]:
        """All has landed, so nobody waits for it any more."""
        every = self._redis.keys()
        keys = [key for key in every if key.startswith(b"holdfast:buffer:")]
        logs = [sorted(path.glob("*.wal")) for path in self._directory.glob("wal-*")]
        return [
            *(f"{key!r} is still in Redis" for key in keys),
            *(f"{len(log)} segments are in {log[0].parent}" for log in logs if len(log) > 1),
        ]


@contextmanager
def stand(directory: Path, *, is_buffered: bool) -> Iterator[Footing]:
    with ExitStack() as stack:
        databases = []
        for _ in range(_DATABASES):
            database = PostgresServer()
            stack.callback(database.close)
            database.start()
            databases.append(database)
        run(_migrate([each.url("postgres") for each in databases]))
        if not is_buffered:
            yield PostgresFooting(databases)
            return
        redis = RedisServer()
        stack.callback(redis.close)
        redis.start()
        yield BufferedFooting(databases, redis, directory)


async def _migrate(urls: list[str]) -> None:
    connections = [await asyncpg.connect(url) for url in urls]
    try:
        await migrate(connections)
    finally:
        for connection in connections:
            await connection.close()


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        ServedCluster("postgres cluster", SERVERS, partial(stand, is_buffered=False)),
        ServedCluster("buffered cluster", SERVERS, partial(stand, is_buffered=True)),
    )
}
