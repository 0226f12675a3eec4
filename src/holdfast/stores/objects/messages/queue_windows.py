"""Keep what this process knows of each queue, and learn more by listing the queue page by page.

A pass lists a queue's metadata once, from the first id to the last. Known versions are not read again. Of messages that
do not fit into the window, only the mark is kept, and when they may become due. A claim that finds enough messages in
the window lists nothing. Otherwise it continues the pass, until it has enough or a whole pass has ended.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.objects.buckets.bucket import PAGE, ListedObject, Unanswered
from holdfast.stores.objects.buckets.retries import AT_ONCE, as_unavailable, run_concurrently, unavailable
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import MessageBody
from holdfast.stores.objects.documents.cas_documents import CasDocuments, ReadCasDocument
from holdfast.stores.objects.documents.protobuf_mapping import decode_message
from holdfast.stores.objects.messages.index import IndexedMessage, MessageIndex
from holdfast.stores.values import QueueRow

# Maximum number of messages in a window, and of messages of which only the mark is kept.
WINDOW = 10_000
# Maximum number of bytes of payloads in a window.
WINDOW_BYTES = 32 << 20
_MAX_SKIPPED = 500_000
# Interval at which claims read one page of a queue that has enough known messages, to find those of other processes.
_PAGE_INTERVAL_MS = 1_000
# Minimum interval between whole passes made by sweeps, in all and per page. They find leases of processes that died.
_SWEEP_INTERVAL_MS = 60_000
_SWEEP_INTERVAL_PER_PAGE_MS = 1_000
# Maximum number of pages that one call reads.
_MAX_PAGES = 200


@dataclass(slots=True)
class ListingPass:
    """A pass over a queue's metadata that is under way."""

    pages: AsyncIterator[list[ListedObject]]
    began_at: int


@dataclass(slots=True)
class ObjectQueueState:
    """A queue as this process knows it."""

    ref: QueueRef
    index: MessageIndex = field(default_factory=MessageIndex)
    # Held while leases and TTLs are ended: a claim waits for a sweep that does so, and finds the messages that it
    # returned.
    ending: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Messages outside the window, by id: the mark, and when the message may become due (None: not before it changes).
    skipped: dict[int, tuple[str, int | None]] = field(default_factory=dict)
    current_pass: ListingPass | None = None
    # Held while the pass is continued.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    # When the last complete pass began; and when to read a page although enough messages are known.
    last_pass_at: int | None = None
    next_page_at: int = 0
    # When a sweep has to make its next whole pass, and the pass that it is making.
    next_pass_at: int = 0
    sweep_pass: AsyncIterator[None] | None = None
    # The latest whole pass found names of earlier versions.
    has_format_1: bool = True
    # The earliest end of a lease or TTL outside the window: a sweep makes a whole pass then.
    ends_at: int | None = None
    # Dead letters that are still in msg/, in insertion order.
    unmoved_dead_letters: dict[int, None] = field(default_factory=dict)
    # Metadata whose events still have to be collected, or whose step was aborted.
    leftovers: dict[str, None] = field(default_factory=dict)

    # Messages whose verdicts are being written, with their latest version: it is recorded when all verdicts are
    # written.
    hidden: dict[int, tuple[ReadCasDocument, MessageBody] | None] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Return whether every listed message is in the window."""
        return self.current_pass is None and self.last_pass_at is not None

    @property
    def is_full(self) -> bool:
        """Return whether the window has no more room for messages that are not due."""
        return len(self.index) >= WINDOW or self.index.payload_bytes >= WINDOW_BYTES

    @property
    def is_overfull(self) -> bool:
        """Return whether the window has no more room even for due messages."""
        return len(self.index) >= 2 * WINDOW or self.index.payload_bytes >= 2 * WINDOW_BYTES


class ObjectQueueStates:
    """The queues that this process knows."""

    def __init__(self, documents: CasDocuments, granter: str, skew_ms: int) -> None:
        """Start without queues. `granter` names this process in leases; leases of other processes end `skew_ms`
        later."""
        self._documents = documents
        self._granter = granter
        self._skew_ms = skew_ms
        self._queues: dict[QueueRef, ObjectQueueState] = {}

    def all(self) -> list[ObjectQueueState]:
        """Return all known queues."""
        return list(self._queues.values())

    def get(self, ref: QueueRef) -> ObjectQueueState:
        """Return a queue, which this process's sweeps include from now on."""
        queue = self._queues.get(ref)
        if queue is None:
            queue = self._queues[ref] = ObjectQueueState(ref)
        return queue

    def find(self, ref: QueueRef) -> ObjectQueueState | None:
        """Return a queue if it is known."""
        return self._queues.get(ref)

    def forget(self, ref: QueueRef) -> None:
        """Forget a deleted queue."""
        self._queues.pop(ref, None)

    def note_created(self, ref: QueueRef, now_ms: int) -> None:
        """Note that this process has just created a queue: it has no messages that need to be listed."""
        queue = self.get(ref)
        if queue.current_pass is None and queue.last_pass_at is None:
            queue.last_pass_at = now_ms

    def notify(self, row: QueueRow, notices: Notices) -> None:
        """Add to the notices when a claim, and when a sweep, may next find something in the queue."""
        index = self.get(row.ref).index
        if not row.is_paused:
            notices.ready(row.ref, index.next_at())
        notices.deadline(index.next_deadline())

    def lease_ends_at(self, body: MessageBody) -> int:
        """Return when the lease has ended for certain: the clock of another granter may be behind this one. 0 without a
        lease."""
        lease = body.life.lease
        if lease is None:
            return 0
        return lease.expires_at + (0 if body.granter == self._granter else self._skew_ms)

    # --- Recording ---------------------------------------------------------------------------------------------

    def record(
        self, current: ReadCasDocument, body: MessageBody, now_ms: int, *, is_new: bool = False
    ) -> IndexedMessage | None:
        """Record a message that was read or written. Return its entry, or None if it is not in the window.

        `is_new`: this process enqueued it.
        """
        queue = self.get(body.ref)
        id = body.id
        is_dead = layout.is_dead(current.key)
        if id in queue.hidden and not is_dead:
            queue.hidden[id] = (current, body)
            return None
        if is_dead or not body.is_message or current.version.etag == "overwritten":
            if not is_dead:
                queue.index.drop(id)
                queue.skipped[id] = (current.version.mark, None)
                queue.unmoved_dead_letters.pop(id, None)
            return None
        if body.life.state is State.FAILED:
            queue.unmoved_dead_letters[id] = None
        if id not in queue.index.entries and not self._has_room(queue, body, now_ms, is_new=is_new):
            end_at = self.lease_ends_at(body) or body.life.expires_at
            if end_at is not None and body.life.state in (State.READY, State.IN_FLIGHT):
                queue.ends_at = end_at if queue.ends_at is None else min(queue.ends_at, end_at)
            if not is_new and len(queue.skipped) < _MAX_SKIPPED:
                queue.skipped[id] = (current.version.mark, self._due_at(body))
            return None
        queue.skipped.pop(id, None)
        entry = IndexedMessage(current, body)
        queue.index.put(entry, self.lease_ends_at(body))
        return entry

    def _has_room(self, queue: ObjectQueueState, body: MessageBody, now_ms: int, *, is_new: bool) -> bool:
        if is_new:
            if queue.is_full:
                queue.last_pass_at = None  # the window is no longer complete; the next pass finds the rest
            # In a queue of which only the beginning is known, new messages wait for a pass.
            return not queue.is_full and queue.is_complete
        due_at = self._due_at(body)
        return not queue.is_full or (due_at is not None and due_at <= now_ms and not queue.is_overfull)

    def _due_at(self, body: MessageBody) -> int | None:
        match body.life.state:
            case State.READY:
                ends = [body.life.visible_at]
                if body.life.expires_at is not None:
                    ends.append(body.life.expires_at)
                return min(ends)
            case State.IN_FLIGHT:
                return self.lease_ends_at(body)
            case State.SUCCEEDED:
                return body.life.keep_until
            case State.FAILED:
                return None

    def drop_stale(self, entry: IndexedMessage) -> None:
        """Drop an entry that another process has overwritten."""
        queue = self.get(entry.body.ref)
        if queue.index.entries.get(entry.id) is entry:
            queue.index.drop(entry.id)
        queue.skipped.pop(entry.id, None)
        queue.next_pass_at = 0

    @contextmanager
    def hide_until_written(self, queue: ObjectQueueState, ids: set[int], now_ms: int) -> Iterator[None]:
        """Hide changes of these messages from claims of this process until all of them are written."""
        if len(ids) == 1:
            yield
            return
        mine = [id for id in ids if id not in queue.hidden]
        queue.hidden.update(dict.fromkeys(mine))
        try:
            yield
        finally:
            for id in mine:
                if (recorded := queue.hidden.pop(id)) is not None:
                    self.record(*recorded, now_ms)

    # --- Passes ------------------------------------------------------------------------------------------------

    async def fill_window(self, queue: ObjectQueueState, wanted: int, now_ms: int) -> bool:
        """Read pages until the window has `wanted` due messages, or all messages are known.

        Return False if neither was reached within the pages of one call.
        """
        async with queue.lock:
            return await self._fill_window(queue, wanted, now_ms)

    async def _fill_window(self, queue: ObjectQueueState, wanted: int, now_ms: int) -> bool:
        if queue.index.count_due(now_ms, wanted) >= wanted:
            # Not during a sweep's whole pass, which reads every page anyway.
            if now_ms >= queue.next_page_at and queue.sweep_pass is None:
                queue.next_page_at = now_ms + _PAGE_INTERVAL_MS
                await self._read_next_page(queue, now_ms)
            return True
        # A pass that began before this call has not seen messages added behind its position since.
        is_own = queue.current_pass is None
        for _ in range(_MAX_PAGES):
            is_end = await self._read_next_page(queue, now_ms)
            if queue.index.count_due(now_ms, wanted) >= wanted:
                return True
            if is_end and is_own:
                return True
            is_own = is_own or is_end
        return False

    async def scan_all(self, queue: ObjectQueueState, now_ms: int) -> AsyncIterator[None]:
        """Make one whole pass that no claim waits for. It yields after each full page, so that the caller can pause."""
        if queue.ends_at is not None and queue.ends_at <= now_ms:
            queue.ends_at = None
        pages = 0
        queue.has_format_1 = False
        with as_unavailable():
            async for page in self._documents.bucket.pages(layout.messages(queue.ref)):
                pages += 1
                queue.has_format_1 = queue.has_format_1 or any(layout.is_of_format_1(item.key) for item in page)
                await self._read_page(queue, page, now_ms)
                if len(page) >= PAGE:
                    yield
        queue.next_pass_at = now_ms + max(_SWEEP_INTERVAL_MS, pages * _SWEEP_INTERVAL_PER_PAGE_MS)

    async def _read_next_page(self, queue: ObjectQueueState, now_ms: int) -> bool:
        """Read the pass's next page; return True at its end.

        A page that is not full is mostly the last one, so reading on costs no further call. Once a whole pass has
        ended, messages enqueued by this process enter the window at once.
        """
        current_pass = queue.current_pass
        if current_pass is None:
            pages = self._documents.bucket.pages(layout.messages(queue.ref))
            current_pass = queue.current_pass = ListingPass(pages, now_ms)
        while True:
            try:
                page = await anext(current_pass.pages, None)
            except Unanswered as error:
                queue.current_pass = None
                raise unavailable(error) from None
            if page is None:
                break
            await self._read_page(queue, page, now_ms)
            if len(page) >= PAGE:
                return False
        if queue.current_pass is current_pass:
            queue.current_pass = None
            queue.last_pass_at = current_pass.began_at
        return True

    async def _read_page(self, queue: ObjectQueueState, page: list[ListedObject], now_ms: int) -> None:
        unknown: list[ListedObject] = []
        for item in page:
            id = layout.parse_message(item.key)
            if id is None or id in queue.hidden:
                continue
            entry = queue.index.entries.get(id)
            if entry is not None:
                if entry.is_taken or entry.document.version.mark == item.mark:
                    continue
            elif (skipped := queue.skipped.get(id)) is not None:
                mark, due_at = skipped
                # A due message is read if the window has room for it.
                if mark == item.mark and (due_at is None or due_at > now_ms or queue.is_overfull):
                    continue
            unknown.append(item)

        async def read(item: ListedObject) -> None:
            current = await self._documents.read(item.key)
            if current is not None:
                self._record_found(queue, current, now_ms)

        # In parts: a bucket that never waits, such as a directory without syncs, would keep other calls waiting for a
        # whole page.
        for at in range(0, len(unknown), AT_ONCE):
            await run_concurrently(unknown[at : at + AT_ONCE], read)
            await asyncio.sleep(0)

    def _record_found(self, queue: ObjectQueueState, current: ReadCasDocument, now_ms: int) -> None:
        id = layout.parse_message(current.key)
        assert id is not None
        entry = queue.index.entries.get(id)
        if entry is not None and entry.is_taken:
            return
        if current.is_busy:
            return  # recorded by its writer, or found by the next pass
        if current.body is None:
            queue.leftovers[current.key] = None
            return
        body = decode_message(current.body)
        if body.is_gone:
            queue.leftovers[current.key] = None
        self.record(current, body, now_ms)
