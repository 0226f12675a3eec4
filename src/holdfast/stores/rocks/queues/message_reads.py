"""Selections of a queue's messages, loaded in chunks."""

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

# Messages loaded at once.
_CHUNK = 500


class MessageReads:
    """Selections of a queue's messages by id, by filter, or in the order of claims."""

    def __init__(self, engine: Engine, cache: MessageCache) -> None:
        self._engine = engine
        self._cache = cache

    def first(self, queue: QueueState, limit: int) -> list[StoredMessage]:
        """Return the queue's first messages by id, in any state."""
        return list(islice(self._loaded(queue, self._ids(queue, keys.MESSAGES, queue.p, None)), limit))

    def matching(
        self, queue: QueueState, states: frozenset[State], which: Filter, after: int | None, limit: int, now_ms: int
    ) -> list[StoredMessage]:
        """Return up to `limit` messages in one of the states that the filter matches, by id, starting after the id
        `after`."""
        ids: Iterable[int]
        if which.ids is not None:
            ids = sorted(id for id in which.ids if after is None or id > after)
        elif states == {State.FAILED}:
            ids = self._ids(queue, keys.INDEXES, keys.DEAD + queue.p, after)
        elif states == {State.IN_FLIGHT}:
            ids = self._ids(queue, keys.LEASES, queue.p, after)
        else:
            ids = self._ids(queue, keys.MESSAGES, queue.p, after)
        found = (
            entry
            for entry in self._loaded(queue, ids)
            if entry.life.state in states and which.matches(entry.envelope, entry.life, now_ms)
        )
        return list(islice(found, limit))

    def peek_due(self, queue: QueueState, limit: int, now_ms: int) -> list[StoredMessage]:
        """Return the messages that claims would take next, in their order.

        A claim first ends the TTLs that have passed. So such messages are left out here, and a group whose head's TTL
        has ended takes the position of its first remaining message.
        """
        ended = self._groups_of_overdue(queue, now_ms)
        moved = sorted(
            (batch for group in ended if (batch := self._due_of_group(queue, group, now_ms))),
            key=lambda batch: _claim_position(batch[0]),
        )
        listed = self._listed_batches(queue, ended, now_ms)
        batches = heapq.merge(listed, moved, key=lambda batch: _claim_position(batch[0]))
        return list(islice(chain.from_iterable(batches), limit))

    def _listed_batches(self, queue: QueueState, excluded: set[str], now_ms: int) -> Iterator[list[StoredMessage]]:
        """Yield the due messages that the order of claims lists. A group's head brings its batch; the groups in
        `excluded` are skipped."""
        self._engine.write()
        due = keys.instant(now_ms + 1)
        for priority in queue.priorities():
            level = keys.level(queue.p, priority)
            visible = self._engine.database.scan(keys.VISIBLE, level, level + due)
            for entry in self._loaded(queue, (keys.parse_id(key[-keys.ID_SIZE :]) for key in visible)):
                group = entry.envelope.group
                if group is None and not is_over(entry.life, now_ms):
                    yield [entry]
                elif group is not None and group not in excluded:
                    yield self._due_of_group(queue, group, now_ms)

    def _due_of_group(self, queue: QueueState, group: str, now_ms: int) -> list[StoredMessage]:
        """Return the messages that a claim of the group's head would take."""
        if queue.is_busy(group):
            return []
        ids = [keys.parse_id(id16) for id16 in queue.group_batch(group, _CHUNK)]
        living = (entry for entry in self._loaded(queue, ids) if not is_over(entry.life, now_ms))
        return list(takewhile(lambda entry: entry.life.visible_at <= now_ms, living))

    def _groups_of_overdue(self, queue: QueueState, now_ms: int) -> set[str]:
        """Return the groups in which a TTL has passed and the sweep has not yet ended it.

        There are few of them unless the sweeper is behind.
        """
        self._engine.write()
        upper = keys.TTLS + keys.instant(now_ms + 1)
        overdue = (
            keys.parse_id(key[-keys.ID_SIZE :])
            for key in self._engine.database.scan(keys.INDEXES, keys.TTLS, upper)
            if key[9:17] == queue.p
        )
        return {entry.envelope.group for entry in self._loaded(queue, overdue) if entry.envelope.group is not None}

    def _ids(self, queue: QueueState, family: int, space: bytes, after: int | None) -> Iterator[int]:
        """Yield the ids at the end of a space's keys, starting after `after`."""
        self._engine.write()
        lower = space if after is None else space + keys.id_bytes(after) + b"\0"
        for key in self._engine.database.scan(family, lower, keys.after(space)):
            yield keys.parse_id(key[-keys.ID_SIZE :])

    def _loaded(self, queue: QueueState, ids: Iterable[int]) -> Iterator[StoredMessage]:
        """Yield the messages with these ids; missing ones are skipped."""
        remaining = iter(ids)
        while chunk := list(islice(remaining, _CHUNK)):
            for entry in self._cache.load(queue, chunk):
                if entry is not None:
                    yield entry


def _claim_position(entry: StoredMessage) -> tuple[int, int, bytes]:
    return entry.life.priority, entry.life.visible_at, entry.id16
