"""Read the journal of an object store in bulk, from its segments alone; any number of processes may do so.

Events still in their messages' outboxes are missing: those of the last seconds, and of processes that died and were not
swept since.
"""

import asyncio
from collections.abc import Iterator

import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.events import JournalEvent, parse_position
from holdfast.stores.objects.buckets.bucket import Unanswered
from holdfast.stores.objects.buckets.bucket_url import make_bucket
from holdfast.stores.objects.documents import layout
from holdfast.stores.objects.documents.bodies import SegmentBody
from holdfast.stores.objects.documents.protobuf_mapping import BodyDecoder
from holdfast.stores.objects.journal.journal import PER_SEGMENT
from holdfast.stores.objects.verify.reader import VerifyReader
from holdfast.wire.arrow import EVENT_FIELDS

_BATCH = 20_000

_decode_segment = BodyDecoder(SegmentBody)


class ObjectJournal:
    """The segments of a store as ranges of positions. Between two positions there are always the same events."""

    def __init__(self, url: str, tenant: str | None) -> None:
        """Open the journal of the store at `url`, for one tenant or for all. Raise `InvalidArgument` if there is no
        store."""
        self._bucket = make_bucket(url, syncs=False)
        self._reader = VerifyReader(self._bucket, SystemClock())
        self._tenant = tenant
        self._runner = asyncio.Runner()
        if self._runner.run(self._first_from(None, layout.INTERNAL)) is None:
            self.close()
            raise InvalidArgument(f"{url} holds no store; pass the URL given to `holdfast.open`", field="url")

    def measure(self, after: str | None, limit: int, until: str | None) -> tuple[int, str]:
        """Return the number of events after the position, at most `limit`, and the position of the last one."""
        position, found = parse_position(after), 0
        for event in self._events(after, until):
            if found == limit:
                break
            position = event.seq
            found += self._is_wanted(event)
        return found, str(position)

    def read(self, after: str | None, until: str) -> Iterator[pa.RecordBatch]:
        """Yield the events after `after` up to `until`, in batches of at most 20,000."""
        events: list[JournalEvent] = []
        for event in self._events(after, until):
            if self._is_wanted(event):
                events.append(event)
            if len(events) == _BATCH:
                yield _batch(events)
                events = []
        if events:
            yield _batch(events)

    def close(self) -> None:
        """Close the bucket."""
        self._runner.run(self._bucket.close())
        self._runner.close()

    def _is_wanted(self, event: JournalEvent) -> bool:
        return self._tenant is None or event.tenant == self._tenant

    def _events(self, after: str | None, until: str | None) -> Iterator[JournalEvent]:
        position = parse_position(after)
        end = None if until is None else parse_position(until)
        number: int | None = max(1, position // PER_SEGMENT)
        while number is not None:
            segment = self._runner.run(self._segment(number))
            if segment is None:
                # The segment was trimmed, or the journal ends here.
                number = self._runner.run(self._first_from(layout.segment(number), layout.JOURNAL))
                continue
            for event in segment.events:
                if end is not None and event.seq > end:
                    return
                if event.seq > position:
                    yield event
            number += 1

    async def _segment(self, number: int) -> SegmentBody | None:
        try:
            body = await self._reader.read_document(layout.segment(number))
        except Unanswered as error:
            raise StoreUnavailable(f"{self._bucket.url} does not respond: {error}") from None
        return None if body is None else _decode_segment(body)

    async def _first_from(self, after: str | None, prefix: str) -> int | None:
        """Return the number of the first listed object after `after`, 0 if its key has none; None if there is no
        object."""
        try:
            async for page in self._bucket.pages(prefix, after):
                for item in page:
                    return layout.parse_id(item.key) or 0
        except Unanswered as error:
            raise StoreUnavailable(f"{self._bucket.url} does not respond: {error}") from None
        return None


def _batch(events: list[JournalEvent]) -> pa.RecordBatch:
    columns: dict[str, list[object]] = {
        name: [getattr(event, name) for event in events] for name in EVENT_FIELDS if name != "event"
    }
    columns["event"] = [event.event.value for event in events]
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[name], getattr(pa, kind)()) for name, (kind, _) in EVENT_FIELDS.items()],
        names=list(EVENT_FIELDS),
    )
