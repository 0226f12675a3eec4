"""List all messages of a queue in order of id, count them, and check quotas. Counts cost a listing."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from holdfast.model.answers import Counts
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.model.policy import Quotas
from holdfast.stores.logic.quotas import check_quotas
from holdfast.stores.objects.buckets.bucket import PAGE, ListedObject
from holdfast.stores.objects.buckets.retries import Busy, as_unavailable, run_concurrently
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import QuotaGuardBody
from holdfast.stores.objects.documents.cas_documents import CasWrite, ReadCasDocument
from holdfast.stores.objects.documents.protobuf_mapping import decode_message, encode
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.objects.operations.directory import ObjectDirectory

# Follows the order of every id.
_LAST = (1 << 64, 0)


class QueueCounts:
    """Counts of queues and tenants, and the check of quotas."""

    def __init__(self, messages: ObjectMessages, directory: ObjectDirectory) -> None:
        self._messages = messages
        self._directory = directory
        self._locks: dict[str, asyncio.Lock] = {}
        # Bytes of payloads being uploaded, by tenant and upload id.
        self.uploading: dict[str, dict[object, int]] = {}

    async def walk(self, ref: QueueRef, now_ms: int, after: int | None = None) -> AsyncIterator[list[IndexedMessage]]:
        """Yield the messages with ids above `after` in batches, in order of id."""
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
            # Only up to the end of the shorter batch: its next ids may be smaller than the rest of the other.
            bounds = [_order(bunch[-1]) for bunch, is_end in zip(waiting, ended, strict=True) if bunch and not is_end]
            upto = min(bounds, default=_LAST)
            if any(not bunch and not is_end for bunch, is_end in zip(waiting, ended, strict=True)):
                continue
            # A message that moves meanwhile is in both listings; the dead letter, read later, wins.
            by_id = {e.id: e for bunch in waiting for e in bunch if _order(e) <= upto}
            ready = sorted(by_id.values(), key=_order)
            waiting = [[e for e in bunch if _order(e) > upto] for bunch in waiting]
            yield ready

    async def _walk(
        self, ref: QueueRef, now_ms: int, after: int | None, *, dead: bool
    ) -> AsyncIterator[list[IndexedMessage]]:
        prefix = layout.messages(ref, dead=dead)
        start = None if after is None else layout.message(ref, after, dead=dead)
        if self._messages.may_have_format_1(ref):
            # Names of two formats: the listing is not in order of id.
            for page in await self._list_in_order(prefix, after):
                yield await self._read_page(ref, page, now_ms)
            return
        with as_unavailable():
            async for page in self._messages.documents.bucket.pages(prefix, start):
                yield await self._read_page(ref, page, now_ms)

    async def _list_in_order(self, prefix: str, after: int | None) -> list[list[ListedObject]]:
        """Return pages of the whole listing with ids above `after`, sorted by id."""
        found: list[tuple[tuple[int, int], ListedObject]] = []
        with as_unavailable():
            async for page in self._messages.documents.bucket.pages(prefix):
                found += [
                    (layout.listing_order(id), item)
                    for item in page
                    if (id := layout.parse_message(item.key)) is not None
                ]
        first = None if after is None else layout.listing_order(after)
        items = [item for order, item in sorted(found) if first is None or order > first]
        return [items[at : at + PAGE] for at in range(0, len(items), PAGE)]

    async def _read_page(self, ref: QueueRef, page: list[ListedObject], now_ms: int) -> list[IndexedMessage]:
        queue = self._messages.queues.get(ref)
        found: list[IndexedMessage] = []

        async def read(item: ListedObject) -> IndexedMessage | None:
            current = await self._messages.documents.read(item.key)
            if current is None or current.body is None:
                return None
            body = decode_message(current.body)
            if not body.is_message:
                return None
            return (not current.is_busy and self._messages.queues.record(current, body, now_ms)) or IndexedMessage(
                current, body
            )

        unknown: list[ListedObject] = []
        for item in page:
            id = layout.parse_message(item.key)
            if id is None:
                continue
            entry = queue.index.entries.get(id)
            if entry is not None and entry.document.version.mark == item.mark and entry.document.key == item.key:
                found.append(entry)
            elif (skipped := queue.skipped.get(id)) is None or skipped != (item.mark, None) or "/dlq/" in item.key:
                unknown.append(item)
        found += [entry for entry in await run_concurrently(unknown, read) if entry is not None]
        found.sort(key=_order)
        return found

    async def counts(self, ref: QueueRef, now_ms: int) -> Counts:
        """Count the messages of a queue by state."""
        async with self._messages.move_lock:
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
        """Count the messages of all queues of a tenant by state."""
        rows = await self._directory.list_queues(tenant)
        return Counts.total([await self.counts(row.ref, now_ms) for row in rows])

    # --- Quotas ----------------------------------------------------------------------------------------------
    #
    # An operation that adds messages to a tenant with quotas reads the tenant's quota guard (room.pb), counts, and
    # writes the guard in the same step as the messages. Of two processes that counted at the same time, one must
    # therefore count again. Operations that move messages write the guard as well, because a concurrent count may have
    # missed the message.

    def lock(self, tenant: str) -> asyncio.Lock:
        """Return a lock to hold from the check of quotas until the messages are written, so that this process does not
        race itself."""
        return self._locks.setdefault(tenant, asyncio.Lock())

    async def reserve_quota(
        self, tenant: str, added: list[int], now_ms: int, *, upload_id: object = None, freed: Sequence[int] = ()
    ) -> list[CasWrite]:
        """Check the quotas like `check_quotas`. Return the writes that the step which adds the messages must include.
        Raise `Busy` if another process is adding messages."""
        quotas = (await self._directory.config(tenant)).quotas
        if not quotas.limits_totals:
            check_quotas(tenant, quotas, 0, 0, added)
            return []
        current = await self._read_quota_guard(tenant)
        messages, size = await self.check_quotas(tenant, quotas, added, now_ms, upload_id=upload_id, freed=freed)
        return [CasWrite(layout.quota_guard(tenant), encode(QuotaGuardBody(messages, size)), current)]

    async def quota_guard(self, tenant: str) -> list[CasWrite]:
        """Return the writes that a step must include which moves messages within or out of the tenant. Raise `Busy`."""
        if not (await self._directory.config(tenant)).quotas.limits_totals:
            return []
        current = await self._read_quota_guard(tenant)
        body = None if current is None else current.body
        return [CasWrite(layout.quota_guard(tenant), body or encode(QuotaGuardBody(0, 0)), current)]

    async def _read_quota_guard(self, tenant: str) -> ReadCasDocument | None:
        current = await self._messages.documents.read(layout.quota_guard(tenant))
        if current is not None and current.is_busy:
            raise Busy(current.content.step)
        return current

    async def check_quotas(
        self,
        tenant: str,
        quotas: Quotas,
        added: list[int],
        now_ms: int,
        *,
        upload_id: object = None,
        freed: Sequence[int] = (),
    ) -> tuple[int, int]:
        """Raise `OverQuota` or `PayloadTooLarge` if messages of the sizes `added` do not fit into the tenant's quotas,
        once those of the sizes `freed` are gone.

        Return the number and bytes of the tenant's messages including them. Uploads count too, except the one with
        `upload_id`.
        """
        messages = size = 0
        if quotas.limits_totals:
            messages, size = await self._kept(tenant, now_ms)
            others = self.uploading.get(tenant, {})
            messages += sum(1 for each in others if each is not upload_id)
            size += sum(bytes for each, bytes in others.items() if each is not upload_id)
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


def _order(entry: IndexedMessage) -> tuple[int, int]:
    return layout.listing_order(entry.id)
