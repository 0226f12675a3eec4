"""Selections of a queue's messages, read in bounded steps."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import chain, islice, takewhile

from holdfast.model.message import State
from holdfast.model.requests import Filter
from holdfast.model.rules.lifecycle import is_over
from holdfast.stores.rocks import keys
from holdfast.stores.rocks.engine.engine import Engine
from holdfast.stores.rocks.queues.message_cache import MessageCache
from holdfast.stores.rocks.queues.queue_state import QueueState
from holdfast.stores.rocks.queues.stored_message import StoredMessage

# Messages looked up at once.
_CHUNK = 500


class MessageReads:
    def __init__(self, engine: Engine, entries: MessageCache) -> None:
        self._engine = engine
        self._entries = entries

    def first(self, shelf: QueueState, limit: int) -> list[StoredMessage]:
        """The queue's first messages by id, in any state."""
        return list(islice(self._loaded(shelf, self._ids(shelf, keys.MESSAGES, shelf.p, None)), limit))

    def matching(
        self, shelf: QueueState, states: frozenset[State], which: Filter, after: int | None, limit: int, now_ms: int
    ) -> list[StoredMessage]:
        """Messages in one of the states that the filter means, by id, beginning behind `after`."""
        ids: Iterable[int]
        if which.ids is not None:
            ids = sorted(id for id in which.ids if after is None or id > after)
        elif states == {State.FAILED}:
            ids = self._ids(shelf, keys.INDEXES, keys.DEAD + shelf.p, after)
        elif states == {State.IN_FLIGHT}:
            ids = self._ids(shelf, keys.LEASES, shelf.p, after)
        else:
            ids = self._ids(shelf, keys.MESSAGES, shelf.p, after)
        found = (
            entry
            for entry in self._loaded(shelf, ids)
            if entry.life.state in states and which.matches(entry.envelope, entry.life, now_ms)
        )
        return list(islice(found, limit))

    def peek_due(self, shelf: QueueState, limit: int, now_ms: int) -> list[StoredMessage]:
        """What claims would take next, in their order. A claim ends overdue TTLs first: so here they count as gone, and
        a group whose head has ended stands where its first living message would."""
        ended = self._groups_of_overdue(shelf, now_ms)
        moved = sorted(
            (batch for group in ended if (batch := self._due_of_group(shelf, group, now_ms))),
            key=lambda batch: _place(batch[0]),
        )
        in_place = self._batches_in_place(shelf, ended, now_ms)
        batches = heapq.merge(in_place, moved, key=lambda batch: _place(batch[0]))
        return list(islice(chain.from_iterable(batches), limit))

    def _batches_in_place(self, shelf: QueueState, but: set[str], now_ms: int) -> Iterator[list[StoredMessage]]:
        self._engine.write()
        due = keys.instant(now_ms + 1)
        for priority in shelf.priorities():
            level = keys.level(shelf.p, priority)
            shown = self._engine.database.scan(keys.VISIBLE, level, level + due)
            for entry in self._loaded(shelf, (keys.parse_id(key[-keys.ID_SIZE :]) for key in shown)):
                group = entry.envelope.group
                if group is None and not is_over(entry.life, now_ms):
                    yield [entry]
                elif group is not None and group not in but:
                    yield self._due_of_group(shelf, group, now_ms)

    def _due_of_group(self, shelf: QueueState, group: str, now_ms: int) -> list[StoredMessage]:
        if shelf.is_busy(group):
            return []
        ids = [keys.parse_id(id16) for id16 in shelf.group_batch(group, _CHUNK)]
        living = (entry for entry in self._loaded(shelf, ids) if not is_over(entry.life, now_ms))
        return list(takewhile(lambda entry: entry.life.visible_at <= now_ms, living))

    def _groups_of_overdue(self, shelf: QueueState, now_ms: int) -> set[str]:
        """Groups in which a TTL has ended that no sweep has seen to yet: few, or the sweeper is behind."""
        self._engine.write()
        upper = keys.TTLS + keys.instant(now_ms + 1)
        overdue = (
            keys.parse_id(key[-keys.ID_SIZE :])
            for key in self._engine.database.scan(keys.INDEXES, keys.TTLS, upper)
            if key[9:17] == shelf.p
        )
        return {entry.envelope.group for entry in self._loaded(shelf, overdue) if entry.envelope.group is not None}

    def _ids(self, shelf: QueueState, family: int, space: bytes, after: int | None) -> Iterator[int]:
        self._engine.write()
        lower = space if after is None else space + keys.id_bytes(after) + b"\0"
        for key in self._engine.database.scan(family, lower, keys.after(space)):
            yield keys.parse_id(key[-keys.ID_SIZE :])

    def _loaded(self, shelf: QueueState, ids: Iterable[int]) -> Iterator[StoredMessage]:
        remaining = iter(ids)
        while chunk := list(islice(remaining, _CHUNK)):
            for entry in self._entries.load(shelf, chunk):
                if entry is not None:
                    yield entry


def _place(entry: StoredMessage) -> tuple[int, int, bytes]:
    return entry.life.priority, entry.life.visible_at, entry.id16
