"""Check the journal: its segments have no gap, and its last event of each message fits what is stored."""

from contextlib import suppress
from typing import NamedTuple

from holdfast.background import sleep_for
from holdfast.model.errors import StoreUnavailable
from holdfast.model.events import JournalEvent
from holdfast.model.ids import to_bytes
from holdfast.model.invariants.damage import DamageKind, Problem
from holdfast.model.invariants.journal import EventStep, check_last_event, check_next_event
from holdfast.model.names import QueueRef
from holdfast.stores.findings import Findings
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import SegmentBody
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder, DamagedBody
from holdfast.stores.objects.journal.journal import PER_SEGMENT
from holdfast.stores.objects.verify.directory import DirectoryFound, report_lost_policy
from holdfast.stores.objects.verify.message import read_message
from holdfast.stores.objects.verify.queue import FoundMessage
from holdfast.stores.objects.verify.reader import VerifyReader

_TRIES = 3

_decode_segment = BodyDecoder(SegmentBody)


class LastEvent(NamedTuple):
    """The last event of a message, in whichever queue."""

    ref: QueueRef
    step: EventStep


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
            except DamagedBody as error:
                raise StoreUnavailable(f"{key} is damaged: {error}") from None
            expected = range(self.next * PER_SEGMENT, self.next * PER_SEGMENT + len(segment.events))
            if [event.seq for event in segment.events] != list(expected):
                self._findings.add(
                    DamageKind.JOURNAL_GAP, f"the events of journal segment {self.next} are not numbered without a gap"
                )
            for event in segment.events:
                self._note(event)
            self._findings.totals["events"] += len(segment.events)
            self.next += 1
            self._findings.progress("journal", self.next, self.next)

    def _note(self, event: JournalEvent) -> None:
        """Note an event as its message's last one, and check that it may follow the previous one."""
        ref, id = QueueRef(event.tenant, event.queue), event.snowflake
        step = EventStep(event.event, event.attempt, event.version, event.reason)
        before = self.last.get(id)
        if before is not None:
            self._findings.add_all(check_next_event(before.step, step), ref, to_bytes(id))
        self.last[id] = LastEvent(ref, step)


async def check_journal(
    reader: VerifyReader, found: dict[int, FoundMessage], directory: DirectoryFound, findings: Findings, pause_ms: int
) -> None:
    """Compare the journal with the messages `found`."""
    journal = _JournalReader(reader, findings)
    await journal.begin()
    await journal.read_on()
    await _check_end(reader, journal, directory, findings)
    for ref in sorted(directory.without_policy & {last.ref for last in journal.last.values()}):
        await report_lost_policy(reader, ref, "the journal has events of it", findings)
    suspects = [id for id, last in journal.last.items() if _find_mismatch(last, found.get(id)) is not None]
    wrong: dict[int, Problem] = {}
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
            id: problem
            for id, message in messages.items()
            if (problem := _find_mismatch(journal.last[id], message)) is not None
        }
        suspects = list(wrong)
    for id, problem in wrong.items():
        ref = journal.last[id].ref
        if ref in directory.queues:
            findings.add(*problem, ref, to_bytes(id))


async def _check_end(
    reader: VerifyReader, journal: _JournalReader, directory: DirectoryFound, findings: Findings
) -> None:
    """Check for segments after the end: they would never be read."""
    async for page in reader.bucket.pages(layout.JOURNAL, layout.segment(journal.next)):
        beyond = [int(layout.stem(item.key)) for item in page]
        if beyond and not await reader.is_there(layout.segment(journal.next)):
            findings.add(
                DamageKind.JOURNAL_GAP,
                f"the journal has a gap: segment {journal.next} is missing, but {beyond[0]} exists",
            )
        break
    if journal.next > 2 and not directory.has_journal_head and not await reader.is_there(layout.JOURNAL_HEAD):
        # The head is written after each segment, so a crash may have come before its first write.
        findings.add(
            DamageKind.JOURNAL_GAP,
            f"{layout.JOURNAL_HEAD} is missing, but the journal has segments up to {journal.next - 1}",
        )
    if directory.emptied_upto >= journal.next:
        findings.add(
            DamageKind.JOURNAL_GAP,
            f"the journal's outboxes are emptied up to segment {directory.emptied_upto}, but it ends before "
            f"{journal.next}",
        )


def _find_mismatch(last: LastEvent, message: FoundMessage | None) -> Problem | None:
    """Return how the last event contradicts the stored message, or None. Events in the outbox come after the
    journal's."""
    body = None if message is None else message.body
    if body is not None and body.outbox:
        newest = body.outbox[-1].event
        event, version = newest.event, newest.version
    else:
        event, version = last.step.event, last.step.version
    if body is None:
        return next(check_last_event(event, version, None, 0), None)
    if not body.is_message:
        return None  # a stub, or the metadata of a message that has ended
    return next(check_last_event(event, version, body.life.state, body.life.version), None)


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
    for possible in layout.possible_messages(ref, id):
        key: str | None = possible
        for _ in range(_TRIES):
            body = None if key is None else await read_message(reader, key)
            if key is None or body is None:
                break
            if body.moved_to is None:
                return FoundMessage(key, body)
            key = body.moved_to
    return None
