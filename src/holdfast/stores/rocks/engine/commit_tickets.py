"""Tickets of callers that wait for a commit."""

from holdfast.model.errors import StoreUnavailable
from holdfast.runtime import Ticket


class LeaderOffer:
    """An offer to a waiting caller to lead the next commit."""

    __slots__ = ("joined",)

    def __init__(self) -> None:
        # If another caller has begun that commit first: the ticket to wait on instead.
        self.joined: Waiting | None = None


# Resolved with None once the operation is durable, or with an offer to lead the commit that makes it durable.
Waiting = Ticket[LeaderOffer | None]


def resolve_tickets(waiting: "list[Waiting] | list[Ticket[None]]", error: StoreUnavailable | None) -> None:
    """Resolve tickets, with an error if there is one."""
    for ticket in waiting:
        if ticket.done():
            continue  # its caller stopped waiting
        if error is None:
            ticket.set_result(None)
        else:
            ticket.set_exception(error)
