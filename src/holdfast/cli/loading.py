"""Commands that are imported when they run. Until then, each is represented by its row of the table."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast.cli.arguments import QuickCommand, convert_quickly
from holdfast.cli.commands import COMMANDS
from holdfast.cli.root_help import print_help
from holdfast.cli.session import client_command

MARKUP: Final = "markdown"


def load(name: str) -> Any:
    """Import a command's module, and return typer's object for the command or the group of commands."""
    row = COMMANDS[name]
    module = import_module(f"holdfast.cli.{row.module}")
    found = getattr(module, row.attribute or name)
    holder = typer.Typer(rich_markup_mode=MARKUP)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, rich_help_panel=row.panel)
    elif row.has_session:
        client_command(holder, row.panel, name, may_create=row.may_create, only_looks=row.only_looks)(found)
    else:
        parsed_by = QuickCommand if row.parsed_by is None else getattr(module, row.parsed_by)
        holder.command(name, cls=parsed_by, rich_help_panel=row.panel)(found)
    return typer.main.get_group(holder).commands[name]


class DeferredCommand(TyperCommand):
    """A command known by its name and summary, and imported when it has a command line to parse."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        assert self.name is not None
        return load(self.name).make_context(info_name, args, parent, **extra)


class LoadedCommands(Mapping[str, Any]):
    """The commands by name. Each is imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        return load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class RootGroup(TyperGroup):
    """The program `holdfast`. Its help and completion come from the table, without importing any command."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": None})
        self.commands = LoadedCommands()  # type: ignore[assignment]  # a read-only mapping: typer adds no command to it

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        convert_quickly(self, self.get_params(ctx))
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        row = COMMANDS.get(cmd_name)
        if row is None:
            return None
        return DeferredCommand(cmd_name, help=row.summary, rich_markup_mode=MARKUP, rich_help_panel=row.panel)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if not print_help(self, ctx):
            super().format_help(ctx, formatter)
