"""The error of a call that reached a process without the queue."""

from holdfast.model.errors import HoldfastError, StoreUnavailable
from holdfast.model.names import QueueRef

_FACT = "is_misplaced"


def misplaced(ref: QueueRef) -> StoreUnavailable:
    """Return the error that lets a door process look for the queue again. Nothing has been changed."""
    return StoreUnavailable(f"another store process has {ref}: try again", **{_FACT: True})


def is_misplaced(error: HoldfastError) -> bool:
    """Return whether the call has to go to another process."""
    return isinstance(error, StoreUnavailable) and error.facts.get(_FACT) is True
