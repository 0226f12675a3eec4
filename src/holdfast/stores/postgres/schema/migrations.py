"""The versions of the schema, applied in order by `holdfast db migrate`.

How to change this format: to change a table or function, add a file `NNNN_name.sql` to `migrations/`. Servers of the
previous version keep running during a migration, so a column or function that they use stays for one release. Never
change a file that was released, except for its comments. `tests/stores/postgres/schema_1.sql` has the rows of a store
of version 1.
"""

import re
from importlib import resources
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.model.errors import StoreUnavailable
from holdfast.stores.postgres.schema.membership import join_all

# Advisory lock: two processes never migrate one database at the same time.
_LOCK = 0x686F6C64
# How long a migration may take, and how long to wait for another process that migrates the same database.
_MIGRATION_S = 3_600.0

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(NamedTuple):
    """One version of the schema."""

    version: int
    name: str
    sql: str


class Applied(NamedTuple):
    """The result of `migrate` on one database."""

    versions: list[int]
    shard: int
    slots: int


class Status(NamedTuple):
    """The schema version of a database and its part in the cluster."""

    version: int
    newest: int
    cluster_id: UUID | None
    shard: int | None
    slots: int
    epoch: int


def migrations() -> list[Migration]:
    """Return all migrations, oldest first."""
    files = resources.files(__package__).joinpath("migrations").iterdir()
    return sorted(
        Migration(int(matched[1]), matched[2], file.read_text(encoding="utf-8"))
        for file in files
        if (matched := _FILE.fullmatch(file.name))
    )


def newest() -> int:
    """Return the newest version."""
    return migrations()[-1].version


async def migrate(connections: list[Any]) -> list[Applied]:
    """Bring the databases of a store up to date, and make one store of them, or join new ones to it (`membership.py`).

    Safe to run again after it was interrupted, and in any number of processes at once, whatever the order of the
    databases. Numbers follow the given order when the store is new. Raise `InvalidArgument` if the databases belong to
    different stores.
    """
    versions = [await _migrate_one(connection) for connection in connections]
    await join_all(connections)
    after = [await status(connection) for connection in connections]
    return [
        Applied(applied, each.shard if each.shard is not None else -1, each.slots)
        for applied, each in zip(versions, after, strict=True)
    ]


async def _migrate_one(connection: Any) -> list[int]:
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK, timeout=_MIGRATION_S)
        await connection.execute("CREATE SCHEMA IF NOT EXISTS holdfast")
        await connection.execute("SET LOCAL search_path TO holdfast")
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations ("
            "version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        have = {row["version"] for row in await connection.fetch("SELECT version FROM migrations")}
        _check_not_newer(max(have, default=0))
        applied = []
        for each in migrations():
            if each.version not in have:
                await connection.execute(each.sql, timeout=_MIGRATION_S)
                await connection.execute(
                    "INSERT INTO migrations (version, name) VALUES ($1, $2)", each.version, each.name
                )
                applied.append(each.version)
    return applied


async def status(connection: Any) -> Status:
    """Read the status of a database."""
    if await connection.fetchval("SELECT to_regclass('holdfast.migrations')") is None:
        return Status(0, newest(), None, None, 0, 0)
    version = await connection.fetchval("SELECT coalesce(max(version), 0) FROM holdfast.migrations")
    row = await connection.fetchrow("SELECT cluster_id, shard, epoch FROM holdfast.cluster") if version else None
    if row is None:
        return Status(version, newest(), None, None, 0, 0)
    slots = await connection.fetchval("SELECT count(*) FROM holdfast.slots WHERE shard = $1", row["shard"])
    return Status(version, newest(), row["cluster_id"], row["shard"], slots, row["epoch"])


def check(found: Status, shown_url: str) -> None:
    """Raise `StoreUnavailable` if this version of Holdfast cannot serve the database as it is."""
    _check_not_newer(found.version)
    if found.version < found.newest or found.cluster_id is None:
        raise StoreUnavailable(
            f"{shown_url} has schema version {found.version}, this Holdfast needs {found.newest}; "
            "run `holdfast db migrate`"
        )


def _check_not_newer(version: int) -> None:
    if version > newest():
        raise StoreUnavailable(
            f"the database has schema version {version}, this Holdfast knows {newest()}; upgrade Holdfast"
        )
