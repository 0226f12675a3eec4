"""What this process knows of each queue, and how it comes to know it: by listing, page by page, from where it stopped.

A pass goes over a queue's metadata once. What a page shows that is known is not read again; of what does not fit into
the window only the mark is remembered, and when to look at it again. A claim that finds enough in the window lists
nothing; one that does not goes on with the pass; and once the pass has ended with nothing, so does the claim.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.stores.contract import QueueRow
from holdfast.stores.event_loop.notices import Notices
from holdfast.stores.objects.buckets.bucket import PAGE, ListedObject, Unanswered
from holdfast.stores.objects.buckets.retries import answered, side_by_side, unavailable
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.cas_documents import CasDocuments, ReadCasDocument
from holdfast.stores.objects.documents.document_format import MessageBody, message_of
from holdfast.stores.objects.messages.index import IndexedMessage, MessageIndex

# Messages of a queue that are known whole, and those of which only the mark is.
WINDOW = 10_000
_PASSED = 500_000
# While a queue has enough that is known, a page is looked at this often: for what others put there.
_PAUSE_MS = 1_000
# Between two passes for sweeps alone: they find leases of processes that died.
_SWEEP_MS = 60_000
_SWEEP_PER_PAGE_MS = 1_000
# Pages that one call goes over: 100,000 messages.
_PAGES = 200


@dataclass(slots=True)
class Pass:
    pages: AsyncIterator[list[ListedObject]]
    began_at: int


@dataclass(slots=True)
class ObjectQueueState:
    ref: QueueRef
    index: MessageIndex = field(default_factory=MessageIndex)
    # Who holds it ends leases and TTLs: a claim waits for a sweep that is at it, and finds what that returned.
    ending: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Of what is not in the window: its mark, and when it may be due (None: not before it changes).
    passed: dict[int, tuple[str, int | None]] = field(default_factory=dict)
    under_way: Pass | None = None
    # Who holds it goes on with the pass.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    # When the last whole pass began; and, while enough is known, when to look at a page all the same.
    seen_at: int | None = None
    next_page_at: int = 0
    # When a sweep is to go over all of it again, and the pass that it is at.
    next_pass_at: int = 0
    sweeping: AsyncIterator[None] | None = None
    # The first end of a lease or a TTL that is not in the window: a sweep goes over all of it then.
    ends_at: int | None = None
    # Dead letters that still lie among the messages.
    to_carry: dict[int, None] = field(default_factory=dict)
    # What was found that only waits for its events to be collected, or for a step to be undone.
    leftovers: dict[str, None] = field(default_factory=dict)

    # Of messages that verdicts are being written for: what became of them, to be noted when all are.
    hidden: dict[int, tuple[ReadCasDocument, MessageBody] | None] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Everything that a listing has shown is in the window."""
        return self.under_way is None and self.seen_at is not None


class ObjectQueueStates:
    def __init__(self, sheets: CasDocuments, granter: str, skew_ms: int) -> None:
        self._sheets = sheets
        self._granter = granter
        self._skew_ms = skew_ms
        self._shelves: dict[QueueRef, ObjectQueueState] = {}

    def all(self) -> list[ObjectQueueState]:
        return list(self._shelves.values())

    def of(self, ref: QueueRef) -> ObjectQueueState:
        shelf = self._shelves.get(ref)
        if shelf is None:
            shelf = self._shelves[ref] = ObjectQueueState(ref)
        return shelf

    def known(self, ref: QueueRef) -> ObjectQueueState | None:
        return self._shelves.get(ref)

    def forget(self, ref: QueueRef) -> None:
        self._shelves.pop(ref, None)

    def tell(self, row: QueueRow, notices: Notices) -> None:
        """After a change: say when a claim, and when a sweep, may next find something in the queue."""
        index = self.of(row.ref).index
        if not row.is_paused:
            notices.ready(row.ref, index.next_at())
        notices.deadline(index.next_deadline())

    def lease_ends_at(self, body: MessageBody) -> int:
        """When the lease has run out for certain: another's clock may be behind ours."""
        lease = body.life.lease
        if lease is None:
            return 0
        return lease.expires_at + (0 if body.granter == self._granter else self._skew_ms)

    # --- Noting what was read or written -----------------------------------------------------------------------

    def note(
        self, held: ReadCasDocument, body: MessageBody, now_ms: int, *, is_new: bool = False
    ) -> IndexedMessage | None:
        """A message of this queue as it is now; None: it is not in the window. `is_new`: this process enqueued it."""
        shelf = self.of(body.ref)
        id = body.id
        is_dead = layout.is_dead(held.key)
        if id in shelf.hidden and not is_dead:
            shelf.hidden[id] = (held, body)
            return None
        if is_dead or not body.is_message or held.stamp.etag == "overwritten":
            if not is_dead:
                shelf.index.drop(id)
                shelf.passed[id] = (held.stamp.mark, None)
                shelf.to_carry.pop(id, None)
            return None
        if body.life.state is State.FAILED:
            shelf.to_carry[id] = None
        if id not in shelf.index.entries and not self._has_room(shelf, body, now_ms, is_new=is_new):
            end_at = self.lease_ends_at(body) or body.life.expires_at
            if end_at is not None and body.life.state in (State.READY, State.IN_FLIGHT):
                shelf.ends_at = end_at if shelf.ends_at is None else min(shelf.ends_at, end_at)
            if not is_new and len(shelf.passed) < _PASSED:
                shelf.passed[id] = (held.stamp.mark, self._due_at(body))
            return None
        shelf.passed.pop(id, None)
        entry = IndexedMessage(held, body)
        shelf.index.put(entry, self.lease_ends_at(body))
        return entry

    def _has_room(self, shelf: ObjectQueueState, body: MessageBody, now_ms: int, *, is_new: bool) -> bool:
        size = len(shelf.index)
        if is_new:
            if size >= WINDOW:
                shelf.seen_at = None  # it is no longer all there is: the next pass finds the rest
            # In a queue of which only the beginning is known, what comes last waits to be listed.
            return size < WINDOW and shelf.is_whole
        due_at = self._due_at(body)
        return size < WINDOW or (due_at is not None and due_at <= now_ms and size < 2 * WINDOW)

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

    def lost(self, entry: IndexedMessage) -> None:
        """Another wrote it: what is known of it is wrong."""
        shelf = self.of(entry.body.ref)
        if shelf.index.entries.get(entry.id) is entry:
            shelf.index.drop(entry.id)
        shelf.passed.pop(entry.id, None)
        shelf.next_pass_at = 0

    @contextmanager
    def hiding(self, shelf: ObjectQueueState, ids: set[int], now_ms: int) -> Iterator[None]:
        """What becomes of these is seen by claims of this process once all of it is written."""
        if len(ids) == 1:
            yield
            return
        mine = [id for id in ids if id not in shelf.hidden]
        shelf.hidden.update(dict.fromkeys(mine))
        try:
            yield
        finally:
            for id in mine:
                if (noted := shelf.hidden.pop(id)) is not None:
                    self.note(*noted, now_ms)

    # --- Passes ------------------------------------------------------------------------------------------------

    async def look(self, shelf: ObjectQueueState, wanted: int, now_ms: int) -> bool:
        """Know of so many messages that are due, or of all. False: there was too much to go over in one call."""
        async with shelf.lock:
            return await self._look(shelf, wanted, now_ms)

    async def _look(self, shelf: ObjectQueueState, wanted: int, now_ms: int) -> bool:
        if shelf.index.count_due(now_ms, wanted) >= wanted:
            # Not while a sweep goes over all of it: then no claim has to.
            if now_ms >= shelf.next_page_at and shelf.sweeping is None:
                shelf.next_page_at = now_ms + _PAUSE_MS
                await self._go_on(shelf, now_ms)
            return True
        # A pass that had begun before this call has not seen what came behind it since.
        is_own = shelf.under_way is None
        for _ in range(_PAGES):
            is_end = await self._go_on(shelf, now_ms)
            if shelf.index.count_due(now_ms, wanted) >= wanted:
                return True
            if is_end and is_own:
                return True
            is_own = is_own or is_end
        return False

    async def look_at_all(self, shelf: ObjectQueueState, now_ms: int) -> AsyncIterator[None]:
        """One whole pass of its own, which no claim waits for: whoever makes it may rest after each full page."""
        if shelf.ends_at is not None and shelf.ends_at <= now_ms:
            shelf.ends_at = None
        pages = 0
        with answered():
            async for page in self._sheets.bucket.pages(layout.messages(shelf.ref)):
                pages += 1
                await self._read_page(shelf, page, now_ms)
                if len(page) >= PAGE:
                    yield
        shelf.next_pass_at = now_ms + max(_SWEEP_MS, pages * _SWEEP_PER_PAGE_MS)

    async def _go_on(self, shelf: ObjectQueueState, now_ms: int) -> bool:
        """One page further; true at the end of the pass. A page that is not full is mostly the last. To find that out
        costs no call; and once all of a queue is known, what this process enqueues is in the window at once."""
        under_way = shelf.under_way
        if under_way is None:
            pages = self._sheets.bucket.pages(layout.messages(shelf.ref))
            under_way = shelf.under_way = Pass(pages, now_ms)
        while True:
            try:
                page = await anext(under_way.pages, None)
            except Unanswered as error:
                shelf.under_way = None
                raise unavailable(error) from None
            if page is None:
                break
            await self._read_page(shelf, page, now_ms)
            if len(page) >= PAGE:
                return False
        if shelf.under_way is under_way:
            shelf.under_way = None
            shelf.seen_at = under_way.began_at
        return True

    async def _read_page(self, shelf: ObjectQueueState, page: list[ListedObject], now_ms: int) -> None:
        unknown: list[ListedObject] = []
        for item in page:
            id = layout.parse_message(item.key)
            if id is None or id in shelf.hidden:
                continue
            entry = shelf.index.entries.get(id)
            if entry is not None:
                if entry.is_taken or entry.held.stamp.mark == item.mark:
                    continue
            elif (passed := shelf.passed.get(id)) is not None:
                mark, due_at = passed
                # Due, it is read to be put into the window, if that has room for it.
                if mark == item.mark and (due_at is None or due_at > now_ms or len(shelf.index) >= 2 * WINDOW):
                    continue
            unknown.append(item)

        async def read(item: ListedObject) -> None:
            held = await self._sheets.read(item.key)
            if held is not None:
                self._find(shelf, held, now_ms)

        if unknown:
            await side_by_side(unknown, read)

    def _find(self, shelf: ObjectQueueState, held: ReadCasDocument, now_ms: int) -> None:
        id = layout.parse_message(held.key)
        assert id is not None
        entry = shelf.index.entries.get(id)
        if entry is not None and entry.is_taken:
            return
        if held.is_busy:
            return  # whoever makes that step tells of it, or the next pass finds it
        if held.body is None:
            shelf.leftovers[held.key] = None
            return
        body = message_of(held.body)
        if body.is_gone:
            shelf.leftovers[held.key] = None
        self.note(held, body, now_ms)
