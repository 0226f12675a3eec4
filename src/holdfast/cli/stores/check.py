"""Verify a whole store of any kind. Spark's workers import this module by its name."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, assert_never

from holdfast.model.errors import HoldfastError, InvalidArgument
from holdfast.model.extras import require_extra
from holdfast.model.parsing.store_url import UrlKind, parse_store_url, without_secrets
from holdfast.server.store_settings import OBJECT_SCHEMES

if TYPE_CHECKING:
    from holdfast.pipeline.jobs.audit import StoreFindings
    from holdfast.stores.findings import Progress, Report
    from holdfast.stores.formats.logged_enqueue import LoggedBatch


def verify_store(
    store: str,
    progress: "Progress | None" = None,
    *,
    shard_map: str = "slots",
    wal_dirs: Sequence[str] = (),
) -> "Report":
    """Verify a store: the directory of an embedded store, the URL of an object store, or the URLs of a PostgreSQL
    store's databases, separated by commas. `shard_map` and `wal_dirs` are those of the servers of a PostgreSQL
    store."""
    kind = parse_store_url(store, field="store").kind
    if wal_dirs and kind is not UrlKind.POSTGRES:
        raise InvalidArgument("only servers of a PostgreSQL store have a log: leave --wal-dir out", field="wal_dir")
    match kind:
        case UrlKind.DIRECTORY:
            from holdfast.stores.rocks.verify.store_check import verify

            return verify(store, progress)
        case UrlKind.OBJECTS:
            require_extra("objects", "an object store", "obstore", field="store")
            from holdfast.stores.objects.verify.store import verify as verify_objects

            return verify_objects(store, progress)
        case UrlKind.POSTGRES:
            urls = _database_urls(store)
            require_extra("postgres", "a PostgreSQL store", "asyncpg", field="store")
            from holdfast.stores.postgres.verify.store_check import verify as verify_postgres

            logs = [_logged(log) for each in wal_dirs for log in _find_logs(each)]
            return verify_postgres(urls, progress, shard_map=shard_map, logs=logs)
        case UrlKind.MEMORY:
            raise InvalidArgument(
                "a store at memory:// is gone with its process: there is nothing to verify", field="store"
            )
        case UrlKind.HTTP | UrlKind.FRAMED | UrlKind.CAPNP:
            raise InvalidArgument(
                f"{without_secrets(store)} is a server: give the store behind it, its directory or its URL",
                field="store",
            )
        case _:
            assert_never(kind)


def _database_urls(store: str) -> list[str]:
    """Return the URLs of the databases of a PostgreSQL store."""
    urls = [part.strip() for part in store.split(",") if part.strip()]
    if any(parse_store_url(url, field="store").kind is not UrlKind.POSTGRES for url in urls):
        raise InvalidArgument("name the databases of one store: postgres://…,postgres://…", field="store")
    return urls


def _find_logs(wal_dir: str) -> list[str]:
    """Return the logs in a server's `wal_dir`, or in a directory with several."""
    from holdfast.stores.buffered.log.segment_rows import find_logs

    return find_logs(wal_dir)


def _logged(log: str) -> "Iterator[LoggedBatch]":
    """Yield the calls of a log, which its server may be writing."""
    from holdfast.stores.buffered.log.reader import read_calls, segment_files

    for file in segment_files(log):
        yield from read_calls(file).batches


def is_object_store(store: str) -> bool:
    """Return True for the URL of an object store."""
    return store.lower().partition("://")[0] in OBJECT_SCHEMES


def check_store(path: str) -> "StoreFindings":
    """Verify a store, and return the findings. A store that cannot be read at all is a finding too."""
    # Imported here because `holdfast verify` also imports this module, and works without Spark.
    from holdfast.pipeline.jobs.audit import StoreFindings

    try:
        report = verify_store(path)
    except HoldfastError as error:
        return StoreFindings(path=path, found=[(str(error), None, None)], number=1)
    found = [(each.what, each.queue, each.id) for each in report.violations]
    return StoreFindings(path=path, found=found, number=report.violation_count)
