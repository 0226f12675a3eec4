"""The lake's tables as data: columns, how files are split and sorted, and what prunes them.

A column is only ever added, at the end and nullable: older files have nulls there.
"""

from typing import NamedTuple

import pyarrow as pa

from holdfast.pipeline import schemas
from holdfast.pipeline.schemas import INSTANT, Field, TableSchema

# On every file of a table that has days; it stands in no file.
DAY = "day"
# Beside the tables, where they are Iceberg's.
ICEBERG_CATALOG = "iceberg-catalog.db"


class TableShape(NamedTuple):
    table: TableSchema
    # The instant whose day (UTC) a row belongs to; None: the table is not split.
    day_of: str | None
    # Within a file, after the day: so that the files' statistics say which hold a tenant or a queue.
    sorted_by: tuple[str, ...]
    # Columns whose lowest and highest value each file tells in the log.
    bounds: tuple[str, ...] = ("tenant", "queue")

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def arrow(self) -> pa.Schema:
        """With the day, as a log of the table has it."""
        return self.table.arrow if self.day_of is None else self.table.arrow.append(pa.field(DAY, pa.date32()))


def _table(name: str, **columns: pa.DataType) -> TableSchema:
    return TableSchema(name, tuple(Field(*each) for each in columns.items()))


_TEXT, _INT, _LONG, _SHORT = pa.string(), pa.int32(), pa.int64(), pa.int16()

EVENTS = TableShape(schemas.EVENTS, "at", ("tenant", "queue", "at", "shard", "seq"), ("tenant", "queue", "at"))

# One row for each end of a message: what the event that ended it says. A failed message that was redriven has another.
MESSAGES = TableShape(
    _table(
        "messages",
        id=_TEXT,
        tenant=_TEXT,
        queue=_TEXT,
        state=_TEXT,
        priority=_SHORT,
        attempts=_INT,
        version=_LONG,
        enqueued_at=INSTANT,
        claimed_at=INSTANT,
        settled_at=INSTANT,
        wait_ms=_LONG,
        work_ms=_LONG,
        bytes=_LONG,
        error=_TEXT,
        reason=_TEXT,
        correlation_id=_TEXT,
        shard=_INT,
        seq=_LONG,
    ),
    "settled_at",
    ("tenant", "queue", "settled_at", "id"),
    ("tenant", "queue", "settled_at"),
)

_OF_PAYLOADS = (
    *("id", "tenant", "queue", "priority", "enqueued_at", "content_type", "headers", "group", "correlation_id"),
    "payload",
)

# What the journal never carries. Written by `drain`, and by `archive --payloads` of what stands in the store.
PAYLOADS = TableShape(
    TableSchema(
        "payloads",
        schemas.MESSAGES.only(_OF_PAYLOADS).fields,
    ),
    "enqueued_at",
    ("tenant", "queue", "id"),
    ("tenant", "queue", "enqueued_at"),
)

COUNTED = (
    *("enqueued", "claimed", "succeeded", "retried", "failed", "expired", "released", "extended", "redriven"),
    *("removed", "moved"),
)

# Per tenant, queue and minute. `late`: ends later after the enqueue than the queue's promise. Percentiles are of the
# minute; those of a longer time are computed from the events, never from these.
MINUTE = TableShape(
    _table(
        "minute",
        tenant=_TEXT,
        queue=_TEXT,
        minute=INSTANT,
        **dict.fromkeys((*COUNTED, "bytes_in", "bytes_out"), _LONG),
        **dict.fromkeys(
            (f"{kind}_{figure}_ms" for kind in ("wait", "work") for figure in ("p50", "p95", "p99", "max")), _LONG
        ),
        late=_LONG,
    ),
    "minute",
    ("tenant", "queue", "minute"),
    ("tenant", "queue", "minute"),
)

# Append-only: a day that was billed changes by a row of its own, `adjustment`, never in place.
BILL_DAY = TableShape(
    _table(
        "bill_day",
        date=pa.date32(),
        tenant=_TEXT,
        queue=_TEXT,
        kind=_TEXT,
        **dict.fromkeys(("messages", "deliveries", "bytes_in", "bytes_out"), _LONG),
        written_at=INSTANT,
    ),
    None,
    ("date", "tenant", "queue"),
)

VIOLATIONS = TableShape(
    _table(
        "violations",
        rule=_TEXT,
        tenant=_TEXT,
        queue=_TEXT,
        id=_TEXT,
        detail=_TEXT,
        first_seen=INSTANT,
        run=_TEXT,
    ),
    None,
    ("rule", "tenant", "queue", "id"),
)

TABLES = {shape.name: shape for shape in (EVENTS, MESSAGES, PAYLOADS, MINUTE, BILL_DAY, VIOLATIONS)}
