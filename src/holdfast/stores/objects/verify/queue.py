"""Check the messages of one queue, and that all other objects of the queue belong to one of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.background import sleep_for
from holdfast.model.errors import StoreUnavailable
from holdfast.model.ids import to_bytes
from holdfast.model.invariants.damage import DamageKind, Problem
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.stores.findings import Findings
from holdfast.stores.objects.buckets.bucket import ListedObject
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import MessageBody
from holdfast.stores.objects.verify.message import problems_of, read_message
from holdfast.stores.objects.verify.reader import VerifyReader
from holdfast.stores.objects.verify.side_objects import check_side_objects

# Number of metadata objects that are checked concurrently.
_CHUNK = 1_000


class FoundMessage(NamedTuple):
    """A message as it was found: its key and its metadata."""

    key: str
    body: MessageBody


@dataclass(slots=True)
class _Queue:
    """The queue being checked."""

    ref: QueueRef
    # Ids with metadata of any kind in this queue.
    ids: set[int] = field(default_factory=set)


class ObjectQueueCheck:
    """A check of queues, one after the other. `found` collects all messages, to compare them with the journal."""

    def __init__(self, reader: VerifyReader, findings: Findings, pause_ms: int) -> None:
        self._reader = reader
        self._findings = findings
        self._pause_ms = pause_ms
        self.found: dict[int, FoundMessage] = {}

    async def run(self, ref: QueueRef, items: Sequence[ListedObject]) -> None:
        """Check a queue by the listing of its objects."""
        queue = _Queue(ref)
        documents = [item.key for item in items if layout.is_message(item.key)]
        for at in range(0, len(documents), _CHUNK):
            await self._check_some(queue, documents[at : at + _CHUNK])
            done = self._findings.totals["documents"]
            self._findings.progress("messages", done, done + len(documents) - at - _CHUNK)
        rest = [item for item in items if not layout.is_message(item.key)]
        await check_side_objects(self._reader, ref, rest, queue.ids, self._findings)

    async def _check_some(self, queue: _Queue, keys: list[str]) -> None:
        wrong: dict[str, list[Problem]] = {}
        duplicates: list[tuple[str, str]] = []

        async def check(key: str) -> None:
            body, problems = await self._look(queue.ref, key)
            if body is not None:
                self._count(key, body)
            elif not problems:
                self._findings.totals["leftovers"] += 1
            if problems:
                wrong[key] = problems

        await self._reader.each(keys, check)
        self._findings.totals["documents"] += len(keys)
        for key in keys:
            if (id := layout.parse_id(key)) is not None:
                queue.ids.add(id)
                earlier = self.found.get(id)
                if earlier is not None and earlier.key != key and key not in wrong and await self._is_message(key):
                    duplicates.append((earlier.key, key))
        if not wrong and not duplicates:
            return
        # Other processes may have been writing: only problems that are found again are reported.
        await sleep_for(self._reader.clock, self._pause_ms)

        async def check_again(key: str) -> None:
            body, problems = await self._look(queue.ref, key)
            if body is not None and problems and await read_message(self._reader, key) != body:
                return  # it has changed meanwhile
            for problem in problems:
                if problem in wrong[key]:
                    self._add(queue.ref, key, problem)

        await self._reader.each(wrong, check_again)
        for one, other in duplicates:
            if await self._are_both(one, other):
                self._add(queue.ref, other, Problem(DamageKind.MESSAGE_TWICE, f"is in two places: {one} too"))

    async def _is_message(self, key: str) -> bool:
        body = await read_message(self._reader, key)
        return body is not None and body.is_message

    async def _are_both(self, one: str, other: str) -> bool:
        """Return whether both keys have the message at the same time: a message that moves back and forth may be found
        at both."""
        before = await read_message(self._reader, one)
        return (
            before is not None
            and before.is_message
            and await self._is_message(other)
            and await read_message(self._reader, one) == before
        )

    async def _look(self, ref: QueueRef, key: str) -> tuple[MessageBody | None, list[Problem]]:
        """Return the metadata at a key, and its problems."""
        try:
            body = await read_message(self._reader, key)
        except StoreUnavailable as error:
            return None, [Problem(DamageKind.MESSAGE_UNREADABLE, error.message)]
        return body, [] if body is None else await problems_of(self._reader, ref, key, body)

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
                totals["delayed"] += life.visible_at > self._reader.now_ms
            case State.IN_FLIGHT:
                totals["in_flight"] += 1
            case State.FAILED:
                totals["failed"] += 1
                totals["leftovers"] += not layout.is_dead(key)  # on its way to dlq/
            case State.SUCCEEDED:
                totals["succeeded"] += 1

    def _add(self, ref: QueueRef, key: str, problem: Problem) -> None:
        id = layout.parse_id(key)
        self._findings.add(*problem, ref, None if id is None else to_bytes(id))
