"""Checks at the edge: each names the field it refuses."""

import math
from typing import Any

from holdfast.model.errors import InvalidArgument

MAX_TEXT = 256


def plain(value: Any) -> Any:
    """Return text or a whole number of a subclass (a `MessageId`, an enum's member) as `str` or `int` itself.

    What is stored and sent is encoded by exact type. Anything else is returned as it is.
    """
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)
    if isinstance(value, int) and type(value) not in (int, bool):
        return int(value)
    return value


def check_integer(name: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidArgument(f"{name} {str(value)[:80]!r} must be a whole number from {least} to {most}", field=name)
    return value


def check_rate(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidArgument(f"{name} {str(value)[:80]!r} must be a number above 0", field=name)
    return value


def check_text(name: str, value: object) -> str:
    """A key, a group, an owner: 1-256 characters, none of them a control character."""
    if isinstance(value, str) and 1 <= len(value) <= MAX_TEXT and value.isprintable():
        check_encodable(name, value)
        return str(plain(value))
    raise InvalidArgument(f"{name} {str(value)[:80]!r} must be text of 1-{MAX_TEXT} printable characters", field=name)


def check_encodable(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} has characters that UTF-8 cannot hold", field=name) from None
