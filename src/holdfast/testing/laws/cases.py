"""Many cases of one law, asked of one store: to open a store for each of hundreds would be most of the work."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def told(case: object) -> Iterator[None]:
    """Whatever fails inside says which case it was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {case!r}")
        raise
