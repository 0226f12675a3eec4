"""What every client command has: where the queues are, how it answers, and a connection when it needs one."""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from holdfast.cli.arguments import QuickCommand
from holdfast.cli.client_settings import DEFAULT_URL, ClientTarget, find_place
from holdfast.cli.failures import Usage, complain
from holdfast.cli.output import Output
from holdfast.clock import steady_s
from holdfast.model.errors import QueueNotFound
from holdfast.model.names import QueueRef, parse_ref

if TYPE_CHECKING:
    import holdfast

F = TypeVar("F", bound=Callable[..., None])

_CONNECTION = "Connection"
_ANSWER = "Answer"

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="A queue's name, or TENANT/QUEUE.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class CommandSession:
    """One call of a client command."""

    def __init__(self, place: ClientTarget, output: Output, *, may_create: bool = False) -> None:
        self.place = place
        self.output = output
        self._may_create = may_create
        self._opened: holdfast.Holdfast | None = None

    @cached_property
    def hf(self) -> "holdfast.Holdfast":
        import holdfast

        place = self.place
        if place.is_directory and not self._may_create and not Path(place.url).exists():
            raise QueueNotFound(f"there is no store at {place.url} (url is from {place.origin('url')}): check the path")
        settings = {"token": place.token} if place.is_remote else dict(place.store)
        self._opened = holdfast.open(place.url, **settings)
        return self._opened

    def ref(self, name: str) -> QueueRef:
        """`queue`, or `tenant/queue`: a name has no slash in it."""
        tenant, slash, queue = name.rpartition("/")
        return parse_ref(tenant if slash else self.place.tenant, queue)

    def queue(self, name: str) -> "holdfast.Queue":
        ref = self.ref(name)
        return self.hf.queue(ref.queue, tenant=ref.tenant)

    def tell_if_missing(self, ref: QueueRef, *, is_waiting: bool) -> None:
        """Say on stderr that a queue does not exist, with the names that may have been meant."""
        from holdfast.client.missing import describe_missing

        if not self.output.is_quiet:
            hf = self.hf
            text = hf._driver.run(describe_missing(hf._inner._connected(), ref, is_waiting=is_waiting))
            if text is not None:
                complain(text)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before what cannot be undone; where nobody can be asked, `--yes` must have been given."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Usage(f"{question.rstrip('?')}: this cannot be undone, and nobody is here to ask: give --yes")
        typer.confirm(question, abort=True, err=True)

    @contextmanager
    def progress(self, what: str, total: int | None, *, after_s: float = 0) -> Iterator[Callable[[int], None]]:
        """A bar on a terminal's stderr, nothing elsewhere. `after_s`: for what may be over before anybody wonders."""
        if self.output.is_quiet or not sys.stderr.isatty():
            yield lambda done: None
            return
        from rich.console import Console
        from rich.progress import Progress

        bars = Progress(console=Console(stderr=True), transient=True)
        task = bars.add_task(what, total=total)
        shown_at = steady_s() + after_s

        def tell(done: int) -> None:
            bars.update(task, completed=done)
            if not bars.live.is_started and steady_s() >= shown_at:
                bars.start()

        if not after_s:
            bars.start()
        try:
            yield tell
        finally:
            if bars.live.is_started:
                bars.stop()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def duration(given: str | None) -> str | float | None:
    """`30s` as it is; a bare number is seconds, as everywhere."""
    try:
        return None if given is None else float(given)
    except ValueError:
        return given


def client_command(
    app: typer.Typer, panel: str, name: str | None = None, *, may_create: bool = False
) -> Callable[[F], F]:
    """Register a function whose first parameter is the Session; its other parameters are the command's own."""

    def register(function: F) -> F:
        own = list(inspect.signature(function).parameters.values())[1:]

        @functools.wraps(function)
        def command(**given: Any) -> None:
            flags = {each: given.pop(each) for each in ("url", "token", "tenant")}
            output = Output(json=given.pop("json"), quiet=given.pop("quiet"))
            place = find_place(flags, os.environ, given.pop("config"))
            session = CommandSession(place, output, may_create=may_create)
            try:
                function(session, **given)
            finally:
                session.close()

        parameters = [*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *_common()]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        # typer looks behind a wrapper for annotations; these are the wrapper's own.
        del command.__wrapped__
        app.command(name or function.__name__.rstrip("_"), cls=QuickCommand, rich_help_panel=panel)(command)
        return function

    return register


def _common() -> list[inspect.Parameter]:
    return [
        _option(
            "url",
            str | None,
            None,
            "--url",
            metavar="URL|DIR",
            help="A server, the directory of an embedded store, or a store's URL (postgres://, file:///, s3://, …). "
            f"Variable: HOLDFAST_URL. Default: {DEFAULT_URL}",
            rich_help_panel=_CONNECTION,
        ),
        _option(
            "token",
            str | None,
            None,
            "--token",
            metavar="JWT",
            help="Who you are to the server. Every user of the machine sees flags: prefer the variable HOLDFAST_TOKEN.",
            rich_help_panel=_CONNECTION,
        ),
        _option(
            "tenant",
            str | None,
            None,
            "--tenant",
            "-T",
            metavar="TENANT",
            help="Whose queues. Variable: HOLDFAST_TENANT. Default: the token's, else `default`",
            rich_help_panel=_CONNECTION,
        ),
        _option(
            "config",
            str | None,
            None,
            "--config",
            metavar="FILE",
            help="A TOML file with a table [client] of these. Variable: HOLDFAST_CONFIG",
            rich_help_panel=_CONNECTION,
        ),
        _option(
            "json", bool, False, "--json", help="Answer in JSON, lists one object a line.", rich_help_panel=_ANSWER
        ),
        _option(
            "quiet",
            bool,
            False,
            "--quiet",
            "-q",
            help="Print only ids and names, one per line.",
            rich_help_panel=_ANSWER,
        ),
    ]


def _option(name: str, kind: Any, default: Any, *spellings: str, **said: Any) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(*spellings, show_default=False, **said)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
