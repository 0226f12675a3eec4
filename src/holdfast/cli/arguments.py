"""Plain values of the command line, converted without the library that typer converts with.

typer validates every value with pydantic, whose import takes longer than most commands run. Text, whole numbers and
decimal numbers that are plainly right need no validation. Any other value goes to typer, and so does every value that
it would refuse: all errors are typer's own.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, get_args, get_origin

from typer.core import TyperCommand

# Shorter than what a float holds exactly. Signs, exponents and underscores are typer's to judge.
_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)
_UNDECIDED = object()


class QuickCommand(TyperCommand):
    """A command whose plain values are converted here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        convert_quickly(self, self.get_params(ctx))
        return super().parse_args(ctx, args)


def convert_quickly(command: Any, parameters: Iterable[Any]) -> None:
    """Let the parameters of a command or a group convert plain values before typer is asked to."""
    annotations = _annotations(command.callback)
    for parameter in parameters:
        if "process_value" not in vars(parameter):  # a command may parse several command lines
            kind, limits = annotations.get(parameter.name, (None, []))
            parameter.process_value = _processing(parameter, kind, limits)


def _processing(parameter: Any, kind: Any, limits: list[Any]) -> Callable[[Any, Any], Any]:
    otherwise = parameter.process_value

    def process(ctx: Any, value: Any) -> Any:
        is_several = bool(getattr(parameter, "multiple", False)) or parameter.nargs == -1
        converted = _convert(value, kind, limits, is_several=is_several)
        if converted is _UNDECIDED or (parameter.required and not converted):
            return otherwise(ctx, value)
        return converted if parameter.callback is None else parameter.callback(ctx, parameter, converted)

    return process


def _convert(value: Any, kind: Any, limits: list[Any], *, is_several: bool) -> Any:
    if value is None:
        return () if is_several else None
    if is_several:
        is_text = isinstance(value, list | tuple) and get_args(kind) == (str,)
        return list(value) if is_text and all(map(_is_text, value)) else _UNDECIDED
    if kind is str:
        return value if _is_text(value) else _UNDECIDED
    if kind in (int, float):
        number = _number(value, kind)
        if number is not None and all(_is_within(number, each) for each in limits):
            return number
    return _UNDECIDED


def _is_text(value: object) -> bool:
    """Return whether it is text that can be encoded: a name of a file may not be."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(value: object, kind: type[int] | type[float]) -> int | float | None:
    if type(value) is kind:  # a default
        return value
    if isinstance(value, str) and (_WHOLE if kind is int else _DECIMAL).fullmatch(value):
        return kind(value)
    return None


def _is_within(number: float, limits: Any) -> bool:
    least, most = getattr(limits, "min", None), getattr(limits, "max", None)
    return (least is None or number >= least) and (most is None or number <= most)


def _annotations(callback: Any) -> dict[str, tuple[Any, list[Any]]]:
    """Return the type of each parameter, without `| None`, and the options that it is annotated with."""
    if callback is None:
        return {}
    found: dict[str, tuple[Any, list[Any]]] = {}
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, *options = (
            get_args(parameter.annotation) if hasattr(parameter.annotation, "__metadata__") else (parameter.annotation,)
        )
        if any(getattr(each, "parser", None) or getattr(each, "click_type", None) for each in options):
            kind = None  # the option says how its text becomes a value
        elif get_origin(kind) is not list:
            kinds = [each for each in get_args(kind) if each is not type(None)]
            kind = kinds[0] if len(kinds) == 1 else kind
        found[name] = (kind, options)
    return found
