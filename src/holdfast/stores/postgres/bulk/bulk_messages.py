"""Messages of a bulk load, one Arrow array per column.

The columns `ref` (the index of the message's queue in `BulkMessages.refs`), `payload`, `bytes`, `is_json` and
`priority` always exist; the others only if a message has a value for them. `content_type` and `headers` are as the
database stores them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.message import DEFAULT_PRIORITY, JSON, Draft, check_size
from holdfast.model.names import QueueRef, parse_ref
from holdfast.model.parsing.checks import MAX_TEXT, check_integer, check_text
from holdfast.stores.postgres.schema.rows import decode_type, encode_headers, encode_type, is_json

_ALWAYS: dict[str, tuple[pa.DataType, Callable[[Draft], object]]] = {
    "payload": (pa.binary(), lambda draft: draft.payload),
    "bytes": (pa.int64(), lambda draft: draft.bytes),
    "is_json": (pa.bool_(), is_json),
    "priority": (pa.int16(), lambda draft: draft.priority),
}
_SOMETIMES: dict[str, tuple[pa.DataType, Callable[[Draft], object]]] = {
    "key": (pa.string(), lambda draft: draft.key),
    "content_type": (pa.string(), lambda draft: encode_type(draft.content_type)),
    "headers": (pa.binary(), lambda draft: encode_headers(draft.headers)),
    "delay_ms": (pa.int64(), lambda draft: draft.delay_ms or None),
    "deliver_at": (pa.int64(), lambda draft: draft.deliver_at),
    "ttl_ms": (pa.int64(), lambda draft: draft.ttl_ms),
    "correlation_id": (pa.string(), lambda draft: draft.correlation_id),
    "max_retries": (pa.int32(), lambda draft: draft.max_retries),
}


@dataclass(frozen=True, slots=True)
class BulkMessages:
    """Messages of several queues."""

    refs: tuple[QueueRef, ...]
    rows: pa.RecordBatch

    def column(self, name: str) -> pa.Array | None:
        """Return a column, or None if no message has a value for it."""
        return self.rows.column(name) if name in self.rows.schema.names else None

    def only(self, refs: Collection[QueueRef]) -> "BulkMessages":
        """Return the messages of these queues."""
        if len(refs) == len(self.refs):
            return self
        indexes = [index for index, ref in enumerate(self.refs) if ref in refs]
        found = pc.index_in(self.rows.column("ref"), pa.array(indexes, pa.int32()))
        rows = self.rows.set_column(self.rows.schema.get_field_index("ref"), "ref", found)
        return BulkMessages(tuple(self.refs[index] for index in indexes), rows.filter(pc.is_valid(found)))

    def drafts(self) -> dict[QueueRef, list[Draft]]:
        """Return the rows as drafts. The rows must come from `check_rows`."""
        made: dict[QueueRef, list[Draft]] = {ref: [] for ref in self.refs}
        for row in self.rows.to_pylist():
            made[self.refs[row["ref"]]].append(
                Draft(
                    payload=row["payload"],
                    is_json=row["is_json"],
                    priority=row["priority"],
                    key=row.get("key"),
                    content_type=decode_type(row.get("content_type")),
                )
            )
        return made


def bulk_from_drafts(drafts: Mapping[QueueRef, Sequence[Draft]]) -> BulkMessages:
    """Return checked drafts as columns. They must have neither groups nor payloads in pieces."""
    flat = [draft for each in drafts.values() for draft in each]
    indexes = [index for index, each in enumerate(drafts.values()) for _ in each]
    arrays = {
        name: pa.array([value(draft) for draft in flat], kind)
        for name, (kind, value) in {**_ALWAYS, **_SOMETIMES}.items()
    }
    return BulkMessages(tuple(drafts), _filled({"ref": pa.array(indexes, pa.int32()), **arrays}))


def check_rows(rows: pa.RecordBatch, max_payload: int) -> BulkMessages:
    """Return rows of `tenant`, `queue`, `payload`, `content_type`, and optionally `key` and `priority`, which is what
    most loads have. Raise an error as `check_draft` would for one of them."""
    given = dict(zip(rows.schema.names, rows.columns, strict=True))
    payload, types = given["payload"].cast(pa.binary()), given["content_type"].dictionary_encode()
    sizes = pc.binary_length(payload).cast(pa.int64())
    check_size("payload", pc.max(sizes).as_py() or 0, max_payload)
    kinds = [check_text("content_type", each) for each in types.dictionary.to_pylist()]
    refs, indexes = _refs(given["tenant"].dictionary_encode(), given["queue"].dictionary_encode())
    arrays = {
        "ref": indexes,
        "payload": payload,
        "bytes": sizes,
        "is_json": pa.array([each == JSON for each in kinds], pa.bool_()).take(types.indices),
        "priority": _priorities(given.get("priority"), rows.num_rows),
        "content_type": pa.array([encode_type(each) for each in kinds], pa.string()).take(types.indices),
    }
    if "key" in given:
        arrays["key"] = given["key"].cast(pa.string())
        _check_keys(arrays["key"])
    return BulkMessages(refs, _filled(arrays))


def _filled(arrays: dict[str, pa.Array]) -> pa.RecordBatch:
    """Return a batch without the optional columns that are all null."""
    filled = {name: each for name, each in arrays.items() if name not in _SOMETIMES or each.null_count < len(each)}
    return pa.RecordBatch.from_arrays(list(filled.values()), list(filled))


def _refs(tenants: pa.DictionaryArray, queues: pa.DictionaryArray) -> tuple[tuple[QueueRef, ...], pa.Array]:
    tenant_names, queue_names = tenants.dictionary.to_pylist(), queues.dictionary.to_pylist()
    pairs = pc.add(pc.multiply(tenants.indices.cast(pa.int64()), len(queue_names)), queues.indices.cast(pa.int64()))
    found = pairs.dictionary_encode()
    refs = tuple(
        parse_ref(tenant_names[pair // len(queue_names)], queue_names[pair % len(queue_names)])
        for pair in found.dictionary.to_pylist()
    )
    return refs, found.indices


def _priorities(given: pa.Array | None, rows: int) -> pa.Array:
    if given is None:
        return pa.repeat(pa.scalar(DEFAULT_PRIORITY, pa.int16()), rows)
    filled = pc.fill_null(given, DEFAULT_PRIORITY)
    for each in pc.min_max(filled).as_py().values():
        check_integer("priority", each, 0, 255)
    return filled.cast(pa.int16())


def _check_keys(keys: pa.Array) -> None:
    """Check keys. Printable ASCII of a valid length is checked for all rows at once, any other key by itself."""
    lengths = pc.binary_length(keys)
    has_room = pc.and_(pc.greater(lengths, 0), pc.less_equal(lengths, MAX_TEXT))
    is_plain = pc.and_(pc.ascii_is_printable(keys), has_room)
    for each in keys.filter(pc.invert(pc.fill_null(is_plain, True))).to_pylist():
        check_text("key", each)
