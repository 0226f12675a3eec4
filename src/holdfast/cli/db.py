"""`holdfast db`: the schema of a PostgreSQL store."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from holdfast.cli.failures import Usage

db = typer.Typer(
    name="db",
    help="Make or look at the tables of a PostgreSQL store.",
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


@db.command()
def migrate(store: Store = None, json: Json = False) -> None:
    """Bring the databases of a store up to date.

    New databases become a store together, and share its queues evenly; one that joins a store owns none of them yet.
    Run again, it changes nothing. Servers of the version before may go on meanwhile.
    """
    from holdfast.stores.postgres.migrations import migrate

    urls = _urls(store)
    for url, applied in zip(urls, asyncio.run(_connected(urls, migrate)), strict=True):
        versions = ", ".join(map(str, applied.versions))
        said = f"applied version {versions}" if applied.versions else "up to date"
        facts = {"applied": applied.versions, "shard": applied.shard, "slots": applied.slots}
        _say(url, f"{said}; shard {applied.shard}, {applied.slots} slots", facts, json=json)


@db.command()
def status(store: Store = None, json: Json = False) -> None:
    """Say which version of the schema each database has, and which part of the store it is."""
    from holdfast.stores.postgres.migrations import status

    async def every(connections: list[Any]) -> list[Any]:
        return [await status(connection) for connection in connections]

    urls = _urls(store)
    is_behind = False
    for url, found in zip(urls, asyncio.run(_connected(urls, every)), strict=True):
        is_behind = is_behind or found.version < found.newest or found.cluster_id is None
        said = f"version {found.version} of {found.newest}"
        if found.cluster_id is None:
            said += "; not part of a store yet: run holdfast db migrate"
        else:
            said += f"; shard {found.shard} of store {found.cluster_id}, {found.slots} slots, epoch {found.epoch}"
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
    if find_spec("asyncpg") is None:
        raise Usage("a PostgreSQL store needs more than is installed: pip install 'holdfast[postgres]'")
    return urls


async def _connected(urls: list[str], work: Callable[[list[Any]], Awaitable[list[Any]]]) -> list[Any]:
    from holdfast.stores.postgres.shard import connect

    connections: list[Any] = []
    try:
        for url in urls:
            connections.append(await connect(url))  # noqa: PERF401  (those before it must be closed if one fails)
        return await work(connections)
    finally:
        for connection in connections:
            await connection.close()


def _say(url: str, said: str, facts: dict[str, Any], *, json: bool) -> None:
    from holdfast.cli.upkeep import echo_json
    from holdfast.server.kinds import without_password

    if json:
        echo_json({"database": without_password(url), **facts})
    else:
        typer.echo(f"{without_password(url)}: {said}")
