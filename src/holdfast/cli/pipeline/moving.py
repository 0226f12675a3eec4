"""The jobs of `holdfast pipeline` that move messages: load, drain, replay, triage, redrive."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.failures import Usage
from holdfast.cli.pipeline.spark_session import (
    Conf,
    DryRun,
    LakeAt,
    LakeFormat,
    Master,
    Remote,
    finish,
    is_shared,
    lake_of,
    settings_of,
    shown_progress,
    source_options,
    spark_session,
    target_of,
)
from holdfast.cli.session import CommandSession, QueueName, client_command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.pipeline.jobs.load import Format

MOVE = "Move messages"
_EVERY = "*"


class FileFormat(StrEnum):
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    TEXT = "text"


Where = Annotated[
    str | None, typer.Option(metavar="SQL", help="Only what meets this condition in SQL.", show_default=False)
]
Cluster = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only this cluster, as triage names it.", show_default=False)
]
Containing = Annotated[
    str | None,
    typer.Option("--error-contains", metavar="TEXT", help="Only with this in the error.", show_default=False),
]
AnyQueue = Annotated[str, typer.Argument(metavar="[QUEUE]", help="A queue's name, or TENANT/QUEUE; */* for every one.")]


def load(
    cli: CommandSession,
    queue: QueueName,
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files or directories that Spark can read.")],
    format: Annotated[
        FileFormat | None, typer.Option(help="Default: by the name's ending.", show_default=False)
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Rows with the same value are one message. Repeatable.", show_default=False
        ),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The payload. Default: the whole row as JSON", show_default=False),
    ] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=255, show_default=False)] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Of Spark's reader, as header=true.", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Enqueue a message for each row of files; run again within the queue's dedup window, it adds only what is new.

    ```console
    holdfast pipeline load payments orders/*.json --key order_id
    ```
    """
    from holdfast.pipeline.jobs.load import Format, load

    ref = cli.ref(queue)
    kind = Format(format.value) if format is not None else _format_of(paths)
    options = settings_of(option, "--option")
    if kind is Format.CSV:
        options = {"header": "true", "inferSchema": "true", **options}
    with shown_progress(cli.output) as progress, spark_session("load", master, remote, conf) as spark:
        done = load(
            spark,
            [_place(each) for each in paths],
            ref,
            None if dry_run else target_of(cli),
            format=kind,
            options=options,
            key=key or (),
            payload=payload,
            priority=priority,
            progress=progress,
        )
    said = (
        f"{done.rows:,} rows would be enqueued ({ref})"
        if done.is_dry_run
        else f"{done.enqueued:,} enqueued of {done.rows:,} rows; {done.known:,} were there already ({ref})"
    )
    finish(cli.output, done, said, is_sound=done.is_sound, checks=done.checks)


def drain(
    cli: CommandSession,
    queue: QueueName,
    lake: LakeAt,
    lake_format: LakeFormat = None,
    consumer: Annotated[str, typer.Option(help="The name the claims are kept under.")] = "drain",
    max_rows: Annotated[int, typer.Option(min=1, help="Messages in one batch.")] = 50_000,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Move everything that is ready into the lake's table `payloads`, and ack it once it is there.

    Killed at any point it is run again with the same consumer: what it had claimed is its next batch. The queue must
    be served: give the server's URL.
    """
    from holdfast.pipeline.jobs.drain import drain

    _require_server(cli, "drain")
    ref = cli.ref(queue)
    with shown_progress(cli.output) as progress, spark_session("drain", master, None, conf) as spark:
        done = drain(
            spark,
            source_options(cli),
            ref,
            lake_of(lake, lake_format),
            consumer=consumer,
            max_rows=max_rows,
            progress=progress,
        )
    said = f"{done.messages:,} messages of {ref} in {done.batches:,} batches are in {lake}"
    finish(cli.output, done, said, is_sound=done.is_sound, checks=done.checks)


def replay(
    cli: CommandSession,
    lake: LakeAt,
    lake_format: LakeFormat = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="Only of this queue.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Settled at or after, ISO 8601, UTC.", show_default=False)
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Settled before.", show_default=False)] = None,
    where: Where = None,
    into: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Into this queue instead.", show_default=False)
    ] = None,
    name: Annotated[str, typer.Option(help="Of this replay: under each name a message is replayed once.")] = "replay",
    dry_run: DryRun = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Enqueue messages of the lake again, by when they were settled, tenant, queue or any condition.

    Only those whose payload the lake has: `drain` puts it there, and `archive --payloads`. `--where` is SQL over the
    table `messages`: `--where "state = 'failed' and attempts > 2"`.
    """
    from holdfast.pipeline.jobs.replay import replay, select

    place = lake_of(lake, lake_format)
    tenant, _, name_of_queue = (queue or "").rpartition("/")
    only = cli.place.tenant if "tenant" in cli.place.origins else None
    with shown_progress(cli.output) as progress, spark_session("replay", master, remote, conf) as spark:
        selected = select(
            spark,
            place,
            tenant=tenant or only,
            queue=name_of_queue or None,
            since_ms=_time(since, "--since"),
            until_ms=_time(until, "--until"),
            where=where,
        )
        target = None if dry_run else target_of(cli)
        done = replay(spark, place, selected, target, name=name, into=into, progress=progress)
    lacking = done.matched - done.replayable
    said = f"{done.replayable:,} of {done.matched:,} messages " + (
        "would be replayed" if done.is_dry_run else f"offered; {done.enqueued:,} enqueued, {done.known:,} were before"
    )
    if lacking:
        said += f"; of {lacking:,} the lake has no payload"
    finish(cli.output, done, said, is_sound=done.is_sound, checks=done.checks)


def triage(
    cli: CommandSession,
    queue: AnyQueue = "*/*",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show so many clusters.")] = 50,
    error_contains: Containing = None,
    where: Where = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Dead letters by what went wrong: errors alike but for numbers, ids, hosts and quoted text are one cluster."""
    from holdfast.pipeline.jobs.failed_messages import select, triage

    with shown_progress(cli.output), spark_session("triage", master, remote, conf) as spark:
        letters = select(_letters(spark, cli, queue), error_contains=error_contains, where=where)
        found = triage(letters, limit)
    rows = (
        {
            "messages": each.messages,
            "queue": f"{each.tenant}/{each.queue}",
            "cluster": each.cluster,
            "first_at": each.first_at,
            "last_at": each.last_at,
            "sample_id": each.sample_id,
        }
        for each in found
    )
    cli.output.rows(rows, empty="no dead letters")


def redrive(
    cli: CommandSession,
    queue: AnyQueue = "*/*",
    cluster: Cluster = None,
    error_contains: Containing = None,
    where: Where = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="PER_S", help="At most so many a second.", show_default=False)
    ] = None,
    dry_run: DryRun = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Bring a selection of dead letters back, at a rate: a cluster that triage named, or by any condition.

    `--where` is SQL over tenant, queue, id, error and reason. Killed, it is run again: it takes those that are left.
    """
    from holdfast.pipeline.jobs.failed_messages import redrive, select

    with shown_progress(cli.output) as progress, spark_session("redrive", master, remote, conf) as spark:
        chosen = select(_letters(spark, cli, queue), cluster=cluster, error_contains=error_contains, where=where)
        done = redrive(chosen, cli.hf, rate_per_s=rate, is_dry_run=dry_run, progress=progress)
    said = (
        f"{done.matched:,} would be redriven"
        if dry_run
        else f"{done.redriven:,} redriven of {done.matched:,}; {done.gone:,} were no longer dead letters"
    )
    finish(cli.output, done, said, is_sound=done.is_sound, checks=done.checks)


def register(app: typer.Typer) -> None:
    for job in (load, drain, replay, triage, redrive):
        client_command(app, MOVE, may_create=job in (load, replay))(job)


def _letters(spark: "SparkSession", cli: CommandSession, queue: str) -> "DataFrame":
    from holdfast.pipeline.jobs.failed_messages import letters_of_opened, letters_of_source

    tenant, name = parts(queue)
    if is_shared(cli):
        return letters_of_source(spark, source_options(cli), tenant, name)
    return letters_of_opened(spark, cli.hf, tenant, name)


def parts(queue: str) -> tuple[str, str]:
    tenant, _, name = queue.rpartition("/")
    return tenant or "default", name or _EVERY


def _require_server(cli: CommandSession, job: str) -> None:
    if not is_shared(cli):
        raise Usage(
            f"{job} claims from Spark's own processes, which cannot share {cli.place.url}: serve it, give its URL"
        )


def _format_of(paths: list[str]) -> "Format":
    from holdfast.pipeline.jobs.load import Format

    endings = {Path(each.rstrip("/")).suffix.lstrip(".").lower() for each in paths}
    known = {"json": "json", "jsonl": "json", "ndjson": "json", "csv": "csv", "parquet": "parquet", "txt": "text"}
    kinds = {known.get(each, "") for each in endings}
    if len(kinds) != 1 or "" in kinds:
        raise Usage("what kind of files are these? Give --format json, csv, parquet or text")
    return Format(kinds.pop())


def _place(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def _time(given: str | None, option: str) -> int | None:
    if given is None:
        return None
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise Usage(f"{option} {given!r} is not a time: give it as 2026-01-31 or 2026-01-31T12:00:00Z") from None
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1_000)
