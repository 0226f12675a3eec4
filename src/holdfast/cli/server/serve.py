"""`holdfast serve`: the server, with every setting as a flag."""

import inspect
import os
from itertools import zip_longest
from typing import Annotated, Any

import typer

from holdfast.cli.arguments import QuickCommand
from holdfast.model.errors import InvalidArgument
from holdfast.model.extras import require_extra
from holdfast.server.kinds import Boolean
from holdfast.server.setting import Setting
from holdfast.server.settings import SETTINGS

USAGE = 2

_BOOLEANS = {setting.flag: setting for setting in SETTINGS.values() if isinstance(setting.kind, Boolean)}
_NO = {f"--no-{flag.removeprefix('--')}": flag for flag in _BOOLEANS}


class ServeCommand(QuickCommand):
    """A command that accepts the flag of a boolean without a value, and as `--no-…`.

    The parser itself knows only flags with a value.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        written: list[str] = []
        for arg, following in zip_longest(args, args[1:], fillvalue="--"):
            if arg in _NO:
                written.append(f"{_NO[arg]}=false")
            elif arg in _BOOLEANS and following.startswith("-"):
                written.append(f"{arg}=true")
            else:
                written.append(arg)
        return super().parse_args(ctx, written)


def serve(config: str | None, print_settings: bool, **given: str | None) -> None:
    """Serve queues to other programs.

    Every setting is a flag, a variable (`--queue-poll-interval` is `HOLDFAST_QUEUE_POLL_INTERVAL`) and a key of the
    TOML file that `--config` names, in this order of precedence. Without identities the server listens on loopback
    only. SIGTERM or Ctrl-C stops it after the calls under way; a second signal stops it at once.
    """
    try:
        raise typer.Exit(
            _serve(config, print_settings, {name: each for name, each in given.items() if each is not None})
        )
    except InvalidArgument as error:
        if "setting" not in error.facts:
            raise
        typer.echo(f"holdfast: {' '.join(error.message.split())}", err=True)
        raise typer.Exit(USAGE) from None


def _serve(config: str | None, print_settings: bool, flags: dict[str, str]) -> int:
    from holdfast.server.checks import check_startable
    from holdfast.server.sources import as_toml, load_settings

    loaded = load_settings(flags, os.environ, config=config)
    if print_settings:
        for warning in loaded.warnings:
            typer.echo(f"holdfast: {warning}", err=True)
        typer.echo(as_toml(loaded))
        return 0
    check_startable(loaded)
    require_extra("server", "holdfast serve")
    from holdfast.server.run import run

    try:
        return run(loaded.settings, announce=typer.echo, warnings=loaded.warnings)
    except InvalidArgument as error:
        # The error was found at the start, where the origin of the setting is no longer known.
        name = error.facts.get("setting")
        if name not in loaded.origins:
            raise
        raise InvalidArgument(f"{error.message} ({name} is from {loaded.origin(str(name))})", setting=name) from None


def _parameters() -> list[inspect.Parameter]:
    return [
        _parameter(
            "config",
            Annotated[str | None, typer.Option(metavar="FILE", help="Read settings from this TOML file.")],
            None,
        ),
        _parameter(
            "print_settings",
            Annotated[
                bool, typer.Option("--print-settings", help="Print the settings in force with their origins, and exit.")
            ],
            False,
        ),
        *(
            _parameter(setting.name, Annotated[str | None, setting_option(setting)], None)
            for setting in SETTINGS.values()
        ),
    ]


def _parameter(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def setting_option(setting: Setting) -> Any:
    """Return the option of a command that takes this setting as a flag."""
    return typer.Option(
        setting.flag,
        metavar=setting.kind.metavar,
        help=f"{setting.spec.help} [default: {setting.default_text}]",
        rich_help_panel=setting.spec.group,
    )


# typer reads the options of a command from its signature. This command's options are the settings.
serve.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]  # functions take attributes
serve.__annotations__ = {parameter.name: parameter.annotation for parameter in _parameters()}
