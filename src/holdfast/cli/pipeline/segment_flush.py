"""Flushing of one log segment. Spark's workers import this module by its name."""

from functools import partial
from pathlib import Path

from holdfast.pipeline.jobs.flush import FlushSegment, SegmentDone, SegmentToFlush


def list_segments(directories: list[Path]) -> list[SegmentToFlush]:
    """List the segments of all log directories."""
    from holdfast.stores.buffered.log.reader import segment_files

    return [
        SegmentToFlush(path=str(file.path), number=file.number)
        for directory in directories
        for file in segment_files(directory)
    ]


def flusher(urls: list[str], *, is_over: bool, is_dry_run: bool) -> FlushSegment:
    """Return the function that flushes one segment to the databases. It can be pickled."""
    return partial(flush_segment, urls, is_over, is_dry_run)


def flush_segment(urls: list[str], is_over: bool, is_dry_run: bool, segment: SegmentToFlush) -> SegmentDone:
    """Flush the calls of one segment, and count those that are in no database afterwards."""
    from holdfast.stores.buffered.log.reader import SegmentFile, read_calls
    from holdfast.stores.postgres.landing.flushing import FlushResult, flush, landed

    reading = read_calls(SegmentFile(Path(segment.path), segment.number), segment.start, is_over=is_over)
    calls = [call for batch in reading.batches for _, call in batch.calls]
    done = FlushResult(0, 0, 0) if is_dry_run or not reading.batches else flush(urls, reading.batches)
    open_calls = 0
    for node, epoch, shard in {(each.node, each.epoch, each.shard) for each in reading.batches}:
        landed_ranges = [] if is_dry_run else landed(urls, node, epoch, shard)
        mine = [each for each in reading.batches if (each.node, each.epoch, each.shard) == (node, epoch, shard)]
        open_calls += sum(
            not any(number in each for each in landed_ranges) for batch in mine for number, _ in batch.calls
        )
    return SegmentDone(
        path=segment.path,
        number=segment.number,
        end=segment.start if is_dry_run else reading.end,
        is_whole=reading.is_whole,
        calls=len(calls),
        messages=sum(len(call.messages) for call in calls),
        stored=done.stored,
        skipped=done.skipped,
        dropped=done.dropped,
        open=open_calls,
    )
