"""`holdfast pipeline demo`: traffic with a killed worker, then archive, audit and report of it."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.output import Output, echo_json
from holdfast.cli.pipeline.spark_session import DISAGREES, Master, shown_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def demo(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="A new directory for store, lake and report. [default: a temporary one]"
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.5, max=3_600, help="How long messages flow.")] = 12.0,
    seed: Annotated[int, typer.Option(help="The same seed makes the same messages.")] = 1,
    one_process: Annotated[
        bool, typer.Option("--one-process", help="No worker processes: one worker's death is played.")
    ] = False,
    master: Master = None,
    json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """See the pipeline work: messages of three tenants, a worker killed among them; then the journal is archived into a
    lake, audited, and made into a report. Under two minutes, most of it Spark's start. Needs no server."""
    from holdfast.cli.demo.run import run
    from holdfast.cli.demo.view import View
    from holdfast.pipeline.session import open_session

    home = _home(directory)
    output = Output(json=json)
    with ThreadPoolExecutor(1) as beside:
        # Spark starts while messages flow.
        starting = beside.submit(open_session, "holdfast demo", master=master, is_brief=True)
        view = View(is_quiet=json)
        told = asyncio.run(run(home / "store", view, seconds=seconds, seed=seed, is_one_process=one_process))
        with _stopped(starting.result()) as spark:
            answer = _examine(spark, home, output)
    faults = list(told.faults)
    answer["faults"] = faults
    if json:
        echo_json(answer)
    else:
        typer.echo(
            f"archived {answer['archive'].events:,} events of {told.enqueued:,} messages into {home / 'lake'}\n"
            f"audited: {answer['audit'].violation_count:,} violations in {answer['audit'].events:,} events and the "
            f"store\nthe report is in {answer['report'].page}"
        )
        for fault in faults:
            typer.echo(f"  {fault}")
    parts = (answer["archive"], answer["audit"], answer["report"])
    if faults or not all(each.is_sound for each in parts):
        raise typer.Exit(DISAGREES)


def _examine(spark: "SparkSession", home: Path, output: Output) -> dict[str, Any]:
    import holdfast
    from holdfast.cli.stores.check import check_store
    from holdfast.pipeline.jobs.archive import archive
    from holdfast.pipeline.jobs.audit import audit
    from holdfast.pipeline.jobs.journals import OpenedJournal
    from holdfast.pipeline.jobs.report import report
    from holdfast.pipeline.lake.lake import Lake
    from holdfast.pipeline.lake.tables import EVENTS

    lake = Lake(str(home / "lake"))
    with shown_progress(output) as progress:
        with holdfast.open(str(home / "store")) as hf:
            archived = archive(spark, OpenedJournal(hf), lake, progress=progress)
        audited = audit(
            spark,
            lake.read(spark, EVENTS),
            stores=[str(home / "store")],
            check_store=check_store,
            lake=lake,
            progress=progress,
        )
        # So short that some are late: the page shows how that looks.
        made = report(
            spark, lake, page_at=home / "report.html", title="Holdfast demo", promise_ms=2_000, progress=progress
        )
    return {"archive": archived, "audit": audited, "report": made}


@contextmanager
def _stopped(spark: "SparkSession") -> "Iterator[SparkSession]":
    try:
        yield spark
    finally:
        spark.stop()


def _home(directory: Path | None) -> Path:
    import tempfile

    from holdfast.model.errors import InvalidArgument

    if directory is None:
        # Kept: the report in it is what the command is for.
        return Path(tempfile.mkdtemp(prefix="holdfast-pipeline-"))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidArgument(f"{directory} is not an empty directory: give a new one", field="dir")
    directory.mkdir(parents=True, exist_ok=True)
    return directory.absolute()
