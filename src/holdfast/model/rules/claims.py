"""Rules of a claim: the one visible message of each FIFO group, and the instant of the next attempt."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def next_claim_at(*, is_paused: bool, is_served: bool, now_ms: int, soonest: Callable[[], int | None]) -> int | None:
    """Return the earliest instant at which another claim may find a message; None: only after the queue changes.

    If each claim of this pass got a message (`is_served`), more may be ready now. Returning `now_ms` is then cheaper
    than calling `soonest`, which looks for the next message to become visible and the next lease to end.
    """
    if is_paused:
        return None
    return now_ms if is_served else soonest()


def group_head(*, is_busy: bool, first: Callable[[], T | None]) -> T | None:
    """Return the one message of a FIFO group that claims can see: its oldest ready one.

    There is none while the group has a message in flight (`is_busy`).
    """
    return None if is_busy else first()


def replace_head(shown: T | None, head: T | None) -> tuple[T | None, T | None]:
    """Return the message to remove from the queue's order and the one to add, after the head of a group changed."""
    return (None, None) if shown == head else (shown, head)
