"""A server's log for those who read it in bulk: segment by segment, as rows."""

from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import InvalidArgument
from holdfast.stores.buffered.log.reader import SegmentFile, read_calls, segment_files
from holdfast.stores.buffered.log.segments import SUFFIX, file_name
from holdfast.stores.formats.logged_enqueue import encode_call


class CallRow(NamedTuple):
    """One call of `enqueue`, with its place in the log: what `land` takes. Places from `span_first` to before
    `span_end` have no other calls than these rows."""

    node: str
    epoch: int
    segment: int
    lane: int
    place: int
    span_first: int
    span_end: int
    tenant: str
    queue: str
    queue_id: int
    enqueued_at: int
    messages: int
    call: bytes


def find_logs(path: str) -> list[str]:
    """The directory itself if it is a log, else those in it that are."""
    place = Path(path)
    if not place.is_dir():
        raise InvalidArgument(
            f"{place} is no directory: give a server's wal_dir, or one that has several", field="path"
        )
    found = [each for each in (place, *sorted(place.iterdir())) if each.is_dir() and any(each.glob(f"*{SUFFIX}"))]
    return [str(each) for each in found]


class SegmentFiles:
    """`is_over`: nobody has the log open, nor will before it has landed; so its very end is read too."""

    def __init__(self, log: str, *, is_over: bool) -> None:
        self._log = Path(log)
        self._is_over = is_over

    def numbers(self) -> list[int]:
        """Segments of which nothing more will come, in order."""
        files = segment_files(self._log)
        # Of those before the last one only the newest can be undecided, for what stands behind it says its end.
        settled = len(files) - (0 if self._is_over else 1)
        if settled > 0 and not read_calls(files[settled - 1], is_over=self._is_over).is_whole:
            settled -= 1
        return [each.number for each in files[: max(settled, 0)]]

    def calls(self, number: int) -> list[CallRow]:
        """None of a segment that is no longer there: a server removes one only when all of it is stored."""
        file = SegmentFile(self._log / file_name(number), number)
        return [
            CallRow(
                node=str(batch.node),
                epoch=batch.epoch,
                segment=number,
                lane=batch.lane,
                place=place,
                span_first=batch.span.start,
                span_end=batch.span.stop,
                tenant=call.tenant,
                queue=call.queue,
                queue_id=call.queue_id,
                enqueued_at=call.enqueued_at,
                messages=len(call.messages),
                call=encode_call(call),
            )
            for batch in read_calls(file, is_over=self._is_over).batches
            for place, call in batch.calls
        ]
