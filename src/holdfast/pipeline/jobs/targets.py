"""Where jobs put messages: through the sink by Spark's tasks, or from here into a store that only one process can have
open. A row is enqueued once by its key, however often it is offered."""

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


class Put(NamedTuple):
    """Rows offered, and how many of them the queue did not know yet."""

    rows: int
    enqueued: int


class WriteTarget(Protocol):
    def put(self, frame: "DataFrame") -> Put:
        """`frame` has columns of `NEW_MESSAGES`, among them payload, key, tenant and queue."""
        ...


class SinkTarget:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def put(self, frame: "DataFrame") -> Put:
        with tempfile.TemporaryDirectory(prefix="holdfast-put-") as place:
            counts = Path(place) / "counts"
            frame.write.format("holdfast").options(**self._options, countsFile=str(counts)).mode("append").save()
            told = json.loads(counts.read_text())
        return Put(told["rows"], told["enqueued"])


class OpenedTarget:
    def __init__(self, opened: "Holdfast") -> None:
        self._opened = opened

    def put(self, frame: "DataFrame") -> Put:
        from holdfast.pipeline.sources.drafts import messages_of, shape_of

        schema = NEW_MESSAGES.only(frame.columns).arrow
        shape = shape_of(schema, tenant=None, queue=None, key_columns=(), dedup=True, content_type=None)
        # A partition at a time: the frame may be larger than this process.
        rows = _without_timestamps(frame, schema).toLocalIterator(prefetchPartitions=True)
        offered = enqueued = 0
        while some := [row.asDict() for row in islice(rows, _BATCH)]:
            by_queue: dict[QueueRef, list[NewMessage]] = {}
            for ref, message in messages_of(pa.RecordBatch.from_pylist(some, schema=schema), shape):
                by_queue.setdefault(ref, []).append(message)
            for ref, messages in by_queue.items():
                ids = self._opened.queue(ref.queue, tenant=ref.tenant).enqueue(messages)
                enqueued += sum(not each.duplicate for each in ids)
            offered += len(some)
        return Put(offered, enqueued)


def _without_timestamps(frame: "DataFrame", schema: pa.Schema) -> "DataFrame":
    """Replace instants by their microseconds: rows would have them as local times without a zone."""
    from pyspark.sql import functions as F

    instants = {field.name for field in schema if field.type == INSTANT}
    return frame.select(*(F.unix_micros(name).alias(name) if name in instants else name for name in frame.columns))
