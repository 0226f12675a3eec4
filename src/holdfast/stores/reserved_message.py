"""A reference to a message that was reserved for a later claim."""

from typing import NamedTuple


class Reserved(NamedTuple):
    """The state of a message when it was reserved.

    Any later change of the message changes its version or its order key, or removes it, and so ends the reservation.
    """

    id: int
    version: int
    priority: int
    visible_at: int

    @property
    def order_key(self) -> tuple[int, int, int]:
        """Return the key by which claims order the messages of a queue."""
        return self.priority, self.visible_at, self.id
