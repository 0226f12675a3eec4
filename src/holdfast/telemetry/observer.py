"""The seam between a door and its metrics."""

from typing import Protocol

from holdfast.model.names import QueueRef


class CallObserver(Protocol):
    """Measures the calls of a door."""

    def request(self, operation: str, queue: QueueRef | None, outcome: str, seconds: float) -> None:
        """Count one call that has ended. `queue` is None if the call named none."""
