"""The options that all client commands share, and the session that they get: target, output and connection."""

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
from holdfast.cli.client_settings import DEFAULT_URL, ClientTarget, resolve_target
from holdfast.cli.failures import Usage, print_error
from holdfast.cli.output import Output
from holdfast.clock import steady_s
from holdfast.model.errors import QueueNotFound
from holdfast.model.names import QueueRef, parse_ref

if TYPE_CHECKING:
    import holdfast

F = TypeVar("F", bound=Callable[..., None])

_CONNECTION = "Connection"
_OUTPUT = "Output"

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue, or TENANT/QUEUE.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


class CommandSession:
    """The target, the output and the connection of one client command.

    The store or server is opened when `hf` is first read. `may_create` allows that to create a store's directory. With
    `only_looks`, a directory of the legacy layout stays as it is.
    """

    def __init__(
        self, target: ClientTarget, output: Output, *, may_create: bool = False, only_looks: bool = False
    ) -> None:
        self.target = target
        self.output = output
        self._may_create = may_create
        self._only_looks = only_looks
        self._opened: holdfast.Holdfast | None = None

    @cached_property
    def hf(self) -> "holdfast.Holdfast":
        """Open the target. Raise QueueNotFound if it is a missing directory that this command may not create."""
        import holdfast

        target = self.target
        if target.is_directory and not self._may_create and not Path(target.url).exists():
            raise QueueNotFound(
                f"there is no store at {target.url} (url is from {target.origin('url')}): check the path"
            )
        settings = target.open_settings()
        if self._only_looks and self.is_legacy:
            settings = {"legacy_read_only": True, **settings}
        self._opened = holdfast.open(target.url, **settings)
        return self._opened

    def look_only(self) -> None:
        """Leave a directory of the legacy layout as it is: this call of the command changes nothing in its source."""
        self._only_looks = True

    @property
    def is_legacy(self) -> bool:
        """Return whether the target is a directory of the legacy layout whose messages no program has begun to move."""
        if not self.target.is_directory:
            return False
        # Imported here, because a command for a server loads no store.
        from holdfast.stores.rocks.legacy.files import is_legacy

        return is_legacy(Path(self.target.url))

    def ref(self, name: str) -> QueueRef:
        """Parse `queue` or `tenant/queue`. A queue's name cannot contain a slash."""
        tenant, slash, queue = name.rpartition("/")
        return parse_ref(tenant if slash else self.target.tenant, queue)

    def queue(self, name: str) -> "holdfast.Queue":
        """Return the queue of a name, which may be `tenant/queue`."""
        ref = self.ref(name)
        return self.hf.queue(ref.queue, tenant=ref.tenant)

    def warn_if_missing(self, ref: QueueRef, *, is_waiting: bool) -> None:
        """Print a warning on stderr if the queue does not exist, with similar names of existing queues."""
        from holdfast.client.missing import describe_missing

        if not self.output.is_quiet:
            hf = self.hf
            text = hf._driver.run(describe_missing(hf._inner._connected(), ref, is_waiting=is_waiting))
            if text is not None:
                print_error(text)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before a change that cannot be undone. Without a terminal, raise Usage unless `--yes` was given."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Usage(
                f"{question} This cannot be undone, and there is no terminal to ask for confirmation: give --yes"
            )
        typer.confirm(question, abort=True, err=True)

    @contextmanager
    def progress(self, description: str, total: int | None, *, after_s: float = 0) -> Iterator[Callable[[int], None]]:
        """Show a progress bar on stderr if it is a terminal. Yield the function that sets how much is done.

        The bar appears after `after_s` seconds, so that short operations do not flash one.
        """
        if self.output.is_quiet or not sys.stderr.isatty():
            yield lambda done: None
            return
        from rich.console import Console
        from rich.progress import Progress

        bars = Progress(console=Console(stderr=True), transient=True)
        task = bars.add_task(description, total=total)
        shown_at = steady_s() + after_s

        def show(done: int) -> None:
            bars.update(task, completed=done)
            if not bars.live.is_started and steady_s() >= shown_at:
                bars.start()

        if not after_s:
            bars.start()
        try:
            yield show
        finally:
            if bars.live.is_started:
                bars.stop()

    def close(self) -> None:
        """Close the store or connection, if it was opened."""
        if self._opened is not None:
            self._opened.close()


def duration(given: str | None) -> str | float | None:
    """Return a duration such as `30s` unchanged, and a bare number as seconds."""
    try:
        return None if given is None else float(given)
    except ValueError:
        return given


def client_command(
    app: typer.Typer, panel: str, name: str | None = None, *, may_create: bool = False, only_looks: bool = False
) -> Callable[[F], F]:
    """Register a function as a command: its first parameter is the CommandSession, the others are options of its own.

    The command also gets the options that all client commands share.
    """

    def register(function: F) -> F:
        own = list(inspect.signature(function).parameters.values())[1:]

        @functools.wraps(function)
        def command(**given: Any) -> None:
            flags = {each: given.pop(each) for each in ("url", "token", "tenant")}
            output = Output(json=given.pop("json"), quiet=given.pop("quiet"))
            target = resolve_target(flags, os.environ, given.pop("config"))
            session = CommandSession(target, output, may_create=may_create, only_looks=only_looks)
            try:
                function(session, **given)
            finally:
                session.close()

        parameters = [*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *_common()]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        # Otherwise typer would read the annotations of the wrapped function instead of these.
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
            help="URL of a server, directory of an embedded store, or URL of a store (postgres://, file:///, s3://). "
            f"[env: HOLDFAST_URL] [default: {DEFAULT_URL}]",
            rich_help_panel=_CONNECTION,
        ),
        _option(
            "token",
            str | None,
            None,
            "--token",
            metavar="JWT",
            help="Token that identifies the caller. Other users of this machine can see flags, so prefer the variable. "
            "[env: HOLDFAST_TOKEN]",
            rich_help_panel=_CONNECTION,
        ),
        _option(
            "tenant",
            str | None,
            None,
            "--tenant",
            "-T",
            metavar="TENANT",
            help="Tenant that owns the queues. [env: HOLDFAST_TENANT] [default: the token's tenant, or `default`]",
            rich_help_panel=_CONNECTION,
        ),
        _option(
            "config",
            str | None,
            None,
            "--config",
            metavar="FILE",
            help="TOML file whose table `client` may set url, token and tenant. [env: HOLDFAST_CONFIG]",
            rich_help_panel=_CONNECTION,
        ),
        _option(
            "json", bool, False, "--json", help="Print JSON; lists as one object per line.", rich_help_panel=_OUTPUT
        ),
        _option(
            "quiet",
            bool,
            False,
            "--quiet",
            "-q",
            help="Print only ids and names, one per line.",
            rich_help_panel=_OUTPUT,
        ),
    ]


def _option(name: str, kind: Any, default: Any, *spellings: str, **attributes: Any) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(*spellings, **attributes)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
