"""The sink `holdfast`: enqueue messages from many Spark tasks at once."""

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
from holdfast.pipeline.sources.drafts import Shape, is_plain, make_drafts, make_messages, make_row_shape, make_rows
from holdfast.pipeline.sources.options import (
    STORE_OPTIONS,
    StoreAddress,
    count,
    flag,
    names,
    parse_options,
    parse_store_address,
    text,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTIONS = {
    **STORE_OPTIONS,
    "tenant": text,
    "queue": text,
    "keyColumns": names,
    "dedup": flag,
    "contentType": text,
    "batchSize": count,
    "countsFile": text,
}
_BATCH = 1_000
# The maximum size of payloads in one call.
_BATCH_BYTES = 4 << 20
# The maximum size of a bulk transaction. The journal waits for its end.
_BULK = 20_000
_BULK_BYTES = 16 << 20


class MessageWriter(Protocol):
    """A writer of messages. A call is atomic, and the queue recognises keys that it has seen."""

    def put(self, ref: QueueRef, messages: list[NewMessage]) -> int:
        """Enqueue messages, and return how many of them were new."""

    def close(self) -> None: ...


@runtime_checkable
class BulkMessageWriter(Protocol):
    """A writer of messages of several queues at once. A call is atomic on each database."""

    def load(self, drafts: Mapping[QueueRef, list[Draft]]) -> int:
        """Enqueue messages, and return how many of them were new."""

    def load_rows(self, rows: pa.RecordBatch) -> int:
        """Like `load`, for rows with the columns of `drafts.make_rows`."""

    def close(self) -> None: ...


class OpenWriter(Protocol):
    """A function that opens a writer for a store."""

    def __call__(self, store: StoreAddress) -> MessageWriter | BulkMessageWriter: ...


@dataclass(frozen=True)
class WriteOptions:
    """The parsed options of a write."""

    store: StoreAddress
    shape: Shape
    # None for the default of the writer.
    batch_size: int | None
    counts_file: str | None


@dataclass(frozen=True)
class RowsWritten(WriterCommitMessage):
    """The result of one task: its rows, and how many were new to the queue."""

    rows: int
    enqueued: int


def parse_write_options(given: Mapping[str, str], schema: "StructType", *, overwrite: bool) -> WriteOptions:
    """Parse the options of a write, and check the columns. Raise InvalidArgument before any row is written."""
    if overwrite:
        raise InvalidArgument("messages can only be appended to a queue: write with mode('append')", field="mode")
    options = parse_options("a holdfast sink", given, OPTIONS)
    shape = make_row_shape(
        to_arrow_schema(schema, timezone="UTC"),
        tenant=options.get("tenant"),
        queue=options.get("queue"),
        key_columns=options.get("keyColumns", ()),
        dedup=options.get("dedup", True),
        content_type=options.get("contentType"),
    )
    return WriteOptions(
        store=parse_store_address("holdfast", options),
        shape=shape,
        batch_size=options.get("batchSize"),
        counts_file=options.get("countsFile"),
    )


def write_rows(options: WriteOptions, open_writer: OpenWriter, batches: Iterable[pa.RecordBatch]) -> RowsWritten:
    """Write the rows of one task. A retried task writes all of them again, and the queue ignores known keys."""
    writer = open_writer(options.store)
    try:
        if not isinstance(writer, BulkMessageWriter):
            return _put(options, writer, batches)
        return (_load_rows if is_plain(options.shape) else _load)(options, writer, batches)
    finally:
        writer.close()


def _put(options: WriteOptions, writer: MessageWriter, batches: Iterable[pa.RecordBatch]) -> RowsWritten:
    rows = enqueued = 0
    for batch in batches:
        rows += batch.num_rows
        for ref, messages in _calls(make_messages(batch, options.shape), options.batch_size or _BATCH):
            enqueued += writer.put(ref, messages)
    return RowsWritten(rows, enqueued)


def _load(options: WriteOptions, writer: BulkMessageWriter, batches: Iterable[pa.RecordBatch]) -> RowsWritten:
    rows = enqueued = 0
    for batch in batches:
        rows += batch.num_rows
        for drafts in _bulks(make_drafts(batch, options.shape), options.batch_size or _BULK):
            enqueued += writer.load(drafts)
    return RowsWritten(rows, enqueued)


def _load_rows(options: WriteOptions, writer: BulkMessageWriter, batches: Iterable[pa.RecordBatch]) -> RowsWritten:
    rows = enqueued = 0
    for bulk in _regroup((make_rows(batch, options.shape) for batch in batches), options.batch_size or _BULK):
        rows += bulk.num_rows
        enqueued += writer.load_rows(bulk)
    return RowsWritten(rows, enqueued)


def _regroup(batches: Iterable[pa.RecordBatch], batch_size: int) -> Iterator[pa.RecordBatch]:
    """Regroup Spark's batches to the size of a transaction."""
    pending: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        ends = pc.cumulative_sum(pc.binary_length(batch.column("payload")).cast(pa.int64())).to_pylist()
        first = done = 0
        while first < batch.num_rows:
            # Up to the row that reaches the maximum size.
            end = min(first + batch_size - count, bisect_left(ends, done + _BULK_BYTES - size) + 1, batch.num_rows)
            pending.append(batch.slice(first, end - first))
            count, size = count + end - first, size + ends[end - 1] - done
            if count >= batch_size or size >= _BULK_BYTES:
                yield pa.concat_batches(pending)
                pending, count, size = [], 0, 0
            first, done = end, ends[end - 1]
    if pending:
        yield pa.concat_batches(pending)


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
    pending: defaultdict[QueueRef, list[NewMessage]] = defaultdict(list)
    sizes: defaultdict[QueueRef, int] = defaultdict(int)
    for ref, message in messages:
        pending[ref].append(message)
        sizes[ref] += len(message.payload) if isinstance(message.payload, bytes) else len(bytes(message.payload))
        if len(pending[ref]) >= batch_size or sizes[ref] >= _BATCH_BYTES:
            yield ref, pending.pop(ref)
            sizes.pop(ref)
    yield from pending.items()


class ClientMessageWriter:
    """Enqueues through a client, to a server or any store that it can open."""

    def __init__(self, open_client: OpenClient, store: StoreAddress) -> None:
        self._client = open_client(store)

    def put(self, ref: QueueRef, messages: list[NewMessage]) -> int:
        ids = self._client.queue(ref.queue, tenant=ref.tenant).enqueue(messages)
        return sum(not each.duplicate for each in ids)

    def close(self) -> None:
        self._client.close()


def _append_counts(options: WriteOptions, written: Iterable[WriterCommitMessage | None], batch: int | None) -> None:
    """Append a JSON line to the counts file, if one was requested, for each job or batch of a stream."""
    if options.counts_file is None:
        return
    tasks = [each for each in written if isinstance(each, RowsWritten)]
    counts = {
        "batch": batch,
        "rows": sum(each.rows for each in tasks),
        "enqueued": sum(each.enqueued for each in tasks),
    }
    with open(options.counts_file, "a", encoding="utf-8") as file:
        file.write(json.dumps(counts) + "\n")
        file.flush()
        os.fsync(file.fileno())


class QueueWriter(DataSourceArrowWriter):
    """A batch write to queues."""

    def __init__(self, options: WriteOptions, open_writer: OpenWriter) -> None:
        self._options = options
        self._open_writer = open_writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        return write_rows(self._options, self._open_writer, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _append_counts(self._options, messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the messages of finished tasks stay, and a second run of the job finds their keys."""


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write to queues."""

    def __init__(self, options: WriteOptions, open_writer: OpenWriter) -> None:
        self._options = options
        self._open_writer = open_writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        return write_rows(self._options, self._open_writer, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _append_counts(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing, as for a batch write: the next attempt finds the keys."""
