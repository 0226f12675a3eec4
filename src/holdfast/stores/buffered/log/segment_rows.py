"""The calls in a server's log as rows, segment by segment, for jobs that read it in bulk."""

from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import InvalidArgument
from holdfast.stores.buffered.log.reader import SegmentFile, read_calls, segment_files
from holdfast.stores.buffered.log.segments import SUFFIX, file_name
from holdfast.stores.formats.logged_enqueue import encode_call


class CallRow(NamedTuple):
    """A call of `enqueue` with its position in the log, as `land` takes it.

    The fields are columns of a public table. `lane` is the database's number and `place` the record's number. The
    numbers from `span_first` to before `span_end` contain no calls other than those of these rows.
    """

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
    """Return the directory itself if it is a log, else the logs directly in it. Raise `InvalidArgument` if it is no
    directory."""
    directory = Path(path)
    if not directory.is_dir():
        raise InvalidArgument(
            f"{directory} is not a directory; give a server's wal_dir, or a directory that contains several",
            field="path",
        )
    found = [
        each for each in (directory, *sorted(directory.iterdir())) if each.is_dir() and any(each.glob(f"*{SUFFIX}"))
    ]
    return [str(each) for each in found]


class SegmentFiles:
    """The segments of one log."""

    def __init__(self, log: str, *, is_over: bool) -> None:
        """`is_over` says that no process has the log open, nor will have before it has landed; then its very end is
        read too."""
        self._log = Path(log)
        self._is_over = is_over

    def numbers(self) -> list[int]:
        """Return the numbers of the complete segments, in order."""
        files = segment_files(self._log)
        # Of the segments before the last one, only the newest can be undecided: the segment after it decides its end.
        settled = len(files) - (0 if self._is_over else 1)
        if settled > 0 and not read_calls(files[settled - 1], is_over=self._is_over).is_whole:
            settled -= 1
        return [each.number for each in files[: max(settled, 0)]]

    def calls(self, number: int) -> list[CallRow]:
        """Return the calls of a segment; none if it no longer exists: a server removes a segment only when all of it is
        stored."""
        file = SegmentFile(self._log / file_name(number), number)
        return [
            CallRow(
                node=str(batch.node),
                epoch=batch.epoch,
                segment=number,
                lane=batch.shard,
                place=number,
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
            for number, call in batch.calls
        ]
