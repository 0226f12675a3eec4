"""Checks of the journal: its segments follow one another, and its last word on each message is what is stored."""

import asyncio
from contextlib import suppress
from typing import NamedTuple

import msgspec

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

_segment_of = msgspec.msgpack.Decoder(SegmentBody).decode


class Last(NamedTuple):
    """The last event of a message, wherever it was then."""

    ref: QueueRef
    event: Event
    version: int


class _Reading:
    def __init__(self, looking: VerifyReader, findings: Findings) -> None:
        self._looking = looking
        self._findings = findings
        self.last: dict[int, Last] = {}
        self.first: int | None = None
        self.next = 1

    async def begin(self) -> None:
        async for page in self._looking.bucket.pages(layout.JOURNAL):
            for item in page:
                self.first = self.next = int(layout.own_name(item.key))
                return

    async def go_on(self) -> None:
        """Up to its end, from where it was read before."""
        while True:
            key = layout.segment(self.next)
            body = await self._looking.sheet(key)
            if body is None:
                return
            try:
                segment = _segment_of(body)
            except msgspec.MsgspecError as error:
                raise StoreUnavailable(f"{key} is damaged: {error}") from None
            expected = range(self.next * PER_SEGMENT, self.next * PER_SEGMENT + len(segment.events))
            if [event.seq for event in segment.events] != list(expected):
                self._findings.add(f"the events of journal segment {self.next} are not numbered without a gap")
            for event in segment.events:
                self.last[event.snowflake] = Last(QueueRef(event.tenant, event.queue), event.event, event.version)
            self._findings.totals["events"] += len(segment.events)
            self.next += 1
            self._findings.progress("journal", self.next, self.next)


async def check_journal(
    looking: VerifyReader, found: dict[int, FoundMessage], directory: DirectoryFound, findings: Findings, pause_s: float
) -> None:
    reading = _Reading(looking, findings)
    await reading.begin()
    await reading.go_on()
    await _check_end(looking, reading, directory, findings)
    for ref in sorted(directory.without_policy & {last.ref for last in reading.last.values()}):
        await check_policy(looking, ref, "the journal has events of it", findings)
    suspects = [id for id, last in reading.last.items() if _wrong(last, found.get(id)) is not None]
    wrong: dict[int, str] = {}
    # What is not there was deleted meanwhile, or changed since: its last word is in the journal by then.
    for _ in range(_TRIES):
        if not suspects:
            return
        await asyncio.sleep(pause_s)
        refs = {id: reading.last[id].ref for id in suspects}
        before = await _find_all(looking, refs)
        await reading.go_on()
        # Of one that stood still while the journal was read to its end, that has the last word.
        places = {id: place for id, place in (await _find_all(looking, refs)).items() if before.get(id) == place}
        wrong = {id: what for id, place in places.items() if (what := _wrong(reading.last[id], place)) is not None}
        suspects = list(wrong)
    for id, what in wrong.items():
        ref = reading.last[id].ref
        if ref in directory.queues:
            findings.add(what, ref, to_bytes(id))


async def _check_end(looking: VerifyReader, reading: _Reading, directory: DirectoryFound, findings: Findings) -> None:
    """A segment behind one that is not there would never be read."""
    async for page in looking.bucket.pages(layout.JOURNAL, layout.segment(reading.next)):
        beyond = [int(layout.own_name(item.key)) for item in page]
        if beyond and not await looking.is_there(layout.segment(reading.next)):
            findings.add(f"the journal has a gap: segment {reading.next} is not there, {beyond[0]} is")
        break
    if reading.next > 2 and not directory.has_journal_head and not await looking.is_there(layout.JOURNAL_HEAD):
        # It is written after each segment: a crash may have come before the first time.
        findings.add(f"{layout.JOURNAL_HEAD} is missing, but the journal has segments up to {reading.next - 1}")
    if directory.emptied_upto >= reading.next:
        findings.add(
            f"the journal's outboxes are emptied up to segment {directory.emptied_upto}, but it ends before "
            f"{reading.next}"
        )


def _wrong(last: Last, place: FoundMessage | None) -> str | None:
    """What of the last word in the journal does not fit what is stored; events still waiting there come after it."""
    body = None if place is None else place.body
    if body is not None and body.outbox:
        newest = body.outbox[-1].event
        event, version = newest.event, newest.version
    else:
        event, version = last.event, last.version
    after = STATES_AFTER[event]
    if body is None or not body.is_message:
        return None if None in after or body is not None else f"its last event is {event}, but it is not there"
    if body.life.state not in after:
        return f"its last event is {event}, but it is {body.life.state}"
    return (
        None
        if body.life.version == version
        else (f"its last event is of version {version}, but it has version {body.life.version}")
    )


async def _find_all(looking: VerifyReader, refs: dict[int, QueueRef]) -> dict[int, FoundMessage | None]:
    """Of each that can be read: where it is, if it is anywhere."""
    found: dict[int, FoundMessage | None] = {}

    async def look(id: int) -> None:
        with suppress(StoreUnavailable):  # named already, as a message
            found[id] = await _find(looking, refs[id], id)

    await looking.each(refs, look)
    return found


async def _find(looking: VerifyReader, ref: QueueRef, id: int) -> FoundMessage | None:
    """The message, or the sheet that says it is gone; wherever it moved."""
    for dead in (False, True):
        key: str | None = layout.message(ref, id, dead=dead)
        for _ in range(_TRIES):
            body = None if key is None else await read_message(looking, key)
            if key is None or body is None:
                break
            if body.moved_to is None:
                return FoundMessage(key, body)
            key = body.moved_to
    return None
