"""Parse rendered metrics as Prometheus does."""

from collections.abc import Iterator
from typing import Any, cast

from prometheus_client.parser import text_string_to_metric_families

from holdfast.client.client import AsyncHoldfast
from holdfast.model.answers import Stats
from holdfast.model.names import QueueNumbers, QueueRef
from holdfast.server.embedded import Embedded
from holdfast.server.scrape import CoreSource
from holdfast.stores.contract import Store
from holdfast.telemetry.figures import Figures
from holdfast.telemetry.metrics import Metrics, ScrapedQueue


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return each sample by name and labels. Fail for a duplicate series, which Prometheus would refuse."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for each in family.samples:
            key = (each.name, tuple(sorted(each.labels.items())))
            assert key not in found, key
            found[key] = each.value
    return found


def sample(text: bytes, name: str, **labels: str) -> float | None:
    return samples(text).get((name, tuple(sorted(labels.items()))))


def core_of(hf: AsyncHoldfast) -> Any:
    return cast(Embedded, hf._transport).core


def store_of(hf: AsyncHoldfast) -> Store:
    return cast(Store, core_of(hf).store)


def metrics_of(hf: AsyncHoldfast, clock: Any, **options: Any) -> Metrics:
    core = core_of(hf)
    return Metrics(CoreSource(core.store, core.dispatcher, clock), **options)


def stats(**given: Any) -> Stats:
    fields = dict.fromkeys(("ready", "delayed", "in_flight", "failed", "bytes", "oldest_ready_age_ms", "waiters"), 0)
    return Stats(**{**fields, "paused": False, "draining": False, **given})


class FixedSource:
    """A source with fixed queues."""

    def __init__(self, queues: dict[QueueRef, Stats], figures: Figures | None = None) -> None:
        self.known = queues
        # The others are numbered in their order.
        self.numbers: dict[QueueRef, QueueNumbers] = {}
        self._figures = figures or Figures()

    async def queues(self) -> Any:
        for number, (ref, each) in enumerate(list(self.known.items()), 1):
            yield ScrapedQueue(ref, self.numbers.get(ref, QueueNumbers(1, number)), each)

    async def take_tallies(self) -> dict[Any, Any]:
        return {}

    async def figures(self) -> Figures:
        return self._figures


def names_in(text: bytes) -> Iterator[str]:
    for name, _ in samples(text):
        yield name
