"""The commands, and what the shell is told when one fails.

Exit codes: 0 done, 2 usage, 3 nothing there, 4 refused, 5 stale lease, 75 try again later.
"""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from holdfast.cli.bench import bench
from holdfast.cli.command import LOOK, MESSAGES, OPERATE, STORE, client_command
from holdfast.cli.db import db
from holdfast.cli.demo import demo
from holdfast.cli.dequeue import ack, dequeue, extend, nack, release
from holdfast.cli.doctor import doctor
from holdfast.cli.enqueue import enqueue
from holdfast.cli.failures import exit_code, tell
from holdfast.cli.inspect import inspect
from holdfast.cli.letters import dlq, redrive
from holdfast.cli.list import list_
from holdfast.cli.look import get, peek, queues, stats, tenants
from holdfast.cli.operate import cancel, delete, move, pause, policy, purge, reprioritise, resume
from holdfast.cli.pipeline import pipeline
from holdfast.cli.run import run
from holdfast.cli.schedule import schedule
from holdfast.cli.serve import ServeCommand, serve
from holdfast.cli.state import state
from holdfast.cli.tail import tail
from holdfast.cli.token import token
from holdfast.cli.top import top
from holdfast.cli.upkeep import backup, verify
from holdfast.cli.worker import worker

__all__ = ["app", "exit_code", "main"]

app = typer.Typer(
    name="holdfast",
    help="A message and job queue: in a directory, on a server, or shared over PostgreSQL or an object store.",
    epilog="Exit codes: 0 done, 2 usage, 3 nothing there, 4 refused, 5 stale lease, 75 try again later.",
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

client_command(app, MESSAGES, may_create=True)(enqueue)
for _message in (dequeue, ack, nack, extend, release, state, run):
    client_command(app, MESSAGES)(_message)
app.command(rich_help_panel=MESSAGES)(worker)
for _look in (queues, stats, top, tail, list_, inspect, peek, get, dlq, tenants):
    client_command(app, LOOK)(_look)
for _maker in (policy, schedule):
    client_command(app, OPERATE, may_create=True)(_maker)
for _verb in (redrive, pause, resume, purge, cancel, move, reprioritise, delete):
    client_command(app, OPERATE)(_verb)
app.command(cls=ServeCommand, rich_help_panel=STORE)(serve)
for _checkup in (doctor, bench):
    client_command(app, STORE)(_checkup)
for _upkeep in (demo, verify, backup):
    app.command(rich_help_panel=STORE)(_upkeep)
app.command(rich_help_panel=OPERATE)(token)
app.add_typer(db, rich_help_panel=STORE)
app.add_typer(pipeline, rich_help_panel=OPERATE)

_MOST_USED = """\
Holdfast, a message queue. The most used commands:

  holdfast serve                           serve queues on this machine, at http://127.0.0.1:7077
  holdfast enqueue QUEUE PAYLOAD           add a message
  holdfast run QUEUE -- ./handler          run a program for each message
  eval "$(holdfast dequeue QUEUE)"         take one for a shell script; then holdfast ack, or nack
  holdfast queues                          what is ready, in flight and failed
  holdfast top, holdfast tail              the same live; every event as it happens
  holdfast list QUEUE --state in_flight    who holds which message; holdfast inspect ID shows all of one
  holdfast dlq QUEUE                       dead letters; holdfast redrive QUEUE brings them back
  holdfast demo                            see it work

Without a server, give a directory: --url ./data. Every command: holdfast --help"""


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"holdfast {version('holdfast')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(_MOST_USED)


def main() -> None:
    sys.exit(_run())


def _run() -> int:
    try:
        answer = app(standalone_mode=False, prog_name="holdfast")
        sys.stdout.flush()
    except Exception as error:
        return tell(error)
    # Of a command that left by `typer.Exit` it is the code; of one that came to its end, nothing.
    return answer if isinstance(answer, int) else 0
