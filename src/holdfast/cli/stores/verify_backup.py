"""`holdfast verify` and `holdfast backup`: a store looked at from outside."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.stores.findings import Progress, Report

VIOLATED = 4

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The store's directory, as given to holdfast.open.")]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]


def verify(
    store: Annotated[
        str, typer.Argument(metavar="DIR|URL", help="The store's directory, or file:///, s3://, az:// or gs://.")
    ],
    json: Json = False,
) -> None:
    """Check every invariant of a store, and name what breaks one.

    Each message is in one state, every index entry has its message and the reverse, counters equal a full scan,
    payloads are whole, the journal has no gap and agrees. A directory must not be in use: of one that is, verify a
    backup. An object store may be: it is read whole, and nothing is written. Exits with 4 if anything is wrong.
    """
    from holdfast.cli.stores.check import verify_store

    with _progress(is_shown=not json) as progress:
        report = verify_store(store, progress)
    if json:
        echo_json(report)
    else:
        _echo_report(report)
    if not report.is_clean:
        raise typer.Exit(VIOLATED)


def backup(
    directory: Directory,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A new directory for the copy.")],
    json: Json = False,
) -> None:
    """Copy a store into a new directory, while it is in use too.

    The copy is a store of its own and holds everything that was answered before the command began. Open it like any
    other, or check it with `holdfast verify TARGET`.
    """
    from holdfast.stores.rocks.offline.backup import backup

    copied = backup(directory, target)
    if json:
        echo_json({"source": str(directory), "target": str(target), "files": copied.files, "bytes": copied.bytes})
    else:
        typer.echo(f"{target}: {copied.files} files, {copied.bytes:,} bytes; check it with: holdfast verify {target}")


def _echo_report(report: "Report") -> None:
    typer.echo(
        f"{report.path}: {report.messages:,} messages ({report.ready:,} ready, of them {report.delayed:,} delayed; "
        f"{report.in_flight:,} in flight; {report.failed:,} failed; {report.succeeded:,} succeeded), {report.bytes:,} "
        f"bytes, in {report.queues:,} queues of {report.tenants:,} tenants; {report.events:,} events in the journal"
    )
    if report.unfinished:
        typer.echo(
            f"  {report.unfinished:,} payloads of {report.unfinished_bytes:,} bytes were cut off while they came: they "
            "are no messages, and are deleted once the store is in use again"
        )
    if report.leftovers:
        typer.echo(f"  {report.leftovers:,} documents wait to be tidied up by the next sweep")
    for violation in report.violations:
        typer.echo(f"  {violation}")
    if report.violation_count > len(report.violations):
        typer.echo(f"  and {report.violation_count - len(report.violations):,} more")
    typer.echo("no violations" if report.is_clean else f"{report.violation_count:,} violations: restore a backup")


def echo_json(answer: object) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(answer))


@contextmanager
def _progress(*, is_shown: bool) -> "Iterator[Progress | None]":
    """A bar on a terminal's stderr, nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not (is_shown and console.is_terminal):
        yield None
        return
    from rich.progress import Progress as Bars

    with Bars(console=console, transient=True) as bars:
        tasks = {what: bars.add_task(what, total=None) for what in ("messages", "journal")}
        yield lambda what, done, total: bars.update(tasks[what], completed=done, total=total)
