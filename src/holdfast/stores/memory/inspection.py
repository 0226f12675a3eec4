"""Reads of a queue's messages, and their conversion to responses."""

from collections.abc import Iterable, Iterator

from holdfast.model.answers import Found
from holdfast.model.message import State
from holdfast.model.requests import Filter
from holdfast.stores.memory.queue import MemoryMessage, MemoryQueue


def find_matching(
    queue: MemoryQueue, states: frozenset[State], which: Filter, after: int | None, now_ms: int
) -> Iterator[MemoryMessage]:
    """Yield messages in one of the states that match the filter, by id, beginning after `after`."""
    ids: Iterable[int]
    if which.ids is not None:
        ids = sorted(id for id in which.ids if after is None or id > after)
    elif len(states) == 1:
        [state] = states
        ids = list(queue.by_state[state].irange(minimum=after, inclusive=(False, True)))
    else:
        ids = sorted(id for id in queue.entries if after is None or id > after)
    for id in ids:
        entry = queue.entries.get(id)
        if entry is not None and entry.life.state in states and which.matches(entry.envelope, entry.life, now_ms):
            yield entry


def take_first(number: int, entries: Iterator[MemoryMessage]) -> list[MemoryMessage]:
    """Return the first `number` messages."""
    return [entry for _, entry in zip(range(number), entries, strict=False)]


def describe(entry: MemoryMessage) -> Found:
    """Return the contract's view of a message."""
    return Found(entry.envelope, entry.life, entry.state)
