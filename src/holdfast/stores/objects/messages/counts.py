"""Every message of a queue, in order of id; counts, which cost a listing; and room for more under quotas."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from holdfast.model.answers import Counts
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.model.policy import Quotas
from holdfast.stores.logic.quotas import check_quotas
from holdfast.stores.objects.buckets.bucket import ListedObject
from holdfast.stores.objects.buckets.retries import Busy, answered, side_by_side
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.cas_documents import CasWrite, ReadCasDocument
from holdfast.stores.objects.documents.document_format import RoomBody, encode, message_of
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.operations.directory import ObjectDirectory


class QueueCounts:
    def __init__(self, messages: ObjectMessages, directory: ObjectDirectory) -> None:
        self._messages = messages
        self._directory = directory
        self._locks: dict[str, asyncio.Lock] = {}
        # Bytes of payloads on their way, by tenant and by whose they are.
        self.on_their_way: dict[str, dict[object, int]] = {}

    async def walk(self, ref: QueueRef, now_ms: int, after: int | None = None) -> AsyncIterator[list[IndexedMessage]]:
        """Messages with ids above `after`, by id, in bunches."""
        lists = [self._walk(ref, now_ms, after, dead=dead) for dead in (False, True)]
        waiting: list[list[IndexedMessage]] = [[], []]
        ended = [False, False]
        while True:
            for at, entries in enumerate(lists):
                if not waiting[at] and not ended[at]:
                    more = await anext(entries, None)
                    ended[at] = more is None
                    waiting[at] = more or []
            if not waiting[0] and not waiting[1]:
                if all(ended):
                    return
                continue
            # Up to the end of the shorter: what comes next in it may be smaller than the rest of the other.
            bounds = [bunch[-1].id for bunch, is_end in zip(waiting, ended, strict=True) if bunch and not is_end]
            upto = min(bounds, default=1 << 64)
            if any(not bunch and not is_end for bunch, is_end in zip(waiting, ended, strict=True)):
                continue
            # By id: one that moves meanwhile is in both, and the dead letter is where it is then.
            by_id = {e.id: e for bunch in waiting for e in bunch if e.id <= upto}
            ready = [by_id[id] for id in sorted(by_id)]
            waiting = [[e for e in bunch if e.id > upto] for bunch in waiting]
            yield ready

    async def _walk(
        self, ref: QueueRef, now_ms: int, after: int | None, *, dead: bool
    ) -> AsyncIterator[list[IndexedMessage]]:
        prefix = layout.messages(ref, dead=dead)
        start = None if after is None else layout.message(ref, after, dead=dead)
        with answered():
            async for page in self._messages.sheets.bucket.pages(prefix, start):
                yield await self._read_page(ref, page, now_ms)

    async def _read_page(self, ref: QueueRef, page: list[ListedObject], now_ms: int) -> list[IndexedMessage]:
        shelf = self._messages.shelves.of(ref)
        found: list[IndexedMessage] = []

        async def read(item: ListedObject) -> IndexedMessage | None:
            held = await self._messages.sheets.read(item.key)
            if held is None or held.body is None:
                return None
            body = message_of(held.body)
            if not body.is_message:
                return None
            return (not held.is_busy and self._messages.shelves.note(held, body, now_ms)) or IndexedMessage(held, body)

        unknown: list[ListedObject] = []
        for item in page:
            id = layout.parse_message(item.key)
            if id is None:
                continue
            entry = shelf.index.entries.get(id)
            if entry is not None and entry.held.stamp.mark == item.mark and entry.held.key == item.key:
                found.append(entry)
            elif (passed := shelf.passed.get(id)) is None or passed != (item.mark, None) or "/dlq/" in item.key:
                unknown.append(item)
        found += [entry for entry in await side_by_side(unknown, read) if entry is not None]
        found.sort(key=lambda entry: entry.id)
        return found

    async def counts(self, ref: QueueRef, now_ms: int) -> Counts:
        async with self._messages.moving:
            return await self._counts(ref, now_ms)

    async def _counts(self, ref: QueueRef, now_ms: int) -> Counts:
        ready = delayed = in_flight = failed = size = 0
        oldest: int | None = None
        async for bunch in self.walk(ref, now_ms):
            for entry in bunch:
                life = entry.body.life
                size += entry.body.bytes
                match life.state:
                    case State.READY if life.visible_at <= now_ms:
                        ready += 1
                        oldest = life.visible_at if oldest is None else min(oldest, life.visible_at)
                    case State.READY:
                        delayed += 1
                    case State.IN_FLIGHT:
                        in_flight += 1
                    case State.FAILED:
                        failed += 1
                    case State.SUCCEEDED:
                        pass
        return Counts(
            ready=ready, delayed=delayed, in_flight=in_flight, failed=failed, bytes=size, oldest_ready_at=oldest
        )

    async def tenant_counts(self, tenant: str, now_ms: int) -> Counts:
        rows = await self._directory.list_queues(tenant)
        return Counts.total([await self.counts(row.ref, now_ms) for row in rows])

    # --- Quotas ----------------------------------------------------------------------------------------------
    #
    # What adds messages to a tenant with quotas reads the tenant's room sheet, counts, and writes the sheet in the same
    # step as the messages. So of two processes that counted at the same time one must count again. Whatever takes a
    # message from one place to another writes it as well: a count that went on meanwhile may have missed the message.

    def lock(self, tenant: str) -> asyncio.Lock:
        """Held from a check of quotas until what was checked is written: this process does not race itself."""
        return self._locks.setdefault(tenant, asyncio.Lock())

    async def make_room(
        self, tenant: str, added: list[int], now_ms: int, *, whose: object = None, freed: Sequence[int] = ()
    ) -> list[CasWrite]:
        """As `check_quotas`; and what must be written in the step that adds the messages. `Busy`."""
        quotas = (await self._directory.config(tenant)).quotas
        if not quotas.limits_totals:
            check_quotas(tenant, quotas, 0, 0, added)
            return []
        held = await self._room(tenant)
        messages, size = await self.check_quotas(tenant, quotas, added, now_ms, whose=whose, freed=freed)
        return [CasWrite(layout.room(tenant), encode(RoomBody(messages, size)), held)]

    async def keep_room(self, tenant: str) -> list[CasWrite]:
        """What must be written in a step that moves messages within the tenant, or out of it. `Busy`."""
        if not (await self._directory.config(tenant)).quotas.limits_totals:
            return []
        held = await self._room(tenant)
        body = None if held is None else held.body
        return [CasWrite(layout.room(tenant), body or encode(RoomBody(0, 0)), held)]

    async def _room(self, tenant: str) -> ReadCasDocument | None:
        held = await self._messages.sheets.read(layout.room(tenant))
        if held is not None and held.is_busy:
            raise Busy
        return held

    async def check_quotas(
        self,
        tenant: str,
        quotas: Quotas,
        added: list[int],
        now_ms: int,
        *,
        whose: object = None,
        freed: Sequence[int] = (),
    ) -> tuple[int, int]:
        """Refuse messages of these sizes if they would take the tenant past a quota once those of the sizes `freed` are
        gone. Return what the tenant has with them: messages, and bytes."""
        messages = size = 0
        if quotas.limits_totals:
            messages, size = await self._kept(tenant, now_ms)
            others = self.on_their_way.get(tenant, {})
            messages += sum(1 for each in others if each is not whose)
            size += sum(bytes for each, bytes in others.items() if each is not whose)
        messages, size = messages - len(freed), size - sum(freed)
        check_quotas(tenant, quotas, messages, size, added)
        return messages + len(added), size + sum(added)

    async def _kept(self, tenant: str, now_ms: int) -> tuple[int, int]:
        messages = size = 0
        for row in await self._directory.list_queues(tenant):
            async for bunch in self.walk(row.ref, now_ms):
                messages += len(bunch)
                size += sum(entry.body.bytes for entry in bunch)
        return messages, size
