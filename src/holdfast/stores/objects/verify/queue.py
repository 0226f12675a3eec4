"""Checks of one queue: its messages, and that whatever else lies there is of one of them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import to_bytes
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.stores.findings import Findings
from holdfast.stores.objects.buckets.bucket import ListedObject
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.document_format import MessageBody
from holdfast.stores.objects.verify.message import problems_of, read_message
from holdfast.stores.objects.verify.reader import VerifyReader
from holdfast.stores.objects.verify.side_objects import check_beside

# Ids of a queue whose messages are checked side by side, before the next ones are.
_CHUNK = 1_000


class FoundMessage(NamedTuple):
    """Where a message was found, as what, and up to which of its events the journal may not have it yet."""

    key: str
    body: MessageBody


@dataclass(slots=True)
class _Queue:
    ref: QueueRef
    # Ids that have metadata here, of whatever kind: what lies beside it is theirs.
    ids: set[int] = field(default_factory=set)


class ObjectQueueCheck:
    """Of all queues in turn. `found` has every message of all of them, for the journal to be held against."""

    def __init__(self, looking: VerifyReader, findings: Findings, pause_s: float) -> None:
        self._looking = looking
        self._findings = findings
        self._pause_s = pause_s
        self.found: dict[int, FoundMessage] = {}

    async def run(self, ref: QueueRef, items: Sequence[ListedObject]) -> None:
        queue = _Queue(ref)
        documents = [item.key for item in items if layout.is_message(item.key)]
        for at in range(0, len(documents), _CHUNK):
            await self._check_some(queue, documents[at : at + _CHUNK])
            done = self._findings.totals["documents"]
            self._findings.progress("messages", done, done + len(documents) - at - _CHUNK)
        rest = [item for item in items if not layout.is_message(item.key)]
        await check_beside(self._looking, ref, rest, queue.ids, self._findings)

    async def _check_some(self, queue: _Queue, keys: list[str]) -> None:
        wrong: dict[str, list[str]] = {}
        twice: list[tuple[str, str]] = []

        async def check(key: str) -> None:
            body, problems = await self._look(queue.ref, key)
            if body is not None:
                self._count(key, body)
            elif not problems:
                self._findings.totals["leftovers"] += 1
            if problems:
                wrong[key] = problems

        await self._looking.each(keys, check)
        self._findings.totals["documents"] += len(keys)
        for key in keys:
            if (id := layout.parse_id(key)) is not None:
                queue.ids.add(id)
                place = self.found.get(id)
                if place is not None and place.key != key and key not in wrong and await self._is_message(key):
                    twice.append((place.key, key))
        if not wrong and not twice:
            return
        # Somebody may have been at it: what is wrong still, in the same way, is wrong.
        await asyncio.sleep(self._pause_s)

        async def check_again(key: str) -> None:
            body, problems = await self._look(queue.ref, key)
            if body is not None and problems and await read_message(self._looking, key) != body:
                return  # what it was held against is of another moment
            for what in problems:
                if what in wrong[key]:
                    self._add(queue.ref, key, what)

        await self._looking.each(wrong, check_again)
        for one, other in twice:
            if await self._are_both(one, other):
                self._add(queue.ref, other, f"is in two places: {one} too")

    async def _is_message(self, key: str) -> bool:
        body = await read_message(self._looking, key)
        return body is not None and body.is_message

    async def _are_both(self, one: str, other: str) -> bool:
        """At the same moment: a message that goes back and forth may be met here and there."""
        before = await read_message(self._looking, one)
        return (
            before is not None
            and before.is_message
            and await self._is_message(other)
            and await read_message(self._looking, one) == before
        )

    async def _look(self, ref: QueueRef, key: str) -> tuple[MessageBody | None, list[str]]:
        """The metadata under this key, and what is wrong with it."""
        try:
            body = await read_message(self._looking, key)
        except StoreUnavailable as error:
            return None, [error.message]
        return body, [] if body is None else await problems_of(self._looking, ref, key, body)

    def _count(self, key: str, body: MessageBody) -> None:
        totals = self._findings.totals
        if not body.is_message:
            totals["leftovers"] += 1
            return
        life = body.life
        self.found.setdefault(body.id, FoundMessage(key, body))
        totals["bytes"] += body.bytes
        match life.state:
            case State.READY:
                totals["ready"] += 1
                totals["delayed"] += life.visible_at > self._looking.now_ms
            case State.IN_FLIGHT:
                totals["in_flight"] += 1
            case State.FAILED:
                totals["failed"] += 1
                totals["leftovers"] += not layout.is_dead(key)  # on its way to dlq/
            case State.SUCCEEDED:
                totals["succeeded"] += 1

    def _add(self, ref: QueueRef, key: str, what: str) -> None:
        id = layout.parse_id(key)
        self._findings.add(what, ref, None if id is None else to_bytes(id))
