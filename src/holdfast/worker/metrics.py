"""Statistics of running workers, and an OpenTelemetry gauge of them if that library is installed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakSet

import msgspec

from holdfast.model.names import QueueRef


class HandlerStats(msgspec.Struct, frozen=True, kw_only=True):
    """The current statistics of one handler of a running worker."""

    ref: QueueRef
    # The number of messages that are being handled, and of messages that could be claimed now.
    in_hand: int
    free: int
    # The number of threads that run past their timeout, and the number above which the worker stops.
    stuck_threads: int
    max_stuck_threads: int


class HasStats(Protocol):
    """A worker."""

    def stats(self) -> list[HandlerStats]:
        """Return the statistics of each handler; none while the worker is not running."""


@dataclass(slots=True)
class _Published:
    """The workers of the process's only gauge. OpenTelemetry drops a second gauge of the same name."""

    workers: "WeakSet[HasStats]" = field(default_factory=WeakSet)
    has_gauge: bool = False


_published = _Published()


def publish(worker: HasStats) -> None:
    """Include a worker in the gauge from now on."""
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
        description="Handler threads that run past their timeout",
    )
    _published.has_gauge = True


def _stuck_threads(options: object) -> Iterator[Any]:
    from opentelemetry.metrics import Observation

    for worker in list(_published.workers):
        for each in worker.stats():
            about = {"holdfast.tenant": each.ref.tenant, "messaging.destination.name": each.ref.queue}
            yield Observation(each.stuck_threads, about)
