"""A message that was reserved for a claim to come, as it was then."""

from typing import NamedTuple


class Reserved(NamedTuple):
    """Whatever happened to the message since, it is not this one any more: its version or its place has changed, or it
    is not there."""

    id: int
    version: int
    priority: int
    visible_at: int

    @property
    def place(self) -> tuple[int, int, int]:
        """Its place in its queue, by which claims go."""
        return self.priority, self.visible_at, self.id
