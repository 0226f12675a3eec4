"""The figures of running workers as OpenTelemetry metrics, where that is installed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakSet

from holdfast.worker.execution.stuck import HandlerStats


class HasStats(Protocol):
    def stats(self) -> list[HandlerStats]: ...


@dataclass(slots=True)
class _Published:
    """One gauge for the process: a second one of the same name would be dropped."""

    workers: "WeakSet[HasStats]" = field(default_factory=WeakSet)
    has_gauge: bool = False


_published = _Published()


def publish(worker: HasStats) -> None:
    """Show a worker's figures from now on; those that do not run have none."""
    _published.workers.add(worker)
    if _published.has_gauge:
        return
    try:
        from opentelemetry import metrics
    except ImportError:
        return
    metrics.get_meter("holdfast").create_observable_gauge(
        "holdfast.worker.stuck_threads",
        callbacks=[_stuck_threads],
        unit="{thread}",
        description="Handler threads that run on past their timeout",
    )
    _published.has_gauge = True


def _stuck_threads(options: object) -> Iterator[Any]:
    from opentelemetry.metrics import Observation

    for worker in list(_published.workers):
        for each in worker.stats():
            about = {"holdfast.tenant": each.ref.tenant, "messaging.destination.name": each.ref.queue}
            yield Observation(each.stuck_threads, about)
