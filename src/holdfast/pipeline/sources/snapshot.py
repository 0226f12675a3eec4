"""Batch reads of the messages of queues by state, without claiming them.

A read from a server is not a consistent snapshot: a message whose state changes during the read may be missing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from holdfast.client.blocking import Holdfast, Queue
from holdfast.model.answers import Info
from holdfast.model.errors import QueueNotFound
from holdfast.model.message import MAX_BATCH
from holdfast.model.names import DEFAULT, QueueRef, parse_name, parse_ref
from holdfast.pipeline.schemas import TableSchema
from holdfast.pipeline.sources.claims import OpenClient
from holdfast.pipeline.sources.options import (
    STORE_OPTIONS,
    StoreAddress,
    count,
    one_of,
    parse_options,
    parse_store_address,
    text,
)
from holdfast.pipeline.sources.rows import info_batches

OPTIONS = {
    **STORE_OPTIONS,
    "tenant": text,
    "queue": text,
    "state": one_of("ready", "in_flight", "failed", "succeeded"),
    "rowsPerPartition": count,
}
_ROWS_PER_PARTITION = 20_000
ALL = "*"


@dataclass(frozen=True)
class SnapshotOptions:
    """The parsed options of a batch read."""

    store: StoreAddress
    tenant: str
    queue: str
    state: str | None
    rows_per_partition: int


def parse_snapshot_options(given: Mapping[str, str]) -> SnapshotOptions:
    """Parse the options of a batch read. Raise InvalidArgument for a wrong option."""
    options = parse_options("a batch read of holdfast", given, OPTIONS)
    tenant, queue = options.get("tenant", DEFAULT), options.get("queue", DEFAULT)
    for kind, name in (("tenant", tenant), ("queue", queue)):
        if name != ALL:
            parse_name(kind, name)
    return SnapshotOptions(
        store=parse_store_address("holdfast", options),
        tenant=tenant,
        queue=queue,
        state=options.get("state"),
        rows_per_partition=options.get("rowsPerPartition", _ROWS_PER_PARTITION),
    )


@dataclass(frozen=True)
class SnapshotRange(InputPartition):
    """The messages of a queue with ids after `after`, up to `until` (None: to the end)."""

    ref: QueueRef
    after: str | None
    until: int | None


class SnapshotReader(DataSourceReader):
    """Reads messages from a server, in partitions by id."""

    def __init__(self, options: SnapshotOptions, columns: TableSchema, open_client: OpenClient) -> None:
        self._options = options
        self._columns = columns
        self._open_client = open_client

    def partitions(self) -> list[SnapshotRange]:
        with self._open_client(self._options.store) as client:
            return [range for ref in self._refs(client) for range in self._ranges(_queue(client, ref))]

    def _refs(self, client: Holdfast) -> list[QueueRef]:
        options = self._options
        if ALL not in (options.tenant, options.queue):
            return [parse_ref(options.tenant, options.queue)]
        tenants = [each.tenant for each in client.tenants()] if options.tenant == ALL else [options.tenant]
        return [
            QueueRef(tenant, each.queue)
            for tenant in tenants
            for each in client.queues(tenant=tenant)
            if options.queue in (ALL, each.queue)
        ]

    def _ranges(self, queue: Queue) -> Iterator[SnapshotRange]:
        """Divide a queue into ranges by listing it without payloads. A small queue is one range."""
        step = min(self._options.rows_per_partition, MAX_BATCH)
        stats = queue.stats()
        after: str | None = None
        if stats.ready + stats.delayed + stats.in_flight + stats.failed > step:
            while True:
                page = queue.list(self._options.state, step, after)
                if page.cursor is None:
                    break
                yield SnapshotRange(queue.ref, after, page[-1].snowflake)
                after = page.cursor
        yield SnapshotRange(queue.ref, after, None)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SnapshotRange)
        with self._open_client(self._options.store) as client:
            yield from info_batches(partition.ref, self._infos(_queue(client, partition.ref), partition), self._columns)

    def _infos(self, queue: Queue, range: SnapshotRange) -> Iterator[Info]:
        with_payload = "payload" in self._columns.columns
        after = range.after
        while True:
            try:
                page = queue.list(self._options.state, 1_000, after, payload=with_payload)
            except QueueNotFound:
                return  # the queue was deleted meanwhile
            for each in page:
                if range.until is not None and each.snowflake > range.until:
                    return
                yield each
            if page.cursor is None:
                return
            after = page.cursor


def _queue(client: Holdfast, ref: QueueRef) -> Queue:
    return client.queue(ref.queue, tenant=ref.tenant)
