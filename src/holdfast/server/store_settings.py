"""The settings of stores, each declared once, as in `settings.py`."""

from functools import partial
from typing import Annotated, Literal

import msgspec

from holdfast.server.kinds import Boolean, Choice, Directory, Duration, Integer, Size, Url
from holdfast.server.setting import Spec

DEFAULT_DATA = "./holdfast-data"

# The URL schemes of the stores that this version opens.
OBJECT_SCHEMES = ("file", "s3", "az", "gs")
STORE_SCHEMES = ("memory", "postgres", "postgresql", *OBJECT_SCHEMES)

_DAY_MS = 24 * 3_600_000

_store = partial(Spec, group="Store")
_embedded_store = partial(Spec, group="Store", is_embedded=True)


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a store."""

    data: Annotated[
        str | None,
        _store(Directory(), "Directory of the embedded store. Created if it is missing.", default_text=DEFAULT_DATA),
    ] = None
    store: Annotated[
        str | None,
        _store(
            Url(
                "memory://, postgres://…, file:///…, s3://…, az://…, gs://…, or a directory",
                STORE_SCHEMES,
                or_path=True,
            ),
            "URL of the store, instead of `data`: `postgres://…` (several databases separated by "
            "commas), `file:///dir`, `s3://bucket/prefix`, `az://…` or `gs://…` for an object store, "
            "or `memory://`.",
            default_text="the directory `data`",
        ),
    ] = None
    durability: Annotated[
        Literal["fsync", "os"],
        _embedded_store(
            Choice("fsync", "os"),
            "When a change is acknowledged: `fsync`, once it is on disk; `os`, once the operating system has it.",
        ),
    ] = "fsync"
    shards: Annotated[
        int | None,
        _embedded_store(
            Integer(1, 64),
            "Number of shards of a new directory, each with a database, a log and a writer of its "
            "own. `holdfast db reshard` changes it later.",
            default_text="1; an existing directory keeps its number",
        ),
    ] = None
    stores: Annotated[
        int,
        _store(
            Integer(1, 64),
            "Number of store processes that share a directory with shards, for a machine with many cores.",
        ),
    ] = 1
    legacy_read_only: Annotated[
        bool, _embedded_store(Boolean(), "Only read a directory of the legacy layout, instead of moving its messages.")
    ] = False
    checkpoint_bytes: Annotated[
        int,
        _embedded_store(
            Size(), "Memory that changes to a directory may take, approximately, before they are written to RocksDB."
        ),
    ] = 64 << 20
    shard_map: Annotated[
        Literal["slots", "fnv-mod"],
        _embedded_store(
            Choice("slots", "fnv-mod"),
            "How queues are spread over several databases: by the stored table of slots, or only by their hash.",
        ),
    ] = "slots"
    pg_pool: Annotated[
        int,
        _embedded_store(Integer(2, 1000), "Number of connections that a server opens to each PostgreSQL database."),
    ] = 8
    pg_lock_timeout_ms: Annotated[
        int, _embedded_store(Duration(), "How long a call waits for a lock that another PostgreSQL transaction holds.")
    ] = 2_000
    pg_statement_timeout_ms: Annotated[
        int,
        _embedded_store(
            Duration(), "How long a PostgreSQL statement may take, and how long a call waits for a connection."
        ),
    ] = 30_000
    redis_url: Annotated[
        str | None,
        _embedded_store(
            Url("a redis:// or rediss:// URL", ("redis", "rediss")),
            "URL of Redis for the fast path of a PostgreSQL store. Needs `wal_dir`.",
            default_text="none",
        ),
    ] = None
    wal_dir: Annotated[
        str | None,
        _embedded_store(
            Directory(),
            "Directory of the fast path's write-ahead log, on a durable disk. Each server needs its own.",
            default_text="none",
        ),
    ] = None
    on_redis_down: Annotated[
        Literal["fail", "direct"],
        _embedded_store(
            Choice("fail", "direct"),
            "While Redis is down: refuse enqueues (`fail`), or write them to PostgreSQL first (`direct`).",
        ),
    ] = "fail"
    flusher: Annotated[
        Literal["server", "spark"],
        _embedded_store(
            Choice("server", "spark"),
            "Who moves messages from the log to PostgreSQL: this server, or the job `holdfast pipeline flush`.",
        ),
    ] = "server"
    flush_interval_ms: Annotated[
        int, _embedded_store(Duration(), "Maximum time until a message in the log is moved to PostgreSQL.")
    ] = 100
    flush_batch: Annotated[
        int,
        _embedded_store(
            Integer(1, 10000),
            "Number of messages in the log that are moved at once, without waiting for `flush_interval`.",
        ),
    ] = 50
    prefetch_batch: Annotated[
        int,
        _embedded_store(
            Integer(0, 10000),
            "Maximum number of messages of a busy queue that are reserved ahead in Redis; 0 for none.",
        ),
    ] = 50
    journal_retention_ms: Annotated[int, _embedded_store(Duration(), "How long the journal keeps events.")] = (
        7 * _DAY_MS
    )
    reopen_after_ms: Annotated[
        int,
        _embedded_store(
            Duration(),
            "Time until a store that a failed write has stopped is reopened. Doubles after each failure, up to 1m.",
        ),
    ] = 5_000
