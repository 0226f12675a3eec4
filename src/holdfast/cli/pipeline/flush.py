"""`holdfast pipeline flush`, what servers with `flusher = "spark"` leave to a job; and `reshard`, queues on their way
to other databases."""

import os
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from holdfast.cli.failures import Usage, complain
from holdfast.cli.output import Output
from holdfast.cli.pipeline.spark_session import DISAGREES, Conf, DryRun, Master, finish, shown_progress, spark_session
from holdfast.cli.stores.db import Store


def flush(
    directories: Annotated[list[Path], typer.Argument(metavar="WAL_DIR...", help="The servers' log directories.")],
    store: Store = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Go on, with a pass so often. Default: one pass.", show_default=False),
    ] = None,
    is_over: Annotated[
        bool, typer.Option("--is-over", help="Nobody has these logs open, nor will: land their very end too.")
    ] = False,
    dry_run: DryRun = False,
    master: Master = None,
    conf: Conf = None,
    json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing.")] = False,
) -> None:
    """Store what servers answered for in their logs, in PostgreSQL, each message once.

    Killed at any point it is run again. The directories must be at the same place on every machine that Spark uses.
    Exits with 4 if something that was read is in no database afterwards.
    """
    from holdfast.cli.pipeline.segment_flush import flusher, segments_of
    from holdfast.cli.session import duration
    from holdfast.clock import steady_s
    from holdfast.model.parsing.durations import parse_duration_ms
    from holdfast.pipeline.jobs.flush import flush

    for each in directories:
        if not each.is_dir():
            raise Usage(f"{each} is not a directory: give a server's wal_dir")
    output = Output(json=json, quiet=quiet)
    pause_s = None if every is None else parse_duration_ms("every", duration(every) or 0) / 1_000
    work = flusher(_databases(store), is_over=is_over, is_dry_run=dry_run)
    known: dict[str, int] = {}
    stopped = threading.Event()
    with shown_progress(output) as progress, spark_session("flush", master, None, conf) as spark:
        while True:
            began = steady_s()
            segments = [
                replace(each, start=known.get(each.path, 0))
                for each in segments_of([each.absolute() for each in directories])
            ]
            done, ends = flush(spark, segments, work, is_dry_run=dry_run, progress=progress)
            # Of a segment that is gone nothing is kept: the directory is what there is.
            known = {each.path: each.end for each in ends}
            if pause_s is None or not done.is_sound:
                break
            stopped.wait(max(0.0, pause_s - (steady_s() - began)))
    said = (
        f"{done.calls:,} calls in {done.segments:,} segments; "
        + ("nothing was stored: a dry run" if dry_run else f"{done.stored:,} messages stored, ")
        + (
            ""
            if dry_run
            else f"{done.skipped:,} calls had landed before, {done.dropped:,} messages had no queue any more"
        )
    )
    finish(output, done, said, is_sound=done.is_sound, checks=done.checks)


def reshard(
    store: Store = None,
    onto: Annotated[
        int | None, typer.Option("--onto", help="Over so many databases, by their numbers; the others keep no queues.")
    ] = None,
    dry_run: DryRun = False,
    json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing.")] = False,
) -> None:
    """Spread a store's queues evenly over its databases, under traffic: after one joined it, to empty some (`--onto`),
    or to finish what a crash left.

    Give every database, the new one too; `holdfast db migrate` has made it part of the store. Queues on their way
    answer `store_unavailable` for that moment, all others go on. The databases do the work: it needs no Spark.
    """
    from holdfast.stores.postgres.cluster.resharding import reshard

    output = Output(json=json, quiet=quiet)
    urls = _databases(store)
    wanted = _wanted(urls, onto)
    if dry_run:
        output.done(f"{len(wanted):,} slots would move", {"slots": len(wanted), "moved": 0, "is_dry_run": True})
        return
    moved = reshard(urls, None, output.note if sys.stderr.isatty() and not json else _unsaid, onto=onto)
    left = len(_wanted(urls, onto))
    facts = {
        "slots": len(moved),
        "queues": sum(each.queues for each in moved),
        "messages": sum(each.messages for each in moved),
        "left": left,
    }
    said = f"{facts['slots']:,} slots moved, with {facts['queues']:,} queues and {facts['messages']:,} messages"
    output.done(said, facts)
    if left:
        complain(f"{left:,} slots are not where they belong: run it again")
        raise typer.Exit(DISAGREES)


def _unsaid(text: str) -> None:
    """Nobody watches."""


def _wanted(urls: list[str], onto: int | None) -> dict[int, int]:
    """The slots that have to move for each database, or the first so many, to own as many as any other."""
    import asyncio

    from holdfast.stores.postgres.cluster.cluster import PostgresCluster
    from holdfast.stores.postgres.cluster.resharding import wanted_moves

    async def look() -> dict[int, int]:
        cluster = PostgresCluster(urls)
        try:
            await cluster.open()
            return wanted_moves(cluster, onto)
        finally:
            await cluster.close()

    return asyncio.run(look())


def _databases(store: str | None) -> list[str]:
    given = store or os.environ.get("HOLDFAST_STORE") or ""
    urls = [part.strip() for part in given.split(",") if part.strip()]
    if not urls or not all(url.lower().startswith(("postgres://", "postgresql://")) for url in urls):
        raise Usage("give --store postgres://…, several databases separated by commas, as the servers have it")
    return urls
