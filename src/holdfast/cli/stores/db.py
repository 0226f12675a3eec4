"""`holdfast db`: migrate stores of PostgreSQL and of the legacy layout, and change the shards of an embedded store."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.failures import Usage
from holdfast.cli.output import echo_json
from holdfast.model.extras import require_extra

if TYPE_CHECKING:
    from holdfast.stores.rocks.legacy.migration import LegacyMigrationResult

db = typer.Typer(
    name="db",
    help="Migrate a store to this version, show its schema version, or change its number of shards.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Store = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL,…", help="URLs of the store's databases, separated by commas. [env: HOLDFAST_STORE]"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]

Directory = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="Directory with a RocksDB database of the legacy layout.")
]

AcceptUnreadable = Annotated[
    int,
    typer.Option(
        "--accept-unreadable",
        metavar="N",
        min=0,
        help="Exact number of unreadable keys and values of a legacy directory to leave out.",
    ),
]


@db.command()
def migrate(
    directory: Directory = None, store: Store = None, accept_unreadable: AcceptUnreadable = 0, json: Json = False
) -> None:
    """Migrate the databases of --store, or the directory DIR of the legacy layout, to this version.

    New databases form a store together and share its queues evenly; a database that joins an existing store has no
    queues at first. The command is safe to run again after it was interrupted, and in any number of processes at once.
    Servers of the previous version can keep running.

    DIR becomes a store, with every message in the queue default/default. No other program may have it open. If a key or
    value cannot be read, nothing is changed, unless --accept-unreadable gives their exact number. The messages are
    copied, and the old files are removed only after the counts and contents of both sides were compared. If the command
    is interrupted, run it again to continue. Keys that are not messages are kept in DIR/legacy-unreadable.jsonl.
    """
    if directory is not None:
        if store is not None:
            raise Usage("give DIR or --store, not both")
        _migrate_directory(directory, accept_unreadable, json=json)
        return
    if accept_unreadable:
        raise Usage("--accept-unreadable applies only to a directory of the legacy layout")
    urls = _urls(store)
    from holdfast.stores.postgres.schema.migrations import migrate

    for url, applied in zip(urls, asyncio.run(_connected(urls, migrate)), strict=True):
        versions = ", ".join(map(str, applied.versions))
        text = f"applied version {versions}" if applied.versions else "up to date"
        facts = {"applied": applied.versions, "shard": applied.shard, "slots": applied.slots}
        _print(url, f"{text}; shard {applied.shard}, {applied.slots} slots", facts, json=json)


def _migrate_directory(directory: Path, accept_unreadable: int, *, json: bool) -> None:
    from holdfast.stores.rocks.legacy.files import is_legacy
    from holdfast.stores.rocks.legacy.migration import migrate_legacy
    from holdfast.stores.rocks.recovery.marker import MARKER

    if not is_legacy(directory) and not (directory / MARKER).exists():
        raise Usage(f"{directory} is neither a RocksDB database of the legacy layout nor a store")
    with _progress_bar(is_shown=not json) as report:
        migrated = asyncio.run(migrate_legacy(directory, report, accept_unreadable=accept_unreadable))
    if json:
        echo_json(migrated)
    else:
        echo_migrated(migrated)


def echo_migrated(migrated: "LegacyMigrationResult") -> None:
    """Print the result of a migration in place."""
    if not migrated.is_done:
        typer.echo(f"{migrated.path} already has the current layout: nothing to do")
        return
    if not migrated.digest:
        typer.echo(f"migrated {migrated.path}: finished the remaining steps of an earlier run")
        return
    typer.echo(
        f"migrated {migrated.path}: {migrated.messages:,} messages in default/default ({migrated.ready:,} ready, "
        f"{migrated.in_flight:,} in flight); counts and contents agree (sha256 sum {migrated.digest[:16]}…)"
    )
    typer.echo(f"  order of the fields in its values: {migrated.order}")
    for kind, count in sorted(migrated.oddities.items()):
        typer.echo(f"  {count:,} × {kind}")
    if migrated.kept is not None:
        typer.echo(f"  keys and values that are not messages are kept in {migrated.kept}")
    typer.echo(f"check it with: holdfast verify {migrated.path}")


@contextmanager
def _progress_bar(*, is_shown: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a progress bar on stderr if it is a terminal. Yield the function that updates it."""
    from rich.console import Console

    console = Console(stderr=True)
    if not (is_shown and console.is_terminal):
        yield lambda stage, done, total: None
        return
    from rich.progress import Progress as Bars

    with Bars(console=console, transient=True) as bars:
        task = bars.add_task("copy", total=None)
        yield lambda stage, done, total: bars.update(task, description=stage, completed=done, total=total)


@db.command()
def reshard(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a store.")],
    shards: Annotated[int, typer.Option("--shards", metavar="N", help="The new number of shards.")],
    json: Json = False,
) -> None:
    """Change the number of shards of the store in DIR. No other program may have it open.

    New shards are written beside the old ones, and replace them after the checks of `holdfast verify` have passed. This
    needs as much free disk space as the store occupies. If the command is interrupted, the store is unchanged: run the
    command again.

    With more shards, readers of the journal continue at their positions. With fewer, let them read to the end first,
    and then continue at the position that this command prints.
    """
    from holdfast.stores.rocks.offline.resharding import reshard

    with _progress_bar(is_shown=not json) as report:
        resharded = reshard(directory, shards, report)
    if json:
        echo_json(resharded)
        return
    if resharded.before == resharded.shards:
        typer.echo(f"{resharded.path} already has {shards} shard{'s' if shards > 1 else ''}: nothing to do")
        return
    typer.echo(
        f"{resharded.path} now has {resharded.shards} shard{'s' if shards > 1 else ''} (before: {resharded.before}): "
        f"{resharded.queues:,} queues, {resharded.messages:,} messages; verified"
    )
    if resharded.position is not None:
        typer.echo(f"  readers of the journal that have read everything continue at {resharded.position}")


@db.command()
def status(store: Store = None, json: Json = False) -> None:
    """Show the schema version of each database, and its part of the store.

    Exits with 3 if a database has to be migrated.
    """
    urls = _urls(store)
    from holdfast.stores.postgres.schema.migrations import status

    async def every(connections: list[Any]) -> list[Any]:
        return [await status(connection) for connection in connections]

    is_behind = False
    statuses = asyncio.run(_connected(urls, every))
    share = sum(each.slots for each in statuses) // len(statuses)
    for url, found in zip(urls, statuses, strict=True):
        is_behind = is_behind or found.version < found.newest or found.cluster_id is None
        text = f"version {found.version} of {found.newest}"
        if found.cluster_id is None:
            text += "; not part of a store yet: run holdfast db migrate"
        else:
            text += f"; shard {found.shard} of store {found.cluster_id}, {found.slots} slots, epoch {found.epoch}"
            if found.slots < share:
                text += f"; its even share is {share}: move queues to it with holdfast pipeline reshard"
        facts = {
            "version": found.version,
            "newest": found.newest,
            "store": None if found.cluster_id is None else str(found.cluster_id),
            "shard": found.shard,
            "slots": found.slots,
            "epoch": found.epoch,
        }
        _print(url, text, facts, json=json)
    if is_behind:
        raise typer.Exit(_BEHIND)


# The exit code if a database is missing from the store or has an older schema.
_BEHIND = 3


def _urls(store: str | None) -> list[str]:
    given = store or os.environ.get("HOLDFAST_STORE") or ""
    urls = [part.strip() for part in given.split(",") if part.strip()]
    if not urls or not all(url.lower().startswith(("postgres://", "postgresql://")) for url in urls):
        raise Usage("give --store postgres://…, several databases separated by commas")
    require_extra("postgres", "a PostgreSQL store")
    return urls


async def _connected(urls: list[str], work: Callable[[list[Any]], Awaitable[list[Any]]]) -> list[Any]:
    from holdfast.stores.postgres.cluster.database import connect

    connections: list[Any] = []
    try:
        for url in urls:
            connections.append(await connect(url))  # noqa: PERF401  (earlier connections must be closed if one fails)
        return await work(connections)
    finally:
        for connection in connections:
            await connection.close()


def _print(url: str, text: str, facts: dict[str, Any], *, json: bool) -> None:
    from holdfast.server.kinds import without_password

    if json:
        echo_json({"database": without_password(url), **facts})
    else:
        typer.echo(f"{without_password(url)}: {text}")
