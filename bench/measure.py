"""Paired measurements: the same rounds for both sides, interleaved, so that a noisy machine is noisy for both."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """Medians per operation of a subject and its baseline, in microseconds."""

    subject_us: float
    baseline_us: float

    @property
    def speed_ratio(self) -> float:
        """How fast the subject is, the baseline being 1."""
        return self.baseline_us / self.subject_us


def paired(subject: Callable[[], None], baseline: Callable[[], None], *, operations: int, rounds: int = 9) -> Pair:
    """Each callable does `operations` operations; the first round of each warms up and is not counted."""
    times: dict[Callable[[], None], list[float]] = {subject: [], baseline: []}
    for number in range(rounds + 1):
        for side in (subject, baseline) if number % 2 else (baseline, subject):
            took_us = timed_us(side) / operations
            if number:
                times[side].append(took_us)
    return Pair(statistics.median(times[subject]), statistics.median(times[baseline]))


def timed_us(work: Callable[[], None]) -> float:
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter_ns()
        work()
        return (time.perf_counter_ns() - started) / 1_000
    finally:
        gc.enable()
