"""Collect events from the messages' outboxes into the segments of the journal, each event once.

    read the head                       all outboxes up to this segment are emptied; if not, that is done first
    read the metadata                   so these events are in no segment yet
    create segment n + 1                only one process can; the others start again
    empty the outboxes, delete ended messages
    write the head                      crash before this: the next process repeats the previous line harmlessly

So no two processes can collect the same events between two segments, and a segment never changes after a reader has
read it. Readers read segments one by one in order of their numbers, without relying on listings.

How to change this format: events are appended to `JournalEvent` fields at the end, with defaults. `PER_SEGMENT` is part
of every position that a reader has stored, so it cannot change.
"""

import asyncio
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from holdfast.model.errors import InvalidArgument
from holdfast.model.events import JournalEvent, parse_position
from holdfast.stores.contract import JOURNAL_STEP
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.stores.objects.buckets.retries import as_unavailable, retry_conflicts, run_concurrently
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import MessageBody, OutboxEvent, SegmentBody
from holdfast.stores.objects.documents.cas_documents import ReadCasDocument
from holdfast.stores.objects.documents.json_documents import JournalDocument, JsonDocuments
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder, decode_message, encode
from holdfast.stores.objects.journal.outbox_scan import OutboxScan
from holdfast.stores.objects.messages.index import IndexedMessage
from holdfast.stores.objects.messages.messages import ObjectMessages
from holdfast.stores.values import JournalPage

# Maximum number of metadata objects that one segment is collected from.
SEGMENT = 1_000
# Delay of events of a message that still exists. Collecting them costs a write of its metadata, which is saved if the
# message ends meanwhile.
LAG_MS = 5_000
# A position is the segment's number times this, plus the event's index in the segment.
PER_SEGMENT = 1 << 20

_decode_segment = BodyDecoder(SegmentBody)


class JournalCollector:
    """The writer, reader and trimmer of the journal."""

    def __init__(
        self,
        messages: ObjectMessages,
        json_documents: JsonDocuments,
        outbox_scan: OutboxScan,
        retention_ms: int,
        scan_interval_ms: int,
    ) -> None:
        """`scan_interval_ms` is the minimum time between two scans for events of other processes, which reads start."""
        self._messages = messages
        self._outbox_scan = outbox_scan
        self._scan_interval_ms = scan_interval_ms
        self._scanned_at: int | None = None
        self._documents = messages.documents
        self._json_documents = json_documents
        self._retention_ms = retention_ms
        self._lock = asyncio.Lock()
        # The outboxes of all segments up to this one are known to be emptied.
        self._emptied_upto = 0
        # The oldest existing segment, and the time of its newest event once known.
        self._first = 1
        self._first_at: int | None = None

    # --- Collecting ------------------------------------------------------------------------------------------

    async def collect(self, before_ms: int | None = None) -> int:
        """Write one segment with events that this process wrote or found, and return the number of messages that they
        came from.

        With `before_ms`, events of messages that still exist are collected only if they are at least that old.
        """

        async def collect() -> int:
            keys = [
                key
                for key, each in self._messages.uncollected.items()
                if before_ms is None or each.is_gone or each.since_ms <= before_ms
            ][:SEGMENT]
            if keys:
                await self._append(await self._finish_last() + 1, keys)
            return len(keys)

        async with self._lock:
            return await retry_conflicts(collect, "the journal", on=(PreconditionFailed,))

    async def collect_all(self) -> None:
        """Collect all known events. Those of undecided steps stay, because their calls have not returned yet."""
        waiting = -1
        while self._messages.uncollected and len(self._messages.uncollected) != waiting:
            waiting = len(self._messages.uncollected)
            await self.collect()

    async def _finish_last(self) -> int:
        """Empty the outboxes of the last segment, if that was not completed. Return its number."""
        head = await self._json_documents.read(layout.JOURNAL_HEAD, JournalDocument)
        number = max(self._emptied_upto, 0 if head is None else head.content.emptied_upto)
        while (segment := await self._read(number + 1)) is not None:
            await self._empty(segment.emptied)
            number += 1
            await self._write_head(number)
        if number != self._emptied_upto:
            # Another process has collected: perhaps also events of messages that this process wrote. So all of them are
            # read again.
            for key, each in self._messages.uncollected.items():
                self._messages.uncollected[key] = each._replace(known=None)
        self._emptied_upto = number
        return number

    async def _append(self, number: int, keys: list[str]) -> None:
        """Write a segment; `PreconditionFailed` if another process wrote it first."""
        found: list[tuple[ReadCasDocument, MessageBody]] = []
        done: list[str] = []

        async def read(key: str) -> None:
            uncollected = self._messages.uncollected.get(key)
            if uncollected is not None and uncollected.known is not None:
                # No other process has collected its events: that would have needed a segment.
                found.append((uncollected.known.document, uncollected.known.body))
                return
            current = await self._documents.read(key)
            if current is None or current.body is None:
                done.append(key)
            elif current.is_busy:
                return
            else:
                body = decode_message(current.body)
                if body.outbox or body.is_gone:
                    found.append((current, body))
                else:
                    done.append(key)

        await run_concurrently(keys, read)
        for key in done:
            self._messages.uncollected.pop(key, None)
        if not found:
            return
        notes = _in_order([body.outbox for _, body in found])
        first = number * PER_SEGMENT
        events = [replace(note.event, seq=first + at) for at, note in enumerate(notes)]
        emptied = [(current.key, body.event_count) for current, body in found]
        if events:
            await self._documents.write(layout.segment(number), encode(SegmentBody(events, emptied)), None)
        await self._empty(emptied, {current.key: (current, body) for current, body in found})
        if events:
            await self._write_head(number)
            self._emptied_upto = number

    async def _write_head(self, number: int) -> None:
        with as_unavailable():
            await self._documents.bucket.put(
                layout.JOURNAL_HEAD, msgspec.json.encode(JournalDocument(emptied_upto=number))
            )

    async def _empty(
        self, emptied: list[tuple[str, int]], known: Mapping[str, tuple[ReadCasDocument, MessageBody]] | None = None
    ) -> None:
        known = known or {}
        ended = {
            key: body
            for key, upto in emptied
            if key in known and (body := known[key][1]).is_gone and body.event_count <= upto
        }
        await self._messages.delete(ended)
        for key in ended:
            self._messages.uncollected.pop(key, None)

        async def empty(each: tuple[str, int]) -> None:
            key, upto = each
            await self._empty_one(key, upto, known.get(key))

        await run_concurrently([each for each in emptied if each[0] not in ended], empty)

    async def _empty_one(
        self, key: str, upto: int, known: tuple[ReadCasDocument | None, MessageBody | None] | None
    ) -> None:
        async def empty() -> None:
            nonlocal key, known
            (current, body), known = known or await self._read_message(key), None
            if current is not None and body is not None:
                if body.moved_to is not None:
                    self._messages.uncollected.pop(key, None)
                    key = body.moved_to  # the outbox moved with the message
                    raise PreconditionFailed("the message was moved")
                remaining = [note for note in body.outbox if note.number > upto]
                if body.is_gone and not remaining:
                    await self._messages.delete({key: body})
                elif len(remaining) < len(body.outbox):
                    after = replace(body, outbox=remaining)
                    self._note_written(current, await self._documents.write(key, encode(after), current), after)
                    if remaining:
                        if (waiting := self._messages.uncollected.get(key)) is not None:
                            self._messages.uncollected[key] = waiting._replace(known=None)
                        return
            self._messages.uncollected.pop(key, None)

        await retry_conflicts(empty, key, self._documents.pause)

    async def _read_message(self, key: str) -> tuple[ReadCasDocument | None, MessageBody | None]:
        current = await self._documents.read(key)
        return (None, None) if current is None or current.body is None else (current, decode_message(current.body))

    def _note_written(self, before: ReadCasDocument, written: ReadCasDocument, body: MessageBody) -> None:
        """Replace the index entry of a message whose outbox was emptied.

        The entry object itself stays unchanged: a call that holds it relies on all of its fields. A call that is about
        to write the message notices the change by its precondition.
        """
        queue = self._messages.queues.find(body.ref)
        entry = None if queue is None else queue.index.entries.get(body.id)
        if queue is None or entry is None or entry.is_taken:
            return
        if entry.document.version.etag == before.version.etag and entry.document.key == before.key:
            queue.index.put(IndexedMessage(written, body), self._messages.queues.lease_ends_at(body))

    # --- Reading ---------------------------------------------------------------------------------------------

    async def _read(self, number: int) -> SegmentBody | None:
        current = await self._documents.read(layout.segment(number))
        return None if current is None or current.body is None else _decode_segment(current.body)

    async def read(
        self, after: str | None, limit: int, tenant: str | None, oldest_at: int, until: str | None = None
    ) -> JournalPage:
        """Return events after the position `after`, up to `until`. At most `limit` events match, and at most
        `JOURNAL_STEP` are looked at. Events before `oldest_at`, and of other tenants than `tenant`, are left out."""
        position, end = parse_position(after), None if until is None else parse_position(until)
        if position and position < PER_SEGMENT:
            raise InvalidArgument(f"{after!r} is not a journal position; pass the `next` of an earlier response")
        # Not while messages move: the events of a message in a step cannot be collected.
        async with self._messages.move_lock:
            await self._scan_outboxes()
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
                # The segment was trimmed, or created just now. A read tells which, since a listing may be stale.
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

    async def _scan_outboxes(self) -> None:
        now_ms = self._documents.clock.now_ms()
        if self._scanned_at is None or not 0 <= now_ms - self._scanned_at < self._scan_interval_ms:
            self._scanned_at = now_ms
            await self._outbox_scan.scan(now_ms)

    async def _first_from(self, number: int) -> int | None:
        """Return the first segment after `number` in a listing, or None."""
        with as_unavailable():
            async for page in self._documents.bucket.pages(layout.JOURNAL, layout.segment(number)):
                for item in page:
                    return int(layout.stem(item.key))
        return None

    # --- Trimming --------------------------------------------------------------------------------------------

    async def trim(self, limit: int, now_ms: int) -> int:
        """Delete segments whose events are all past their retention, and return how many events they had. The last
        segment stays, because it holds the highest number."""
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
            await self._documents.delete([layout.segment(self._first)])
            trimmed += len(segment.events) or 1
            self._first += 1
            self._first_at = None
        return trimmed

    def next_trim_at(self) -> int | None:
        """Return when the oldest segment passes its retention; None if that is unknown or it has to stay."""
        if self._first_at is None or self._first >= self._emptied_upto:
            return None
        return self._first_at + self._retention_ms


def _in_order(outboxes: list[list[OutboxEvent]]) -> list[OutboxEvent]:
    """Return the events by time. Events of one message keep their order, even if the clocks of their processes
    disagree."""
    keyed: list[tuple[tuple[int, int], int, OutboxEvent]] = []
    for outbox in outboxes:
        time_and_order = (0, 0)
        for note in outbox:
            time_and_order = max(time_and_order, (note.event.at, note.order))
            keyed.append((time_and_order, note.number, note))
    keyed.sort(key=lambda each: each[:2])
    return [note for _, _, note in keyed]
