"""Messages as they lie in a queue: a batch read by state, which claims nothing.

Over a server it is no snapshot of one instant: a message that changes its state while it is read may be there or not.
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
from holdfast.pipeline.sources.options import PLACE, StoreAddress, count, one_of, parse_options, place_of, text
from holdfast.pipeline.sources.rows import info_batches

OPTIONS = {
    **PLACE,
    "tenant": text,
    "queue": text,
    "state": one_of("ready", "in_flight", "failed", "succeeded"),
    "rowsPerPartition": count,
}
_ROWS_PER_PARTITION = 20_000
EVERY = "*"


@dataclass(frozen=True)
class SnapshotOptions:
    place: StoreAddress
    tenant: str
    queue: str
    state: str | None
    rows_per_partition: int


def looking_of(given: Mapping[str, str]) -> SnapshotOptions:
    options = parse_options("a batch read of holdfast", given, OPTIONS)
    tenant, queue = options.get("tenant", DEFAULT), options.get("queue", DEFAULT)
    for kind, name in (("tenant", tenant), ("queue", queue)):
        if name != EVERY:
            parse_name(kind, name)
    return SnapshotOptions(
        place=place_of("holdfast", options),
        tenant=tenant,
        queue=queue,
        state=options.get("state"),
        rows_per_partition=options.get("rowsPerPartition", _ROWS_PER_PARTITION),
    )


@dataclass(frozen=True)
class SnapshotRange(InputPartition):
    """Messages of a queue by id: behind `after`, up to `until` (None: to the end)."""

    ref: QueueRef
    after: str | None
    until: int | None


class SnapshotReader(DataSourceReader):
    def __init__(self, looking: SnapshotOptions, columns: TableSchema, open_client: OpenClient) -> None:
        self._looking = looking
        self._columns = columns
        self._open_client = open_client

    def partitions(self) -> list[SnapshotRange]:
        with self._open_client(self._looking.place) as client:
            return [shelf for ref in self._refs(client) for shelf in self._shelves(_queue(client, ref))]

    def _refs(self, client: Holdfast) -> list[QueueRef]:
        looking = self._looking
        if EVERY not in (looking.tenant, looking.queue):
            return [parse_ref(looking.tenant, looking.queue)]
        tenants = [each.tenant for each in client.tenants()] if looking.tenant == EVERY else [looking.tenant]
        return [
            QueueRef(tenant, each.queue)
            for tenant in tenants
            for each in client.queues(tenant=tenant)
            if looking.queue in (EVERY, each.queue)
        ]

    def _shelves(self, queue: Queue) -> Iterator[SnapshotRange]:
        """Walks the queue without payloads; one that is small is not walked."""
        step = min(self._looking.rows_per_partition, MAX_BATCH)
        stats = queue.stats()
        after: str | None = None
        if stats.ready + stats.delayed + stats.in_flight + stats.failed > step:
            while True:
                page = queue.list(self._looking.state, step, after)
                if page.cursor is None:
                    break
                yield SnapshotRange(queue.ref, after, page[-1].snowflake)
                after = page.cursor
        yield SnapshotRange(queue.ref, after, None)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SnapshotRange)
        with self._open_client(self._looking.place) as client:
            yield from info_batches(partition.ref, self._infos(_queue(client, partition.ref), partition), self._columns)

    def _infos(self, queue: Queue, shelf: SnapshotRange) -> Iterator[Info]:
        with_payload = "payload" in self._columns.columns
        after = shelf.after
        while True:
            try:
                page = queue.list(self._looking.state, 1_000, after, payload=with_payload)
            except QueueNotFound:
                return  # deleted since
            for each in page:
                if shelf.until is not None and each.snowflake > shelf.until:
                    return
                yield each
            if page.cursor is None:
                return
            after = page.cursor


def _queue(client: Holdfast, ref: QueueRef) -> Queue:
    return client.queue(ref.queue, tenant=ref.tenant)
