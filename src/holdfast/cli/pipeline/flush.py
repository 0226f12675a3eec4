"""`holdfast pipeline flush`, for servers with `flusher = "spark"`; and `holdfast pipeline reshard`, which moves queues
between databases."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from holdfast.cli.failures import Usage, print_error
from holdfast.cli.output import Output
from holdfast.cli.pipeline.spark_session import DISAGREES, Conf, DryRun, Master, finish, shown_progress, spark_session
from holdfast.cli.session import duration
from holdfast.cli.stores.db import Store
from holdfast.clock import sleep, steady_s


def flush(
    directories: Annotated[
        list[Path], typer.Argument(metavar="WAL_DIR...", help="Log directories of servers (`wal_dir`).")
    ],
    store: Store = None,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Repeat the pass at this interval. [default: a single pass]")
    ] = None,
    is_over: Annotated[
        bool,
        typer.Option("--is-over", help="Also flush the end of the logs. No server may have them open, now or later."),
    ] = False,
    dry_run: DryRun = False,
    master: Master = None,
    conf: Conf = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
) -> None:
    """Flush the logs of servers to PostgreSQL, each message exactly once.

    The command is safe to kill and to run again. The directories must have the same path on every machine that Spark
    uses. Exits with 4 if a call that was read from a log is in no database afterwards.
    """
    from holdfast.cli.pipeline.segment_flush import flusher, list_segments
    from holdfast.model.parsing.durations import parse_duration_ms
    from holdfast.pipeline.jobs.flush import flush

    for each in directories:
        if not each.is_dir():
            raise Usage(f"{each} is not a directory: give a server's wal_dir")
    output = Output(json=json, quiet=quiet)
    pause_s = None if every is None else parse_duration_ms("every", duration(every) or 0) / 1_000
    flush_one = flusher(_databases(store), is_over=is_over, is_dry_run=dry_run)
    ends_known: dict[str, int] = {}
    with shown_progress(output) as progress, spark_session("flush", master, None, conf) as spark:
        while True:
            began = steady_s()
            segments = [
                replace(each, start=ends_known.get(each.path, 0))
                for each in list_segments([each.absolute() for each in directories])
            ]
            done, ends = flush(spark, segments, flush_one, is_dry_run=dry_run, progress=progress)
            # Replaced and not updated, so that deleted segments are forgotten.
            ends_known = {each.path: each.end for each in ends}
            if pause_s is None or not done.is_sound:
                break
            sleep(max(0.0, pause_s - (steady_s() - began)))
    text = (
        f"{done.calls:,} calls in {done.segments:,} segments; "
        + ("dry run, nothing was stored" if dry_run else f"{done.stored:,} messages stored, ")
        + (
            ""
            if dry_run
            else f"{done.skipped:,} calls had been stored before, {done.dropped:,} messages belonged to deleted queues"
        )
    )
    finish(output, done, text, is_sound=done.is_sound, checks=done.checks)


def reshard(
    store: Store = None,
    onto: Annotated[
        int | None,
        typer.Option("--onto", help="Number of databases to use, from the first one; the others get no queues."),
    ] = None,
    dry_run: DryRun = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
) -> None:
    """Distribute a store's queues evenly over its databases, while the store is in use.

    Use it after a database has joined the store, to empty databases (--onto), or to continue after a crash. Give the
    URLs of all databases; a new one must have joined the store by `holdfast db migrate`. A queue that is being moved
    fails with `store_unavailable` for a moment; all others are not affected. The databases do the work: no Spark is
    needed.
    """
    from holdfast.stores.postgres.cluster.resharding import reshard

    output = Output(json=json, quiet=quiet)
    urls = _databases(store)
    moves = _find_moves(urls, onto)
    if dry_run:
        output.done(f"{len(moves):,} slots would move", {"slots": len(moves), "moved": 0, "is_dry_run": True})
        return
    moved = reshard(urls, None, output.note if sys.stderr.isatty() and not json else _ignore, onto=onto)
    remaining = len(_find_moves(urls, onto))
    facts = {
        "slots": len(moved),
        "queues": sum(each.queues for each in moved),
        "messages": sum(each.messages for each in moved),
        "left": remaining,
    }
    text = f"{facts['slots']:,} slots moved, with {facts['queues']:,} queues and {facts['messages']:,} messages"
    output.done(text, facts)
    if remaining:
        print_error(f"{remaining:,} slots still have to be moved: run the command again")
        raise typer.Exit(DISAGREES)


def _ignore(text: str) -> None:
    """Report no progress."""


def _find_moves(urls: list[str], onto: int | None) -> dict[int, int]:
    """Return the moves of slots after which the databases, or the first `onto` of them, own equally many."""
    import asyncio

    from holdfast.stores.postgres.cluster.cluster import PostgresCluster
    from holdfast.stores.postgres.cluster.resharding import wanted_moves

    async def find() -> dict[int, int]:
        cluster = PostgresCluster(urls)
        try:
            await cluster.open()
            return wanted_moves(cluster, onto)
        finally:
            await cluster.close()

    return asyncio.run(find())


def _databases(store: str | None) -> list[str]:
    given = store or os.environ.get("HOLDFAST_STORE") or ""
    urls = [part.strip() for part in given.split(",") if part.strip()]
    if not urls or not all(url.lower().startswith(("postgres://", "postgresql://")) for url in urls):
        raise Usage("give --store postgres://…, with the same databases as the servers, separated by commas")
    return urls
