"""Conversion of messages to Arrow batches with the requested columns."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa

from holdfast.model.answers import Delivery, Info
from holdfast.model.message import State
from holdfast.model.names import QueueRef
from holdfast.pipeline.schemas import INSTANT, TableSchema

T = TypeVar("T")

BATCH = 2_000

_DELIVERY: dict[str, Callable[[Delivery], Any]] = {
    "id": lambda each: each.id,
    "snowflake": lambda each: each.snowflake,
    "state": lambda each: State.IN_FLIGHT.value,
    "payload": lambda each: each.payload,
    "content_type": lambda each: each.content_type,
    "headers": lambda each: list(each.headers.items()),
    "priority": lambda each: each.priority,
    "attempt": lambda each: each.attempt,
    "version": lambda each: each.receipt.version,
    "enqueued_at": lambda each: each.enqueued_at,
    "lease_expires_at": lambda each: each.lease_expires_at,
    "receipt": lambda each: str(each.receipt),
    "group": lambda each: each.group,
    "correlation_id": lambda each: each.correlation_id,
    "bytes": lambda each: each.bytes,
}

_INFO: dict[str, Callable[[Info], Any]] = {
    "id": lambda each: each.id,
    "snowflake": lambda each: each.snowflake,
    "state": lambda each: each.state.value,
    "payload": lambda each: each.payload,
    "content_type": lambda each: each.content_type,
    "headers": lambda each: list(each.headers.items()),
    "priority": lambda each: each.priority,
    "attempt": lambda each: each.attempt,
    "version": lambda each: each.version,
    "failures": lambda each: each.failures,
    "expiries": lambda each: each.expiries,
    "releases": lambda each: each.releases,
    "enqueued_at": lambda each: each.enqueued_at,
    "visible_at": lambda each: each.visible_at,
    "lease_expires_at": lambda each: each.lease_expires_at,
    "group": lambda each: each.group,
    "correlation_id": lambda each: each.correlation_id,
    "error": lambda each: each.last_error,
    "reason": lambda each: each.reason,
    "bytes": lambda each: each.bytes,
}


def delivery_batches(ref: QueueRef, deliveries: Iterable[Delivery], columns: TableSchema) -> Iterator[pa.RecordBatch]:
    """Convert claimed messages."""
    return _batches(ref, deliveries, columns, _DELIVERY)


def info_batches(ref: QueueRef, infos: Iterable[Info], columns: TableSchema) -> Iterator[pa.RecordBatch]:
    """Convert messages that were listed."""
    return _batches(ref, infos, columns, _INFO)


def _batches(
    ref: QueueRef, messages: Iterable[T], columns: TableSchema, readers: dict[str, Callable[[T], Any]]
) -> Iterator[pa.RecordBatch]:
    remaining = iter(messages)
    schema = columns.arrow
    while rows := list(islice(remaining, BATCH)):
        yield pa.RecordBatch.from_arrays([_column(ref, rows, field, readers) for field in schema], schema=schema)


def _column(ref: QueueRef, rows: list[T], field: pa.Field, readers: dict[str, Callable[[T], Any]]) -> pa.Array:
    if field.name in ("tenant", "queue"):
        return pa.repeat(pa.scalar(getattr(ref, field.name), pa.string()), len(rows))
    read = readers.get(field.name)
    if read is None:
        return pa.nulls(len(rows), field.type)
    if field.type == INSTANT:
        return pa.array(map(read, rows), pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(INSTANT)
    return pa.array([read(each) for each in rows], field.type)
