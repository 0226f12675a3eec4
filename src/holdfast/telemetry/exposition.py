"""Prometheus' text format, written directly.

The client library's own rendering takes 5-10 us a line, and a scrape has tens of thousands of them: long enough for
callers to notice. This takes under one.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from holdfast.telemetry.figures import Histogram


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricFamily(NamedTuple):
    """One metric, declared."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


def numbers(family: MetricFamily, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    """Lines of a counter or a gauge, each made when it is asked for; each sample comes with the text of its labels."""
    name, head = family.name, _head(family)
    for labels, value in samples:
        yield f"{head}{name}{{{labels}}} {value}\n"
        head = ""


def number(family: MetricFamily, value: float) -> str:
    """Of a metric without labels."""
    return f"{_head(family)}{family.name} {value}\n"


def histograms(family: MetricFamily, samples: Mapping[str, Histogram]) -> Iterator[str]:
    if samples:
        yield _head(family)
        for labels, histogram in samples.items():
            yield _histogram(family.name, labels, histogram)


def _histogram(name: str, labels: str, histogram: Histogram) -> str:
    # Read once: the counts may be rising meanwhile, and the parts of one histogram must agree.
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
