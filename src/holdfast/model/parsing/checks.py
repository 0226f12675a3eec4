"""Checks of single values from callers. Each raises `InvalidArgument`, which names the field."""

import math
from typing import Any

from holdfast.model.errors import InvalidArgument

MAX_TEXT = 256


def plain(value: Any) -> Any:
    """Return text or an integer of a subclass, such as a `MessageId` or an enum member, as a plain `str` or `int`.

    The encoders of stored and sent values accept the exact types only. Any other value is returned as it is.
    """
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)
    if isinstance(value, int) and type(value) not in (int, bool):
        return int(value)
    return value


def check_integer(name: str, value: object, minimum: int, maximum: int) -> int:
    """Return the value if it is an integer in the range. Booleans are refused."""
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise InvalidArgument(
            f"{name} {str(value)[:80]!r} must be a whole number from {minimum} to {maximum}", field=name
        )
    return value


def check_rate(name: str, value: object) -> float:
    """Return the value if it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidArgument(f"{name} {str(value)[:80]!r} must be a number above 0", field=name)
    return value


def check_text(name: str, value: object) -> str:
    """Return a key, group or owner as a plain `str`, if it has 1-256 characters and all of them are printable."""
    if isinstance(value, str) and 1 <= len(value) <= MAX_TEXT and value.isprintable():
        check_encodable(name, value)
        return str(plain(value))
    raise InvalidArgument(f"{name} {str(value)[:80]!r} must be text of 1-{MAX_TEXT} printable characters", field=name)


def check_encodable(name: str, value: str) -> None:
    """Refuse text that UTF-8 cannot encode, such as a lone surrogate."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} has characters that UTF-8 cannot encode", field=name) from None
