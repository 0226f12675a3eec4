"""The commands of `holdfast pipeline` that move messages: load, drain, replay, triage, redrive."""

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
    is_reachable_by_tasks,
    make_target,
    open_lake,
    parse_settings,
    shown_progress,
    source_options,
    spark_session,
)
from holdfast.cli.session import CommandSession, QueueName, client_command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.pipeline.jobs.load import Format

MOVE = "Move messages"
_ALL = "*"


class FileFormat(StrEnum):
    """The formats of `load`."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    TEXT = "text"


Where = Annotated[str | None, typer.Option(metavar="SQL", help="Only rows that match this SQL condition.")]
Cluster = Annotated[str | None, typer.Option(metavar="TEXT", help="Only this cluster of errors, as printed by triage.")]
Containing = Annotated[
    str | None,
    typer.Option("--error-contains", metavar="TEXT", help="Only dead letters whose error contains this text."),
]
AnyQueue = Annotated[
    str, typer.Argument(metavar="[QUEUE]", help="Name of the queue, or TENANT/QUEUE; `*/*` for all queues.")
]


def load(
    cli: CommandSession,
    queue: QueueName,
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files or directories that Spark can read.")],
    format: Annotated[
        FileFormat | None, typer.Option(help="Format of the files. [default: by the file extension]")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of the idempotency key: rows with the same value become one message. Repeatable.",
        ),
    ] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the payload. [default: the whole row as JSON]")
    ] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=255, help="0-255, lower first.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of Spark's reader, such as header=true. Repeatable."),
    ] = None,
    dry_run: DryRun = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Enqueue a message for each row of files.

    A second run within the queue's deduplication window adds only new rows.

    ```console
    holdfast pipeline load payments orders/*.json --key order_id
    ```
    """
    from holdfast.pipeline.jobs.load import Format, load

    ref = cli.ref(queue)
    kind = Format(format.value) if format is not None else _format_of(paths)
    options = parse_settings(option, "--option")
    if kind is Format.CSV:
        options = {"header": "true", "inferSchema": "true", **options}
    with shown_progress(cli.output) as progress, spark_session("load", master, remote, conf) as spark:
        done = load(
            spark,
            [_resolve_path(each) for each in paths],
            ref,
            None if dry_run else make_target(cli),
            format=kind,
            options=options,
            key=key or (),
            payload=payload,
            priority=priority,
            progress=progress,
        )
    text = (
        f"{done.rows:,} rows would be enqueued ({ref})"
        if done.is_dry_run
        else f"{done.enqueued:,} enqueued of {done.rows:,} rows; {done.known:,} were duplicates ({ref})"
    )
    finish(cli.output, done, text, is_sound=done.is_sound, checks=done.checks)


def drain(
    cli: CommandSession,
    queue: QueueName,
    lake: LakeAt,
    lake_format: LakeFormat = None,
    consumer: Annotated[str, typer.Option(help="Name under which the claims are recorded.")] = "drain",
    max_rows: Annotated[int, typer.Option(min=1, help="Messages per batch.")] = 50_000,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Move all ready messages to the lake's table `payloads`, and ack them once they are stored.

    After a kill, run it again with the same consumer: the claimed messages are then its next batch. Needs a server:
    give its URL.
    """
    from holdfast.pipeline.jobs.drain import drain

    _require_server(cli, "drain")
    ref = cli.ref(queue)
    with shown_progress(cli.output) as progress, spark_session("drain", master, None, conf) as spark:
        done = drain(
            spark,
            source_options(cli),
            ref,
            open_lake(lake, lake_format),
            consumer=consumer,
            max_rows=max_rows,
            progress=progress,
        )
    text = f"{done.messages:,} messages of {ref} in {done.batches:,} batches are in {lake}"
    finish(cli.output, done, text, is_sound=done.is_sound, checks=done.checks)


def replay(
    cli: CommandSession,
    lake: LakeAt,
    lake_format: LakeFormat = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Only messages of this queue.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only messages settled at or after this time (ISO 8601, UTC).")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only messages settled before this time.")] = None,
    where: Where = None,
    into: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Enqueue into this queue. [default: the queue of each message]")
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of this replay. Under one name, each message is replayed at most once.")
    ] = "replay",
    dry_run: DryRun = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Enqueue archived messages again, selected by tenant, queue, time or any condition.

    Only messages whose payload is in the lake can be replayed; `drain` and `archive --payloads` store payloads. The
    condition of --where applies to the table `messages`, as in `--where "state = 'failed' and attempts > 2"`.
    """
    from holdfast.pipeline.jobs.replay import replay, select

    source = open_lake(lake, lake_format)
    tenant, _, name_of_queue = (queue or "").rpartition("/")
    only = cli.target.tenant if "tenant" in cli.target.origins else None
    with shown_progress(cli.output) as progress, spark_session("replay", master, remote, conf) as spark:
        selected = select(
            spark,
            source,
            tenant=tenant or only,
            queue=name_of_queue or None,
            since_ms=_time(since, "--since"),
            until_ms=_time(until, "--until"),
            where=where,
        )
        target = None if dry_run else make_target(cli)
        done = replay(spark, source, selected, target, name=name, into=into, progress=progress)
    missing = done.matched - done.replayable
    text = f"{done.replayable:,} of {done.matched:,} messages " + (
        "would be replayed"
        if done.is_dry_run
        else f"selected; {done.enqueued:,} enqueued, {done.known:,} had been replayed before"
    )
    if missing:
        text += f"; the lake lacks the payload of {missing:,}"
    finish(cli.output, done, text, is_sound=done.is_sound, checks=done.checks)


def triage(
    cli: CommandSession,
    queue: AnyQueue = "*/*",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of clusters to show.")] = 50,
    error_contains: Containing = None,
    where: Where = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Group dead letters into clusters of similar errors.

    Errors that differ only in numbers, ids, hosts and quoted text belong to one cluster.
    """
    from holdfast.pipeline.jobs.failed_messages import select, triage

    with shown_progress(cli.output), spark_session("triage", master, remote, conf) as spark:
        letters = select(_read_dead_letters(spark, cli, queue), error_contains=error_contains, where=where)
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
        float | None, typer.Option(min=0.001, metavar="PER_S", help="Maximum number of messages per second.")
    ] = None,
    dry_run: DryRun = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Return selected dead letters to their queues, by a cluster of triage or by any condition.

    The condition of --where applies to tenant, queue, id, error and reason. The command is safe to kill and to run
    again: it continues with the remaining dead letters.
    """
    from holdfast.pipeline.jobs.failed_messages import redrive, select

    with shown_progress(cli.output) as progress, spark_session("redrive", master, remote, conf) as spark:
        chosen = select(
            _read_dead_letters(spark, cli, queue), cluster=cluster, error_contains=error_contains, where=where
        )
        done = redrive(chosen, cli.hf, rate_per_s=rate, is_dry_run=dry_run, progress=progress)
    text = (
        f"{done.matched:,} would be redriven"
        if dry_run
        else f"{done.redriven:,} redriven of {done.matched:,}; {done.gone:,} were no longer dead letters"
    )
    finish(cli.output, done, text, is_sound=done.is_sound, checks=done.checks)


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `holdfast pipeline`."""
    for job in (load, drain, replay, triage, redrive):
        client_command(app, MOVE, may_create=job in (load, replay))(job)


def _read_dead_letters(spark: "SparkSession", cli: CommandSession, queue: str) -> "DataFrame":
    from holdfast.pipeline.jobs.failed_messages import read_opened_letters, read_source_letters

    tenant, name = split_queue(queue)
    if is_reachable_by_tasks(cli):
        return read_source_letters(spark, source_options(cli), tenant, name)
    return read_opened_letters(spark, cli.hf, tenant, name)


def split_queue(queue: str) -> tuple[str, str]:
    """Split `queue` or `tenant/queue`; an empty queue means all."""
    tenant, _, name = queue.rpartition("/")
    return tenant or "default", name or _ALL


def _require_server(cli: CommandSession, job: str) -> None:
    if not is_reachable_by_tasks(cli):
        raise Usage(
            f"{job} claims messages in Spark's processes, which cannot open {cli.target.url}: "
            "serve the store with `holdfast serve`, and give the URL of the server"
        )


def _format_of(paths: list[str]) -> "Format":
    from holdfast.pipeline.jobs.load import Format

    endings = {Path(each.rstrip("/")).suffix.lstrip(".").lower() for each in paths}
    known = {"json": "json", "jsonl": "json", "ndjson": "json", "csv": "csv", "parquet": "parquet", "txt": "text"}
    kinds = {known.get(each, "") for each in endings}
    if len(kinds) != 1 or "" in kinds:
        raise Usage("the file extensions do not determine the format: give --format json, csv, parquet or text")
    return Format(kinds.pop())


def _resolve_path(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def _time(given: str | None, option: str) -> int | None:
    if given is None:
        return None
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise Usage(f"{option} {given!r} is not a time: give it as 2026-01-31 or 2026-01-31T12:00:00Z") from None
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1_000)
