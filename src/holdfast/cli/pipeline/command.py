"""`holdfast pipeline`: the jobs on Spark. Each is a function of a session; here it gets one."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.failures import complain
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
    journal_of,
    lake_of,
    shown_progress,
    snapshot_of,
    spark_session,
)
from holdfast.cli.session import CommandSession, client_command

_OBSERVE = "Observe"
_LAKE = "The lake"

pipeline = typer.Typer(
    name="pipeline",
    help="Move and examine messages in bulk, on Spark: archive, audit, report and more.",
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what is asked for.")]
Days = Annotated[
    list[str] | None, typer.Option("--day", metavar="YYYY-MM-DD", help="Only these days (UTC).", show_default=False)
]


def archive(
    cli: CommandSession,
    lake: LakeAt,
    lake_format: LakeFormat = None,
    batch_rows: Annotated[int, typer.Option(min=1, metavar="N", help="Events in one commit.")] = 500_000,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Keep the payloads of what stands in the store too, for `replay`.")
    ] = False,
    allow_gap: Annotated[
        bool, typer.Option("--allow-gap", help="Go on behind events that the store's retention dropped before.")
    ] = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Bring the journal into the lake: tables `events` and `messages`, each event once.

    Run it from cron, or as often as you like: it goes on where it ended. Killed at any point it loses and doubles
    nothing. Exits with 4 if the lake's counts do not agree, or if the store has dropped events that were not archived:
    it stops there, and --allow-gap goes on, with the gap in the table `violations`.
    """
    from holdfast.pipeline.jobs.archive import archive, keep_payloads

    place = lake_of(lake, lake_format)
    with shown_progress(cli.output) as progress, spark_session("archive", master, remote, conf) as spark:
        done = archive(spark, journal_of(cli), place, batch_rows=batch_rows, allow_gap=allow_gap, progress=progress)
        if payloads:
            with snapshot_of(cli, spark) as snapshot:
                kept = keep_payloads(spark, snapshot, place)
            cli.output.note(f"{kept:,} new payloads are kept")
    said = (
        f"{done.events:,} events and {done.messages:,} final records in {done.batches:,} commits: {done.lake} is up to "
        f"{done.position or 'the beginning'}"
    )
    for gap in done.gaps:
        complain(f"{gap}. {'Written down in violations.' if allow_gap else 'To go on without them: --allow-gap'}")
    finish(cli.output, done, said, is_sound=done.is_sound, checks=done.checks)


client_command(pipeline, _OBSERVE)(archive)
pipeline.command(rich_help_panel=_OBSERVE)(demo)


@pipeline.command(rich_help_panel=_OBSERVE)
def audit(
    lake: Annotated[
        str | None, typer.Option("--lake", "-l", metavar="DIR|URL", help="Audit this lake's events.")
    ] = None,
    store: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR|URL",
            help="Audit this backup or object store: its keys, indexes, counters and journal, and a backup's messages "
            "against its journal. Repeatable.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="DIR|URL", help="Hold the lake's events against this store at rest, message by message."),
    ] = None,
    lake_format: LakeFormat = None,
    days: Days = None,
    max_retries: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Check that no message was retried more often.")
    ] = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check every rule that a queue must keep, over the lake's events and over backups, and name each violation.

    They are appended to the lake's table `violations`. Exits with 4 if there are any.
    """
    from holdfast.cli.failures import Usage
    from holdfast.cli.stores.check import check_store, is_object_store
    from holdfast.pipeline.jobs.audit import audit, snapshot_of_place
    from holdfast.pipeline.lake.tables import EVENTS

    if lake is None and not store:
        raise Usage("audit what? Give --lake DIR, or --store DIR of a backup or an object store's URL, or both")
    if against is not None and lake is None:
        raise Usage("--against is held against a lake's events: give --lake DIR too")
    output = Output(json=json, quiet=quiet)
    place = None if lake is None else lake_of(lake, lake_format)
    for each in store or []:
        if not is_object_store(each) and not Path(each).is_dir():
            raise Usage(f"--store {each} is not a directory: make a backup with `holdfast backup DIR {each}`")
    with (
        shown_progress(output) as progress,
        spark_session("audit", master, remote, conf) as spark,
        ExitStack() as kept,
    ):
        backups = [each if is_object_store(each) else str(Path(each).absolute()) for each in store or []]
        # Read by Python, and looked over several times: once is enough.
        journals = {each: spark.read.format("holdfast_journal").option("url", each).load().cache() for each in backups}
        for journal in journals.values():
            kept.callback(journal.unpersist)
        held = {each: snapshot_of_place(spark, each) for each in backups if not is_object_store(each)}
        found = audit(
            spark,
            [*([] if place is None else [place.read(spark, EVENTS, days)]), *journals.values()],
            snapshot=None if against is None else snapshot_of_place(spark, against),
            held={each: (journals[each], messages) for each, messages in held.items()},
            stores=backups,
            check_store=check_store,
            max_retries=max_retries,
            lake=place,
            progress=progress,
        )
    lines = [f"  {each}" for each in found.violations]
    if found.violation_count > len(found.violations):
        lines.append(f"  and {found.violation_count - len(found.violations):,} more")
    stores = f" and {found.stores:,} stores" if found.stores else ""
    verdict = f"{found.violation_count:,} violations" if found.broken else "no violations"
    said = "\n".join([*lines, f"{verdict} in {found.events:,} events{stores} (run {found.run})"])
    finish(output, found, said, is_sound=found.is_sound)


@pipeline.command(rich_help_panel=_OBSERVE)
def report(
    lake: LakeAt,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
    lake_format: LakeFormat = None,
    days: Days = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-T", help="Only this tenant on the page.")] = None,
    promise: Annotated[
        str, typer.Option(metavar="DURATION", help="Done later than this after its enqueue is late.")
    ] = "1m",
    title: Annotated[str, typer.Option(help="The page's heading.")] = "Holdfast",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the tables `minute` and `bill_day`, and one page of HTML with plots, from the lake's events."""
    from holdfast.cli.session import duration
    from holdfast.model.parsing.durations import parse_duration_ms
    from holdfast.pipeline.jobs.report import report

    output = Output(json=json, quiet=quiet)
    place = lake_of(lake, lake_format)
    promise_ms = parse_duration_ms("promise", duration(promise) or 0)
    with shown_progress(output) as progress, spark_session("report", master, remote, conf) as spark:
        done = report(
            spark, place, page_at=out, title=title, days=days, tenant=tenant, promise_ms=promise_ms, progress=progress
        )
    where = done.page or "no events, so no page"
    said = f"{where}: {done.events:,} events; {done.minutes:,} rows of minute, {done.billed:,} new rows of bill_day"
    finish(output, done, said, is_sound=done.is_sound, checks=done.checks)


register_moving(pipeline)
client_command(pipeline, MOVE)(migrate)
pipeline.command(rich_help_panel=MOVE)(flush)
pipeline.command(rich_help_panel=MOVE)(reshard)


@pipeline.command(rich_help_panel=_LAKE)
def compact(
    lake: LakeAt,
    lake_format: LakeFormat = None,
    keep_hours: Annotated[
        float, typer.Option(min=0, metavar="HOURS", help="Leave files that readers of so long ago may still read.")
    ] = 168.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Join the lake's small files, and delete those that nothing names any more. Rows and positions stay."""
    output = Output(json=json, quiet=quiet)
    done = lake_of(lake, lake_format).compact(keep_hours=keep_hours)
    output.rows(
        (
            {"table": name, "files before": each.files_before, "files after": each.files_after, "deleted": each.removed}
            for name, each in done.items()
        ),
        empty=f"there is no table in {lake}",
    )
