"""`holdfast verify` and `holdfast backup`, which work on a store itself and not on a server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.failures import Usage
from holdfast.cli.output import echo_json

if TYPE_CHECKING:
    from rich.progress import TaskID

    from holdfast.stores.findings import Progress, Report

VIOLATED = 4

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the store.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def verify(
    store: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL",
            help="Directory of the store, URL of an object store (file:///, s3://, az://, gs://), or URLs of the "
            "databases of a PostgreSQL store (postgres://…, separated by commas).",
        ),
    ],
    shard_map: Annotated[
        str,
        typer.Option(
            "--shard-map",
            metavar="slots|fnv-mod",
            help="How the servers of a PostgreSQL store map queues to databases.",
            envvar="HOLDFAST_SHARD_MAP",
        ),
    ] = "slots",
    wal_dir: Annotated[
        list[Path] | None,
        typer.Option(
            "--wal-dir",
            metavar="DIR",
            help="Also check the log of a server of a PostgreSQL store, at its wal_dir. May be repeated.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check every invariant of a store, and list the violations.

    Each message is in exactly one state and has its index entries, each index entry has its message, counters equal a
    full scan, payloads are complete, and the journal has no gaps and agrees with the messages. A directory must not be
    in use; verify a backup instead. Object stores and databases may be in use. Nothing is written; a role that may only
    read is enough. Exits with 4 if there are violations.
    """
    if shard_map not in ("slots", "fnv-mod"):
        raise Usage("--shard-map is slots or fnv-mod")
    from holdfast.cli.stores.check import verify_store

    with _progress(is_shown=not json) as progress:
        report = verify_store(store, progress, shard_map=shard_map, wal_dirs=[str(each) for each in wal_dir or []])
    if json:
        echo_json(report)
    else:
        _echo_report(report)
    if not report.is_clean:
        raise typer.Exit(VIOLATED)


def backup(
    directory: Directory,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="New directory for the copy.")],
    json: Json = False,
) -> None:
    """Copy a store into a new directory, even while it is in use.

    The copy is a complete store with every change that was confirmed before the command started. Open it like any other
    store, or check it with `holdfast verify TARGET`.
    """
    from holdfast.stores.rocks.offline.backup import backup

    copied = backup(directory, target)
    if json:
        echo_json({"source": str(directory), "target": str(target), "files": copied.files, "bytes": copied.bytes})
    else:
        typer.echo(f"{target}: {copied.files} files, {copied.bytes:,} bytes; check it with: holdfast verify {target}")


def _echo_report(report: "Report") -> None:
    typer.echo(
        f"{report.path}: {report.messages:,} messages ({report.ready:,} ready, {report.delayed:,} of them delayed; "
        f"{report.in_flight:,} in flight; {report.failed:,} failed; {report.succeeded:,} succeeded), {report.bytes:,} "
        f"bytes, in {report.queues:,} queues of {report.tenants:,} tenants; {report.events:,} events in the journal"
    )
    if report.unfinished:
        typer.echo(
            f"  {report.unfinished:,} incomplete payload uploads ({report.unfinished_bytes:,} bytes): they are not "
            "messages, and are deleted when the store is next opened"
        )
    if report.logged:
        typer.echo(f"  {report.logged:,} more messages are ready in logs, and land in a database soon")
    if report.leftovers:
        typer.echo(f"  {report.leftovers:,} leftovers, which the next sweep deletes")
    if report.legacy:
        typer.echo(f"  {report.legacy:,} further messages are still to be moved from the legacy layout")
    for violation in report.violations:
        typer.echo(f"  {violation}")
    if report.violation_count > len(report.violations):
        typer.echo(f"  and {report.violation_count - len(report.violations):,} more")
    typer.echo("no violations" if report.is_clean else f"{report.violation_count:,} violations: restore a backup")


@contextmanager
def _progress(*, is_shown: bool) -> "Iterator[Progress | None]":
    """Show progress bars on stderr if it is a terminal. Yield the function that updates them, or None."""
    from rich.console import Console

    console = Console(stderr=True)
    if not (is_shown and console.is_terminal):
        yield None
        return
    from rich.progress import Progress as Bars

    with Bars(console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=None)
            # Without an estimate the total is what is done.
            bars.update(tasks[stage], completed=done, total=total if total > done else None)

        yield update
