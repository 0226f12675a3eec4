"""The journal: events are collected from the messages' outboxes into segments, each event once.

    read the head                   every outbox is emptied up to this segment; if not, do that first
    read the metadata               so these events are in no segment yet
    make segment n + 1              only one process can: the others begin again
    empty the outboxes, delete what is gone
    write the head                  dies before this: whoever is next does it again, to no effect

So between two segments nobody can have collected the same events twice, and a reader that has read a segment will never
see another event before its end. Segments are read in order of their numbers, one by one: listings play no part.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from holdfast.model.errors import InvalidArgument
from holdfast.model.events import Event, JournalEvent, parse_position
from holdfast.model.names import QueueRef
from holdfast.stores.contract import JOURNAL_STEP, JournalPage
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import answered, side_by_side, until_unchanged
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.cas_documents import ReadCasDocument
from holdfast.stores.objects.documents.document_format import MessageBody, Note, SegmentBody, encode, message_of
from holdfast.stores.objects.documents.json_documents import JournalDocument, JsonDocuments
from holdfast.stores.objects.journal.gathering import Gathering
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages

# Metadata that one segment is collected from.
SEGMENT = 1_000
# How long events wait in a message that is not settled: collecting them costs a write, unless it goes meanwhile.
LAG_MS = 5_000
# A position tells the segment and the event in it.
PER_SEGMENT = 1 << 20

_segment_of = msgspec.msgpack.Decoder(SegmentBody).decode


class JournalCollector:
    def __init__(
        self, messages: ObjectMessages, papers: JsonDocuments, gathering: Gathering, retention_ms: int, gather_ms: int
    ) -> None:
        """`gather_ms`: how often a reader makes others' events be gathered, at most."""
        self._messages = messages
        self._gathering = gathering
        self._gather_ms = gather_ms
        self._gathered_at: int | None = None
        self._sheets = messages.sheets
        self._papers = papers
        self._retention_ms = retention_ms
        self._lock = asyncio.Lock()
        # Emptied up to this segment, as far as this process knows.
        self._emptied_upto = 0
        # The oldest segment that is there, and when it was made, once known.
        self._first = 1
        self._first_at: int | None = None
        self._tallies: defaultdict[QueueRef, Counter[Event]] = defaultdict(Counter)

    # --- Collecting ------------------------------------------------------------------------------------------

    async def collect(self, before_ms: int | None = None) -> int:
        """One segment of what this process wrote, or found; of what changes still only what is that old. Answers how
        many messages' events it has."""

        async def collect() -> int:
            keys = [
                key
                for key, (since_ms, is_gone) in self._messages.dirty.items()
                if before_ms is None or is_gone or since_ms <= before_ms
            ][:SEGMENT]
            if keys:
                await self._append(await self._finish_last() + 1, keys)
            return len(keys)

        async with self._lock:
            return await until_unchanged(
                collect, "the journal is written by others all the time: later", on=(PreconditionFailed,)
            )

    async def collect_all(self) -> None:
        # Those whose step is under way stay: they are another call's, which has not been answered.
        waiting = -1
        while self._messages.dirty and len(self._messages.dirty) != waiting:
            waiting = len(self._messages.dirty)
            await self.collect()

    async def _finish_last(self) -> int:
        """Empty the outboxes of the last segment, if that is not done. Answers its number."""
        head = await self._papers.read(layout.JOURNAL_HEAD, JournalDocument)
        number = max(self._emptied_upto, 0 if head is None else head.paper.emptied_upto)
        while (segment := await self._read(number + 1)) is not None:
            await self._empty(segment.emptied)
            number += 1
            await self._note_emptied(number)
        self._emptied_upto = number
        return number

    async def _append(self, number: int, keys: list[str]) -> None:
        """Write a segment; `PreconditionFailed` if another process wrote it first."""
        found: list[tuple[ReadCasDocument, MessageBody]] = []
        done: list[str] = []

        async def read(key: str) -> None:
            held = await self._sheets.read(key)
            if held is None or held.body is None:
                done.append(key)
            elif held.is_busy:
                return
            else:
                body = message_of(held.body)
                if body.outbox or body.is_gone:
                    found.append((held, body))
                else:
                    done.append(key)

        await side_by_side(keys, read)
        for key in done:
            self._messages.dirty.pop(key, None)
        if not found:
            return
        notes = _in_order([body.outbox for _, body in found])
        first = number * PER_SEGMENT
        events = [replace(note.event, seq=first + at) for at, note in enumerate(notes)]
        emptied = [(held.key, body.noted) for held, body in found]
        if events:
            await self._sheets.write(layout.segment(number), encode(SegmentBody(events, emptied)), None)
        await self._empty(emptied, {held.key: (held, body) for held, body in found})
        if events:
            await self._note_emptied(number)
            self._emptied_upto = number

    async def _note_emptied(self, number: int) -> None:
        with answered():
            await self._sheets.bucket.put(
                layout.JOURNAL_HEAD, msgspec.json.encode(JournalDocument(emptied_upto=number))
            )

    async def _empty(
        self, emptied: list[tuple[str, int]], known: Mapping[str, tuple[ReadCasDocument, MessageBody]] | None = None
    ) -> None:
        known = known or {}

        async def empty(each: tuple[str, int]) -> None:
            key, upto = each
            await self._empty_one(key, upto, known.get(key))

        await side_by_side(emptied, empty)

    async def _empty_one(
        self, key: str, upto: int, known: tuple[ReadCasDocument | None, MessageBody | None] | None
    ) -> None:
        async def empty() -> None:
            nonlocal key, known
            (held, body), known = known or await self._there(key), None
            if held is not None and body is not None:
                if body.moved_to is not None:
                    key = body.moved_to  # the outbox went with it
                    raise PreconditionFailed("it moved")
                left = [note for note in body.outbox if note.number > upto]
                if body.is_gone and not left:
                    await self._messages.delete(key, body)
                elif len(left) < len(body.outbox):
                    after = replace(body, outbox=left)
                    self._note_written(held, await self._sheets.write(key, encode(after), held), after)
                    if left:
                        return
            self._messages.dirty.pop(key, None)

        await until_unchanged(empty, f"{key} changes all the time: later")

    async def _there(self, key: str) -> tuple[ReadCasDocument | None, MessageBody | None]:
        held = await self._sheets.read(key)
        return (None, None) if held is None or held.body is None else (held, message_of(held.body))

    def _note_written(self, before: ReadCasDocument, written: ReadCasDocument, body: MessageBody) -> None:
        """In the place of the entry, and not into it: a call that has it goes by what it says as a whole. If that is
        about to be written, it finds out by itself."""
        shelf = self._messages.shelves.known(body.ref)
        entry = None if shelf is None else shelf.index.entries.get(body.id)
        if shelf is None or entry is None or entry.is_taken:
            return
        if entry.held.stamp.etag == before.stamp.etag and entry.held.key == before.key:
            shelf.index.put(IndexedMessage(written, body), self._messages.shelves.lease_ends_at(body))

    # --- Reading ---------------------------------------------------------------------------------------------

    async def _read(self, number: int) -> SegmentBody | None:
        held = await self._sheets.read(layout.segment(number))
        return None if held is None or held.body is None else _segment_of(held.body)

    async def read(
        self, after: str | None, limit: int, tenant: str | None, oldest_at: int, until: str | None = None
    ) -> JournalPage:
        position, end = parse_position(after), None if until is None else parse_position(until)
        if position and position < PER_SEGMENT:
            raise InvalidArgument(f"{after!r} is not a journal position: give the `next` of an earlier answer")
        # While nothing moves here: the events of what does cannot be collected.
        async with self._messages.moving:
            await self._gather()
            await self.collect_all()
        found: list[JournalEvent] = []
        looked = 0
        number = max(position // PER_SEGMENT, self._first)
        while looked < JOURNAL_STEP and len(found) < limit:
            if end is not None and number > end // PER_SEGMENT:
                break
            segment = await self._read(number)
            if segment is None:
                later = await self._first_from(number)
                if later is None:
                    break
                # Trimmed, or made just now: a read tells, where a listing may be late.
                if await self._read(number) is None:
                    number = later
                continue
            for event in segment.events:
                if event.seq <= position:
                    continue
                if len(found) == limit or looked == JOURNAL_STEP or (end is not None and event.seq > end):
                    break
                looked += 1
                position = event.seq
                if (tenant is None or event.tenant == tenant) and event.at >= oldest_at:
                    found.append(event)
            number += 1
        if end is not None and looked < JOURNAL_STEP and len(found) < limit:
            position = max(position, end)
        return JournalPage(found, str(position))

    async def _gather(self) -> None:
        now_ms = self._sheets.clock.now_ms()
        if self._gathered_at is None or not 0 <= now_ms - self._gathered_at < self._gather_ms:
            self._gathered_at = now_ms
            await self._gathering.gather(now_ms)

    async def _first_from(self, number: int) -> int | None:
        """The first segment above one that is not there, as a listing has it."""
        with answered():
            async for page in self._sheets.bucket.pages(layout.JOURNAL, layout.segment(number)):
                for item in page:
                    return int(layout.own_name(item.key))
        return None

    # --- Trimming --------------------------------------------------------------------------------------------

    async def trim(self, limit: int, now_ms: int) -> int:
        """Delete segments all of whose events are older than the retention; the last one stays, for its number."""
        trimmed = 0
        while trimmed < limit:
            segment = await self._read(self._first)
            if segment is None:
                first = await self._first_from(self._first)
                if first is None:
                    break
                self._first = first
                continue
            self._first_at = max((event.at for event in segment.events), default=0)
            keep = [event for event in segment.events if event.at > now_ms - self._retention_ms]
            if keep or self._first >= self._emptied_upto:
                break
            await self._sheets.delete([layout.segment(self._first)])
            trimmed += len(segment.events) or 1
            self._first += 1
            self._first_at = None
        return trimmed

    def next_trim_at(self) -> int | None:
        if self._first_at is None or self._first >= self._emptied_upto:
            return None
        return self._first_at + self._retention_ms


def _in_order(outboxes: list[list[Note]]) -> list[Note]:
    """By time; but a message's own events as they came, whatever the clocks of the processes that wrote them said."""
    placed: list[tuple[tuple[int, int], int, Note]] = []
    for outbox in outboxes:
        place = (0, 0)
        for note in outbox:
            place = max(place, (note.event.at, note.order))
            placed.append((place, note.number, note))
    placed.sort(key=lambda each: each[:2])
    return [note for _, _, note in placed]
