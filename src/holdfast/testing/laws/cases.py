"""Notes that tell which case of a law failed. Cases share a store, because opening one for each would take too long."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def note_case(case: object) -> Iterator[None]:
    """Add the case as a note to any exception that leaves the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {case!r}")
        raise
