"""`holdfast demo`: run producers and workers on one store, kill a worker, and audit the result."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import echo_json
from holdfast.cli.stores.verify_backup import Json

if TYPE_CHECKING:
    from holdfast.cli.demo.audit import Audit

_INTERRUPTED = 130
_FAULTS_FOUND = 4


def demo(
    seconds: Annotated[float, typer.Option(min=0.5, max=3_600, help="Approximate duration in seconds.")] = 10.0,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Keep the store in this new directory. [default: a temporary directory]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random messages.")] = 1,
    one_process: Annotated[
        bool,
        typer.Option(
            "--one-process",
            help="Run the workers as tasks of this process, and simulate the death of one. "
            "Implied without the server extra.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Run a demonstration: producers, workers, a killed worker and an audit.

    The store runs in this process, with queues of three tenants. With the server extra, the workers are separate
    processes, and one of them is killed (SIGKILL) while it holds messages. Without it, the workers are tasks of this
    process, and one ends without releasing its messages. Their leases expire, and the other workers get the messages.
    At the end the journal is audited and the store is verified. The command fails if a message was lost, or did not end
    as expected.
    """
    # Imported here because they import the store, which `holdfast demo --help` does not need.
    from holdfast.cli.demo.run import run
    from holdfast.cli.demo.view import View
    from holdfast.stores.rocks.verify.store_check import verify

    with _store_path(directory) as path:
        view = View(is_quiet=json)
        audit = asyncio.run(run(path, view, seconds=seconds, seed=seed, is_one_process=one_process))
        report = verify(path)
    if json:
        echo_json({"summary": audit, "verify": report})
    else:
        view.conclude(audit, report)
        if directory is not None:
            typer.echo(f"the store is in {directory}")
    _exit(audit, report.is_clean)


def _exit(audit: "Audit", is_clean: bool) -> None:
    if audit.faults or not is_clean:
        raise typer.Exit(_FAULTS_FOUND)
    if audit.is_interrupted:
        raise typer.Exit(_INTERRUPTED)


@contextmanager
def _store_path(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        from holdfast.model.errors import InvalidArgument

        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise InvalidArgument(f"{directory} is not an empty directory: give a new one", field="dir")
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as made:
        yield Path(made) / "store"
