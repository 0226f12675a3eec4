"""Batch reads of a backup, which is a consistent snapshot, by any number of tasks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from holdfast.model.answers import Info
from holdfast.model.names import QueueRef
from holdfast.pipeline.schemas import TableSchema
from holdfast.pipeline.sources.rows import info_batches
from holdfast.pipeline.sources.snapshot import ALL, SnapshotOptions


class StoredMessages(Protocol):
    """The messages of a backup."""

    def refs(self) -> list[QueueRef]: ...

    def infos(self, ref: QueueRef) -> Iterator[Info]:
        """Yield the messages of a queue with their payloads."""

    def close(self) -> None: ...


# A function that opens the messages of a directory. It is passed in, because only `server` may import the stores.
OpenMessages = Callable[[str], StoredMessages]


@dataclass(frozen=True)
class WholeQueue(InputPartition):
    """A partition that contains all messages of one queue."""

    ref: QueueRef


class CopyReader(DataSourceReader):
    """Reads the messages of a backup, with one partition per queue."""

    def __init__(self, options: SnapshotOptions, columns: TableSchema, open_messages: OpenMessages) -> None:
        self._options = options
        self._columns = columns
        self._open_messages = open_messages

    def partitions(self) -> list[WholeQueue]:
        options = self._options
        messages = self._open_messages(options.store.address)
        try:
            return [
                WholeQueue(ref)
                for ref in messages.refs()
                if options.tenant in (ALL, ref.tenant) and options.queue in (ALL, ref.queue)
            ] or [WholeQueue(QueueRef(options.tenant, options.queue))]
        finally:
            messages.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, WholeQueue)
        state = self._options.state
        messages = self._open_messages(self._options.store.address)
        try:
            infos = (each for each in messages.infos(partition.ref) if state in (None, each.state.value))
            yield from info_batches(partition.ref, infos, self._columns)
        finally:
            messages.close()
