"""`holdfast pipeline migrate` of a directory of the legacy layout: in place, and the checks before one is copied."""

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


def is_legacy_place(cli: CommandSession) -> bool:
    from holdfast.stores.rocks.legacy.files import is_legacy

    return cli.place.is_directory and is_legacy(Path(cli.place.url))


def migrate_in_place(cli: CommandSession, accept_unreadable: int, *, dry_run: bool) -> None:
    """Make the directory a store, without Spark: only one process can have the directory open.

    Counts and a hash of all contents must agree before the old files are removed; otherwise the command fails and
    nothing is removed. If it is killed, it goes on when it is run again.
    """
    from holdfast.cli.stores.db import echo_migrated
    from holdfast.stores.rocks.legacy.migration import NEW, migrate_legacy
    from holdfast.stores.rocks.recovery.marker import MARKER

    path = Path(cli.place.url)
    if not cli.place.is_directory or not (
        is_legacy_place(cli) or any((path / each).exists() for each in (NEW, MARKER))
    ):
        raise Usage(
            "where to? Give --to URL|DIR. Only a directory of the legacy layout is migrated in place, and "
            f"{cli.place.url} is none"
        )
    if dry_run:
        _tell_of(path, cli.output)
        return
    with shown_progress(cli.output, "opening") as progress:
        migrated = asyncio.run(migrate_legacy(path, progress, accept_unreadable=accept_unreadable))
    if cli.output.is_json:
        echo_json(migrated)
    elif not cli.output.is_quiet:
        echo_migrated(migrated)


def _tell_of(path: Path, output: Output) -> None:
    from holdfast.stores.rocks.legacy.files import is_legacy

    if not is_legacy(path):
        output.done(f"{path} is a store already, or nearly: nothing would be copied", {"is_dry_run": True, "found": {}})
        return
    found = look_at(path)
    states = {"ready": found.sum.ready, "in_flight": found.sum.in_flight}
    said = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()) if count) or "nothing"
    output.done(
        f"found {said}, fields in the order {found.order}; nothing was changed: a dry run",
        {
            "is_dry_run": True,
            "found": {state: count for state, count in states.items() if count},
            "order": found.order,
            "oddities": found.oddities,
            "unreadable": found.unreadable,
        },
    )
    if not output.is_json:
        say_oddities(found)


def look_at(path: Path) -> "Survey":
    """Read a legacy directory whole. Nothing is written to it."""
    from holdfast.clock import SystemClock
    from holdfast.stores.rocks.legacy.legacy_database import opened
    from holdfast.stores.rocks.legacy.survey import survey

    with opened(path) as database:
        return survey(database, SystemClock().now_ms())


def require_readable(found: "Survey", accept_unreadable: int) -> None:
    """Raise `InvalidArgument` unless the number of unreadable keys is the accepted one."""
    from holdfast.stores.rocks.legacy.survey import require_readable

    require_readable(found, accept_unreadable, f"they are not copied, and stay in {found.path}")


def say_oddities(found: "Survey") -> None:
    """List the keys that are not messages, of a database that stays as it is."""
    for kind, count in sorted(found.oddities.items()):
        typer.echo(f"  {count:,} × {kind}", err=True)
    for example in found.examples:
        typer.echo(f"    {printable(example)}", err=True)
