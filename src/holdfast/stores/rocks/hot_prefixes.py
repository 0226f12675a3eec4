"""Samples of the keys that are read and written, to find the queues that keep a column family busy.

One read in about `READ_GAP` and one change in about `WRITE_GAP` is examined, at random distances, so that a regular
pattern of calls is not sampled always at the same point. Counts halve every `_HALF_LIFE_S`. So they show the last
minute or so, and counts of several shards can be added.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from typing import NamedTuple

from holdfast.clock import steady_s
from holdfast.model.answers import Access, HotQueue
from holdfast.model.names import QueueRef
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.queues import plain_messages

# A message's life has some twenty changes, and hardly a read.
READ_GAP = 64
WRITE_GAP = 256
_HALF_LIFE_S = 30.0
# Queues that are counted at once in each family. Beyond it, those with the smallest counts are counted as unknown.
_MAX_QUEUES = 1_000
# A smaller count is forgotten.
_MIN_COUNT = 0.05
# Queues that are shown for each family and kind of access.
SHOWN_QUEUES = 10

# The key of the count of keys that belong to no queue, or to a queue that is not counted.
_NO_QUEUE = b""
_DIRECTORY_SPACES = (keys.QUEUE_NAMES, keys.COUNTERS, keys.DELETING, keys.LIMITED)
# Spaces of `ix` whose keys have an instant before the queue.
_TIMED_SPACES = (keys.TTLS, keys.KEPT, keys.SEEN_ENDS)


class FamilyCounts(NamedTuple):
    """The sampled keys of one column family, by the prefix of their queue."""

    family: int
    counts: dict[bytes, float]


class PrefixSamples:
    """Samples of one kind of access to one database.

    `mean_gap` is the mean distance of two samples, and `left` the number of accesses up to the next one. The caller
    counts it down, because that is all that most accesses cost.
    """

    __slots__ = ("_counts", "_gaps", "_halved_s", "_random", "_steady_s", "left")

    def __init__(self, mean_gap: int, steady_s: Callable[[], float] = steady_s) -> None:
        # The distances are from 1 to this number.
        self._gaps = 2 * mean_gap - 1
        self._steady_s = steady_s
        self._counts: list[dict[bytes, float]] = [{} for _ in keys.FAMILY_NAMES]
        self._halved_s = steady_s()
        self._random = 1
        self.left = 0
        self._choose_gap()

    def note_read(self, family: int, key: bytes, number: int = 1) -> None:
        """Count a sampled read of `number` keys of one queue, and choose the next sample. Call it once `left` is
        negative."""
        self._choose_gap()
        self._add(family, prefix_of(family, key), number)

    def note_parts(self, parts: Sequence[int | bytes | list[bytes] | None]) -> None:
        """Count the sampled changes of a frame, and choose the next sample. `left` was counted down by `len(parts)`,
        which is three elements for each change."""
        while self.left < 0:
            index = (len(parts) + self.left) // 3 * 3
            self._choose_gap(of=3)
            number, key = parts[index], parts[index + 1]
            if isinstance(number, int) and isinstance(key, bytes):
                self._add_change(number, key)

    def _add_change(self, number: int, key: bytes) -> None:
        if number >= plain_messages.ADDED:
            families, messages = plain_messages.changed_keys(number, key)
            for family in families:
                self._add(family, key[: keys.P_SIZE], messages)
        else:
            family = number if number >= 0 else -1 - number
            self._add(family, prefix_of(family, key), 1)

    def _choose_gap(self, of: int = 1) -> None:
        self._random = (self._random * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        self.left += (1 + (self._random >> 16) % self._gaps) * of

    def _add(self, family: int, p: bytes, number: int) -> None:
        self._decay()
        counts = self._counts[family]
        counts[p] = counts.get(p, 0.0) + number
        if len(counts) > _MAX_QUEUES:
            kept = dict(nlargest(_MAX_QUEUES // 2, counts.items(), key=lambda item: item[1]))
            kept[_NO_QUEUE] = kept.get(_NO_QUEUE, 0.0) + sum(counts.values()) - sum(kept.values())
            self._counts[family] = kept

    def _decay(self) -> None:
        halvings = int((self._steady_s() - self._halved_s) / _HALF_LIFE_S)
        if halvings:
            self._halved_s += halvings * _HALF_LIFE_S
            factor = 0.5 ** min(halvings, 64)
            self._counts = [
                {p: count * factor for p, count in each.items() if count * factor >= _MIN_COUNT}
                for each in self._counts
            ]

    def counts(self) -> list[FamilyCounts]:
        """Return the counts of each family with samples."""
        self._decay()
        return [FamilyCounts(number, dict(each)) for number, each in enumerate(self._counts) if each]


def prefix_of(family: int, key: bytes) -> bytes:
    """Return the prefix of the queue that a key belongs to; empty if it belongs to none, as the journal's keys do."""
    match family:
        case keys.MESSAGES | keys.VISIBLE | keys.EXPIRIES | keys.LEASES:
            start = 0
        case keys.INDEXES if key[:1] in keys.PER_QUEUE_SPACES:
            start = 1
        case keys.INDEXES if key[:1] in _TIMED_SPACES:
            start = 9
        case keys.DIRECTORY if key[:2] in _DIRECTORY_SPACES:
            start = 2
        case _:
            return _NO_QUEUE
    p = key[start : start + keys.P_SIZE]
    # The bound of a scan may end before the queue.
    return p if len(p) == keys.P_SIZE else _NO_QUEUE


class ShardSamples(NamedTuple):
    """The samples of one shard, and the names of its queues."""

    reads: PrefixSamples
    writes: PrefixSamples
    name_of: Callable[[bytes], QueueRef | None]


def hot_queues(shards: Iterable[ShardSamples], limit: int = SHOWN_QUEUES) -> list[HotQueue]:
    """Return the queues with the largest shares of the sampled reads and writes of each column family, over all shards.

    At most `limit` for each family and kind of access, the busiest first.
    """
    every = list(shards)
    return [*_hottest(Access.READ, every, limit), *_hottest(Access.WRITE, every, limit)]


def _hottest(access: Access, shards: list[ShardSamples], limit: int) -> Iterator[HotQueue]:
    totals = [0.0] * len(keys.FAMILY_NAMES)
    found: list[list[tuple[float, bytes, ShardSamples]]] = [[] for _ in keys.FAMILY_NAMES]
    for shard in shards:
        for family, counts in (shard.reads if access is Access.READ else shard.writes).counts():
            totals[family] += sum(counts.values())
            counts.pop(_NO_QUEUE, None)
            found[family] += [(count, p, shard) for p, count in counts.items()]
    for family, every in enumerate(found):
        for count, p, shard in nlargest(limit, every, key=lambda each: each[0]):
            # A queue is in one shard, so no queue comes twice.
            ref = shard.name_of(p)
            if ref is not None:
                share = count / totals[family]
                name = keys.FAMILY_NAMES[family]
                yield HotQueue(family=name, access=access, tenant=ref.tenant, queue=ref.queue, share=share)
