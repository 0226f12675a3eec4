"""Conversion of DataFrame rows to messages, each with a key that is computed from its data.

The key makes a write safe to repeat: a retried task, two attempts at once, or a second run of the job with other
partitions offer the same keys, and the queue accepts each key once (within its `dedup_window_ms`).
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.client.options import make_drafts as make_client_drafts
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import BYTES, JSON, Draft, NewMessage
from holdfast.model.names import DEFAULT, QueueRef, parse_ref
from holdfast.pipeline.schemas import NEW_MESSAGES

TEXT = "text/plain; charset=utf-8"

_KEY_BYTES = 20
# Columns that most jobs do not use.
_RARE = frozenset(NEW_MESSAGES.columns) - {"payload", "key", "content_type", "priority", "tenant", "queue"}


@dataclass(frozen=True)
class Shape:
    """How rows are converted to messages."""

    columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    is_keyed: bool
    tenant: str | None
    queue: str | None
    content_type: str | None
    payload_is_text: bool


def make_row_shape(
    schema: pa.Schema,
    *,
    tenant: str | None,
    queue: str | None,
    key_columns: tuple[str, ...],
    dedup: bool,
    content_type: str | None,
) -> Shape:
    """Check the columns of a DataFrame, and return how its rows are converted.

    Raise InvalidArgument before any row is written if the columns are not acceptable.
    """
    names = list(schema.names)
    known = set(NEW_MESSAGES.columns)
    if "payload" not in names:
        raise InvalidArgument(
            f"column payload is missing among {', '.join(names)}: add it, for example with "
            "df.select(to_json(struct('*')).alias('payload'))",
            field="payload",
        )
    for name in key_columns:
        if name not in names:
            raise InvalidArgument(
                f"keyColumns has {name!r}, which is not one of the columns {', '.join(names)}", field="keyColumns"
            )
    for name in names:
        if name not in known and name not in key_columns:
            raise InvalidArgument(
                f"{name!r} is not a column of messages: these are {', '.join(sorted(known))}. Drop it, put it into the "
                "payload, or name it in keyColumns if it only makes the key",
                field=name,
            )
    payload = schema.field("payload").type
    if not _is_text(payload) and not _is_binary(payload):
        raise InvalidArgument(
            f"column payload is {payload}: give binary or string, for example with to_json(...)", field="payload"
        )
    if key_columns and "key" in names:
        raise InvalidArgument(
            "column key and option keyColumns exclude each other: give one of them", field="keyColumns"
        )
    is_keyed = bool(key_columns) or "key" in names
    if not is_keyed and dedup:
        raise InvalidArgument(
            "a retried task would enqueue its rows again: give a column key or keyColumns with unique values for each "
            "row, or dedup=false if duplicate messages are acceptable",
            field="keyColumns",
        )
    return Shape(tuple(names), key_columns, dedup, tenant, queue, content_type, _is_text(payload))


def is_plain(shape: Shape) -> bool:
    """Return True if rows have only the most common columns. They are then converted by column, which is faster."""
    return _RARE.isdisjoint(shape.columns)


def make_drafts(batch: pa.RecordBatch, shape: Shape) -> Iterator[tuple[QueueRef, Draft]]:
    """Convert rows to drafts, which are checked and ready for a store."""
    for ref, message in make_messages(batch, shape):
        [draft] = make_client_drafts(message, {})
        yield ref, draft


def make_rows(batch: pa.RecordBatch, shape: Shape) -> pa.RecordBatch:
    """Convert plain rows by column, because a Python step for each row would cost as much as storing it.

    Return the columns `tenant`, `queue`, `payload` and `content_type`, and `key` and `priority` if the rows have them.
    """
    payload = batch.column("payload")
    if payload.null_count:
        raise _no_payload()
    payload = payload.cast(pa.binary())
    types = _filled(batch, "content_type", shape.content_type or (TEXT if shape.payload_is_text else BYTES))
    is_json = pc.equal(types, JSON)
    if is_json.true_count:
        each = zip(payload.to_pylist(), is_json.to_pylist(), strict=True)
        payload = pa.array([bytes(_json(text)) if is_so else text for text, is_so in each], pa.binary())
    columns = {
        "tenant": _filled(batch, "tenant", shape.tenant or DEFAULT),
        "queue": _filled(batch, "queue", shape.queue or DEFAULT),
        "payload": payload,
        "content_type": types,
    }
    if "key" in shape.columns or shape.key_columns:
        columns["key"] = _key_column(batch, shape)
        if shape.is_keyed and columns["key"].null_count:
            raise _no_key()
    if "priority" in shape.columns:
        columns["priority"] = batch.column("priority")
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _filled(batch: pa.RecordBatch, name: str, default: str) -> pa.Array:
    """Return a text column with the default for missing and empty values."""
    if name not in batch.schema.names:
        return pa.repeat(pa.scalar(default, pa.string()), batch.num_rows)
    values = pc.fill_null(batch.column(name).cast(pa.string()), "")
    return pc.if_else(pc.equal(values, ""), default, values)


def _key_column(batch: pa.RecordBatch, shape: Shape) -> pa.Array:
    if not shape.key_columns:
        return batch.column("key").cast(pa.string())
    columns = {name: batch.column(name).to_pylist() for name in shape.key_columns}
    return pa.array(_keys(columns, shape.key_columns, batch.num_rows), pa.string())


def make_messages(batch: pa.RecordBatch, shape: Shape) -> Iterator[tuple[QueueRef, NewMessage]]:
    """Convert rows to messages. Raise InvalidArgument for a row without a payload, or without a required key."""
    columns = {name: batch.column(name).to_pylist() for name in shape.columns}
    refs_and_keys = zip(
        _refs(columns, shape, batch.num_rows), _checked_keys(columns, shape, batch.num_rows), strict=True
    )
    for row, (ref, key) in enumerate(refs_and_keys):
        yield ref, _message(columns, row, key, shape)


def _refs(columns: Mapping[str, list[Any]], shape: Shape, rows: int) -> Iterable[QueueRef]:
    default = parse_ref(shape.tenant or DEFAULT, shape.queue or DEFAULT)
    if "tenant" not in columns and "queue" not in columns:
        return repeat(default, rows)
    tenants, queues = (columns.get(name) or [None] * rows for name in ("tenant", "queue"))
    refs: dict[tuple[str, str], QueueRef] = {}

    def ref_of(tenant: str | None, queue: str | None) -> QueueRef:
        names = tenant or default.tenant, queue or default.queue
        return refs[names] if names in refs else refs.setdefault(names, parse_ref(*names))

    return map(ref_of, tenants, queues)


def _checked_keys(columns: Mapping[str, list[Any]], shape: Shape, rows: int) -> list[str | None]:
    keys = columns.get("key") or _keys(columns, shape.key_columns, rows)
    if shape.is_keyed and None in keys:
        raise _no_key()
    return keys


def _message(columns: Mapping[str, list[Any]], row: int, key: str | None, shape: Shape) -> NewMessage:
    payload = columns["payload"][row]
    if payload is None:
        raise _no_payload()
    content_type = _value(columns, "content_type", row) or shape.content_type
    if isinstance(payload, str):
        payload = payload.encode()
        content_type = content_type or TEXT
    if content_type == JSON:
        payload, content_type = _json(payload), None
    headers = _value(columns, "headers", row)
    delay_ms, ttl_ms = _value(columns, "delay_ms", row), _value(columns, "ttl_ms", row)
    return NewMessage(
        payload,
        key=key,
        content_type=content_type,
        headers=None if headers is None else dict(headers),
        priority=_value(columns, "priority", row),
        delay=None if delay_ms is None else timedelta(milliseconds=delay_ms),
        deliver_at=_value(columns, "deliver_at", row),
        ttl=None if ttl_ms is None else timedelta(milliseconds=ttl_ms),
        group=_value(columns, "group", row),
        correlation_id=_value(columns, "correlation_id", row),
        max_retries=_value(columns, "max_retries", row),
    )


def _no_key() -> InvalidArgument:
    return InvalidArgument(
        "a row has no key, and a retried task would enqueue it again: give each row a key, or give dedup=false"
    )


def _no_payload() -> InvalidArgument:
    return InvalidArgument("a row's payload is null: give every row a payload", field="payload")


def _value(columns: Mapping[str, list[Any]], name: str, row: int) -> Any:
    return columns[name][row] if name in columns else None


def _json(payload: bytes) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.decode(payload, type=msgspec.Raw))
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"a row's content type is {JSON}, but its payload is not valid JSON: {error}") from None


def _keys(columns: Mapping[str, list[Any]], names: tuple[str, ...], rows: int) -> list[str | None]:
    if not names:
        return [None] * rows
    return [_digest(values) for values in zip(*(columns[name] for name in names), strict=True)]


def _digest(values: tuple[Any, ...]) -> str:
    """Hash the values with their types: 1 and "1" give different keys, and so do ("ab", "c") and ("a", "bc")."""
    text = msgspec.json.encode([_plain(each) for each in values])
    return hashlib.sha256(text).hexdigest()[: 2 * _KEY_BYTES]


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return {"float": value.hex()}
        case bytes():
            return {"bytes": value.hex()}
        case Decimal():
            return {"decimal": str(value)}
        case datetime() | date():
            return {type(value).__name__: value.isoformat()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict():
            return {"struct": sorted([str(name), _plain(each)] for name, each in value.items())}
        case _:
            raise InvalidArgument(f"a {type(value).__name__} cannot be part of a key", field="keyColumns")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
