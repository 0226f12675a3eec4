"""The tables of the pipeline. One list of fields gives the schemas of a table for Arrow and for Spark.

Instants are timestamps here, because people write queries against these tables. On the wire and in stores they are
whole milliseconds.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from holdfast.model.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

INSTANT = pa.timestamp("us", tz="UTC")

_SPARK_TYPES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.date32(): "date",
    INSTANT: "timestamp",
    pa.map_(pa.string(), pa.string()): "map<string,string>",
}


class Field(NamedTuple):
    """A column of a table."""

    name: str
    type: pa.DataType


class TableSchema(NamedTuple):
    """The columns of a table, in order. All are nullable in Spark."""

    name: str
    fields: tuple[Field, ...]

    @property
    def columns(self) -> list[str]:
        return [each.name for each in self.fields]

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema(list(self.fields))

    @property
    def ddl(self) -> str:
        """Return the columns in the syntax of SQL."""
        return ", ".join(f"`{each.name}` {_SPARK_TYPES[each.type]}" for each in self.fields)

    @property
    def spark(self) -> "StructType":
        """Return the columns as Spark's type."""
        from pyspark.sql.types import StructType

        parsed = StructType.fromDDL(self.ddl)
        assert isinstance(parsed, StructType)
        return parsed

    def only(self, columns: Iterable[str]) -> "TableSchema":
        """Return a schema with only these columns, in this order. Raise InvalidArgument for an unknown column."""
        by_name = {each.name: each for each in self.fields}
        chosen = list(columns)
        for name in chosen:
            if name not in by_name:
                raise InvalidArgument(
                    f"{self.name} has no column {name!r}; its columns are {', '.join(by_name)}", field=name
                )
        return TableSchema(self.name, tuple(by_name[name] for name in chosen))


def _table(name: str, fields: Sequence[tuple[str, pa.DataType]]) -> TableSchema:
    return TableSchema(name, tuple(Field(*each) for each in fields))


# One row for each transition of a message (SPEC 9.1). Events have no payload.
EVENTS = _table(
    "events",
    [
        ("seq", pa.int64()),
        ("shard", pa.int32()),
        ("at", INSTANT),
        ("event", pa.string()),
        ("tenant", pa.string()),
        ("queue", pa.string()),
        ("id", pa.string()),
        ("attempt", pa.int32()),
        ("version", pa.int64()),
        ("priority", pa.int16()),
        ("enqueued_at", INSTANT),
        ("claimed_at", INSTANT),
        ("bytes", pa.int64()),
        ("error", pa.string()),
        ("reason", pa.string()),
        ("correlation_id", pa.string()),
    ],
)

# One row for each message that a batch read finds, or that a streaming read claims. A batch read has no receipts.
MESSAGES = _table(
    "messages",
    [
        ("tenant", pa.string()),
        ("queue", pa.string()),
        ("id", pa.string()),
        ("snowflake", pa.int64()),
        ("state", pa.string()),
        ("payload", pa.binary()),
        ("content_type", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("priority", pa.int16()),
        ("attempt", pa.int32()),
        ("version", pa.int64()),
        ("failures", pa.int32()),
        ("expiries", pa.int32()),
        ("releases", pa.int32()),
        ("enqueued_at", INSTANT),
        ("visible_at", INSTANT),
        ("lease_expires_at", INSTANT),
        ("receipt", pa.string()),
        ("group", pa.string()),
        ("correlation_id", pa.string()),
        ("error", pa.string()),
        ("reason", pa.string()),
        ("bytes", pa.int64()),
    ],
)

# The columns that a sink accepts: `payload` (binary or string) is required, all others are optional.
NEW_MESSAGES = _table(
    "new messages",
    [
        ("payload", pa.binary()),
        ("key", pa.string()),
        ("tenant", pa.string()),
        ("queue", pa.string()),
        ("content_type", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("priority", pa.int32()),
        ("delay_ms", pa.int64()),
        ("deliver_at", INSTANT),
        ("ttl_ms", pa.int64()),
        ("group", pa.string()),
        ("correlation_id", pa.string()),
        ("max_retries", pa.int32()),
    ],
)


# One row for each call of `enqueue` in a server's log, with its position there. `land` stores these calls.
LOGGED_CALLS = _table(
    "logged calls",
    [
        ("log", pa.string()),
        ("node", pa.string()),
        ("epoch", pa.int64()),
        ("segment", pa.int64()),
        ("lane", pa.int32()),
        ("place", pa.int64()),
        ("span_first", pa.int64()),
        ("span_end", pa.int64()),
        ("tenant", pa.string()),
        ("queue", pa.string()),
        ("queue_id", pa.int64()),
        ("enqueued_at", INSTANT),
        ("messages", pa.int32()),
        ("call", pa.binary()),
    ],
)


def as_instants(batch: pa.RecordBatch, table: TableSchema) -> pa.RecordBatch:
    """Return a batch with the table's columns and types. Integer milliseconds become timestamps."""
    columns = []
    for field in table.fields:
        column = batch.column(field.name)
        if column.type != field.type:
            if field.type == INSTANT and pa.types.is_integer(column.type):
                column = column.cast(pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
            column = column.cast(field.type)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=table.arrow)
