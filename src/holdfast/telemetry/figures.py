"""Figures a store keeps of itself, and the histogram they are kept in. Pure: stores may import it."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields


class Histogram:
    """Counts by upper bound; the last place counts what lies above every bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, other: "Histogram") -> None:
        """Of the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


# An fsync takes 0.1 ms on a good disk, 4 ms on a common one, and seconds on one that is about to fail.
SYNC_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFigures:
    """One column family, as RocksDB itself tells of it."""

    keys: int
    live_bytes: int
    files_bytes: int
    memtable_bytes: int
    pending_compaction_bytes: int
    level0_files: int
    block_cache_bytes: int

    def plus(self, other: "FamilyFigures") -> "FamilyFigures":
        """Return the figures of the same family of two databases together."""
        return FamilyFigures(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a store tells of itself at this moment. None, or nothing: this store has no such thing."""

    # False: it stopped, and refuses every call until it is opened again.
    is_up: bool = True
    free_bytes: int | None = None
    # Why it refuses every call, or every enqueue; None: it refuses none.
    refusal: str | None = None
    # Calls refused because the disk is nearly full, and stops after a failed write or sync.
    refusals: int | None = None
    stops: int | None = None
    # The free space of the write-ahead log's disk.
    wal_free_bytes: int | None = None
    # By how much this process's clock is ahead of the store's (below 0: behind), at least.
    clock_skew_s: float | None = None
    # Since it was opened.
    writes: int | None = None
    checkpoints: int | None = None
    # Memory taken by changes that only the log has beside it.
    unwritten_bytes: int | None = None
    syncs: Histogram | None = None
    families: Mapping[str, FamilyFigures] = field(default_factory=dict)
