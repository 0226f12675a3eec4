"""The rows that a bulk load writes, by column: for `seen_keys`, `items`, `journal` and `count_lines`."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.events import Event
from holdfast.model.names import QueueRef
from holdfast.stores.postgres.bulk.binary_copy import (
    BIGINT,
    BOOLEAN,
    INTEGER,
    SMALLINT,
    Field,
    encode_bytes,
    encode_constant,
    encode_numbers,
)
from holdfast.stores.postgres.bulk.bulk_messages import BulkMessages
from holdfast.stores.postgres.queues.queue_info import QueueInfo
from holdfast.stores.postgres.schema.rows import DELAYED, EVENT_NUMBERS, READY

_ENQUEUED = EVENT_NUMBERS[Event.ENQUEUED]


@dataclass(frozen=True)
class BulkRows:
    """Messages with their ids and queues; `now` is the database's time."""

    bulk: BulkMessages
    # In the order of `bulk.refs`.
    infos: Sequence[QueueInfo]
    ids: pa.Array
    now: int

    def only(self, new: pa.Array | None) -> "BulkRows":
        """Return the messages without a key and those whose id is in `new`; `new` is None if all keys are new."""
        if new is None:
            return self
        kept = pc.is_in(self.ids, new)
        if (keys := self.bulk.column("key")) is not None:
            kept = pc.or_(pc.is_null(keys), kept)
        return replace(self, bulk=BulkMessages(self.bulk.refs, self.bulk.rows.filter(kept)), ids=self.ids.filter(kept))

    @property
    def keyed(self) -> int:
        """The number of messages with a key."""
        keys = self.bulk.column("key")
        return 0 if keys is None else len(keys) - keys.null_count

    def of_queues(self, values: Iterable[int | None]) -> pa.Array:
        """Return for each message its queue's value."""
        return pa.array(values, pa.int64()).take(self.bulk.rows.column("ref"))

    @cached_property
    def queue_keys(self) -> pa.Array:
        """The key of each message's queue."""
        return self.of_queues(info.key for info in self.infos)

    @cached_property
    def visible_at(self) -> pa.Array:
        """The earliest time at which each message can be claimed."""
        delays, instants = self.bulk.column("delay_ms"), self.bulk.column("deliver_at")
        at = pa.repeat(pa.scalar(self.now, pa.int64()), len(self.ids))
        if delays is not None:
            at = pc.add(at, pc.fill_null(delays, 0))
        return at if instants is None else pc.max_element_wise(at, instants)

    def sizes(self) -> Iterable[tuple[QueueInfo, list[int]]]:
        """Return the sizes of the messages of each queue."""
        return ((self.infos[index], each) for index, each in self._by_queue(self.bulk.rows.column("bytes")))

    def ready_at(self) -> dict[QueueRef, int]:
        """Return when the first message of each queue can be claimed, without paused queues."""
        return {
            self.bulk.refs[index]: min(each)
            for index, each in self._by_queue(self.visible_at)
            if not self.infos[index].row.is_paused
        }

    def items(self) -> dict[str, Field]:
        """Return the columns of `items`."""
        is_now = pc.less_equal(self.visible_at, self.now)
        return {
            "queue_key": encode_numbers(BIGINT, self.queue_keys),
            "id": encode_numbers(BIGINT, self.ids),
            "status": encode_numbers(SMALLINT, pc.if_else(is_now, READY, DELAYED)),
            "priority": encode_numbers(SMALLINT, self.bulk.column("priority")),
            "deliver_after": encode_numbers(BIGINT, self.visible_at),
            "created_at": encode_constant(BIGINT, self.now),
            "bytes": encode_numbers(BIGINT, self.bulk.column("bytes")),
            "is_json": encode_numbers(BOOLEAN, self.bulk.column("is_json")),
            "expires_at": encode_numbers(BIGINT, self._expires_at()),
            "content_type": encode_bytes(self.bulk.column("content_type")),
            "headers": encode_bytes(self.bulk.column("headers")),
            "ttl_ms": encode_numbers(BIGINT, self.bulk.column("ttl_ms")),
            "correlation_id": encode_bytes(self.bulk.column("correlation_id")),
            "max_retries": encode_numbers(INTEGER, self.bulk.column("max_retries")),
            "payload": encode_bytes(self.bulk.column("payload")),
        }

    def events(self, seq: int) -> dict[str, Field]:
        """Return the columns of `journal`, with events numbered from `seq` on."""
        return {
            "seq": encode_numbers(BIGINT, pa.array(range(seq, seq + len(self.ids)), pa.int64())),
            "at": encode_constant(BIGINT, self.now),
            "queue_key": encode_numbers(BIGINT, self.queue_keys),
            "id": encode_numbers(BIGINT, self.ids),
            "event": encode_constant(SMALLINT, _ENQUEUED),
            "priority": encode_numbers(SMALLINT, self.bulk.column("priority")),
            "attempt": encode_constant(INTEGER, 0),
            "version": encode_constant(BIGINT, 0),
            "created_at": encode_constant(BIGINT, self.now),
            "bytes": encode_numbers(BIGINT, self.bulk.column("bytes")),
            "correlation_id": encode_bytes(self.bulk.column("correlation_id")),
        }

    def counts(self) -> list[tuple[int, ...]]:
        """Return rows of `count_lines`: queue key, waiting, delayed, in flight, failed, kept, bytes."""
        delayed = {index: sum(at > self.now for at in each) for index, each in self._by_queue(self.visible_at)}
        return [
            (self.infos[index].key, len(each), delayed[index], 0, 0, 0, sum(each))
            for index, each in self._by_queue(self.bulk.rows.column("bytes"))
        ]

    def _expires_at(self) -> pa.Array:
        lives = self.of_queues(info.default_ttl_ms for info in self.infos)
        if (given := self.bulk.column("ttl_ms")) is not None:
            lives = pc.coalesce(given, lives)
        return pc.add(lives, self.now)

    def _by_queue(self, column: pa.Array) -> Iterable[tuple[int, list[int]]]:
        """Return the values of each queue that has messages here, by the queue's index."""
        if len(self.infos) == 1:
            return [(0, column.to_pylist())] if len(column) else []
        found: defaultdict[int, list[int]] = defaultdict(list)
        for index, value in zip(self.bulk.rows.column("ref").to_pylist(), column.to_pylist(), strict=True):
            found[index].append(value)
        return found.items()


@dataclass(frozen=True)
class Keys:
    """Rows of `seen_keys`, in the order of queues and keys. The order is the same everywhere, so two transactions that
    want the same keys wait for each other once and never deadlock."""

    queue_keys: pa.Array
    keys: pa.Array
    ids: pa.Array
    correlation_ids: pa.Array
    ends_at: pa.Array

    def taken(self, indices: pa.Array) -> "Keys":
        """Return the rows with these indices."""
        return Keys(*(column.take(indices) for column in self._columns()))

    def fields(self) -> dict[str, Field]:
        """Return the columns for COPY."""
        return {
            "queue_key": encode_numbers(BIGINT, self.queue_keys),
            "key": encode_bytes(self.keys),
            "id": encode_numbers(BIGINT, self.ids),
            "correlation_id": encode_bytes(self.correlation_ids),
            "ends_at": encode_numbers(BIGINT, self.ends_at),
        }

    def columns(self) -> list[list[Any]]:
        """Return the columns as lists."""
        return [column.to_pylist() for column in self._columns()]

    def _columns(self) -> tuple[pa.Array, ...]:
        return self.queue_keys, self.keys, self.ids, self.correlation_ids, self.ends_at


def split_keys(rows: BulkRows) -> tuple[Keys, Keys] | None:
    """Return the keys to remember, each once (the first message with a key has it), and the keys of queues without a
    deduplication window: keys remembered earlier still count there, but new ones are not remembered."""
    keys = rows.bulk.column("key")
    if keys is None:
        return None
    windows = rows.of_queues(info.row.policy.dedup_window_ms for info in rows.infos)
    correlation_ids = rows.bulk.column("correlation_id")
    every = Keys(
        rows.queue_keys,
        keys,
        rows.ids,
        pa.nulls(len(keys), pa.string()) if correlation_ids is None else correlation_ids,
        pc.add(windows, rows.now),
    )
    has_window = pc.greater(windows, 0)
    return _in_order(every, has_window, once=True), _in_order(every, pc.invert(has_window), once=False)


def _in_order(every: Keys, chosen: pa.Array, *, once: bool) -> Keys:
    chosen = pc.indices_nonzero(pc.and_(chosen, pc.is_valid(every.keys)))
    some = every.taken(chosen)
    table = pa.table({"queue": some.queue_keys, "key": some.keys})
    # The sort is stable: the first of equal keys comes first.
    some = some.taken(pc.sort_indices(table, sort_keys=[("queue", "ascending"), ("key", "ascending")]))
    if not once or len(some.keys) < 2:
        return some
    differs = pc.or_(
        pc.not_equal(some.keys[1:], some.keys[:-1]), pc.not_equal(some.queue_keys[1:], some.queue_keys[:-1])
    )
    return some.taken(pc.indices_nonzero(pa.concat_arrays([pa.array([True]), differs])))
