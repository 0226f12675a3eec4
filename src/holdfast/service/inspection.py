"""InspectionService: look at messages, counts and the journal without changing anything."""

from contextlib import suppress

from msgspec.structs import replace

from holdfast.dispatch.dispatcher import Dispatcher
from holdfast.model.answers import Found, Info, JournalEvents, Page, Stats
from holdfast.model.errors import MessageNotFound
from holdfast.model.ids import parse_id, to_uuid
from holdfast.model.message import MAX_BATCH
from holdfast.model.names import QueueRef
from holdfast.model.parsing.checks import check_integer
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.requests import parse_listing
from holdfast.runtime import Runtime, sleep_until
from holdfast.service.limits.admission import Admission
from holdfast.service.policy_cache import PolicyCache
from holdfast.service.views import info_of, stats_of
from holdfast.stores.contract import Store
from holdfast.wire.requests import BrowseRequest, GetRequest, JournalRequest, Nothing, PeekRequest

# The interval at which a caller that waits for events reads the journal, which does not notify of new events.
_JOURNAL_POLL_MS = 100

# A page of messages with payloads is read in steps of this number, and ends after this number of bytes.
_STEP_WITH_PAYLOADS = 16
_PAGE_BYTES = 16 << 20


class InspectionService:
    """The operations that read messages, counts and the journal. Look-ups are charged to the read limits."""

    def __init__(
        self, store: Store, dispatcher: Dispatcher, directory: PolicyCache, admission: Admission, runtime: Runtime
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._directory = directory
        self._admission = admission
        self._runtime = runtime
        self._now_ms = runtime.clock.now_ms
        self._is_closing = False

    def close(self) -> None:
        """End the waits for journal events."""
        self._is_closing = True

    async def get(self, ref: QueueRef, request: GetRequest) -> Info:
        """Return one message, with its payload if asked for. Raise `MessageNotFound`."""
        snowflake, with_payload = parse_id(request.id), request.payload
        await self._admission.admit_look(ref)
        found = await self._store.get(ref, snowflake)
        if found is None:
            raise MessageNotFound(f"queue {ref} has no message {to_uuid(snowflake)}", id=to_uuid(snowflake))
        self._admission.charge_read(ref, 1, found.envelope.bytes if with_payload else 0)
        return info_of(await self._load_payload(ref, found) if with_payload else found, with_payload=with_payload)

    async def peek(self, ref: QueueRef, request: PeekRequest) -> list[Info]:
        """Return the ready messages that claims would get next, with their payloads."""
        check_integer("limit", request.limit, 1, MAX_BATCH)
        await self._admission.admit_look(ref)
        every = await self._store.peek(ref, request.limit, self._now_ms())
        self._admission.charge_read(ref, len(every), sum(each.envelope.bytes for each in every))
        infos = []
        for each in every:
            with suppress(MessageNotFound):  # the message was removed while its payload was read
                infos.append(info_of(await self._load_payload(ref, each), with_payload=True))
        return infos

    async def browse(self, ref: QueueRef, request: BrowseRequest) -> Page[Info]:
        """Return one page of messages. With payloads it may end before the limit, after `_PAGE_BYTES`."""
        limit, with_payload = request.limit, request.payload
        check_integer("limit", limit, 1, MAX_BATCH)
        state, where = parse_listing(request.state, request.filter)
        after = None if request.cursor is None else parse_id(request.cursor)
        await self._admission.admit_look(ref)
        step = _STEP_WITH_PAYLOADS if with_payload else limit
        page: Page[Info] = Page()
        size = 0
        while True:
            listing = await self._store.browse(ref, state, where, after, min(step, limit - len(page)), self._now_ms())
            after = listing.after
            for each in listing.found:
                if with_payload and size > _PAGE_BYTES:
                    after = page[-1].snowflake
                    break
                with suppress(MessageNotFound):  # the message was removed while its payload was read
                    whole = await self._load_payload(ref, each) if with_payload else each
                    page.append(info_of(whole, with_payload=with_payload))
                    size += each.envelope.bytes
            page.cursor = None if after is None else str(after)
            if after is None or len(page) == limit or not with_payload or size > _PAGE_BYTES:
                self._admission.charge_read(ref, len(page), size if with_payload else 0)
                return page

    async def _load_payload(self, ref: QueueRef, found: Found) -> Found:
        envelope = found.envelope
        if envelope.pieces is None:
            return found
        parts = [part async for part in await self._store.payloads.read(ref, envelope.id, envelope.pieces)]
        return replace(found, envelope=replace(envelope, payload=b"".join(parts), pieces=None))

    async def stats(self, ref: QueueRef, request: Nothing) -> Stats:
        """Return the counts of a queue, its waiting claims and its condition. Raise `QueueNotFound`."""
        row = await self._directory.require(ref)
        now_ms = self._now_ms()
        counts = await self._store.counts(*ref, now_ms)
        return stats_of(counts, now_ms, waiters=self._dispatcher.count_waiters(ref), row=row)

    async def journal(self, ref: QueueRef, request: JournalRequest) -> JournalEvents:
        """Return events after a position; if there are none, wait up to `request.wait_ms` for one.

        `request.until` is the position at which to end, for a range that was read before.
        """
        after, tenant = request.after, request.tenant
        check_integer("limit", request.limit, 1, MAX_BATCH)
        check_integer("wait_ms", request.wait_ms, 0, MAX_MS)
        ends_at = self._now_ms() + request.wait_ms
        while True:
            events = await self._events(after, request.limit, tenant, request.until)
            now_ms = self._now_ms()
            if events or now_ms >= ends_at or self._is_closing:
                return events
            # Events of other tenants that were read are not read again.
            after = events.next
            await sleep_until(self._runtime, min(ends_at, now_ms + _JOURNAL_POLL_MS))

    async def _events(self, after: str | None, limit: int, tenant: str | None, until: str | None) -> JournalEvents:
        """Return a full page, or all events up to the end of the journal.

        The events of one tenant may be far apart among those of others. Other callers have a turn after each step.
        """
        events = JournalEvents()
        steps = 0
        while True:
            page = await self._store.journal(after, limit - len(events), tenant, self._now_ms(), until)
            events += page.events
            events.next = page.position
            if tenant is None or len(events) == limit or page.position == after or self._is_closing:
                return events
            after = page.position
            steps += 1
            if steps > 1:  # mostly the first step reaches the end, and the second one only notices it
                await sleep_until(self._runtime, self._now_ms())
