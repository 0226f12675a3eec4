"""`holdfast pipeline demo`: run the demo with a killed worker, then archive, audit and report on its journal."""

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
            "--dir",
            metavar="DIR",
            help="New directory for the store, the lake and the report. [default: a temporary directory]",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.5, max=3_600, help="How long messages are produced and handled.")
    ] = 12.0,
    seed: Annotated[int, typer.Option(help="Seed of the random messages.")] = 1,
    one_process: Annotated[
        bool,
        typer.Option("--one-process", help="Run the workers as tasks of this process, and simulate the death of one."),
    ] = False,
    master: Master = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a demonstration: messages with a killed worker, then archive, audit and report on the journal.

    Takes less than two minutes, most of them for the start of Spark. Needs no server.
    """
    from holdfast.cli.demo.run import run
    from holdfast.cli.demo.view import View
    from holdfast.pipeline.session import open_session

    home = _make_home(directory)
    output = Output(json=json)
    with ThreadPoolExecutor(1) as executor:
        # Spark starts while messages are produced.
        starting = executor.submit(open_session, "holdfast demo", master=master, is_brief=True)
        view = View(is_quiet=json)
        demo_audit = asyncio.run(run(home / "store", view, seconds=seconds, seed=seed, is_one_process=one_process))
        with _stopping(starting.result()) as spark:
            results = _examine(spark, home, output)
    faults = list(demo_audit.faults)
    results["faults"] = faults
    if json:
        echo_json(results)
    else:
        typer.echo(
            f"archived {results['archive'].events:,} events of {demo_audit.enqueued:,} messages into {home / 'lake'}\n"
            f"audited: {results['audit'].violation_count:,} violations in {results['audit'].events:,} events and the "
            f"store\nthe report is in {results['report'].page}"
        )
        for fault in faults:
            typer.echo(f"  {fault}")
    parts = (results["archive"], results["audit"], results["report"])
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
        # A short promise, so that the page also shows late messages.
        made = report(
            spark, lake, page_at=home / "report.html", title="Holdfast demo", promise_ms=2_000, progress=progress
        )
    return {"archive": archived, "audit": audited, "report": made}


@contextmanager
def _stopping(spark: "SparkSession") -> "Iterator[SparkSession]":
    try:
        yield spark
    finally:
        spark.stop()


def _make_home(directory: Path | None) -> Path:
    import tempfile

    from holdfast.model.errors import InvalidArgument

    if directory is None:
        # Not deleted at the end, because it contains the report.
        return Path(tempfile.mkdtemp(prefix="holdfast-pipeline-"))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidArgument(f"{directory} is not an empty directory: give a new one", field="dir")
    directory.mkdir(parents=True, exist_ok=True)
    return directory.absolute()
