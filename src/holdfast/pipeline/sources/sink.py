"""Messages written from Spark, by many tasks at once."""

import json
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.model.errors import InvalidArgument
from holdfast.model.message import Draft, NewMessage
from holdfast.model.names import QueueRef
from holdfast.pipeline.sources.claims import OpenClient
from holdfast.pipeline.sources.drafts import Shape, drafts_of, is_plain, messages_of, rows_of, shape_of
from holdfast.pipeline.sources.options import PLACE, StoreAddress, count, flag, names, parse_options, place_of, text

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTIONS = {
    **PLACE,
    "tenant": text,
    "queue": text,
    "keyColumns": names,
    "dedup": flag,
    "contentType": text,
    "batchSize": count,
    "countsFile": text,
}
_BATCH = 1_000
# Of payloads in one call.
_BATCH_BYTES = 4 << 20
# In bulk, of one transaction: others' journals wait for its end.
_BULK = 20_000
_BULK_BYTES = 16 << 20


class Landing(Protocol):
    """Where messages go: one call is all or nothing, and the queue knows a key it has seen."""

    def put(self, ref: QueueRef, messages: list[NewMessage]) -> int:
        """Answers how many of them were new."""

    def close(self) -> None: ...


@runtime_checkable
class BulkLanding(Protocol):
    """Where messages of any number of queues go at once: a call is all or nothing on each database it concerns."""

    def load(self, drafts: Mapping[QueueRef, list[Draft]]) -> int:
        """Answers how many of them were new."""

    def load_rows(self, rows: pa.RecordBatch) -> int:
        """As `load`, of the columns of `drafts.rows_of`."""

    def close(self) -> None: ...


class OpenLanding(Protocol):
    def __call__(self, place: StoreAddress) -> Landing | BulkLanding: ...


@dataclass(frozen=True)
class Writing:
    place: StoreAddress
    shape: Shape
    # None: as many as suit the landing.
    batch_size: int | None
    counts_file: str | None


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task did: of its rows, how many were new to the queue."""

    rows: int
    enqueued: int


def writing_of(given: Mapping[str, str], schema: "StructType", *, overwrite: bool) -> Writing:
    if overwrite:
        raise InvalidArgument("messages are added to a queue: write with mode('append')", field="mode")
    options = parse_options("a holdfast sink", given, OPTIONS)
    shape = shape_of(
        to_arrow_schema(schema, timezone="UTC"),
        tenant=options.get("tenant"),
        queue=options.get("queue"),
        key_columns=options.get("keyColumns", ()),
        dedup=options.get("dedup", True),
        content_type=options.get("contentType"),
    )
    return Writing(
        place=place_of("holdfast", options),
        shape=shape,
        batch_size=options.get("batchSize"),
        counts_file=options.get("countsFile"),
    )


def write_rows(writing: Writing, open_landing: OpenLanding, batches: Iterable[pa.RecordBatch]) -> Written:
    """One task. Nothing is kept of what it has done but what the queue keeps: another attempt does it again."""
    landing = open_landing(writing.place)
    try:
        if not isinstance(landing, BulkLanding):
            return _put(writing, landing, batches)
        return (_load_rows if is_plain(writing.shape) else _load)(writing, landing, batches)
    finally:
        landing.close()


def _put(writing: Writing, landing: Landing, batches: Iterable[pa.RecordBatch]) -> Written:
    rows = enqueued = 0
    for batch in batches:
        rows += batch.num_rows
        for ref, messages in _calls(messages_of(batch, writing.shape), writing.batch_size or _BATCH):
            enqueued += landing.put(ref, messages)
    return Written(rows, enqueued)


def _load(writing: Writing, landing: BulkLanding, batches: Iterable[pa.RecordBatch]) -> Written:
    rows = enqueued = 0
    for batch in batches:
        rows += batch.num_rows
        for drafts in _bulks(drafts_of(batch, writing.shape), writing.batch_size or _BULK):
            enqueued += landing.load(drafts)
    return Written(rows, enqueued)


def _load_rows(writing: Writing, landing: BulkLanding, batches: Iterable[pa.RecordBatch]) -> Written:
    rows = enqueued = 0
    for bulk in _joined((rows_of(batch, writing.shape) for batch in batches), writing.batch_size or _BULK):
        rows += bulk.num_rows
        enqueued += landing.load_rows(bulk)
    return Written(rows, enqueued)


def _joined(batches: Iterable[pa.RecordBatch], batch_size: int) -> Iterator[pa.RecordBatch]:
    """In pieces of a transaction's size, whatever that of Spark's batches."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        ends = pc.cumulative_sum(pc.binary_length(batch.column("payload")).cast(pa.int64())).to_pylist()
        first = done = 0
        while first < batch.num_rows:
            # Up to the row with which it is large enough.
            end = min(first + batch_size - count, bisect_left(ends, done + _BULK_BYTES - size) + 1, batch.num_rows)
            waiting.append(batch.slice(first, end - first))
            count, size = count + end - first, size + ends[end - 1] - done
            if count >= batch_size or size >= _BULK_BYTES:
                yield pa.concat_batches(waiting)
                waiting, count, size = [], 0, 0
            first, done = end, ends[end - 1]
    if waiting:
        yield pa.concat_batches(waiting)


def _bulks(drafts: Iterable[tuple[QueueRef, Draft]], batch_size: int) -> Iterator[dict[QueueRef, list[Draft]]]:
    bulk: dict[QueueRef, list[Draft]] = {}
    count = size = 0
    for ref, draft in drafts:
        if ref in bulk:
            bulk[ref].append(draft)
        else:
            bulk[ref] = [draft]
        count += 1
        size += len(draft.payload)
        if count >= batch_size or size >= _BULK_BYTES:
            yield bulk
            bulk, count, size = {}, 0, 0
    if bulk:
        yield bulk


def _calls(
    messages: Iterable[tuple[QueueRef, NewMessage]], batch_size: int
) -> Iterator[tuple[QueueRef, list[NewMessage]]]:
    waiting: defaultdict[QueueRef, list[NewMessage]] = defaultdict(list)
    sizes: defaultdict[QueueRef, int] = defaultdict(int)
    for ref, message in messages:
        waiting[ref].append(message)
        sizes[ref] += len(message.payload) if isinstance(message.payload, bytes) else len(bytes(message.payload))
        if len(waiting[ref]) >= batch_size or sizes[ref] >= _BATCH_BYTES:
            yield ref, waiting.pop(ref)
            sizes.pop(ref)
    yield from waiting.items()


class ClientLanding:
    """By the client: over HTTP, or into whatever store it opens."""

    def __init__(self, open_client: OpenClient, place: StoreAddress) -> None:
        self._client = open_client(place)

    def put(self, ref: QueueRef, messages: list[NewMessage]) -> int:
        ids = self._client.queue(ref.queue, tenant=ref.tenant).enqueue(messages)
        return sum(not each.duplicate for each in ids)

    def close(self) -> None:
        self._client.close()


def _tell(writing: Writing, written: Iterable[WriterCommitMessage | None], batch: int | None) -> None:
    """For whoever asked: one JSON line for each job, or for each batch of a stream."""
    if writing.counts_file is None:
        return
    tasks = [each for each in written if isinstance(each, Written)]
    told = {
        "batch": batch,
        "rows": sum(each.rows for each in tasks),
        "enqueued": sum(each.enqueued for each in tasks),
    }
    with open(writing.counts_file, "a", encoding="utf-8") as file:
        file.write(json.dumps(told) + "\n")
        file.flush()
        os.fsync(file.fileno())


class QueueWriter(DataSourceArrowWriter):
    def __init__(self, writing: Writing, open_landing: OpenLanding) -> None:
        self._writing = writing
        self._open_landing = open_landing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self._writing, self._open_landing, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell(self._writing, messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What finished tasks have enqueued stays: the job run again finds its keys taken."""


class QueueStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, writing: Writing, open_landing: OpenLanding) -> None:
        self._writing = writing
        self._open_landing = open_landing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self._writing, self._open_landing, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _tell(self._writing, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """As for a batch: the next try finds the keys taken."""
