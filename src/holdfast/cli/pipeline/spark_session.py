"""What every command of `holdfast pipeline` has: a Spark session, a lake, progress, and how it ends."""

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

# As `holdfast verify`: something is not as it must be.
DISAGREES = 4

_SPARK = "Spark"

LakeAt = Annotated[
    str, typer.Option("--lake", "-l", metavar="DIR|URL", help="The lake: a directory, or s3://, gs:// and the like.")
]
LakeFormat = Annotated[
    str | None,
    typer.Option(
        metavar="delta|iceberg|parquet", help="Default: delta where delta-rs is installed.", show_default=False
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="MASTER", help="Spark's master. Default: local[*]", rich_help_panel=_SPARK, show_default=False
    ),
]
Remote = Annotated[
    str | None,
    typer.Option(
        metavar="sc://HOST", help="Run on a Spark Connect server.", rich_help_panel=_SPARK, show_default=False
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark.", rich_help_panel=_SPARK, show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


@contextmanager
def spark_session(
    name: str, master: str | None = None, remote: str | None = None, conf: list[str] | None = None
) -> "Iterator[SparkSession]":
    """A session for one job; one that was there before stays."""
    from pyspark.sql import SparkSession

    from holdfast.pipeline.session import open_session

    is_ours = SparkSession.getActiveSession() is None
    session = open_session(f"holdfast {name}", master=master, remote=remote, settings=settings_of(conf, "--conf"))
    try:
        yield session
    finally:
        if is_ours:
            session.stop()


def settings_of(given: list[str] | None, option: str) -> dict[str, str]:
    """Of KEY=VALUE pairs."""
    settings: dict[str, str] = {}
    for each in given or []:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise Usage(f"{option} {each!r} is not KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


def lake_of(place: str, format: str | None) -> "Lake":
    from holdfast.pipeline.lake.lake import Lake, LakeKind

    if format is not None and format not in list(LakeKind):
        raise Usage(f"--lake-format {format!r} is not known: give {' or '.join(LakeKind)}")
    # Spark and delta-rs are told the same place, whatever the directory they run in.
    at = place if "://" in place else str(Path(place).absolute())
    return Lake(at, None if format is None else LakeKind(format))


def journal_of(cli: CommandSession) -> "ArchiveJournal":
    """A server's journal is read by Spark's tasks; that of a store which one process has open, by this one."""
    from holdfast.pipeline.jobs.journals import OpenedJournal, SourceJournal

    if not is_shared(cli):
        return OpenedJournal(cli.hf)
    from holdfast.server.bulk import open_feed

    return SourceJournal(source_options(cli), open_feed)


@contextmanager
def snapshot_of(
    cli: CommandSession, spark: "SparkSession", tenant: str = "*", queue: str = "*"
) -> "Iterator[DataFrame]":
    """The messages that stand in the store, with their payloads."""
    from holdfast.pipeline.jobs.migrate import snapshot_of_opened, snapshot_of_source

    if is_shared(cli):
        yield snapshot_of_source(spark, source_options(cli), tenant, queue)
        return
    with snapshot_of_opened(spark, cli.hf, tenant, queue) as snapshot:
        yield snapshot


def target_of(cli: CommandSession) -> "WriteTarget":
    """Where a job enqueues: a server is written to by Spark's tasks, a store that one process has open by this one."""
    from holdfast.pipeline.jobs.targets import OpenedTarget, SinkTarget

    return SinkTarget(source_options(cli)) if is_shared(cli) else OpenedTarget(cli.hf)


def is_shared(cli: CommandSession) -> bool:
    """Whether Spark's tasks reach it by themselves: a server, or databases whose URL may stand in a plan."""
    url = cli.place.url
    if not url.lower().startswith(("postgres://", "postgresql://")):
        return cli.place.is_server
    return not any(urlsplit(each).password for each in url.split(","))


def source_options(cli: CommandSession) -> dict[str, str]:
    options = {"url": cli.place.url}
    return options if cli.place.token is None else {**options, "token": cli.place.token}


@contextmanager
def shown_progress(output: Output, first: str = "starting Spark") -> "Iterator[Progress]":
    """A bar on a terminal's stderr, nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if output.is_json or output.is_quiet or not console.is_terminal:
        yield lambda what, done, total: None
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

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        tell(first, 0, None)
        yield tell


def finish(output: Output, answer: Any, said: str, *, is_sound: bool, checks: "list[Check] | None" = None) -> None:
    """Say what was done; if counts that must agree do not, say which and exit with 4."""
    if output.is_json:
        echo_json(answer)
    elif not output.is_quiet:
        typer.echo(said)
    if is_sound:
        return
    for each in checks or []:
        if not each.is_met:
            typer.echo(f"holdfast: {each}", err=True)
    raise typer.Exit(DISAGREES)
