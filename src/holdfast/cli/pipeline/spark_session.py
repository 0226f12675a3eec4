"""The parts that the commands of `holdfast pipeline` share: options, Spark session, lake, progress and result."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from holdfast.cli.failures import Usage
from holdfast.cli.output import Output, echo_json
from holdfast.cli.session import CommandSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.pipeline.jobs.journals import ArchiveJournal
    from holdfast.pipeline.jobs.progress import Check, Progress
    from holdfast.pipeline.jobs.targets import WriteTarget
    from holdfast.pipeline.lake.lake import Lake

# The exit code if counts that must agree differ, as for `holdfast verify`.
DISAGREES = 4

_SPARK = "Spark"

LakeAt = Annotated[
    str, typer.Option("--lake", "-l", metavar="DIR|URL", help="Directory or URL of the lake (s3://, gs://, …).")
]
LakeFormat = Annotated[
    str | None,
    typer.Option(
        metavar="delta|iceberg|parquet",
        help="Format of the lake's tables. [default: delta if delta-rs is installed, else parquet]",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(metavar="MASTER", help="Master URL of Spark. [default: `local[*]`]", rich_help_panel=_SPARK),
]
Remote = Annotated[
    str | None,
    typer.Option(metavar="sc://HOST", help="URL of a Spark Connect server to run on.", rich_help_panel=_SPARK),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Setting of Spark. Repeatable.", rich_help_panel=_SPARK),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]


@contextmanager
def spark_session(
    name: str, master: str | None = None, remote: str | None = None, conf: list[str] | None = None
) -> "Iterator[SparkSession]":
    """Open a session for one job, or use the active session, which is then not stopped at the end."""
    from pyspark.sql import SparkSession

    from holdfast.pipeline.session import open_session

    is_ours = SparkSession.getActiveSession() is None
    session = open_session(f"holdfast {name}", master=master, remote=remote, settings=parse_settings(conf, "--conf"))
    try:
        yield session
    finally:
        if is_ours:
            session.stop()


def parse_settings(given: list[str] | None, option: str) -> dict[str, str]:
    """Parse the KEY=VALUE values of a repeatable option."""
    settings: dict[str, str] = {}
    for each in given or []:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise Usage(f"{option} {each!r} is not KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


def open_lake(location: str, format: str | None) -> "Lake":
    """Return the lake at a URL or in a directory."""
    from holdfast.pipeline.lake.lake import Lake, LakeKind

    if format is not None and format not in list(LakeKind):
        raise Usage(f"--lake-format {format!r} is unknown: give {' or '.join(LakeKind)}")
    # Absolute, because Spark and delta-rs may run in other directories.
    url = location if "://" in location else str(Path(location).absolute())
    return Lake(url, None if format is None else LakeKind(format))


def open_journal(cli: CommandSession) -> "ArchiveJournal":
    """Return the journal: read by Spark's tasks if they can reach the store, otherwise by this process."""
    from holdfast.pipeline.jobs.journals import OpenedJournal, SourceJournal

    if not is_reachable_by_tasks(cli):
        return OpenedJournal(cli.hf)
    from holdfast.server.bulk import open_feed

    return SourceJournal(source_options(cli), open_feed)


@contextmanager
def read_snapshot(
    cli: CommandSession, spark: "SparkSession", tenant: str = "*", queue: str = "*"
) -> "Iterator[DataFrame]":
    """Read the messages of the store with their payloads."""
    from holdfast.pipeline.jobs.migrate import read_opened_snapshot, read_source_snapshot

    if is_reachable_by_tasks(cli):
        yield read_source_snapshot(spark, source_options(cli), tenant, queue)
        return
    with read_opened_snapshot(spark, cli.hf, tenant, queue) as snapshot:
        yield snapshot


def make_target(cli: CommandSession) -> "WriteTarget":
    """Return the target of enqueues, written by Spark's tasks if they can reach the store, else by this process."""
    from holdfast.pipeline.jobs.targets import OpenedTarget, SinkTarget

    return SinkTarget(source_options(cli)) if is_reachable_by_tasks(cli) else OpenedTarget(cli.hf)


def is_reachable_by_tasks(cli: CommandSession) -> bool:
    """Return True for stores that Spark's tasks can reach: servers, and databases without a password in their URL.

    A password must not become part of Spark's plan.
    """
    url = cli.target.url
    if not url.lower().startswith(("postgres://", "postgresql://")):
        return cli.target.is_server
    return not any(urlsplit(each).password for each in url.split(","))


def source_options(cli: CommandSession) -> dict[str, str]:
    """Return the options of the data source `holdfast` for the command's target."""
    options = {"url": cli.target.url}
    return options if cli.target.token is None else {**options, "token": cli.target.token}


@contextmanager
def shown_progress(output: Output, first: str = "starting Spark") -> "Iterator[Progress]":
    """Show progress bars on stderr if it is a terminal. Yield the function that updates them."""
    from rich.console import Console

    console = Console(stderr=True)
    if output.is_json or output.is_quiet or not console.is_terminal:
        yield lambda stage, done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        show(first, 0, None)
        yield show


def finish(output: Output, result: Any, text: str, *, is_sound: bool, checks: "list[Check] | None" = None) -> None:
    """Print the result. If counts that must agree differ, print which ones, and exit with 4."""
    if output.is_json:
        echo_json(result)
    elif not output.is_quiet:
        typer.echo(text)
    if is_sound:
        return
    for each in checks or []:
        if not each.is_met:
            typer.echo(f"holdfast: {each}", err=True)
    raise typer.Exit(DISAGREES)
