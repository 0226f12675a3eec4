"""Conversion of plain command-line values without pydantic.

typer validates every value with pydantic, whose import takes longer than most commands run. Plain text and plain
numbers are converted here instead. Any other value, and every value that typer would refuse, is left to typer, so that
all errors are typer's own.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, get_args, get_origin

from typer.core import TyperCommand

# Short enough for a float to hold exactly. Plus signs, exponents and underscores are left to typer.
_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)
_LEFT_TO_TYPER = object()


class QuickCommand(TyperCommand):
    """A command whose plain values are converted without pydantic."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        convert_quickly(self, self.get_params(ctx))
        return super().parse_args(ctx, args)


def convert_quickly(command: Any, parameters: Iterable[Any]) -> None:
    """Make the parameters of a command or a group convert plain values themselves."""
    annotations = _annotations(command.callback)
    for parameter in parameters:
        if "process_value" not in vars(parameter):  # not yet done: a command may parse several command lines
            kind, limits = annotations.get(parameter.name, (None, []))
            parameter.process_value = _make_processor(parameter, kind, limits)


def _make_processor(parameter: Any, kind: Any, limits: list[Any]) -> Callable[[Any, Any], Any]:
    convert_by_typer = parameter.process_value

    def process(ctx: Any, value: Any) -> Any:
        is_several = bool(getattr(parameter, "multiple", False)) or parameter.nargs == -1
        converted = _convert(value, kind, limits, is_several=is_several)
        if converted is _LEFT_TO_TYPER or (parameter.required and not converted):
            return convert_by_typer(ctx, value)
        return converted if parameter.callback is None else parameter.callback(ctx, parameter, converted)

    return process


def _convert(value: Any, kind: Any, limits: list[Any], *, is_several: bool) -> Any:
    if value is None:
        return () if is_several else None
    if is_several:
        is_text = isinstance(value, list | tuple) and get_args(kind) == (str,)
        return list(value) if is_text and all(map(_is_text, value)) else _LEFT_TO_TYPER
    if kind is str:
        return value if _is_text(value) else _LEFT_TO_TYPER
    if kind in (int, float):
        number = _number(value, kind)
        if number is not None and all(_is_within(number, each) for each in limits):
            return number
    return _LEFT_TO_TYPER


def _is_text(value: object) -> bool:
    """Return True for text that can be encoded. A file name may hold surrogates, which cannot."""
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
    minimum, maximum = getattr(limits, "min", None), getattr(limits, "max", None)
    return (minimum is None or number >= minimum) and (maximum is None or number <= maximum)


def _annotations(callback: Any) -> dict[str, tuple[Any, list[Any]]]:
    """Return the type of each parameter, without `| None`, and the typer options in its annotation."""
    if callback is None:
        return {}
    found: dict[str, tuple[Any, list[Any]]] = {}
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, *options = (
            get_args(parameter.annotation) if hasattr(parameter.annotation, "__metadata__") else (parameter.annotation,)
        )
        if any(getattr(each, "parser", None) or getattr(each, "click_type", None) for each in options):
            kind = None  # the option has a parser of its own
        elif get_origin(kind) is not list:
            kinds = [each for each in get_args(kind) if each is not type(None)]
            kind = kinds[0] if len(kinds) == 1 else kind
        found[name] = (kind, options)
    return found
