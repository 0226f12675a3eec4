"""The interface between a door and the metrics."""

from typing import Protocol

from holdfast.model.names import QueueRef


class CallObserver(Protocol):
    """A recorder of the calls of a door."""

    def request(self, operation: str, queue: QueueRef | None, outcome: str, seconds: float) -> None:
        """Record one finished call. `queue` is None for a call that concerns no queue."""
