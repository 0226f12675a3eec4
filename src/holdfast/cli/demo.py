"""`holdfast demo`: producers and workers on an embedded store, watched live and checked afterwards."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.upkeep import Json, echo_json

if TYPE_CHECKING:
    from holdfast.cli.demo_load import Load
    from holdfast.cli.demo_view import Summary, View

# How long the queues may take to run empty once nothing comes in any more, over the time asked for.
_PATIENCE_S = 10.0
_INTERRUPTED = 130
_LOST = 4


def demo(
    seconds: Annotated[float, typer.Option(min=0.5, max=3_600, help="How long messages flow.")] = 10.0,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Keep the store in this new directory. [default: a temporary one]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed makes the same messages.")] = 1,
    json: Json = False,
) -> None:
    """Run producers and workers of three tenants through an embedded queue, with a live view.

    One worker dies on purpose: its leases run out, and its messages are delivered again. At the end the journal is
    counted and the store verified; a lost message would make the command fail.
    """
    # Here, for they bring the store along: `holdfast --help` shall not wait for it.
    from holdfast.stores.rocks.verify import verify

    with _place(directory) as path:
        is_interrupted, summary = _flow(path, seconds, seed, is_quiet=json)
        report = verify(path)
    if json:
        echo_json({"summary": summary, "verify": report})
    else:
        summary.show(report)
        if directory is not None:
            typer.echo(f"the store is in {directory}")
    if not report.is_clean or summary.lost or summary.succeeded_twice:
        raise typer.Exit(_LOST)
    if is_interrupted:
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


def _flow(path: Path, seconds: float, seed: int, *, is_quiet: bool) -> "tuple[bool, Summary]":
    """Answers whether it was interrupted, and what came of it."""
    import holdfast
    from holdfast.cli.demo_load import Load
    from holdfast.cli.demo_view import View, summarise

    is_interrupted = False
    with holdfast.open(str(path)) as hf:
        load = Load(hf, seed)
        with View(hf, load.tally, is_quiet=is_quiet) as view:
            load.start()
            try:
                _watch(load, view, seconds)
            except KeyboardInterrupt:
                is_interrupted = True
                view.say("interrupted: the workers finish what they hold")
            load.stop()
            view.refresh()
        return is_interrupted, summarise(hf, load.tally)


def _watch(load: "Load", view: "View", seconds: float) -> None:
    """Messages flow for three quarters of the time; the rest is for what is still under way."""
    kill_at, stop_at = 0.35 * seconds, 0.75 * seconds
    for elapsed in view.ticks():
        if load.has_failed:
            return
        if elapsed >= kill_at and not load.is_one_dying:
            load.kill_one()
            view.say("a worker dies with its messages in hand: their leases run out in a second")
        if elapsed >= stop_at:
            load.stop_producing()
            if view.is_empty or elapsed >= seconds + _PATIENCE_S:
                return
