"""A server's log read by others, while it is written to or after its server is gone: segment by segment, as calls."""

from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import InvalidArgument
from holdfast.stores.buffered.records import Kind
from holdfast.stores.buffered.segments import SUFFIX, file_name, list_segments, read_segment
from holdfast.stores.buffered.wal import decode_places
from holdfast.stores.logged import decode_call


class CallRow(NamedTuple):
    """One call of `enqueue`, with its place in the log: what `land` takes."""

    node: str
    epoch: int
    segment: int
    lane: int
    place: int
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
    def __init__(self, log: str) -> None:
        self._log = Path(log)

    def numbers(self, *, with_last: bool) -> list[int]:
        """Segments that are whole, in order. The last one is still written to, unless its server is gone."""
        found = [int(each.stem) for each in list_segments(self._log)]
        return found if with_last else found[:-1]

    def calls(self, number: int) -> list[CallRow]:
        """Of one segment, but for those that a later record takes back: their callers were refused.

        None of a segment that is no longer there: the server removes one only when all of it is stored.
        """
        paths = [each for each in list_segments(self._log) if int(each.stem) >= number]
        if not paths or paths[0].name != file_name(number):
            return []
        segments = [read_segment(each, may_be_torn=each is paths[-1]) for each in paths]
        void = {
            (segment.header.epoch, lane, place)
            for segment in segments
            for record in segment.records
            if record.kind is Kind.VOID
            for lane, place in decode_places(record.body)
        }
        header = segments[0].header
        rows = []
        for record in segments[0].records:
            if record.kind is not Kind.MESSAGES or (header.epoch, record.lane, record.place) in void:
                continue
            call = decode_call(record.body)
            rows.append(
                CallRow(
                    node=str(header.node),
                    epoch=header.epoch,
                    segment=number,
                    lane=record.lane,
                    place=record.place,
                    tenant=call.tenant,
                    queue=call.queue,
                    queue_id=call.queue_id,
                    enqueued_at=call.enqueued_at,
                    messages=len(call.messages),
                    call=record.body,
                )
            )
        return rows
