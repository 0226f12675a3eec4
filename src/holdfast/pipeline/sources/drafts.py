"""Rows of a DataFrame as messages to enqueue, each under a key that comes from its data.

The key is what makes a write safe to repeat: a task that is tried again, two attempts at once, or a whole job run
again with other partitions offer the same keys, and the queue takes each once (within its `dedup_window`).
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

from holdfast.client.options import make_drafts as made_of
from holdfast.model.errors import InvalidArgument
from holdfast.model.message import BYTES, JSON, Draft, NewMessage
from holdfast.model.names import DEFAULT, QueueRef, parse_ref
from holdfast.pipeline.schemas import NEW_MESSAGES

TEXT = "text/plain; charset=utf-8"

_KEY_BYTES = 20
# Columns that most rows do without.
_RARE = frozenset(NEW_MESSAGES.columns) - {"payload", "key", "content_type", "priority", "tenant", "queue"}


@dataclass(frozen=True)
class Shape:
    """How a row becomes a message."""

    columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    is_keyed: bool
    tenant: str | None
    queue: str | None
    content_type: str | None
    payload_is_text: bool


def shape_of(
    schema: pa.Schema,
    *,
    tenant: str | None,
    queue: str | None,
    key_columns: tuple[str, ...],
    dedup: bool,
    content_type: str | None,
) -> Shape:
    """Everything that is wrong with a DataFrame's columns is said before a row is written."""
    names = list(schema.names)
    known = set(NEW_MESSAGES.columns)
    if "payload" not in names:
        raise InvalidArgument(
            f"there is no column payload among {', '.join(names)}: make one, as with "
            "df.select(to_json(struct('*')).alias('payload'))",
            field="payload",
        )
    for name in key_columns:
        if name not in names:
            raise InvalidArgument(
                f"keyColumns has {name!r}, which is no column: {', '.join(names)}", field="keyColumns"
            )
    for name in names:
        if name not in known and name not in key_columns:
            raise InvalidArgument(
                f"{name!r} is no column of a message: they are {', '.join(sorted(known))}. Drop it, or put it into the "
                "payload; one that only makes the key is named in keyColumns",
                field=name,
            )
    payload = schema.field("payload").type
    if not _is_text(payload) and not _is_binary(payload):
        raise InvalidArgument(
            f"column payload is {payload}: give binary or string, as with to_json(...)", field="payload"
        )
    if key_columns and "key" in names:
        raise InvalidArgument("there is a column key, and keyColumns: which of them is the key?", field="keyColumns")
    is_keyed = bool(key_columns) or "key" in names
    if not is_keyed and dedup:
        raise InvalidArgument(
            "a task that is tried again would enqueue its rows again: give a column key, or keyColumns, whose values "
            "tell one row from every other; or dedup=false, if messages may come twice",
            field="keyColumns",
        )
    return Shape(tuple(names), key_columns, dedup, tenant, queue, content_type, _is_text(payload))


def is_plain(shape: Shape) -> bool:
    """Rows have little more than a key and a payload, which is most of what is loaded."""
    return _RARE.isdisjoint(shape.columns)


def drafts_of(batch: pa.RecordBatch, shape: Shape) -> Iterator[tuple[QueueRef, Draft]]:
    """As `messages_of`, checked and ready for a store."""
    for ref, message in messages_of(batch, shape):
        [draft] = made_of(message, {})
        yield ref, draft


def rows_of(batch: pa.RecordBatch, shape: Shape) -> pa.RecordBatch:
    """Of plain rows, by column: `tenant`, `queue`, `payload`, `content_type`, and `key` and `priority` if they are
    there. A step of Python for each row costs as much as storing it."""
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
    """A column of text, with the default where it says nothing."""
    if name not in batch.schema.names:
        return pa.repeat(pa.scalar(default, pa.string()), batch.num_rows)
    said = pc.fill_null(batch.column(name).cast(pa.string()), "")
    return pc.if_else(pc.equal(said, ""), default, said)


def _key_column(batch: pa.RecordBatch, shape: Shape) -> pa.Array:
    if not shape.key_columns:
        return batch.column("key").cast(pa.string())
    columns = {name: batch.column(name).to_pylist() for name in shape.key_columns}
    return pa.array(_keys(columns, shape.key_columns, batch.num_rows), pa.string())


def messages_of(batch: pa.RecordBatch, shape: Shape) -> Iterator[tuple[QueueRef, NewMessage]]:
    columns = {name: batch.column(name).to_pylist() for name in shape.columns}
    places = zip(_refs(columns, shape, batch.num_rows), _checked_keys(columns, shape, batch.num_rows), strict=True)
    for row, (ref, key) in enumerate(places):
        yield ref, _message(columns, row, key, shape)


def _refs(columns: Mapping[str, list[Any]], shape: Shape, rows: int) -> Iterable[QueueRef]:
    whole = parse_ref(shape.tenant or DEFAULT, shape.queue or DEFAULT)
    if "tenant" not in columns and "queue" not in columns:
        return repeat(whole, rows)
    tenants, queues = (columns.get(name) or [None] * rows for name in ("tenant", "queue"))
    refs: dict[tuple[str, str], QueueRef] = {}

    def ref_of(tenant: str | None, queue: str | None) -> QueueRef:
        place = tenant or whole.tenant, queue or whole.queue
        return refs[place] if place in refs else refs.setdefault(place, parse_ref(*place))

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
    return InvalidArgument("a row has no key: it would be enqueued again with its task; or give dedup=false")


def _no_payload() -> InvalidArgument:
    return InvalidArgument("a row's payload is null: give every message one", field="payload")


def _value(columns: Mapping[str, list[Any]], name: str, row: int) -> Any:
    return columns[name][row] if name in columns else None


def _json(payload: bytes) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.decode(payload, type=msgspec.Raw))
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"a row's content type is {JSON}, and its payload is not: {error}") from None


def _keys(columns: Mapping[str, list[Any]], names: tuple[str, ...], rows: int) -> list[str | None]:
    if not names:
        return [None] * rows
    return [_digest(values) for values in zip(*(columns[name] for name in names), strict=True)]


def _digest(values: tuple[Any, ...]) -> str:
    """Of the values with their kinds: 1 and "1" are two keys, and so are ("ab", "c") and ("a", "bc")."""
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
            raise InvalidArgument(f"a {type(value).__name__} cannot make a key", field="keyColumns")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
