"""Check the journal: its segments have no gap, and its last event of each message fits what is stored."""

from contextlib import suppress
from typing import NamedTuple

import msgspec

from holdfast.background import sleep_for
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import Event
from holdfast.model.ids import to_bytes
from holdfast.model.names import QueueRef
from holdfast.stores.findings import STATES_AFTER, Findings
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.document_format import SegmentBody
from holdfast.stores.objects.journal.journal import PER_SEGMENT
from holdfast.stores.objects.verify.directory import DirectoryFound, check_policy
from holdfast.stores.objects.verify.message import read_message
from holdfast.stores.objects.verify.queue import FoundMessage
from holdfast.stores.objects.verify.reader import VerifyReader

_TRIES = 3

_decode_segment = msgspec.msgpack.Decoder(SegmentBody).decode


class LastEvent(NamedTuple):
    """The last event of a message, in whichever queue."""

    ref: QueueRef
    event: Event
    version: int


class _JournalReader:
    """The journal as it is read, possibly in several turns."""

    def __init__(self, reader: VerifyReader, findings: Findings) -> None:
        self._reader = reader
        self._findings = findings
        self.last: dict[int, LastEvent] = {}
        self.next = 1

    async def begin(self) -> None:
        async for page in self._reader.bucket.pages(layout.JOURNAL):
            for item in page:
                self.next = int(layout.stem(item.key))
                return

    async def read_on(self) -> None:
        """Read to the end, from the segment after the last one read."""
        while True:
            key = layout.segment(self.next)
            body = await self._reader.read_document(key)
            if body is None:
                return
            try:
                segment = _decode_segment(body)
            except msgspec.MsgspecError as error:
                raise StoreUnavailable(f"{key} is damaged: {error}") from None
            expected = range(self.next * PER_SEGMENT, self.next * PER_SEGMENT + len(segment.events))
            if [event.seq for event in segment.events] != list(expected):
                self._findings.add(f"the events of journal segment {self.next} are not numbered without a gap")
            for event in segment.events:
                self.last[event.snowflake] = LastEvent(QueueRef(event.tenant, event.queue), event.event, event.version)
            self._findings.totals["events"] += len(segment.events)
            self.next += 1
            self._findings.progress("journal", self.next, self.next)


async def check_journal(
    reader: VerifyReader, found: dict[int, FoundMessage], directory: DirectoryFound, findings: Findings, pause_ms: int
) -> None:
    """Compare the journal with the messages `found`."""
    journal = _JournalReader(reader, findings)
    await journal.begin()
    await journal.read_on()
    await _check_end(reader, journal, directory, findings)
    for ref in sorted(directory.without_policy & {last.ref for last in journal.last.values()}):
        await check_policy(reader, ref, "the journal has events of it", findings)
    suspects = [id for id, last in journal.last.items() if _find_mismatch(last, found.get(id)) is not None]
    wrong: dict[int, str] = {}
    # A missing message was deleted meanwhile, or moved: its last event is in the journal by now.
    for _ in range(_TRIES):
        if not suspects:
            return
        await sleep_for(reader.clock, pause_ms)
        refs = {id: journal.last[id].ref for id in suspects}
        before = await _find_all(reader, refs)
        await journal.read_on()
        # Only a message that did not change while the journal was read to its end can be compared.
        messages = {id: message for id, message in (await _find_all(reader, refs)).items() if before.get(id) == message}
        wrong = {
            id: what
            for id, message in messages.items()
            if (what := _find_mismatch(journal.last[id], message)) is not None
        }
        suspects = list(wrong)
    for id, what in wrong.items():
        ref = journal.last[id].ref
        if ref in directory.queues:
            findings.add(what, ref, to_bytes(id))


async def _check_end(
    reader: VerifyReader, journal: _JournalReader, directory: DirectoryFound, findings: Findings
) -> None:
    """Check for segments after the end: they would never be read."""
    async for page in reader.bucket.pages(layout.JOURNAL, layout.segment(journal.next)):
        beyond = [int(layout.stem(item.key)) for item in page]
        if beyond and not await reader.is_there(layout.segment(journal.next)):
            findings.add(f"the journal has a gap: segment {journal.next} is missing, but {beyond[0]} exists")
        break
    if journal.next > 2 and not directory.has_journal_head and not await reader.is_there(layout.JOURNAL_HEAD):
        # The head is written after each segment, so a crash may have come before its first write.
        findings.add(f"{layout.JOURNAL_HEAD} is missing, but the journal has segments up to {journal.next - 1}")
    if directory.emptied_upto >= journal.next:
        findings.add(
            f"the journal's outboxes are emptied up to segment {directory.emptied_upto}, but it ends before "
            f"{journal.next}"
        )


def _find_mismatch(last: LastEvent, message: FoundMessage | None) -> str | None:
    """Return how the last event contradicts the stored message, or None. Events in the outbox come after the
    journal's."""
    body = None if message is None else message.body
    if body is not None and body.outbox:
        newest = body.outbox[-1].event
        event, version = newest.event, newest.version
    else:
        event, version = last.event, last.version
    after = STATES_AFTER[event]
    if body is None or not body.is_message:
        return None if None in after or body is not None else f"its last event is {event}, but the message is missing"
    if body.life.state not in after:
        return f"its last event is {event}, but it is {body.life.state}"
    return (
        None
        if body.life.version == version
        else (f"its last event is of version {version}, but it has version {body.life.version}")
    )


async def _find_all(reader: VerifyReader, refs: dict[int, QueueRef]) -> dict[int, FoundMessage | None]:
    """Return the message of each id that can be read; None where there is none."""
    found: dict[int, FoundMessage | None] = {}

    async def look(id: int) -> None:
        with suppress(StoreUnavailable):  # already reported by the check of messages
            found[id] = await _find(reader, refs[id], id)

    await reader.each(refs, look)
    return found


async def _find(reader: VerifyReader, ref: QueueRef, id: int) -> FoundMessage | None:
    """Return the message or its ended metadata, wherever it moved."""
    for dead in (False, True):
        key: str | None = layout.message(ref, id, dead=dead)
        for _ in range(_TRIES):
            body = None if key is None else await read_message(reader, key)
            if key is None or body is None:
                break
            if body.moved_to is None:
                return FoundMessage(key, body)
            key = body.moved_to
    return None
