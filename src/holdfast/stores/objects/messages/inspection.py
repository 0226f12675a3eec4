"""Read messages as they are stored, without claiming them."""

from msgspec.structs import replace

from holdfast.model.answers import Found
from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import to_uuid
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.model.requests import NO_STATE, Filter
from holdfast.model.rules.lifecycle import is_over
from holdfast.stores.objects.buckets.bucket import ObjectMissing
from holdfast.stores.objects.buckets.retries import run_concurrently
from holdfast.stores.objects.messages.counts import QueueCounts
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.messages.state_documents import StateDocuments
from holdfast.stores.values import Listing

_TRIES = 8


class ObjectInspection:
    """Get, peek and browse."""

    def __init__(
        self, messages: ObjectMessages, queue_counts: QueueCounts, states: StateDocuments, streams_above: int
    ) -> None:
        self._messages = messages
        self._queue_counts = queue_counts
        self._states = states
        self._streams_above = streams_above

    async def get(self, ref: QueueRef, id: int, now_ms: int) -> Found | None:
        """Return a message by id, or None."""
        entry = await self._messages.read(ref, id, now_ms)
        return None if entry is None else await self._found(entry, now_ms)

    async def peek(self, ref: QueueRef, limit: int, now_ms: int) -> list[Found]:
        """Return the first messages in the order of delivery that a claim could take now."""
        async with self._messages.move_lock:
            first = await self._due(ref, limit, now_ms)
        return await self._all_found(first, now_ms)

    async def _due(self, ref: QueueRef, limit: int, now_ms: int) -> list[IndexedMessage]:
        due: list[tuple[tuple[int, int, int], list[IndexedMessage]]] = []
        groups: dict[str, list[IndexedMessage]] = {}
        busy_groups: set[str] = set()
        async for bunch in self._queue_counts.walk(ref, now_ms):
            for entry in bunch:
                life, group = entry.body.life, entry.body.group
                if life.state is State.IN_FLIGHT and group is not None:
                    busy_groups.add(group)
                if life.state is not State.READY or is_over(life, now_ms):
                    continue
                if group is not None:
                    groups.setdefault(group, []).append(entry)
                elif life.visible_at <= now_ms:
                    due.append((_delivery_order(entry), [entry]))
        for group, entries in groups.items():
            batch: list[IndexedMessage] = []
            for entry in entries:
                if entry.body.life.visible_at > now_ms:
                    break
                batch.append(entry)
            if batch and group not in busy_groups:
                due.append((_delivery_order(batch[0]), batch))
        due.sort(key=lambda each: each[0])
        return [entry for _, batch in due for entry in batch][:limit]

    async def browse(
        self, ref: QueueRef, state: State | None, which: Filter, after: int | None, limit: int, now_ms: int
    ) -> Listing:
        """Return a page of messages in order of id."""
        states = frozenset(State) if state is None else frozenset({state})
        async with self._messages.move_lock:
            page = await self.first(limit + 1, ref, states, which, after, now_ms)
        more = len(page) > limit
        return Listing(await self._all_found(page[:limit], now_ms), page[limit - 1].id if more else None)

    async def first(
        self, limit: int, ref: QueueRef, states: frozenset[State], which: Filter, after: int | None, now_ms: int
    ) -> list[IndexedMessage]:
        """Return at most `limit` messages in one of the states that match the filter, in order of id after `after`."""
        found: list[IndexedMessage] = []
        if which.ids is not None:
            for id in sorted(id for id in which.ids if after is None or id > after):
                entry = await self._messages.read(ref, id, now_ms)
                if entry is not None and _is_wanted(entry, states, which, now_ms):
                    found.append(entry)
                    if len(found) == limit:
                        break
            return found
        async for bunch in self._queue_counts.walk(ref, now_ms, after):
            found += [entry for entry in bunch if _is_wanted(entry, states, which, now_ms)]
            if len(found) >= limit:
                break
        return found[:limit]

    async def _all_found(self, entries: list[IndexedMessage], now_ms: int) -> list[Found]:
        """Return the messages with their payloads, without those that were deleted or changed their state meanwhile."""
        found = await run_concurrently(entries, lambda entry: self._found(entry, now_ms))
        return [
            each
            for entry, each in zip(entries, found, strict=True)
            if each is not None and each.life.state is entry.body.life.state
        ]

    async def _found(self, entry: IndexedMessage, now_ms: int) -> Found | None:
        """Return a message with its payload and state; None if it was deleted meanwhile."""
        for _ in range(_TRIES):
            body = entry.body
            envelope, is_complete = body.envelope(), True
            if body.size <= self._streams_above:
                try:
                    envelope = body.envelope(await self._messages.payload(entry))
                except ObjectMissing:
                    envelope, is_complete = replace(envelope, pieces=None), False
            state = await self._states.find(entry)
            if not is_complete or state is None:
                # Another process may have moved the message, or replaced its payload.
                again = await self._messages.read(body.ref, entry.id, now_ms)
                if again is None:
                    return None
                if (again.payload_key, again.state_key) != (entry.payload_key, entry.state_key):
                    entry = again
                    continue
                # The payload or state is lost. The message is returned all the same, so that an operator can see and
                # remove it.
            return Found(envelope, body.life, state or NO_STATE)
        raise StoreUnavailable(f"message {to_uuid(entry.id)} was moved during each of {_TRIES} reads; try again")


def _is_wanted(entry: IndexedMessage, states: frozenset[State], which: Filter, now_ms: int) -> bool:
    body = entry.body
    return body.life.state in states and which.matches(body.envelope(), body.life, now_ms)


def _delivery_order(entry: IndexedMessage) -> tuple[int, int, int]:
    return entry.body.life.priority, entry.body.life.visible_at, entry.id
