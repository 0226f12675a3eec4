"""`holdfast pipeline`: commands that open a Spark session, and run the jobs of `holdfast.pipeline` in it."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.failures import Usage, print_error
from holdfast.cli.output import Output
from holdfast.cli.pipeline.demo import demo
from holdfast.cli.pipeline.flush import flush, reshard
from holdfast.cli.pipeline.migrate import migrate
from holdfast.cli.pipeline.moving import MOVE
from holdfast.cli.pipeline.moving import register as register_moving
from holdfast.cli.pipeline.spark_session import (
    Conf,
    LakeAt,
    LakeFormat,
    Master,
    Remote,
    finish,
    open_journal,
    open_lake,
    read_snapshot,
    shown_progress,
    spark_session,
)
from holdfast.cli.session import CommandSession, client_command, duration

_OBSERVE = "Observe"
_LAKE = "Lake"

pipeline = typer.Typer(
    name="pipeline", help="Archive, audit, report on and move messages in bulk with Spark.", no_args_is_help=True
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not print the result.")]
Days = Annotated[
    list[str] | None, typer.Option("--day", metavar="YYYY-MM-DD", help="Only events of this day (UTC). Repeatable.")
]


def archive(
    cli: CommandSession,
    lake: LakeAt,
    lake_format: LakeFormat = None,
    batch_rows: Annotated[int, typer.Option(min=1, metavar="N", help="Events per commit.")] = 500_000,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Also archive the payloads of messages in the store, for `replay`.")
    ] = False,
    allow_gap: Annotated[
        bool, typer.Option("--allow-gap", help="Continue although the store has dropped events that were not archived.")
    ] = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Archive the journal in the lake's tables `events` and `messages`, each event exactly once.

    Run it from cron or as often as you like: it continues where the last run ended. A run that is killed loses and
    duplicates nothing. Exits with 4 if the lake's counts do not agree, or if the store has dropped events that were not
    archived. With --allow-gap it continues after such a gap, and records the gap in the table `violations`.
    """
    from holdfast.pipeline.jobs.archive import archive, keep_payloads

    target = open_lake(lake, lake_format)
    with shown_progress(cli.output) as progress, spark_session("archive", master, remote, conf) as spark:
        done = archive(spark, open_journal(cli), target, batch_rows=batch_rows, allow_gap=allow_gap, progress=progress)
        if payloads:
            with read_snapshot(cli, spark) as snapshot:
                kept = keep_payloads(spark, snapshot, target)
            cli.output.note(f"{kept:,} new payloads archived")
    text = (
        f"{done.events:,} events and {done.messages:,} final records in {done.batches:,} commits: {done.lake} is "
        f"archived up to {done.position or 'the beginning'}"
    )
    for gap in done.gaps:
        print_error(f"{gap}. {'Recorded in violations' if allow_gap else 'To continue without them, give --allow-gap'}")
    finish(cli.output, done, text, is_sound=done.is_sound, checks=done.checks)


client_command(pipeline, _OBSERVE)(archive)
pipeline.command(rich_help_panel=_OBSERVE)(demo)


@pipeline.command(rich_help_panel=_OBSERVE)
def audit(
    lake: Annotated[
        str | None, typer.Option("--lake", "-l", metavar="DIR|URL", help="Lake whose events are audited.")
    ] = None,
    store: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR|URL",
            help="Backup or object store to audit: its keys, indexes, counters and journal. A backup's messages are "
            "also compared with its journal. Repeatable.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URL",
            help="Compare the lake's events with the messages of this store, which must not be in use.",
        ),
    ] = None,
    lake_format: LakeFormat = None,
    days: Days = None,
    max_retries: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Also check that no message was retried more often than this."),
    ] = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check the events of a lake and of backups against the rules of queues, and list the violations.

    Violations are appended to the lake's table `violations`. Exits with 4 if there are any.
    """
    from holdfast.cli.stores.check import check_store, is_object_store
    from holdfast.pipeline.jobs.audit import audit, read_backup_snapshot
    from holdfast.pipeline.lake.tables import EVENTS

    if lake is None and not store:
        raise Usage("give --lake DIR, or --store with the directory of a backup or the URL of an object store, or both")
    if against is not None and lake is None:
        raise Usage("--against needs the events of a lake: give --lake DIR too")
    output = Output(json=json, quiet=quiet)
    target = None if lake is None else open_lake(lake, lake_format)
    for each in store or []:
        if not is_object_store(each) and not Path(each).is_dir():
            raise Usage(f"--store {each} is not a directory: create a backup with `holdfast backup DIR {each}`")
    with shown_progress(output) as progress, spark_session("audit", master, remote, conf) as spark, ExitStack() as kept:
        backups = [each if is_object_store(each) else str(Path(each).absolute()) for each in store or []]
        # Cached, because the journals are read by Python, and several checks scan them.
        journals = {each: spark.read.format("holdfast_journal").option("url", each).load().cache() for each in backups}
        for journal in journals.values():
            kept.callback(journal.unpersist)
        held = {each: read_backup_snapshot(spark, each) for each in backups if not is_object_store(each)}
        found = audit(
            spark,
            [*([] if target is None else [target.read(spark, EVENTS, days)]), *journals.values()],
            snapshot=None if against is None else read_backup_snapshot(spark, against),
            held={each: (journals[each], messages) for each, messages in held.items()},
            stores=backups,
            check_store=check_store,
            max_retries=max_retries,
            lake=target,
            progress=progress,
        )
    lines = [f"  {each}" for each in found.violations]
    if found.violation_count > len(found.violations):
        lines.append(f"  and {found.violation_count - len(found.violations):,} more")
    stores = f" and {found.stores:,} stores" if found.stores else ""
    verdict = f"{found.violation_count:,} violations" if found.broken else "no violations"
    text = "\n".join([*lines, f"{verdict} in {found.events:,} events{stores} (run {found.run})"])
    finish(output, found, text, is_sound=found.is_sound)


@pipeline.command(rich_help_panel=_OBSERVE)
def report(
    lake: LakeAt,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="HTML file to write.")] = Path("report.html"),
    lake_format: LakeFormat = None,
    days: Days = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-T", help="Show only this tenant on the page.")] = None,
    promise: Annotated[
        str,
        typer.Option(metavar="DURATION", help="A message that ends later than this after its enqueue counts as late."),
    ] = "1m",
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Holdfast",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the tables `minute` and `bill_day` and one HTML page with plots from the lake's events."""
    from holdfast.model.parsing.durations import parse_duration_ms
    from holdfast.pipeline.jobs.report import report

    output = Output(json=json, quiet=quiet)
    target = open_lake(lake, lake_format)
    promise_ms = parse_duration_ms("promise", duration(promise) or 0)
    with shown_progress(output) as progress, spark_session("report", master, remote, conf) as spark:
        done = report(
            spark, target, page_at=out, title=title, days=days, tenant=tenant, promise_ms=promise_ms, progress=progress
        )
    where = done.page or "no page, because there are no events"
    text = f"{where}: {done.events:,} events; {done.minutes:,} rows of minute, {done.billed:,} new rows of bill_day"
    finish(output, done, text, is_sound=done.is_sound, checks=done.checks)


register_moving(pipeline)
client_command(pipeline, MOVE)(migrate)
pipeline.command(rich_help_panel=MOVE)(flush)
pipeline.command(rich_help_panel=MOVE)(reshard)


@pipeline.command(rich_help_panel=_LAKE)
def compact(
    lake: LakeAt,
    lake_format: LakeFormat = None,
    keep_hours: Annotated[
        float,
        typer.Option(
            min=0, metavar="HOURS", help="Keep files that a reader who started this many hours ago may still read."
        ),
    ] = 168.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Merge the lake's small files, and delete unreferenced ones. Rows and positions do not change."""
    output = Output(json=json, quiet=quiet)
    done = open_lake(lake, lake_format).compact(keep_hours=keep_hours)
    output.rows(
        (
            {"table": name, "files before": each.files_before, "files after": each.files_after, "deleted": each.removed}
            for name, each in done.items()
        ),
        empty=f"{lake} has no tables",
    )
