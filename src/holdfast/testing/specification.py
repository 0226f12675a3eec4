"""The mark of a law: the lines of `docs/specification.md` that it proves."""

from collections.abc import Callable
from typing import Any, TypeVar

_Law = TypeVar("_Law", bound=Callable[..., Any])

ATTRIBUTE = "specification_lines"


def proves(*lines: str) -> Callable[[_Law], _Law]:
    """Return a decorator that notes which lines of `docs/specification.md` a law proves, as in `@proves("2.4")`.

    It is no pytest marker, because the suites of other projects would have to register that. This project's own suite
    makes the marker `spec` from it.
    """

    def note(law: _Law) -> _Law:
        setattr(law, ATTRIBUTE, lines)
        return law

    return note
