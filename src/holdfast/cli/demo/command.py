"""`holdfast demo`: producers and workers through one store, a worker killed on purpose, and an audit at the end."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.stores.verify_backup import Json, echo_json

if TYPE_CHECKING:
    from holdfast.cli.demo.audit import Audit

_INTERRUPTED = 130
_NOT_AS_EXPECTED = 4


def demo(
    seconds: Annotated[float, typer.Option(min=0.5, max=3_600, help="How long it takes, more or less.")] = 10.0,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Keep the store in this new directory. [default: a temporary one]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed makes the same messages.")] = 1,
    one_process: Annotated[
        bool,
        typer.Option(
            "--one-process",
            help="Run the workers in this process and simulate the death of one. Implied without the server extra.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Run producers and workers of three tenants through a store, with a live view.

    The store is in this process. With the server extra the workers are processes of their own, and one is killed
    (SIGKILL) in the middle of its messages; without it they are tasks of this process, and one ends without giving its
    messages back. Their leases run out, and the other workers get them. At the end the journal is audited and the store
    verified. A message that was lost, or did not end as it should, makes the command fail.
    """
    # Here, for they bring the store along: `holdfast --help` shall not wait for it.
    from holdfast.cli.demo.run import run
    from holdfast.cli.demo.view import View
    from holdfast.stores.rocks.verify.store_check import verify

    with _place(directory) as path:
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
        raise typer.Exit(_NOT_AS_EXPECTED)
    if audit.is_interrupted:
        raise typer.Exit(_INTERRUPTED)


@contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        from holdfast.model.errors import InvalidArgument

        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise InvalidArgument(f"{directory} is not an empty directory: give a new one", field="dir")
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as made:
        yield Path(made) / "store"
