"""`holdfast pipeline migrate` for a directory of the legacy layout: migration in place, and checks before a copy."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from holdfast.cli.failures import Usage, printable
from holdfast.cli.output import Output, echo_json
from holdfast.cli.pipeline.spark_session import shown_progress
from holdfast.cli.session import CommandSession

if TYPE_CHECKING:
    from holdfast.stores.rocks.legacy.survey import Survey


def migrate_in_place(cli: CommandSession, accept_unreadable: int, *, dry_run: bool) -> None:
    """Migrate the directory in place, without Spark, because only one process can have the directory open.

    The old files are removed only if the counts and a hash of all contents agree; otherwise the command fails and
    nothing is removed. If it is killed, the next run continues.
    """
    from holdfast.cli.stores.db import echo_migrated
    from holdfast.stores.rocks.legacy.migration import NEW, migrate_legacy
    from holdfast.stores.rocks.recovery.marker import MARKER

    path = Path(cli.target.url)
    if not cli.target.is_directory or not (cli.is_legacy or any((path / each).exists() for each in (NEW, MARKER))):
        raise Usage(
            "give --to URL|DIR. Only a directory of the legacy layout can be migrated in place, and "
            f"{cli.target.url} is not one"
        )
    if dry_run:
        _report_dry_run(path, cli.output)
        return
    with shown_progress(cli.output, "opening") as progress:
        migrated = asyncio.run(migrate_legacy(path, progress, accept_unreadable=accept_unreadable))
    if cli.output.is_json:
        echo_json(migrated)
    elif not cli.output.is_quiet:
        echo_migrated(migrated)


def _report_dry_run(path: Path, output: Output) -> None:
    from holdfast.stores.rocks.legacy.files import is_legacy

    if not is_legacy(path):
        output.done(
            f"{path} is already a store, or its migration has begun: nothing would be copied",
            {"is_dry_run": True, "found": {}},
        )
        return
    found = read_legacy(path)
    states = {"ready": found.sum.ready, "in_flight": found.sum.in_flight}
    text = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()) if count) or "nothing"
    output.done(
        f"found {text}, order of the fields {found.order}; dry run, nothing was changed",
        {
            "is_dry_run": True,
            "found": {state: count for state, count in states.items() if count},
            "order": found.order,
            "oddities": found.oddities,
            "unreadable": found.unreadable,
        },
    )
    if not output.is_json:
        print_oddities(found)


def read_legacy(path: Path) -> "Survey":
    """Read a whole legacy directory. Nothing is written to it."""
    from holdfast.clock import SystemClock
    from holdfast.stores.rocks.legacy.legacy_database import opened
    from holdfast.stores.rocks.legacy.survey import survey

    with opened(path) as database:
        return survey(database, SystemClock().now_ms())


def require_readable(found: "Survey", accept_unreadable: int) -> None:
    """Raise `InvalidArgument` unless the number of unreadable keys is the accepted one."""
    from holdfast.stores.rocks.legacy.survey import require_readable

    require_readable(found, accept_unreadable, f"they would not be copied, and stay in {found.path}")


def print_oddities(found: "Survey") -> None:
    """Print the keys of the legacy directory that are not messages."""
    for kind, count in sorted(found.oddities.items()):
        typer.echo(f"  {count:,} × {kind}", err=True)
    for example in found.examples:
        typer.echo(f"    {printable(example)}", err=True)
