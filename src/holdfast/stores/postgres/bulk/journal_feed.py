"""Read the journal in bulk directly from the databases, by ADBC: rows arrive as Arrow, without a Python step per row.

Positions are those of `journal.py`: one number for each database. The end of a range between two positions was below
every open transaction when it was returned, so the range always holds the same rows.
"""

from collections.abc import Iterator
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

from holdfast.model.errors import InvalidArgument, StoreUnavailable
from holdfast.model.events import format_positions, parse_positions
from holdfast.model.ids import EPOCH_MS
from holdfast.stores.postgres.schema.rows import EVENTS
from holdfast.wire.arrow import EVENT_FIELDS

_SCHEMA = "holdfast"
_HORIZON = f"""
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint << 20 AS ends,
       (SELECT shard FROM {_SCHEMA}.cluster) AS shard"""

# Equals model.ids: a UUIDv7 with the sequence in rand_a and the node in the top bits of rand_b.
_HEX = f"lpad(to_hex((j.id >> 22) + {EPOCH_MS}), 12, '0')"
_ID = (
    f"left({_HEX}, 8) || '-' || right({_HEX}, 4) || '-' || to_hex(28672 | (j.id & 4095)) || '-' || "
    "to_hex(32768 | ((j.id >> 12 & 1023) << 4)) || '-000000000000'"
)
_EVENT = "(ARRAY[" + ", ".join(f"'{event.value}'" for event in EVENTS) + "])[j.event + 1]"


def _rows(shard: int, after: int, until: int, tenant: str | None) -> str:
    """Return the statement for a range of events. All values are our own numbers or a checked name; no text of a caller
    is inserted."""
    whose = "" if tenant is None else f" AND q.tenant = '{tenant}'"
    return f"""
SELECT seq, {shard}::integer AS shard, at, {_EVENT} AS event, q.tenant, q.queue, {_ID} AS id,
       attempt, version, priority, created_at AS enqueued_at, claimed_at, bytes,
       error, reason, coalesce(correlation_id, {_ID}) AS correlation_id
FROM {_SCHEMA}.journal j JOIN {_SCHEMA}.queues q ON q.key = j.queue_key
WHERE seq > {after} AND seq <= {until}{whose} ORDER BY seq"""


class PostgresFeed:
    """The journals of all databases of a store, optionally of one tenant."""

    def __init__(self, urls: list[str], tenant: str | None) -> None:
        self._tenant = tenant
        self._connections: list[Any] = []
        try:
            for url in urls:
                self._connections.append(adbc.connect(url, autocommit=True))
            self._order = [self._ask(connection, _HORIZON)["shard"][0].as_py() for connection in self._connections]
        except adbc.Error as error:
            self.close()
            raise _unavailable(error) from None
        if sorted(self._order) != list(range(len(urls))):
            self.close()
            raise InvalidArgument(
                f"the URL names {len(urls)} databases, which are shards {sorted(self._order)} of their store; name "
                "each shard once",
                field="url",
            )
        # Ordered by shard number, as positions are.
        self._connections = [each for _, each in sorted(zip(self._order, self._connections, strict=True), key=_number)]

    def measure(self, after: str | None, limit: int, until: str | None) -> tuple[int, str]:
        """Return the number of events after `after`, at most `limit` over all databases, and the position of the last
        one."""
        start = parse_positions(after, len(self._connections))
        last = None if until is None else parse_positions(until, len(self._connections))
        share = max(1, limit // len(self._connections))
        found, ends = 0, list(start)
        try:
            for shard, connection in enumerate(self._connections):
                if found >= limit:
                    break
                end = last[shard] if last is not None else self._ask(connection, _HORIZON)["ends"][0].as_py() - 1
                if end <= start[shard]:
                    continue
                many, highest = self._count(connection, start[shard], end, min(share, limit - found))
                found += many
                ends[shard] = highest if highest is not None else ends[shard]
        except adbc.Error as error:
            raise _unavailable(error) from None
        return found, format_positions(ends)

    def _count(self, connection: Any, after: int, until: int, limit: int) -> tuple[int, int | None]:
        whose = "" if self._tenant is None else f" JOIN {_SCHEMA}.queues q ON q.key = queue_key AND q.tenant = "
        whose += "" if self._tenant is None else f"'{self._tenant}'"
        table = self._ask(
            connection,
            f"SELECT count(*) AS many, max(seq) AS highest FROM (SELECT seq FROM {_SCHEMA}.journal{whose} "
            f"WHERE seq > {after} AND seq <= {until} ORDER BY seq LIMIT {limit}) AS page",
        )
        return table["many"][0].as_py(), table["highest"][0].as_py()

    def read(self, after: str | None, until: str) -> Iterator[pa.RecordBatch]:
        """Yield the events between two positions as Arrow batches."""
        start, last = (parse_positions(each, len(self._connections)) for each in (after, until))
        for shard, connection in enumerate(self._connections):
            if last[shard] <= start[shard]:
                continue
            try:
                with connection.cursor() as cursor:
                    cursor.execute(_rows(shard, start[shard], last[shard], self._tenant))
                    for batch in cursor.fetch_record_batch():
                        yield _as_events(batch)
            except adbc.Error as error:
                raise _unavailable(error) from None

    def _ask(self, connection: Any, statement: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetch_arrow_table()

    def close(self) -> None:
        """Close the connections."""
        for each in self._connections:
            each.close()


def _number(pair: tuple[int, Any]) -> int:
    return pair[0]


def _as_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch.column(name).cast(getattr(pa, kind)()) for name, (kind, _) in EVENT_FIELDS.items()]
    return pa.RecordBatch.from_arrays(columns, names=list(EVENT_FIELDS))


def _unavailable(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"reading a database failed: {str(error).splitlines()[0][:300]}")
