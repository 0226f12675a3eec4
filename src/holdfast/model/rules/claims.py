"""Rules of a claim: the messages that a queue's order shows, and the instant at which to look again."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def next_claim_at(*, is_paused: bool, is_served: bool, now_ms: int, soonest: Callable[[], int | None]) -> int | None:
    """Return when a further claim may find something; None: not before the queue changes.

    `is_served`: every ask got something. There may be more at once, and to say so is cheaper than to ask for the
    soonest instant at which a message becomes visible or a lease ends.
    """
    if is_paused:
        return None
    return now_ms if is_served else soonest()


def group_head(*, is_busy: bool, first: Callable[[], T | None]) -> T | None:
    """Return the one message of a FIFO group that claims see: its oldest Ready one, none while it has any in flight."""
    return None if is_busy else first()


def turn_head(shown: T | None, head: T | None) -> tuple[T | None, T | None]:
    """Return the message to take out of the queue's order and the one to put there, after a group's head changed."""
    return (None, None) if shown == head else (shown, head)
