"""A batch read of a backup: a snapshot of one instant, read by any number of tasks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from holdfast.model.answers import Info
from holdfast.model.names import QueueRef
from holdfast.pipeline.schemas import TableSchema
from holdfast.pipeline.sources.rows import info_batches
from holdfast.pipeline.sources.snapshot import EVERY, SnapshotOptions


class StoredMessages(Protocol):
    def refs(self) -> list[QueueRef]: ...

    def infos(self, ref: QueueRef) -> Iterator[Info]: ...

    def close(self) -> None: ...


# Opens the messages of a directory. Handed in: only `server` knows the stores.
OpenMessages = Callable[[str], StoredMessages]


@dataclass(frozen=True)
class WholeQueue(InputPartition):
    ref: QueueRef


class CopyReader(DataSourceReader):
    def __init__(self, looking: SnapshotOptions, columns: TableSchema, open_messages: OpenMessages) -> None:
        self._looking = looking
        self._columns = columns
        self._open_messages = open_messages

    def partitions(self) -> list[WholeQueue]:
        looking = self._looking
        messages = self._open_messages(looking.place.address)
        try:
            return [
                WholeQueue(ref)
                for ref in messages.refs()
                if looking.tenant in (EVERY, ref.tenant) and looking.queue in (EVERY, ref.queue)
            ] or [WholeQueue(QueueRef(looking.tenant, looking.queue))]
        finally:
            messages.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, WholeQueue)
        state = self._looking.state
        messages = self._open_messages(self._looking.place.address)
        try:
            infos = (each for each in messages.infos(partition.ref) if state in (None, each.state.value))
            yield from info_batches(partition.ref, infos, self._columns)
        finally:
            messages.close()
