"""`holdfast db`: the schema of a PostgreSQL store, directories of the legacy layout, and the shards of a directory."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.failures import Usage
from holdfast.model.extras import require_extra

if TYPE_CHECKING:
    from holdfast.stores.rocks.legacy.migration import LegacyMigrationResult

db = typer.Typer(
    name="db",
    help="Make or look at the tables of a PostgreSQL store; bring an older directory up to date, or change its shards.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL,…",
        help="Its databases, separated by commas. Variable: HOLDFAST_STORE",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, one object a line.")]


Directory = Annotated[
    Path | None,
    typer.Argument(metavar="DIR", help="A directory with a RocksDB database of the legacy layout.", show_default=False),
]


AcceptUnreadable = Annotated[
    int,
    typer.Option(
        "--accept-unreadable",
        metavar="N",
        min=0,
        help="Leave out keys and values of a legacy directory that cannot be read: their exact number.",
    ),
]


@db.command()
def migrate(
    directory: Directory = None, store: Store = None, accept_unreadable: AcceptUnreadable = 0, json: Json = False
) -> None:
    """Bring a store up to date: the databases of --store, or the directory DIR of the legacy layout.

    New databases become a store together, and share its queues evenly; one that joins a store owns none of them yet.
    Run again, it changes nothing. Servers of the version before may go on meanwhile.

    DIR becomes a store, with every message in the queue default/default. No program may have it open. If any key or
    value in it cannot be read, nothing is changed, unless --accept-unreadable names their exact number. The messages
    are copied, both sides are read whole and must agree in counts and contents; only then are the old files removed.
    If it is interrupted, run it again: it goes on. Keys that are not messages are kept in DIR/legacy-unreadable.jsonl.
    """
    if directory is not None:
        if store is not None:
            raise Usage("give DIR or --store, not both")
        _migrate_directory(directory, accept_unreadable, json=json)
        return
    if accept_unreadable:
        raise Usage("--accept-unreadable is for a directory of the legacy layout")
    urls = _urls(store)
    from holdfast.stores.postgres.schema.migrations import migrate

    for url, applied in zip(urls, asyncio.run(_connected(urls, migrate)), strict=True):
        versions = ", ".join(map(str, applied.versions))
        said = f"applied version {versions}" if applied.versions else "up to date"
        facts = {"applied": applied.versions, "shard": applied.shard, "slots": applied.slots}
        _say(url, f"{said}; shard {applied.shard}, {applied.slots} slots", facts, json=json)


def _migrate_directory(directory: Path, accept_unreadable: int, *, json: bool) -> None:
    from holdfast.cli.stores.verify_backup import echo_json
    from holdfast.stores.rocks.legacy.files import is_legacy
    from holdfast.stores.rocks.legacy.migration import migrate_legacy
    from holdfast.stores.rocks.recovery.marker import MARKER

    if not is_legacy(directory) and not (directory / MARKER).exists():
        raise Usage(f"{directory} is neither a RocksDB database of the legacy layout nor a store")
    with _bar(is_shown=not json) as told:
        migrated = asyncio.run(migrate_legacy(directory, told, accept_unreadable=accept_unreadable))
    if json:
        echo_json(migrated)
    else:
        echo_migrated(migrated)


def echo_migrated(migrated: "LegacyMigrationResult") -> None:
    if not migrated.is_done:
        typer.echo(f"{migrated.path} is a store of this layout already: nothing to do")
        return
    if not migrated.digest:
        typer.echo(f"{migrated.path} is a store now: the remaining steps of an earlier run are done")
        return
    typer.echo(
        f"{migrated.path} is a store now: {migrated.messages:,} messages in default/default ({migrated.ready:,} ready, "
        f"{migrated.in_flight:,} in flight); counts and contents agreed (sha256 sum {migrated.digest[:16]}…)"
    )
    typer.echo(f"  its values' fields were in the order {migrated.order}")
    for kind, count in sorted(migrated.oddities.items()):
        typer.echo(f"  {count:,} × {kind}")
    if migrated.kept is not None:
        typer.echo(f"  keys and values that are not messages are kept in {migrated.kept}")
    typer.echo(f"check it with: holdfast verify {migrated.path}")


@contextmanager
def _bar(*, is_shown: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """On a terminal's stderr, nothing elsewhere."""
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
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a store.", show_default=False)],
    shards: Annotated[int, typer.Option("--shards", metavar="N", help="The new number of shards.", show_default=False)],
    json: Json = False,
) -> None:
    """Give the store in DIR another number of shards. No program may have it open.

    All shards are written anew beside the old ones, and checked as `holdfast verify` does; only then do they take the
    place of the old ones. So it needs as much free space as the store has. If it is interrupted, the store is as it
    was: run it again.

    With more shards, readers of the journal go on at their positions. With fewer, let them read to the end first, and
    have them go on at the position that this command answers.
    """
    from holdfast.cli.stores.verify_backup import echo_json
    from holdfast.stores.rocks.offline.resharding import reshard

    with _bar(is_shown=not json) as told:
        resharded = reshard(directory, shards, told)
    if json:
        echo_json(resharded)
        return
    if resharded.before == resharded.shards:
        typer.echo(f"{resharded.path} has {shards} shard{'s' if shards > 1 else ''} already: nothing to do")
        return
    typer.echo(
        f"{resharded.path} has {resharded.shards} shard{'s' if shards > 1 else ''} now (before: {resharded.before}): "
        f"{resharded.queues:,} queues, {resharded.messages:,} messages; checked"
    )
    if resharded.position is not None:
        typer.echo(f"  readers of the journal that had read everything go on at {resharded.position}")


@db.command()
def status(store: Store = None, json: Json = False) -> None:
    """Say which version of the schema each database has, and which part of the store it is."""
    urls = _urls(store)
    from holdfast.stores.postgres.schema.migrations import status

    async def every(connections: list[Any]) -> list[Any]:
        return [await status(connection) for connection in connections]

    is_behind = False
    statuses = asyncio.run(_connected(urls, every))
    share = sum(each.slots for each in statuses) // len(statuses)
    for url, found in zip(urls, statuses, strict=True):
        is_behind = is_behind or found.version < found.newest or found.cluster_id is None
        said = f"version {found.version} of {found.newest}"
        if found.cluster_id is None:
            said += "; not part of a store yet: run holdfast db migrate"
        else:
            said += f"; shard {found.shard} of store {found.cluster_id}, {found.slots} slots, epoch {found.epoch}"
            if found.slots < share:
                said += f"; its even share would be {share}: queues go to it by resharding"
        facts = {
            "version": found.version,
            "newest": found.newest,
            "store": None if found.cluster_id is None else str(found.cluster_id),
            "shard": found.shard,
            "slots": found.slots,
            "epoch": found.epoch,
        }
        _say(url, said, facts, json=json)
    if is_behind:
        raise typer.Exit(_BEHIND)


# Nothing there, or not all of it.
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
            connections.append(await connect(url))  # noqa: PERF401  (those before it must be closed if one fails)
        return await work(connections)
    finally:
        for connection in connections:
            await connection.close()


def _say(url: str, said: str, facts: dict[str, Any], *, json: bool) -> None:
    from holdfast.cli.stores.verify_backup import echo_json
    from holdfast.server.kinds import without_password

    if json:
        echo_json({"database": without_password(url), **facts})
    else:
        typer.echo(f"{without_password(url)}: {said}")
