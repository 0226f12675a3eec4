"""The figures that a store reports for metrics, and the histogram. Pure, because stores import it."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from holdfast.model.answers import HotQueue


class Histogram:
    """Counts of values by upper bound. The last count is that of the values above all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, other: "Histogram") -> None:
        """Add the counts of another histogram with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


# An fsync takes 0.1 ms on a good disk, 4 ms on a common one, and seconds on one that is about to fail.
SYNC_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFigures:
    """The figures that RocksDB reports for one column family."""

    keys: int
    live_bytes: int
    files_bytes: int
    memtable_bytes: int
    pending_compaction_bytes: int
    level0_files: int
    block_cache_bytes: int

    def plus(self, other: "FamilyFigures") -> "FamilyFigures":
        """Return the sums for the same column family of two databases."""
        return FamilyFigures(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFigures:
    """The figures of the connections to the store's databases."""

    limit: int
    in_use: int
    # The number of calls that wait for a connection.
    waiting: int
    # The numbers of calls that gave up waiting for a lock, and of connections that failed.
    lock_timeouts: int
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The current figures of a store. A field is None if the store has no such thing."""

    # False: the store has stopped, and refuses every call until it is opened again.
    is_up: bool = True
    free_bytes: int | None = None
    # The reason for which the store refuses all calls or all enqueues; None if it refuses none.
    refusal: str | None = None
    # What is wrong although the store goes on taking calls, such as a database that gives no sign of life.
    problems: Sequence[str] = ()
    # The number of calls refused because the disk is nearly full, and of stops after a failed write or sync.
    refusals: int | None = None
    stops: int | None = None
    # The free space on the disk of the write-ahead log.
    wal_free_bytes: int | None = None
    # The minimum time by which this process's clock is ahead of the store's; negative if it is behind.
    clock_skew_s: float | None = None
    # The numbers of commits and checkpoints since the store was opened.
    writes: int | None = None
    checkpoints: int | None = None
    # The memory used by changes that are in the log, but not yet in the database.
    unwritten_bytes: int | None = None
    # The number of messages that are still to be moved from the legacy layout, and that of keys there that cannot be
    # read, once they are all that is left.
    legacy_left: int | None = None
    legacy_unreadable: int | None = None
    syncs: Histogram | None = None
    connections: ConnectionFigures | None = None
    families: Mapping[str, FamilyFigures] = field(default_factory=dict)
    # The busiest queues of each column family and kind of access, the busiest first.
    hot: Sequence[HotQueue] = ()
