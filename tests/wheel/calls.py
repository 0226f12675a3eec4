"""One realistic call of every command, and the extra that it needs, if any."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import typer

from holdfast.cli.main import app

# No server listens on the discard port.
_POSTGRES = "postgres://127.0.0.1:9/none"
_UNREACHED = 75


class Call(NamedTuple):
    arguments: tuple[str, ...]
    # The exit code where the extra is installed; None: any but that of a crash.
    code: int | None = 0
    # The extra that the call's error names where none of `works_with` is installed.
    extra: str | None = None
    # The extras with which it does not fail for want of one, where these are more than `extra`.
    works_with: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The command's path: `db migrate` is ("db", "migrate")."""
        return self.arguments[: 2 if self.arguments[0] in ("db", "pipeline") else 1]

    def works_in(self, extra: str | None) -> bool:
        return self.extra is None or extra in (self.extra, *self.works_with)


def _call(line: str, code: int | None = 0, extra: str | None = None, *works_with: str) -> Call:
    return Call(tuple(line.split()), code, extra, works_with)


# In this order, on the store in ./data, which HOLDFAST_URL names. `jobs.py` and `full/` are beside it.
CALLS = [
    _call("enqueue mail 1"),
    _call("enqueue mail 2"),
    _call("enqueue mail 3"),
    _call("dequeue mail --lease 10m"),
    _call("extend --lease 10m"),
    _call("state 5"),
    _call("ack"),
    _call("dequeue mail --lease 10m"),
    _call("nack --error wrong"),
    _call("dequeue mail --lease 10m"),
    _call("release"),
    _call("run mail -- ./end-parent"),
    _call("enqueue jobs 1"),
    _call("worker jobs:worker"),
    _call("enqueue mail 4"),
    _call("queues"),
    _call("stats"),
    _call("top --once"),
    _call("tail --no-follow"),
    _call("peek mail"),
    _call("get mail 01a1e916-705a-7000-9b90-000000000000", 3),
    _call("dlq mail"),
    _call("tenants"),
    _call("policy mail"),
    _call("schedule mail"),
    _call("redrive mail"),
    _call("pause mail"),
    _call("resume mail"),
    _call("reprioritise mail 5"),
    _call("move mail other"),
    _call("cancel other --priority 5 --yes"),
    _call("purge mail --yes"),
    _call("bench -n 10 --singles 1"),
    _call("delete other --yes"),
    _call("doctor"),
    _call("verify data"),
    _call("backup data copy"),
    _call("demo --seconds 0.5"),
    _call("db migrate data"),
    _call(f"db migrate --store {_POSTGRES}", _UNREACHED, "postgres", "spark"),
    _call(f"db status --store {_POSTGRES}", _UNREACHED, "postgres", "spark"),
    _call("serve --print-settings"),
    # Where the extra is installed a setting ends it: a test of its own serves.
    _call("serve --capnp-port 0 --port 0", 2, "server"),
    # The other stores and servers.
    _call("queues --url http://127.0.0.1:9", _UNREACHED),
    _call("queues --url capnp://127.0.0.1:9", _UNREACHED, "capnp"),
    _call(f"queues --url {_POSTGRES}", _UNREACHED, "postgres", "spark"),
    _call("enqueue mail 1 --url file:///{here}/objects", 0, "objects"),
    _call("verify file:///{here}/objects", 0, "objects"),
    # Where Spark is installed each call stops before a session starts; a test of its own starts one.
    _call("pipeline archive --lake lake --conf none", 2, "spark", "connect"),
    _call("pipeline report --lake lake --conf none", 2, "spark", "connect"),
    _call("pipeline audit --lake lake --conf none", 2, "spark", "connect"),
    _call("pipeline load mail rows.parquet --conf none", 2, "spark", "connect"),
    _call("pipeline drain mail --lake lake", 2, "spark", "connect"),
    _call("pipeline replay --lake lake --conf none", 2, "spark", "connect"),
    _call("pipeline triage --conf none", 2, "spark", "connect"),
    _call("pipeline redrive --conf none", 2, "spark", "connect"),
    _call("pipeline migrate --to new --conf none", 2, "spark", "connect"),
    _call("pipeline compact --lake lake", None, "spark", "connect"),
    _call("pipeline demo --dir full", 4, "spark", "connect"),
    _call(f"pipeline flush full --store {_POSTGRES} --conf none", 2, "spark", "connect"),
    _call(f"pipeline reshard --store {_POSTGRES}", _UNREACHED, "postgres", "spark"),
]


def every_command() -> dict[tuple[str, ...], Any]:
    """Return the commands of the command line, by their paths."""
    return dict(_commands_of(typer.main.get_command(app), ()))


def _commands_of(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, each in command.commands.items():
        yield from _commands_of(each, (*path, name))


def plain_calls() -> list[Call]:
    """Return a call of each command that has none above: with its required parameters and no others."""
    known = {each.command for each in CALLS}
    return [Call((*path, *_required(command)), None) for path, command in every_command().items() if path not in known]


def _required(command: Any) -> Iterator[str]:
    for each in command.params:
        if each.required:
            yield from ("x",) if each.param_type_name == "argument" else (each.opts[0], "x")
