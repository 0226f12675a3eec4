"""`holdfast pipeline migrate` of a directory of the legacy layout: in place, and what to say of one that is copied."""

import asyncio
from collections import Counter
from pathlib import Path

import typer

from holdfast.cli.command import Session
from holdfast.cli.failures import Usage
from holdfast.cli.pipeline_session import shown_progress
from holdfast.cli.show import Output, echo_json


def is_legacy_place(cli: Session) -> bool:
    from holdfast.stores.rocks.legacy import is_legacy

    return cli.place.is_directory and is_legacy(Path(cli.place.url))


def migrate_in_place(cli: Session, *, dry_run: bool) -> None:
    """The directory becomes a store. It needs no Spark: one process alone can have the directory open.

    Counts and a hash of all contents must agree before the old files go; if they do not, nothing is removed and the
    command fails. Killed at any point, it goes on when it is run again.
    """
    from holdfast.cli.db import echo_migrated
    from holdfast.stores.rocks.legacy_migration import NEW, migrate_legacy
    from holdfast.stores.rocks.marker import MARKER

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
        migrated = asyncio.run(migrate_legacy(path, progress))
    if cli.output.is_json:
        echo_json(migrated)
    elif not cli.output.is_quiet:
        echo_migrated(migrated)


def _tell_of(path: Path, output: Output) -> None:
    from holdfast.stores.rocks.legacy import is_legacy

    if not is_legacy(path):
        output.done(f"{path} is a store already, or nearly: nothing would be copied", {"is_dry_run": True, "found": {}})
        return
    found, oddities = look_at(path)
    said = ", ".join(f"{count:,} {state}" for state, count in sorted(found.items())) or "nothing"
    output.done(
        f"found {said}; nothing was changed: a dry run", {"is_dry_run": True, "found": found, "oddities": oddities}
    )
    if not output.is_json:
        say_oddities(oddities)


def look_at(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Messages by state, and what is none by its kind."""
    from holdfast.clock import SystemClock
    from holdfast.stores.rocks.legacy import LegacyMessage, opened

    now_ms = SystemClock().now_ms()
    found, oddities = Counter[str](), Counter[str]()
    with opened(path) as database:
        for _, each in database.read():
            if isinstance(each, LegacyMessage):
                is_held = each.lease_expires_at is not None and each.lease_expires_at > now_ms
                found["in_flight" if is_held else "ready"] += 1
            elif each is not None:
                oddities[each.kind.value] += 1
    return dict(found), dict(oddities)


def say_oddities(oddities: dict[str, int]) -> None:
    """Of a database that stays as it is: nothing of this is lost."""
    for kind, count in sorted(oddities.items()):
        typer.echo(f"  {count:,} × {kind}", err=True)
