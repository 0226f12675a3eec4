"""What is read off a shelf: selections of messages, and messages as they are answered."""

from collections.abc import Iterable, Iterator

from holdfast.model.answers import Found
from holdfast.model.message import State
from holdfast.model.requests import Filter
from holdfast.stores.memory.queue import MemoryMessage, MemoryQueue


def matching(
    shelf: MemoryQueue, states: frozenset[State], which: Filter, after: int | None, now_ms: int
) -> Iterator[MemoryMessage]:
    """Messages in one of the states that the filter means, by id, beginning behind `after`."""
    ids: Iterable[int]
    if which.ids is not None:
        ids = sorted(id for id in which.ids if after is None or id > after)
    elif len(states) == 1:
        [state] = states
        ids = list(shelf.by_state[state].irange(minimum=after, inclusive=(False, True)))
    else:
        ids = sorted(id for id in shelf.entries if after is None or id > after)
    for id in ids:
        entry = shelf.entries.get(id)
        if entry is not None and entry.life.state in states and which.matches(entry.envelope, entry.life, now_ms):
            yield entry


def first(number: int, entries: Iterator[MemoryMessage]) -> list[MemoryMessage]:
    return [entry for _, entry in zip(range(number), entries, strict=False)]


def found(entry: MemoryMessage) -> Found:
    return Found(entry.envelope, entry.life, entry.state)
