"""Targets of jobs that enqueue: the sink, which is written by Spark's tasks, and a store that this process has open.

A row is enqueued once per key, even if it is offered several times.
"""

import json
import tempfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from holdfast.model.message import NewMessage
from holdfast.model.names import QueueRef
from holdfast.pipeline.schemas import INSTANT, NEW_MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.client.blocking import Holdfast

_BATCH = 1_000


class PutResult(NamedTuple):
    """The number of rows that were offered, and the number of those that were new to the queue."""

    rows: int
    enqueued: int


class WriteTarget(Protocol):
    """A store in which a job enqueues messages."""

    def put(self, frame: "DataFrame") -> PutResult:
        """Enqueue the rows of a frame with columns of `NEW_MESSAGES`, at least payload, key, tenant and queue."""
        ...


class SinkTarget:
    """Enqueues through the Spark sink `holdfast`, by many tasks at once."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def put(self, frame: "DataFrame") -> PutResult:
        with tempfile.TemporaryDirectory(prefix="holdfast-put-") as directory:
            counts = Path(directory) / "counts"
            frame.write.format("holdfast").options(**self._options, countsFile=str(counts)).mode("append").save()
            written = json.loads(counts.read_text())
        return PutResult(written["rows"], written["enqueued"])


class OpenedTarget:
    """Enqueues from this process, for a store that only one process can have open."""

    def __init__(self, opened: "Holdfast") -> None:
        self._opened = opened

    def put(self, frame: "DataFrame") -> PutResult:
        from holdfast.pipeline.sources.drafts import make_messages, make_row_shape

        schema = NEW_MESSAGES.only(frame.columns).arrow
        shape = make_row_shape(schema, tenant=None, queue=None, key_columns=(), dedup=True, content_type=None)
        # One partition at a time, because the frame may be larger than this process's memory.
        rows = _without_timestamps(frame, schema).toLocalIterator(prefetchPartitions=True)
        offered = enqueued = 0
        while batch := [row.asDict() for row in islice(rows, _BATCH)]:
            by_queue: dict[QueueRef, list[NewMessage]] = {}
            for ref, message in make_messages(pa.RecordBatch.from_pylist(batch, schema=schema), shape):
                by_queue.setdefault(ref, []).append(message)
            for ref, messages in by_queue.items():
                ids = self._opened.queue(ref.queue, tenant=ref.tenant).enqueue(messages)
                enqueued += sum(not each.duplicate for each in ids)
            offered += len(batch)
        return PutResult(offered, enqueued)


def _without_timestamps(frame: "DataFrame", schema: pa.Schema) -> "DataFrame":
    """Replace instants by microseconds, because Spark's rows contain them as local times without a zone."""
    from pyspark.sql import functions as F

    instants = {field.name for field in schema if field.type == INSTANT}
    return frame.select(*(F.unix_micros(name).alias(name) if name in instants else name for name in frame.columns))
